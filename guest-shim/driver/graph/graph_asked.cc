// Parameters of graph nodes that this process did not add itself: those of captures, of clones and
// of child graphs. Only the host's driver has them.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "guest-shim/driver/graph/graph_node.h"
#include "guest-shim/driver/memory/graph_copy.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/wire_structs.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {
namespace {

using cuda::wire_hand::CopyEnd;
using cuda::wire_hand::GraphCopyNodeReply;
using cuda::wire_hand::GraphHostNodeReply;
using cuda::wire_hand::GraphKernelNodeReply;
using cuda::wire_hand::GraphNodeCall;

constexpr std::uint32_t kPackedBytesMax = 1u << 16;

/// A kernel node whose arguments the application has asked for, and may go on reading.
struct AskedNode {
    std::uint64_t node;
    std::uint64_t graph;
    std::uint64_t kernel;
    KeptArguments arguments;
    AskedNode* next;  ///< In its bucket.
};

constexpr std::uint64_t kBuckets = 1024;

session::FutexMutex g_mutex;
AskedNode* g_asked[kBuckets] GANTRY_GUARDED_BY(g_mutex);
std::atomic<bool> g_any{false};

/// Null when memory is out.
AskedNode* find_or_make(std::uint64_t node) GANTRY_REQUIRES(g_mutex) {
    AskedNode*& bucket = g_asked[cuda::handle_slot(node) % kBuckets];
    for (AskedNode* each = bucket; each != nullptr; each = each->next) {
        if (each->node == node) {
            return each;
        }
    }
    auto* made = static_cast<AskedNode*>(std::calloc(1, sizeof(AskedNode)));
    if (made != nullptr) {
        made->node = node;
        made->next = bucket;
        bucket = made;
        g_any.store(true, std::memory_order_release);
    }
    return made;
}

CUresult read_reply(CUgraphNode node, const GraphKernelNodeReply& reply, const std::byte* packed,
                    std::uint32_t bytes, CUDA_KERNEL_NODE_PARAMS_v2* out) {
    const std::uint64_t handle = reply.launch.kernel;
    const Kernel* kernel = g_kernels.find(handle);
    GANTRY_REFUSE_IF(kernel == nullptr, CUDA_ERROR_INVALID_HANDLE);
    GANTRY_REFUSE_IF(!kernel->layout_known || bytes < kernel->param_bytes,
                     CUDA_ERROR_NOT_SUPPORTED);
    *out = {};
    name_kernel(*kernel, out);
    out->gridDimX = reply.launch.grid[0];
    out->gridDimY = reply.launch.grid[1];
    out->gridDimZ = reply.launch.grid[2];
    out->blockDimX = reply.launch.block[0];
    out->blockDimY = reply.launch.block[1];
    out->blockDimZ = reply.launch.block[2];
    out->sharedMemBytes = reply.launch.shared_bytes;
    out->ctx = reinterpret_cast<CUcontext>(reply.context);
    session::Guard guard(g_mutex);
    AskedNode* asked = find_or_make(bits(node));
    GANTRY_REFUSE_IF(asked == nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    keep_arguments(&asked->arguments, asked->kernel == handle, *kernel, packed,
                   kernel->param_bytes);
    asked->graph = reply.graph;
    asked->kernel = handle;
    out->kernelParams = asked->arguments.pointers;
    return asked->arguments.packed != nullptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

ShapedEnd shaped_end(const CopyEnd& end) {
    return {end.array != 0 ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED,
            end.address,
            end.array,
            end.x_bytes,
            end.y,
            end.z,
            end.lod,
            end.pitch,
            end.height};
}

/// Says where an end lies that was given by its address alone.
void place(ShapedEnd* end, const ShapedCopy& copy) {
    if (end->type == CU_MEMORYTYPE_UNIFIED) {
        end->type = touches_pool(*end) || is_pageable(*end, copy) ? CU_MEMORYTYPE_HOST
                                                                  : CU_MEMORYTYPE_DEVICE;
    }
}

}  // namespace

void name_kernel(const Kernel& kernel, CUDA_KERNEL_NODE_PARAMS_v2* out) noexcept {
    if (cuda::handle_kind(kernel.handle) == HandleKind::kKernel) {
        out->kern = reinterpret_cast<CUkernel>(kernel.handle);
        (void)cuda_impl::cuKernelGetFunction(&out->func, out->kern);
    } else {
        out->func = reinterpret_cast<CUfunction>(kernel.handle);
        out->kern = reinterpret_cast<CUkernel>(kernel.twin);
    }
}

CUresult ask_kernel(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2* out) noexcept {
    const GraphNodeCall call{bits(node)};
    GraphKernelNodeReply reply{};
    auto* packed = static_cast<std::byte*>(std::malloc(kPackedBytesMax));
    GANTRY_REFUSE_IF(packed == nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    std::uint32_t bytes = 0;
    CUresult result =
        session::call(cuda::Op::cuGraphKernelNodeGetParams_v2, &call, sizeof(call), nullptr, 0,
                      &reply, sizeof(reply), packed, kPackedBytesMax, &bytes);
    if (result == CUDA_SUCCESS) {
        result = read_reply(node, reply, packed, bytes, out);
    }
    std::free(packed);
    return result;
}

CUresult ask_copy(CUgraphNode node, CUDA_MEMCPY3D* out) noexcept {
    GraphCopyNodeReply reply{};
    const CUresult result =
        call_reply(cuda::Op::cuGraphMemcpyNodeGetParams, GraphNodeCall{bits(node)}, &reply);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    ShapedCopy copy{shaped_end(reply.copy.source), shaped_end(reply.copy.target),
                    reply.copy.width_bytes, reply.copy.height, reply.copy.depth};
    GANTRY_REFUSE_IF(reply.user_data != 0 && !find_staged(reply.user_data, &copy),
                     CUDA_ERROR_INVALID_VALUE);
    place(&copy.source, copy);
    place(&copy.target, copy);
    *out = unshaped(copy);
    return CUDA_SUCCESS;
}

CUresult ask_host(CUgraphNode node, CUDA_HOST_NODE_PARAMS* out) noexcept {
    GraphHostNodeReply reply{};
    const CUresult result =
        call_reply(cuda::Op::cuGraphHostNodeGetParams, GraphNodeCall{bits(node)}, &reply);
    if (result == CUDA_SUCCESS) {
        out->fn = reinterpret_cast<CUhostFn>(reply.function);
        out->userData = reinterpret_cast<void*>(reply.user_data);
    }
    return result;
}

void forget_asked(std::uint64_t graph) noexcept {
    if (!g_any.load(std::memory_order_acquire)) {
        return;
    }
    session::Guard guard(g_mutex);
    for (AskedNode*& bucket : g_asked) {
        for (AskedNode** at = &bucket; *at != nullptr;) {
            AskedNode* each = *at;
            if (each->graph != graph) {
                at = &each->next;
                continue;
            }
            *at = each->next;
            release_arguments(&each->arguments);
            std::free(each);
        }
    }
}

}  // namespace gantry::shim
