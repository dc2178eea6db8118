#include "host-daemon/softgpu/memory/copy_plan.h"

#include <cstring>

#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/memory/array.h"
#include "host-daemon/softgpu/memory/map.h"

namespace gantry::softgpu {
namespace {

CopyPlace place_of(std::uint64_t address) {
    const auto range = MemoryMap::instance().find(address);
    if (!range) {
        return CopyPlace::kPageable;
    }
    if (range->kind == MemoryKind::kManaged) {
        return CopyPlace::kManaged;
    }
    return range->on_host() ? CopyPlace::kPinned : CopyPlace::kDevice;
}

/// Bytes from the first to the last that a side touches.
std::uint64_t extent(const CopySide& side, const CopyPlan& plan) {
    return (plan.depth - 1) * side.slice_pitch + (plan.height - 1) * side.row_pitch +
           plan.width_bytes;
}

CUresult check_device(const CopySide& side, const CopyPlan& plan) {
    const std::uint64_t bytes = extent(side, plan);
    return MemoryMap::instance().covers(side.address, bytes) ? CUDA_SUCCESS
                                                             : CUDA_ERROR_INVALID_VALUE;
}

struct SideDescription {
    CUmemorytype type;
    std::uint64_t host;
    std::uint64_t device;
    CUarray array;
    std::uint64_t x_bytes;
    std::uint64_t y;
    std::uint64_t z;
    std::uint64_t pitch;
    std::uint64_t height;
};

CUresult resolve_array(const SideDescription& from, const CopyPlan& plan, CopySide& side) {
    const auto array = find<Array>(from.array);
    GANTRY_REFUSE_IF(array == nullptr, CUDA_ERROR_INVALID_HANDLE);
    const std::uint64_t row_bytes = array->descriptor.Width * array->format.texel_bytes();
    if (from.x_bytes + plan.width_bytes > row_bytes || from.y + plan.height > array->rows() ||
        from.z + plan.depth > array->slices()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    side.array = array;
    side.row_pitch = array->row_pitch;
    side.slice_pitch = array->row_pitch * array->rows();
    side.address =
        array->address + from.z * side.slice_pitch + from.y * side.row_pitch + from.x_bytes;
    return CUDA_SUCCESS;
}

CUresult resolve_side(const SideDescription& from, const CopyPlan& plan, CopySide& side,
                      CopyPlace& place) {
    if (from.type == CU_MEMORYTYPE_ARRAY) {
        place = CopyPlace::kDevice;
        return resolve_array(from, plan, side);
    }
    const bool host = from.type == CU_MEMORYTYPE_HOST;
    GANTRY_REFUSE_IF(
        !host && from.type != CU_MEMORYTYPE_DEVICE && from.type != CU_MEMORYTYPE_UNIFIED,
        CUDA_ERROR_INVALID_VALUE);
    const std::uint64_t pitch = from.pitch == 0 ? from.x_bytes + plan.width_bytes : from.pitch;
    const std::uint64_t height = from.height == 0 ? from.y + plan.height : from.height;
    GANTRY_REFUSE_IF(pitch < plan.width_bytes && (plan.height > 1 || plan.depth > 1),
                     CUDA_ERROR_INVALID_VALUE);
    side.row_pitch = pitch;
    side.slice_pitch = pitch * height;
    side.address = (host ? from.host : from.device) + from.z * side.slice_pitch +
                   from.y * side.row_pitch + from.x_bytes;
    place = place_of(side.address);
    return from.type == CU_MEMORYTYPE_DEVICE ? check_device(side, plan) : CUDA_SUCCESS;
}

}  // namespace

void execute_copy(const CopyPlan& plan) {
    if (plan.empty()) {
        return;
    }
    const CopySide& to = plan.destination;
    const CopySide& from = plan.source;
    const bool dense = (plan.height == 1 ||
                        (to.row_pitch == plan.width_bytes && from.row_pitch == plan.width_bytes)) &&
                       (plan.depth == 1 || (to.slice_pitch == plan.width_bytes * plan.height &&
                                            from.slice_pitch == plan.width_bytes * plan.height));
    if (dense) {
        std::memmove(reinterpret_cast<void*>(to.address),
                     reinterpret_cast<const void*>(from.address),
                     plan.width_bytes * plan.height * plan.depth);
        return;
    }
    for (std::uint64_t z = 0; z < plan.depth; ++z) {
        for (std::uint64_t y = 0; y < plan.height; ++y) {
            std::memmove(
                reinterpret_cast<void*>(to.address + z * to.slice_pitch + y * to.row_pitch),
                reinterpret_cast<const void*>(from.address + z * from.slice_pitch +
                                              y * from.row_pitch),
                plan.width_bytes);
        }
    }
}

CUresult resolve_copy(const CUDA_MEMCPY3D& copy, ResolvedCopy& resolved) {
    CopyPlan& plan = resolved.plan;
    plan.width_bytes = copy.WidthInBytes;
    plan.height = copy.Height;
    plan.depth = copy.Depth;
    if (plan.empty()) {
        return CUDA_SUCCESS;
    }
    const SideDescription source = {
        copy.srcMemoryType, reinterpret_cast<std::uint64_t>(copy.srcHost),
        copy.srcDevice,     copy.srcArray,
        copy.srcXInBytes,   copy.srcY,
        copy.srcZ,          copy.srcPitch,
        copy.srcHeight};
    const SideDescription destination = {
        copy.dstMemoryType, reinterpret_cast<std::uint64_t>(copy.dstHost),
        copy.dstDevice,     copy.dstArray,
        copy.dstXInBytes,   copy.dstY,
        copy.dstZ,          copy.dstPitch,
        copy.dstHeight};
    GANTRY_REFUSE_IF(copy.srcLOD != 0 || copy.dstLOD != 0, CUDA_ERROR_INVALID_VALUE);
    const CUresult error = resolve_side(source, plan, plan.source, resolved.source_place);
    return error != CUDA_SUCCESS
               ? error
               : resolve_side(destination, plan, plan.destination, resolved.destination_place);
}

CUresult resolve_copy(std::uint64_t destination, std::uint64_t source, std::uint64_t bytes,
                      ResolvedCopy& resolved) {
    resolved.plan.width_bytes = bytes;
    resolved.plan.destination = {destination, bytes, bytes, nullptr};
    resolved.plan.source = {source, bytes, bytes, nullptr};
    if (bytes == 0) {
        return CUDA_SUCCESS;
    }
    MemoryMap& map = MemoryMap::instance();
    for (const std::uint64_t address : {destination, source}) {
        // A range that begins in CUDA memory has to end there.
        GANTRY_REFUSE_IF(map.find(address) && !map.covers(address, bytes),
                         CUDA_ERROR_INVALID_VALUE);
    }
    resolved.destination_place = place_of(destination);
    resolved.source_place = place_of(source);
    return CUDA_SUCCESS;
}

}  // namespace gantry::softgpu
