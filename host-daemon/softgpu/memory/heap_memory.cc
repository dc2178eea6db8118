#include "host-daemon/softgpu/memory/heap_memory.h"

#include "host-daemon/softgpu/memory/arena.h"
#include "host-daemon/softgpu/memory/map.h"

namespace gantry::softgpu {
namespace {

using Range = DeviceHeap::Range;

/// Puts memory that was just allocated into the map, or gives it back.
std::optional<Range> enter_into_map(Context& context, Range heap) {
    MemoryRange range;
    range.base = heap.base;
    range.bytes = heap.bytes;
    range.kind = MemoryKind::kDriver;
    range.device = context.device.ordinal;
    range.context = context.handle();
    if (!MemoryMap::instance().insert(range)) {
        Arena::instance().free(context.device, heap.base, heap.bytes);
        return std::nullopt;
    }
    return heap;
}

}  // namespace

bool ensure_heap(Context& context, std::uint64_t bytes) {
    const std::uint64_t whole = (bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
    const auto make = [&]() -> std::optional<Range> {
        const auto address = Arena::instance().allocate(context.device, whole);
        return address ? enter_into_map(context, {*address, whole}) : std::nullopt;
    };
    return context.heap.ensure(make).has_value();
}

bool ensure_heap_at(Context& context, Range wanted) {
    const auto make = [&]() -> std::optional<Range> {
        const bool taken = wanted.bytes % kGranuleBytes == 0 && wanted.bytes != 0 &&
                           Arena::instance().allocate_at(context.device, wanted.base, wanted.bytes);
        return taken ? enter_into_map(context, wanted) : std::nullopt;
    };
    return context.heap.ensure(make) == wanted;
}

void release_heap(Context& context) {
    context.heap.release([&](Range heap) {
        MemoryMap::instance().erase(heap.base, MemoryKind::kDriver);
        Arena::instance().free(context.device, heap.base, heap.bytes);
    });
}

}  // namespace gantry::softgpu
