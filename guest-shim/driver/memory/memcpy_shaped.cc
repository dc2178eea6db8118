// 2D, 3D and array copies. Ends in device memory, arrays and page-locked memory go to the driver
// as they are; pageable ends pass through a page-locked extent that this copy owns, slab by slab.
#include <cstring>

#include "guest-shim/driver/core/ranges.h"
#include "guest-shim/driver/memory/graph_copy.h"
#include "guest-shim/driver/memory/memcpy.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {
namespace {

using cuda::wire_hand::Copy3DCall;

constexpr std::uint64_t kSlabBytes = 1ull << 20;

/// Of two ends that are no arrays: all their rows are known to be memory of this process.
bool stays_on_host(const ShapedCopy& copy) {
    Place to;
    Place from;
    return place_of(copy.source.address, span_of(copy.source, copy), &from) && from.is_host &&
           place_of(copy.target.address, span_of(copy.target, copy), &to) && to.is_host;
}

CUresult send(const ShapedCopy& copy, CUstream stream, bool wait) {
    Copy3DCall call{};
    GANTRY_REFUSE_IF(!wire_end(copy.source, &call.source) || !wire_end(copy.target, &call.target),
                     CUDA_ERROR_INVALID_VALUE);
    call.width_bytes = copy.width_bytes;
    call.height = copy.height;
    call.depth = copy.depth;
    call.stream = bits(stream);
    // How large an array is the host knows: whether the copy fits it answers at once.
    const CUresult result = call.source.array != 0 || call.target.array != 0
                                ? call_status(cuda::Op::cuMemcpy3DAsync_v2, call)
                                : post_args(cuda::Op::cuMemcpy3DAsync_v2, call);
    return result == CUDA_SUCCESS && wait ? synchronize_stream(bits(stream)) : result;
}

CUresult copy_rows_on_host(const ShapedCopy& copy, CUstream stream) {
    const CUresult result = synchronize_stream(bits(stream));
    for (std::uint64_t z = 0; z < copy.depth && result == CUDA_SUCCESS; ++z) {
        for (std::uint64_t y = 0; y < copy.height; ++y) {
            std::memmove(row_of(copy.target, copy, y, z), row_of(copy.source, copy, y, z),
                         copy.width_bytes);
        }
    }
    return result;
}

/// The part of a copy from row `y` of slice `z` on, `rows` rows high.
ShapedCopy part_of(const ShapedCopy& copy, std::uint64_t y, std::uint64_t z, std::uint64_t rows) {
    ShapedCopy part = copy;
    for (ShapedEnd* end : {&part.source, &part.target}) {
        if (end->height == 0) {
            end->height = copy.height + end->y;
        }
        end->y += y;
        end->z += z;
    }
    part.height = rows;
    part.depth = 1;
    return part;
}

CUresult copy_slab(const ShapedCopy& part, void* slab, bool source_is_pageable, CUstream stream) {
    auto* bytes = static_cast<std::byte*>(slab);
    ShapedCopy by_driver = part;
    if (source_is_pageable) {
        for (std::uint64_t y = 0; y < part.height; ++y) {
            std::memcpy(bytes + y * part.width_bytes, row_of(part.source, part, y, 0),
                        part.width_bytes);
        }
        by_driver.source = slab_end(slab, part);
        return send(by_driver, stream, true);
    }
    by_driver.target = slab_end(slab, part);
    const CUresult result = send(by_driver, stream, true);
    for (std::uint64_t y = 0; y < part.height && result == CUDA_SUCCESS; ++y) {
        std::memcpy(row_of(part.target, part, y, 0), bytes + y * part.width_bytes,
                    part.width_bytes);
    }
    return result;
}

CUresult copy_by_slabs(const ShapedCopy& copy, bool source_is_pageable, CUstream stream) {
    std::uint64_t rows = kSlabBytes / copy.width_bytes;
    rows = rows == 0 ? 1 : rows;
    rows = rows < copy.height ? rows : copy.height;
    void* slab = session::pinned_allocate(rows * copy.width_bytes);
    GANTRY_REFUSE_IF(slab == nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    CUresult result = CUDA_SUCCESS;
    for (std::uint64_t z = 0; z < copy.depth; ++z) {
        for (std::uint64_t y = 0; y < copy.height && result == CUDA_SUCCESS; y += rows) {
            const std::uint64_t left = copy.height - y;
            result = copy_slab(part_of(copy, y, z, left < rows ? left : rows), slab,
                               source_is_pageable, stream);
        }
    }
    session::pinned_free(slab);
    return result;
}

}  // namespace

CUresult copy_shaped(const ShapedCopy& copy, CUstream stream, bool blocking) noexcept {
    if (const CUresult closed = session::gate(); closed != CUDA_SUCCESS) {
        return closed;
    }
    GANTRY_REFUSE_IF(!is_stream(stream), CUDA_ERROR_INVALID_HANDLE);
    if (copy.width_bytes == 0 || copy.height == 0 || copy.depth == 0) {
        return CUDA_SUCCESS;
    }
    GANTRY_REFUSE_IF(!is_valid(copy.source, copy) || !is_valid(copy.target, copy),
                     CUDA_ERROR_INVALID_VALUE);
    const bool from_pages = is_pageable(copy.source, copy);
    const bool to_pages = is_pageable(copy.target, copy);
    const bool from_host = from_pages || touches_pool(copy.source);
    const bool to_host = to_pages || touches_pool(copy.target);
    const bool captured = !blocking && captures_open() && is_captured(stream);
    if ((from_pages || to_pages) && captured) {
        return capture_copy(copy, stream);
    }
    if (from_host && to_host && (from_pages || to_pages || (!captured && stays_on_host(copy)))) {
        return copy_rows_on_host(copy, stream);
    }
    if (from_pages || to_pages) {
        return copy_by_slabs(copy, from_pages, stream);
    }
    return send(copy, stream, blocking && (from_host || to_host));
}

namespace {

/// A CUDA_MEMCPY3D_PEER without its contexts: addresses already say where memory is.
CUDA_MEMCPY3D without_peers(const CUDA_MEMCPY3D_PEER& peer) {
    CUDA_MEMCPY3D copy{};
    copy.srcXInBytes = peer.srcXInBytes;
    copy.srcY = peer.srcY;
    copy.srcZ = peer.srcZ;
    copy.srcLOD = peer.srcLOD;
    copy.srcMemoryType = peer.srcMemoryType;
    copy.srcHost = peer.srcHost;
    copy.srcDevice = peer.srcDevice;
    copy.srcArray = peer.srcArray;
    copy.srcPitch = peer.srcPitch;
    copy.srcHeight = peer.srcHeight;
    copy.dstXInBytes = peer.dstXInBytes;
    copy.dstY = peer.dstY;
    copy.dstZ = peer.dstZ;
    copy.dstLOD = peer.dstLOD;
    copy.dstMemoryType = peer.dstMemoryType;
    copy.dstHost = peer.dstHost;
    copy.dstDevice = peer.dstDevice;
    copy.dstArray = peer.dstArray;
    copy.dstPitch = peer.dstPitch;
    copy.dstHeight = peer.dstHeight;
    copy.WidthInBytes = peer.WidthInBytes;
    copy.Height = peer.Height;
    copy.Depth = peer.Depth;
    return copy;
}

ShapedEnd array_end(CUarray array, std::uint64_t offset) {
    ShapedEnd end{};
    end.type = CU_MEMORYTYPE_ARRAY;
    end.array = bits(array);
    end.x_bytes = offset;
    return end;
}

CUresult copy_row(const ShapedEnd& target, const ShapedEnd& source, std::uint64_t bytes,
                  CUstream stream, bool blocking) {
    return copy_shaped(ShapedCopy{source, target, bytes, 1, 1}, stream, blocking);
}

}  // namespace
}  // namespace gantry::shim

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuMemcpy2D_v2(DefaultStream default_stream, const CUDA_MEMCPY2D* pCopy) noexcept {
    return pCopy == nullptr
               ? CUDA_ERROR_INVALID_VALUE
               : copy_shaped(shaped(*pCopy), default_stream_handle(default_stream), true);
}

