// Copies. One address space holds everything, so the kinds differ in their checks only.
#include "host-daemon/softgpu/core/context.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/memory/array.h"
#include "host-daemon/softgpu/memory/map.h"
#include "host-daemon/softgpu/streams/copy_submit.h"
#include "host-daemon/softgpu/streams/stream.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {
namespace {

using softgpu::Context;
using softgpu::describe_copy;
using softgpu::MemoryMap;
using softgpu::ResolvedCopy;
using softgpu::Stream;

enum class Timing { kSync, kAsync };

/// Which of the two addresses has to be device memory.
enum class Sides { kAny, kDeviceDestination, kDeviceSource, kDeviceBoth };

CUmemorytype type_of_side(Sides sides, bool is_device) {
    return sides == Sides::kAny ? CU_MEMORYTYPE_UNIFIED
                                : (is_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
}

std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

CUresult submit(const std::shared_ptr<Stream>& stream, const ResolvedCopy& copy,
                const CUDA_MEMCPY3D& params, Timing timing) {
    return timing == Timing::kSync ? softgpu::submit_copy_sync(stream, copy, params)
                                   : softgpu::submit_copy_async(stream, copy, params);
}

CUresult copy_bytes(CUstream stream_handle, std::uint64_t destination, std::uint64_t source,
                    std::uint64_t bytes, Sides sides, Timing timing) {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, stream_handle);
    const bool check_destination =
        sides == Sides::kDeviceDestination || sides == Sides::kDeviceBoth;
    const bool check_source = sides == Sides::kDeviceSource || sides == Sides::kDeviceBoth;
    const MemoryMap& map = MemoryMap::instance();
    if (bytes != 0 && ((check_destination && !map.covers(destination, bytes)) ||
                       (check_source && !map.covers(source, bytes)))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    ResolvedCopy copy;
    GANTRY_CU(softgpu::resolve_copy(destination, source, bytes, copy));
    const CUDA_MEMCPY3D params =
        describe_copy({destination, type_of_side(sides, check_destination)},
                      {source, type_of_side(sides, check_source)}, bytes);
    return submit(stream, copy, params, timing);
}

CUresult copy_volume(CUstream stream_handle, const CUDA_MEMCPY3D& params, Timing timing) {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, stream_handle);
    ResolvedCopy copy;
    GANTRY_CU(softgpu::resolve_copy(params, copy));
    return submit(stream, copy, params, timing);
}

/// One side is an array: a run of bytes in its first row, as the old array calls define it.
struct ArrayCopy {
    CUarray to_array = nullptr;
    CUarray from_array = nullptr;
    std::uint64_t to = 0;
    std::uint64_t from = 0;
    bool to_host = false;
    bool from_host = false;
};

CUresult copy_array(CUstream stream, const ArrayCopy& sides, std::uint64_t bytes, Timing timing) {
    CUDA_MEMCPY3D params{};
    params.WidthInBytes = bytes;
    params.Height = 1;
    params.Depth = 1;
    if (sides.to_array != nullptr) {
        params.dstMemoryType = CU_MEMORYTYPE_ARRAY;
        params.dstArray = sides.to_array;
        params.dstXInBytes = sides.to;
    } else {
        params.dstMemoryType = sides.to_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        params.dstHost = reinterpret_cast<void*>(sides.to);
        params.dstDevice = sides.to;
    }
    if (sides.from_array != nullptr) {
        params.srcMemoryType = CU_MEMORYTYPE_ARRAY;
        params.srcArray = sides.from_array;
        params.srcXInBytes = sides.from;
    } else {
        params.srcMemoryType = sides.from_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        params.srcHost = reinterpret_cast<const void*>(sides.from);
        params.srcDevice = sides.from;
    }
    return copy_volume(stream, params, timing);
}

CUresult batch_operand(const CUmemcpy3DOperand& operand, bool is_source, CUDA_MEMCPY3D& params,
                       std::uint64_t& width_unit) {
    if (operand.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
        const auto array = softgpu::find<softgpu::Array>(operand.op.array.array);
        GANTRY_REFUSE_IF(array == nullptr, CUDA_ERROR_INVALID_HANDLE);
        width_unit = array->format.texel_bytes();
        const CUoffset3D& offset = operand.op.array.offset;
        (is_source ? params.srcMemoryType : params.dstMemoryType) = CU_MEMORYTYPE_ARRAY;
        (is_source ? params.srcArray : params.dstArray) = operand.op.array.array;
        (is_source ? params.srcXInBytes : params.dstXInBytes) = offset.x * width_unit;
        (is_source ? params.srcY : params.dstY) = offset.y;
        (is_source ? params.srcZ : params.dstZ) = offset.z;
        return CUDA_SUCCESS;
    }
    GANTRY_REFUSE_IF(operand.type != CU_MEMCPY_OPERAND_TYPE_POINTER, CUDA_ERROR_INVALID_VALUE);
    const auto& pointer = operand.op.ptr;
    (is_source ? params.srcMemoryType : params.dstMemoryType) = CU_MEMORYTYPE_UNIFIED;
    (is_source ? params.srcDevice : params.dstDevice) = pointer.ptr;
    (is_source ? params.srcPitch : params.dstPitch) = pointer.rowLength;
    (is_source ? params.srcHeight : params.dstHeight) = pointer.layerHeight;
    return CUDA_SUCCESS;
}

}  // namespace

