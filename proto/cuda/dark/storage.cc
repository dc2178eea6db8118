// Context-local storage: (context, key) -> (value, destructor).
//
// A list of nodes that are never freed and never unlinked, so that a reader needs no lock: it
// reads context, key and value atomically, between two reads of the node's version (odd
// while a writer changes it). Writers hold one mutex. A deleted node is used again. The list stays
// short: one entry per copy of the CUDA runtime in the process and context.
#include <atomic>
#include <cstdlib>

#include "proto/base/pthread_mutex.h"
#include "proto/cuda/dark/dark.h"
#include "proto/cuda/dark/internal.h"

namespace gantry::dark {
namespace {

constexpr int kInvalidHandle = 400;
constexpr int kInvalidContext = 201;
constexpr int kOutOfMemory = 2;

struct Node {
    std::atomic<std::uint64_t> version{0};
    std::atomic<void*> context{nullptr};
    std::atomic<void*> key{nullptr};
    std::atomic<void*> value{nullptr};
    std::atomic<void (*)(void*, void*, void*)> destroy{nullptr};
    Node* next = nullptr;  ///< Set before the node is published, constant afterwards.
};

std::atomic<Node*> g_head{nullptr};
PthreadMutex g_write_mutex;

void write_node(Node* node, void* context, void* key, void* value,
                void (*destroy)(void*, void*, void*)) GANTRY_REQUIRES(g_write_mutex) {
    node->version.fetch_add(1, std::memory_order_acq_rel);
    node->context.store(context, std::memory_order_release);
    node->key.store(key, std::memory_order_release);
    node->value.store(value, std::memory_order_release);
    node->destroy.store(destroy, std::memory_order_release);
    node->version.fetch_add(1, std::memory_order_acq_rel);
}

Node* find_locked(void* context, void* key) GANTRY_REQUIRES(g_write_mutex) {
    for (Node* node = g_head.load(std::memory_order_acquire); node; node = node->next) {
        if (node->context.load(std::memory_order_relaxed) == context &&
            node->key.load(std::memory_order_relaxed) == key) {
            return node;
        }
    }
    return nullptr;
}

/// Null and all-ones mean the current context of this thread.
int resolve(void*& context) {
    if (context != nullptr && reinterpret_cast<std::uintptr_t>(context) != ~std::uintptr_t{0}) {
        return 0;
    }
    context = nullptr;
    const int error = callbacks().current_context(&context);
    if (error != 0) {
        return error;
    }
    return context == nullptr ? kInvalidContext : 0;
}

}  // namespace

int storage_put(void* context, void* key, void* value, void (*destroy)(void*, void*, void*)) {
    if (const int error = resolve(context); error != 0) {
        return error;
    }
    const PthreadLock lock(g_write_mutex);
    int error = 0;
    if (find_locked(context, key) != nullptr) {
        error = kInvalidHandle;  // As seen on a real driver: a key is put once.
    } else if (Node* free_node = find_locked(nullptr, nullptr)) {
        write_node(free_node, context, key, value, destroy);
    } else if (void* memory = std::calloc(1, sizeof(Node))) {
        auto* node = static_cast<Node*>(memory);  // All-zero is a valid Node.
        write_node(node, context, key, value, destroy);
        node->next = g_head.load(std::memory_order_relaxed);
        g_head.store(node, std::memory_order_release);
    } else {
        error = kOutOfMemory;
    }
    return error;
}

int storage_delete(void* context, void* key) {
    if (const int error = resolve(context); error != 0) {
        return error;
    }
    const PthreadLock lock(g_write_mutex);
    Node* node = find_locked(context, key);
    if (node != nullptr) {
        write_node(node, nullptr, nullptr, nullptr, nullptr);
    }
    return node != nullptr ? 0 : kInvalidHandle;
}

int storage_get(void** value, void* context, void* key) {
    if (const int error = resolve(context); error != 0) {
        return error;
    }
    for (Node* node = g_head.load(std::memory_order_acquire); node; node = node->next) {
        for (;;) {
            const std::uint64_t before = node->version.load(std::memory_order_acquire);
            const bool hit = node->context.load(std::memory_order_acquire) == context &&
                             node->key.load(std::memory_order_acquire) == key;
            void* found = node->value.load(std::memory_order_acquire);
            const std::uint64_t after = node->version.load(std::memory_order_acquire);
            if (before != after || (before & 1) != 0) {
                continue;
            }
            if (hit) {
                if (value != nullptr) {
                    *value = found;
                }
                return 0;
            }
            break;
        }
    }
    return kInvalidHandle;
}

void forget_context(void* context) {
    if (context == nullptr) {
        return;
    }
    for (;;) {
        g_write_mutex.lock();
        Node* node = g_head.load(std::memory_order_acquire);
        while (node != nullptr && node->context.load(std::memory_order_relaxed) != context) {
            node = node->next;
        }
        if (node == nullptr) {
            g_write_mutex.unlock();
            return;
        }
        void* key = node->key.load(std::memory_order_relaxed);
        void* value = node->value.load(std::memory_order_relaxed);
        auto destroy = node->destroy.load(std::memory_order_relaxed);
        write_node(node, nullptr, nullptr, nullptr, nullptr);
        g_write_mutex.unlock();
        if (destroy != nullptr) {
            destroy(context, key, value);  // Unlocked: it may use the storage itself.
        }
    }
}

}  // namespace gantry::dark