CUresult cuMemcpy2DUnaligned_v2(DefaultStream default_stream, const CUDA_MEMCPY2D* pCopy) noexcept {
    return cuMemcpy2D_v2(default_stream, pCopy);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* pCopy, CUstream hStream) noexcept {
    return pCopy == nullptr ? CUDA_ERROR_INVALID_VALUE
                            : copy_shaped(shaped(*pCopy), hStream, false);
}

CUresult cuMemcpy3D_v2(DefaultStream default_stream, const CUDA_MEMCPY3D* pCopy) noexcept {
    return pCopy == nullptr
               ? CUDA_ERROR_INVALID_VALUE
               : copy_shaped(shaped(*pCopy), default_stream_handle(default_stream), true);
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* pCopy, CUstream hStream) noexcept {
    return pCopy == nullptr ? CUDA_ERROR_INVALID_VALUE
                            : copy_shaped(shaped(*pCopy), hStream, false);
}

CUresult cuMemcpy3DPeer(DefaultStream default_stream, const CUDA_MEMCPY3D_PEER* pCopy) noexcept {
    return pCopy == nullptr ? CUDA_ERROR_INVALID_VALUE
                            : copy_shaped(shaped(without_peers(*pCopy)),
                                          default_stream_handle(default_stream), true);
}

CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* pCopy, CUstream hStream) noexcept {
    return pCopy == nullptr ? CUDA_ERROR_INVALID_VALUE
                            : copy_shaped(shaped(without_peers(*pCopy)), hStream, false);
}

CUresult cuMemcpyDtoA_v2(DefaultStream default_stream, CUarray dstArray, size_t dstOffset,
                         CUdeviceptr srcDevice, size_t ByteCount) noexcept {
    return copy_row(array_end(dstArray, dstOffset), linear_end(srcDevice, ByteCount), ByteCount,
                    default_stream_handle(default_stream), true);
}

CUresult cuMemcpyAtoD_v2(DefaultStream default_stream, CUdeviceptr dstDevice, CUarray srcArray,
                         size_t srcOffset, size_t ByteCount) noexcept {
    return copy_row(linear_end(dstDevice, ByteCount), array_end(srcArray, srcOffset), ByteCount,
                    default_stream_handle(default_stream), true);
}

CUresult cuMemcpyHtoA_v2(DefaultStream default_stream, CUarray dstArray, size_t dstOffset,
                         const void* srcHost, size_t ByteCount) noexcept {
    return copy_row(array_end(dstArray, dstOffset), linear_end(bits(srcHost), ByteCount), ByteCount,
                    default_stream_handle(default_stream), true);
}

CUresult cuMemcpyAtoH_v2(DefaultStream default_stream, void* dstHost, CUarray srcArray,
                         size_t srcOffset, size_t ByteCount) noexcept {
    return copy_row(linear_end(bits(dstHost), ByteCount), array_end(srcArray, srcOffset), ByteCount,
                    default_stream_handle(default_stream), true);
}

CUresult cuMemcpyAtoA_v2(DefaultStream default_stream, CUarray dstArray, size_t dstOffset,
                         CUarray srcArray, size_t srcOffset, size_t ByteCount) noexcept {
    return copy_row(array_end(dstArray, dstOffset), array_end(srcArray, srcOffset), ByteCount,
                    default_stream_handle(default_stream), true);
}

CUresult cuMemcpyHtoAAsync_v2(CUarray dstArray, size_t dstOffset, const void* srcHost,
                              size_t ByteCount, CUstream hStream) noexcept {
    return copy_row(array_end(dstArray, dstOffset), linear_end(bits(srcHost), ByteCount), ByteCount,
                    hStream, false);
}

CUresult cuMemcpyAtoHAsync_v2(void* dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount,
                              CUstream hStream) noexcept {
    return copy_row(linear_end(bits(dstHost), ByteCount), array_end(srcArray, srcOffset), ByteCount,
                    hStream, false);
}

}  // namespace gantry::cuda_impl