CUresult cuMemcpy(DefaultStream default_stream, CUdeviceptr dst, CUdeviceptr src,
                  size_t ByteCount) noexcept {
    return copy_bytes(default_stream_handle(default_stream), dst, src, ByteCount, Sides::kAny,
                      Timing::kSync);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount,
                       CUstream hStream) noexcept {
    return copy_bytes(hStream, dst, src, ByteCount, Sides::kAny, Timing::kAsync);
}

CUresult cuMemcpyPeer(DefaultStream default_stream, CUdeviceptr dstDevice, CUcontext dstContext,
                      CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount) noexcept {
    if (softgpu::find<Context>(dstContext) == nullptr ||
        softgpu::find<Context>(srcContext) == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return copy_bytes(default_stream_handle(default_stream), dstDevice, srcDevice, ByteCount,
                      Sides::kDeviceBoth, Timing::kSync);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                           CUcontext srcContext, size_t ByteCount, CUstream hStream) noexcept {
    if (softgpu::find<Context>(dstContext) == nullptr ||
        softgpu::find<Context>(srcContext) == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return copy_bytes(hStream, dstDevice, srcDevice, ByteCount, Sides::kDeviceBoth, Timing::kAsync);
}

CUresult cuMemcpyHtoD_v2(DefaultStream default_stream, CUdeviceptr dstDevice, const void* srcHost,
                         size_t ByteCount) noexcept {
    return copy_bytes(default_stream_handle(default_stream), dstDevice, address_of(srcHost),
                      ByteCount, Sides::kDeviceDestination, Timing::kSync);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount,
                              CUstream hStream) noexcept {
    return copy_bytes(hStream, dstDevice, address_of(srcHost), ByteCount, Sides::kDeviceDestination,
                      Timing::kAsync);
}

CUresult cuMemcpyDtoH_v2(DefaultStream default_stream, void* dstHost, CUdeviceptr srcDevice,
                         size_t ByteCount) noexcept {
    return copy_bytes(default_stream_handle(default_stream), address_of(dstHost), srcDevice,
                      ByteCount, Sides::kDeviceSource, Timing::kSync);
}

CUresult cuMemcpyDtoHAsync_v2(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                              CUstream hStream) noexcept {
    return copy_bytes(hStream, address_of(dstHost), srcDevice, ByteCount, Sides::kDeviceSource,
                      Timing::kAsync);
}

CUresult cuMemcpyDtoD_v2(DefaultStream default_stream, CUdeviceptr dstDevice, CUdeviceptr srcDevice,
                         size_t ByteCount) noexcept {
    return copy_bytes(default_stream_handle(default_stream), dstDevice, srcDevice, ByteCount,
                      Sides::kDeviceBoth, Timing::kSync);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                              CUstream hStream) noexcept {
    return copy_bytes(hStream, dstDevice, srcDevice, ByteCount, Sides::kDeviceBoth, Timing::kAsync);
}

CUresult cuMemcpyDtoA_v2(DefaultStream default_stream, CUarray dstArray, size_t dstOffset,
                         CUdeviceptr srcDevice, size_t ByteCount) noexcept {
    return copy_array(default_stream_handle(default_stream),
                      {.to_array = dstArray, .to = dstOffset, .from = srcDevice}, ByteCount,
                      Timing::kSync);
}

CUresult cuMemcpyAtoD_v2(DefaultStream default_stream, CUdeviceptr dstDevice, CUarray srcArray,
                         size_t srcOffset, size_t ByteCount) noexcept {
    return copy_array(default_stream_handle(default_stream),
                      {.from_array = srcArray, .to = dstDevice, .from = srcOffset}, ByteCount,
                      Timing::kSync);
}

CUresult cuMemcpyHtoA_v2(DefaultStream default_stream, CUarray dstArray, size_t dstOffset,
                         const void* srcHost, size_t ByteCount) noexcept {
    return copy_array(
        default_stream_handle(default_stream),
        {.to_array = dstArray, .to = dstOffset, .from = address_of(srcHost), .from_host = true},
        ByteCount, Timing::kSync);
}

CUresult cuMemcpyAtoH_v2(DefaultStream default_stream, void* dstHost, CUarray srcArray,
                         size_t srcOffset, size_t ByteCount) noexcept {
    return copy_array(
        default_stream_handle(default_stream),
        {.from_array = srcArray, .to = address_of(dstHost), .from = srcOffset, .to_host = true},
        ByteCount, Timing::kSync);
}

CUresult cuMemcpyAtoA_v2(DefaultStream default_stream, CUarray dstArray, size_t dstOffset,
                         CUarray srcArray, size_t srcOffset, size_t ByteCount) noexcept {
    return copy_array(
        default_stream_handle(default_stream),
        {.to_array = dstArray, .from_array = srcArray, .to = dstOffset, .from = srcOffset},
        ByteCount, Timing::kSync);
}

CUresult cuMemcpyHtoAAsync_v2(CUarray dstArray, size_t dstOffset, const void* srcHost,
                              size_t ByteCount, CUstream hStream) noexcept {
    return copy_array(
        hStream,
        {.to_array = dstArray, .to = dstOffset, .from = address_of(srcHost), .from_host = true},
        ByteCount, Timing::kAsync);
}

CUresult cuMemcpyAtoHAsync_v2(void* dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount,
                              CUstream hStream) noexcept {
    return copy_array(
        hStream,
        {.from_array = srcArray, .to = address_of(dstHost), .from = srcOffset, .to_host = true},
        ByteCount, Timing::kAsync);
}

CUresult cuMemcpy2D_v2(DefaultStream default_stream, const CUDA_MEMCPY2D_v2* pCopy) noexcept {
    return pCopy == nullptr ? CUDA_ERROR_INVALID_VALUE
                            : copy_volume(default_stream_handle(default_stream),
                                          describe_copy(*pCopy), Timing::kSync);
}

CUresult cuMemcpy2DUnaligned_v2(DefaultStream default_stream,
                                const CUDA_MEMCPY2D_v2* pCopy) noexcept {
    return cuMemcpy2D_v2(default_stream, pCopy);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D_v2* pCopy, CUstream hStream) noexcept {
    return pCopy == nullptr ? CUDA_ERROR_INVALID_VALUE
                            : copy_volume(hStream, describe_copy(*pCopy), Timing::kAsync);
}

CUresult cuMemcpy3D_v2(DefaultStream default_stream, const CUDA_MEMCPY3D_v2* pCopy) noexcept {
    return pCopy == nullptr
               ? CUDA_ERROR_INVALID_VALUE
               : copy_volume(default_stream_handle(default_stream), *pCopy, Timing::kSync);
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D_v2* pCopy, CUstream hStream) noexcept {
    return pCopy == nullptr ? CUDA_ERROR_INVALID_VALUE
                            : copy_volume(hStream, *pCopy, Timing::kAsync);
}

CUresult cuMemcpy3DPeer(DefaultStream default_stream, const CUDA_MEMCPY3D_PEER_v1* pCopy) noexcept {
    return pCopy == nullptr ? CUDA_ERROR_INVALID_VALUE
                            : copy_volume(default_stream_handle(default_stream),
                                          describe_copy(*pCopy), Timing::kSync);
}

CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER_v1* pCopy, CUstream hStream) noexcept {
    return pCopy == nullptr ? CUDA_ERROR_INVALID_VALUE
                            : copy_volume(hStream, describe_copy(*pCopy), Timing::kAsync);
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                               CUmemcpyAttributes_v1* attrs, size_t* attrIdxs, size_t numAttrs,
                               CUstream hStream) noexcept {
    if (dsts == nullptr || srcs == nullptr || sizes == nullptr || count == 0 || attrs == nullptr ||
        attrIdxs == nullptr || numAttrs == 0 || attrIdxs[0] != 0 || hStream == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; ++i) {
        GANTRY_CU(cuMemcpyAsync(dsts[i], srcs[i], sizes[i], hStream));
    }
    return CUDA_SUCCESS;
}

CUresult cuMemcpyBatchAsync(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                            CUmemcpyAttributes_v1* attrs, size_t* attrIdxs, size_t numAttrs,
                            size_t* failIdx, CUstream hStream) noexcept {
    if (failIdx != nullptr) {
        *failIdx = ~size_t{0};
    }
    return cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, attrs, attrIdxs, numAttrs, hStream);
}

