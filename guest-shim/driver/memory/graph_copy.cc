#include "guest-shim/driver/memory/graph_copy.h"
#include "guest-shim/driver/core/call_rules.h"

#include <cstdlib>
#include <cstring>

#include "guest-shim/driver/core/ranges.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/shim_marshal.h"
#include "proto/cuda/gen/wire_structs.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {

constinit SlotTable<GraphExec> g_graph_execs;

using cuda::wire_hand::GraphCopyNodeCall;
using cuda::wire_hand::PageableEnds;

struct StagedCopy {
    ShapedCopy copy;  ///< As the application gave it.
    PageableEnds pageable;
    void* extent;  ///< Rows of width_bytes, slices of height rows; null with kBoth.
    std::uint64_t bytes;
    unsigned owners;
    StagedCopy* next;  ///< Of those without an owner whose extent may still be in use.
};

namespace {

struct Ownership {
    std::uint64_t owner;
    StagedCopy* staged;
    Ownership* next;
};

/// A page-locked extent that nobody uses: locking pages takes a driver milliseconds.
struct Spare {
    void* extent;
    std::uint64_t bytes;
    Spare* next;
};

/// Extents without an owner can be used again, once the device was waited for: when they are so
/// many.
constexpr std::uint64_t kRetiredBytesMax = 4ull << 20;
constexpr std::uint64_t kSpareBytesMax = 16ull << 20;

std::atomic<bool> g_any{false};
session::FutexMutex g_mutex;
Ownership* g_ownerships GANTRY_GUARDED_BY(g_mutex);
StagedCopy* g_retired GANTRY_GUARDED_BY(g_mutex);
std::uint64_t g_retired_bytes GANTRY_GUARDED_BY(g_mutex);
Spare* g_spares GANTRY_GUARDED_BY(g_mutex);
std::uint64_t g_spare_bytes GANTRY_GUARDED_BY(g_mutex);

void copy_row(const StagedCopy& staged, std::uint64_t y, std::uint64_t z) {
    const ShapedCopy& copy = staged.copy;
    auto* row = static_cast<std::byte*>(staged.extent) + (z * copy.height + y) * copy.width_bytes;
    switch (staged.pageable) {
        case PageableEnds::kSource:
            std::memcpy(row, row_of(copy.source, copy, y, z), copy.width_bytes);
            break;
        case PageableEnds::kTarget:
            std::memcpy(row_of(copy.target, copy, y, z), row, copy.width_bytes);
            break;
        default:
            std::memmove(row_of(copy.target, copy, y, z), row_of(copy.source, copy, y, z),
                         copy.width_bytes);
            break;
    }
}

/// The graph's host function.
void move_bytes(void* user_data) {
    const auto& staged = *static_cast<const StagedCopy*>(user_data);
    for (std::uint64_t z = 0; z < staged.copy.depth; ++z) {
        for (std::uint64_t y = 0; y < staged.copy.height; ++y) {
            copy_row(staged, y, z);
        }
    }
}

/// One of this size or a little more, or null.
void* take_spare(std::uint64_t bytes, std::uint64_t* found_bytes) {
    session::Guard guard(g_mutex);
    for (Spare** at = &g_spares; *at != nullptr; at = &(*at)->next) {
        Spare* spare = *at;
        if (spare->bytes < bytes || spare->bytes / 2 > bytes) {
            continue;
        }
        *at = spare->next;
        void* extent = spare->extent;
        *found_bytes = spare->bytes;
        g_spare_bytes -= spare->bytes;
        std::free(spare);
        return extent;
    }
    return nullptr;
}

bool keep_spare(void* extent, std::uint64_t bytes) {
    session::Guard guard(g_mutex);
    if (bytes > kSpareBytesMax - g_spare_bytes) {
        return false;
    }
    auto* spare = static_cast<Spare*>(std::malloc(sizeof(Spare)));
    if (spare == nullptr) {
        return false;
    }
    *spare = {extent, bytes, g_spares};
    g_spares = spare;
    g_spare_bytes += bytes;
    return true;
}

void drop_spares() {
    Spare* spares = nullptr;
    {
        session::Guard guard(g_mutex);
        spares = g_spares;
        g_spares = nullptr;
        g_spare_bytes = 0;
    }
    while (spares != nullptr) {
        Spare* next = spares->next;
        return_extent(spares->extent);
        std::free(spares);
        spares = next;
    }
}

/// `is_idle`: the device was waited for since the copy could run. Returning an extent does that.
void release(StagedCopy* staged, bool* is_idle) {
    if (staged->extent != nullptr && !(*is_idle && keep_spare(staged->extent, staged->bytes))) {
        *is_idle = return_extent(staged->extent) == CUDA_SUCCESS;
    }
    std::free(staged);
}

/// Gives back what nobody owns, if it is worth waiting for the device. A capture forbids that.
/// `is_needed`: memory is short.
void give_back(bool is_needed) {
    if (captures_open()) {
        return;
    }
    StagedCopy* retired = nullptr;
    {
        session::Guard guard(g_mutex);
        if (!is_needed && g_retired_bytes < kRetiredBytesMax) {
            return;
        }
        retired = g_retired;
        g_retired = nullptr;
        g_retired_bytes = 0;
    }
    bool is_idle = false;
    while (retired != nullptr) {
        StagedCopy* next = retired->next;
        release(retired, &is_idle);
        retired = next;
    }
    if (is_needed) {
        drop_spares();
    }
}

PageableEnds pageable_ends(const ShapedCopy& copy) {
    const bool from_pages = is_pageable(copy.source, copy);
    const bool to_pages = is_pageable(copy.target, copy);
    if ((from_pages && (to_pages || touches_pool(copy.target))) ||
        (to_pages && touches_pool(copy.source))) {
        return PageableEnds::kBoth;
    }
    return from_pages ? PageableEnds::kSource
                      : (to_pages ? PageableEnds::kTarget : PageableEnds::kNone);
}

CUresult make_staged(const ShapedCopy& copy, PageableEnds pageable, StagedCopy** out) {
    auto* staged = static_cast<StagedCopy*>(std::calloc(1, sizeof(StagedCopy)));
    GANTRY_REFUSE_IF(staged == nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    staged->copy = copy;
    staged->pageable = pageable;
    if (pageable != PageableEnds::kBoth) {
        staged->bytes = copy.width_bytes * copy.height * copy.depth;
        staged->extent = take_spare(staged->bytes, &staged->bytes);
        CUresult result = staged->extent != nullptr
                              ? CUDA_SUCCESS
                              : take_extent(staged->bytes, 0, &staged->extent);
        if (result != CUDA_SUCCESS) {
            give_back(true);
            result = take_extent(staged->bytes, 0, &staged->extent);
        }
        if (result != CUDA_SUCCESS) {
            std::free(staged);
            return result;
        }
    }
    g_any.store(true, std::memory_order_release);
    *out = staged;
    return CUDA_SUCCESS;
}

void add_ownership(std::uint64_t owner, StagedCopy* staged) GANTRY_REQUIRES(g_mutex) {
    auto* made = static_cast<Ownership*>(std::malloc(sizeof(Ownership)));
    if (made != nullptr) {
        *made = {owner, staged, g_ownerships};
        g_ownerships = made;
    }
    ++staged->owners;  // Without a note of its owner it lives for ever.
}

bool owns(std::uint64_t owner, const StagedCopy* staged) GANTRY_REQUIRES(g_mutex) {
    for (const Ownership* each = g_ownerships; each != nullptr; each = each->next) {
        if (each->owner == owner && each->staged == staged) {
            return true;
        }
    }
    return false;
}

void retire(StagedCopy* staged) GANTRY_REQUIRES(g_mutex) {
    staged->next = g_retired;
    g_retired = staged;
    g_retired_bytes += staged->bytes;
}

bool none_staged() { return !g_any.load(std::memory_order_acquire); }

}  // namespace

CUresult stage_copy(const ShapedCopy& copy, GraphCopyNodeCall* call, StagedCopy** staged) noexcept {
    *staged = nullptr;
    GANTRY_REFUSE_IF(!is_valid(copy.source, copy) || !is_valid(copy.target, copy),
                     CUDA_ERROR_INVALID_VALUE);
    ShapedCopy on_device = copy;
    call->pageable = pageable_ends(copy);
    if (call->pageable != PageableEnds::kNone) {
        if (const CUresult result = session::start_callbacks(); result != CUDA_SUCCESS) {
            return result;
        }
        if (const CUresult result = make_staged(copy, call->pageable, staged);
            result != CUDA_SUCCESS) {
            return result;
        }
        ShapedEnd extent = slab_end((*staged)->extent, copy);
        extent.height = copy.height;
        (call->pageable == PageableEnds::kSource ? on_device.source : on_device.target) = extent;
        call->function = reinterpret_cast<std::uint64_t>(move_bytes);
        call->user_data = bits(*staged);
    }
    call->copy.width_bytes = copy.width_bytes;
    call->copy.height = copy.height;
    call->copy.depth = copy.depth;
    return call->pageable == PageableEnds::kBoth ||
                   (wire_end(on_device.source, &call->copy.source) &&
                    wire_end(on_device.target, &call->copy.target))
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

void drop_copy(StagedCopy* staged) noexcept {
    if (staged != nullptr) {
        session::Guard guard(g_mutex);
        retire(staged);
    }
}

void own_copy(std::uint64_t owner, StagedCopy* staged) noexcept {
    if (staged != nullptr) {
        session::Guard guard(g_mutex);
        add_ownership(owner, staged);
    }
}

void inherit_copies(std::uint64_t heir, std::uint64_t owner) noexcept {
    if (none_staged()) {
        return;
    }
    session::Guard guard(g_mutex);
    for (const Ownership* each = g_ownerships; each != nullptr; each = each->next) {
        if (each->owner == owner) {
            add_ownership(heir, each->staged);  // In front: this walk does not meet it.
        }
    }
}

void inherit_all_copies(std::uint64_t heir) noexcept {
    if (none_staged()) {
        return;
    }
    session::Guard guard(g_mutex);
    for (const Ownership* each = g_ownerships; each != nullptr; each = each->next) {
        if (each->owner != heir && !owns(heir, each->staged)) {
            add_ownership(heir, each->staged);
        }
    }
}

void disown_copies(std::uint64_t owner) noexcept {
    if (none_staged()) {
        return;
    }
    {
        session::Guard guard(g_mutex);
        for (Ownership** at = &g_ownerships; *at != nullptr;) {
            Ownership* each = *at;
            if (each->owner != owner) {
                at = &each->next;
                continue;
            }
            *at = each->next;
            if (--each->staged->owners == 0) {
                retire(each->staged);
            }
            std::free(each);
        }
    }
    give_back(false);
}

bool find_staged(std::uint64_t user_data, ShapedCopy* out) noexcept {
    session::Guard guard(g_mutex);
    for (const Ownership* each = g_ownerships; each != nullptr; each = each->next) {
        if (bits(each->staged) == user_data) {
            *out = each->staged->copy;
            return true;
        }
    }
    return false;
}

CUresult capture_copy(const ShapedCopy& copy, CUstream stream) noexcept {
    const std::uint64_t graph = capture_graph(stream);
    GANTRY_REFUSE_IF(graph == 0, CUDA_ERROR_NOT_SUPPORTED);
    GraphCopyNodeCall call{};
    StagedCopy* staged = nullptr;
    CUresult result = stage_copy(copy, &call, &staged);
    if (result == CUDA_SUCCESS) {
        call.context = session::current_context();
        call.copy.stream = bits(stream);
        result = call_status(cuda::Op::cuGraphAddMemcpyNode, call);
    }
    if (result != CUDA_SUCCESS) {
        drop_copy(staged);
        return result;
    }
    own_copy(graph, staged);
    return CUDA_SUCCESS;
}

}  // namespace gantry::shim

namespace gantry::shim::rules {

void copies_go_on(CUgraph heir, CUgraph owner) noexcept { inherit_copies(bits(heir), bits(owner)); }

void copies_go_on(CUgraphExec heir, CUgraph owner) noexcept {
    inherit_copies(bits(heir), bits(owner));
}

void exec_ended(CUgraphExec exec) noexcept {
    g_graph_execs.destroy(bits(exec));
    disown_copies(bits(exec));
}

}  // namespace gantry::shim::rules

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph,
                                     unsigned long long flags) noexcept {
    GANTRY_REFUSE_IF(phGraphExec == nullptr, CUDA_ERROR_INVALID_VALUE);
    if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0) {
        return CUDA_ERROR_NOT_SUPPORTED;  // A kernel would be given the guest's handle.
    }
    std::uint64_t exec = 0;
    GANTRY_REFUSE_IF(g_graph_execs.create(HandleKind::kGraphExec, &exec) == nullptr,
                     CUDA_ERROR_OUT_OF_MEMORY);
    const CUresult result = marshal::cuGraphInstantiateWithFlags(exec, hGraph, flags);
    if (result != CUDA_SUCCESS) {
        g_graph_execs.destroy(exec);
        return result;
    }
    inherit_copies(exec, bits(hGraph));
    *phGraphExec = reinterpret_cast<CUgraphExec>(exec);
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec hGraph, CUstream hStream) noexcept {
    const CUresult result = marshal::cuGraphLaunch(hGraph, hStream);
    if (result == CUDA_SUCCESS && captures_open() && !none_staged() && is_captured(hStream)) {
        inherit_copies(capture_graph(hStream), bits(hGraph));  // A child of the captured graph.
    }
    return launched(settle_graph_events(result), hStream);
}

}  // namespace gantry::cuda_impl
