#include "guest-shim/driver/memory/shaped_copy.h"

#include "guest-shim/driver/core/ranges.h"

namespace gantry::shim {

using cuda::wire_hand::CopyEnd;

std::uint64_t span_of(const ShapedEnd& end, const ShapedCopy& copy) noexcept {
    const std::uint64_t rows = end.height != 0 ? end.height : copy.height + end.y;
    const std::uint64_t last_row = (end.z + copy.depth - 1) * rows + end.y + copy.height - 1;
    return last_row * end.pitch + end.x_bytes + copy.width_bytes;
}

bool is_pageable(const ShapedEnd& end, const ShapedCopy& copy) noexcept {
    if (end.type == CU_MEMORYTYPE_ARRAY || end.type == CU_MEMORYTYPE_DEVICE) {
        return false;
    }
    Place place;
    return place_of(end.address, span_of(end, copy), &place) && place.host_side;
}

bool is_valid(const ShapedEnd& end, const ShapedCopy& copy) noexcept {
    if (end.type == CU_MEMORYTYPE_ARRAY) {
        return cuda::handle_kind(end.array) == HandleKind::kArray;
    }
    if (end.address == 0 || (end.pitch != 0 && end.pitch < copy.width_bytes + end.x_bytes)) {
        return false;
    }
    Place place;
    return place_of(end.address, span_of(end, copy), &place) &&
           (end.type != CU_MEMORYTYPE_DEVICE || !place.host_side);
}

std::byte* row_of(const ShapedEnd& end, const ShapedCopy& copy, std::uint64_t y,
                  std::uint64_t z) noexcept {
    const std::uint64_t rows = end.height != 0 ? end.height : copy.height + end.y;
    const std::uint64_t row = (end.z + z) * rows + end.y + y;
    return reinterpret_cast<std::byte*>(end.address + row * end.pitch + end.x_bytes);
}

ShapedEnd slab_end(void* slab, const ShapedCopy& copy) noexcept {
    ShapedEnd end{};
    end.type = CU_MEMORYTYPE_UNIFIED;
    end.address = bits(slab);
    end.pitch = copy.width_bytes;
    return end;
}

bool touches_pool(const ShapedEnd& end) noexcept {
    Place place;
    return end.type != CU_MEMORYTYPE_ARRAY && place_of(end.address, 1, &place) &&
           is_in_pool(place.address);
}

bool wire_end(const ShapedEnd& end, CopyEnd* out) noexcept {
    *out = CopyEnd{end.x_bytes, end.y, end.z, end.lod, 0, 0, end.pitch, end.height};
    if (end.type == CU_MEMORYTYPE_ARRAY) {
        out->array = end.array;
        return true;
    }
    Place place;
    if (!place_of(end.address, 1, &place) || place.host_side) {
        return false;
    }
    out->address = place.address;
    return true;
}

namespace {

std::uint64_t address_of(CUmemorytype type, const void* host, CUdeviceptr device) {
    return type == CU_MEMORYTYPE_HOST ? bits(host) : device;
}

}  // namespace

ShapedCopy shaped(const CUDA_MEMCPY2D& copy) noexcept {
    ShapedCopy out{};
    out.source = {copy.srcMemoryType,
                  address_of(copy.srcMemoryType, copy.srcHost, copy.srcDevice),
                  bits(copy.srcArray),
                  copy.srcXInBytes,
                  copy.srcY,
                  0,
                  0,
                  copy.srcPitch,
                  0};
    out.target = {copy.dstMemoryType,
                  address_of(copy.dstMemoryType, copy.dstHost, copy.dstDevice),
                  bits(copy.dstArray),
                  copy.dstXInBytes,
                  copy.dstY,
                  0,
                  0,
                  copy.dstPitch,
                  0};
    out.width_bytes = copy.WidthInBytes;
    out.height = copy.Height;
    out.depth = 1;
    for (ShapedEnd* end : {&out.source, &out.target}) {
        if (end->pitch == 0) {
            end->pitch = copy.WidthInBytes + end->x_bytes;
        }
    }
    return out;
}

ShapedCopy shaped(const CUDA_MEMCPY3D& copy) noexcept {
    ShapedCopy out{};
    out.source = {copy.srcMemoryType,  address_of(copy.srcMemoryType, copy.srcHost, copy.srcDevice),
                  bits(copy.srcArray), copy.srcXInBytes,
                  copy.srcY,           copy.srcZ,
                  copy.srcLOD,         copy.srcPitch,
                  copy.srcHeight};
    out.target = {copy.dstMemoryType,  address_of(copy.dstMemoryType, copy.dstHost, copy.dstDevice),
                  bits(copy.dstArray), copy.dstXInBytes,
                  copy.dstY,           copy.dstZ,
                  copy.dstLOD,         copy.dstPitch,
                  copy.dstHeight};
    out.width_bytes = copy.WidthInBytes;
    out.height = copy.Height;
    out.depth = copy.Depth;
    for (ShapedEnd* end : {&out.source, &out.target}) {
        if (end->pitch == 0) {
            end->pitch = copy.WidthInBytes + end->x_bytes;
        }
    }
    return out;
}

CUDA_MEMCPY3D unshaped(const ShapedCopy& copy) noexcept {
    CUDA_MEMCPY3D out{};
    out.srcMemoryType = copy.source.type;
    out.srcXInBytes = copy.source.x_bytes;
    out.srcY = copy.source.y;
    out.srcZ = copy.source.z;
    out.srcLOD = copy.source.lod;
    out.srcPitch = copy.source.pitch;
    out.srcHeight = copy.source.height;
    out.dstMemoryType = copy.target.type;
    out.dstXInBytes = copy.target.x_bytes;
    out.dstY = copy.target.y;
    out.dstZ = copy.target.z;
    out.dstLOD = copy.target.lod;
    out.dstPitch = copy.target.pitch;
    out.dstHeight = copy.target.height;
    if (copy.source.type == CU_MEMORYTYPE_HOST) {
        out.srcHost = reinterpret_cast<const void*>(copy.source.address);
    } else {
        out.srcDevice = copy.source.address;
        out.srcArray = reinterpret_cast<CUarray>(copy.source.array);
    }
    if (copy.target.type == CU_MEMORYTYPE_HOST) {
        out.dstHost = reinterpret_cast<void*>(copy.target.address);
    } else {
        out.dstDevice = copy.target.address;
        out.dstArray = reinterpret_cast<CUarray>(copy.target.array);
    }
    out.WidthInBytes = copy.width_bytes;
    out.Height = copy.height;
    out.Depth = copy.depth;
    return out;
}

ShapedEnd linear_end(std::uint64_t address, std::uint64_t bytes) noexcept {
    ShapedEnd end{};
    end.type = CU_MEMORYTYPE_UNIFIED;
    end.address = address;
    end.pitch = bytes;
    return end;
}

ShapedCopy shaped(std::uint64_t target, std::uint64_t source, std::uint64_t bytes) noexcept {
    return {linear_end(source, bytes), linear_end(target, bytes), bytes, 1, 1};
}

}  // namespace gantry::shim