CUresult cuMemcpy3DBatchAsync_v2(size_t numParams, CUDA_MEMCPY3D_BATCH_OP_v1* opList,
                                 unsigned long long flags, CUstream hStream) noexcept {
    GANTRY_REFUSE_IF(numParams == 0 || opList == nullptr || flags != 0 || hStream == nullptr,
                     CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < numParams; ++i) {
        const CUDA_MEMCPY3D_BATCH_OP& op = opList[i];
        CUDA_MEMCPY3D params{};
        std::uint64_t unit = 1;  // Texels when an array takes part, else bytes.
        GANTRY_CU(batch_operand(op.src, true, params, unit));
        GANTRY_CU(batch_operand(op.dst, false, params, unit));
        params.srcPitch *= unit;
        params.dstPitch *= unit;
        params.WidthInBytes = op.extent.width * unit;
        params.Height = op.extent.height;
        params.Depth = op.extent.depth;
        GANTRY_CU(copy_volume(hStream, params, Timing::kAsync));
    }
    return CUDA_SUCCESS;
}

CUresult cuMemcpy3DBatchAsync(size_t numParams, CUDA_MEMCPY3D_BATCH_OP_v1* opList, size_t* failIdx,
                              unsigned long long flags, CUstream hStream) noexcept {
    if (failIdx != nullptr) {
        *failIdx = ~size_t{0};
    }
    return cuMemcpy3DBatchAsync_v2(numParams, opList, flags, hStream);
}

}  // namespace gantry::cuda_impl
