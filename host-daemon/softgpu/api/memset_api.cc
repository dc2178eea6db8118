// Fills. Synchronous forms return before the device is done, as CUDA's do, unless the memory is
// the host's or managed.
#include <algorithm>

#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/graph/capture.h"
#include "host-daemon/softgpu/memory/map.h"
#include "host-daemon/softgpu/streams/enqueue.h"
#include "host-daemon/softgpu/streams/operation.h"
#include "host-daemon/softgpu/streams/stream.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {
namespace {

using softgpu::MemoryKind;
using softgpu::MemoryMap;
using softgpu::MemsetOperation;
using softgpu::Scheduler;

enum class Timing { kSync, kAsync };

CUresult fill(CUstream stream_handle, const CUDA_MEMSET_NODE_PARAMS& params, Timing timing) {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, stream_handle);
    if (params.width == 0 || params.height == 0) {
        return CUDA_SUCCESS;
    }
    const std::uint64_t row_bytes = params.width * params.elementSize;
    const std::uint64_t bytes = (params.height - 1) * params.pitch + row_bytes;
    const bool aligned = params.dst % params.elementSize == 0 &&
                         (params.height == 1 || params.pitch % params.elementSize == 0);
    const bool rows_fit = params.height == 1 || params.pitch >= row_bytes;
    GANTRY_REFUSE_IF(!aligned || !rows_fit || !MemoryMap::instance().covers(params.dst, bytes),
                     CUDA_ERROR_INVALID_VALUE);
    const auto operation = std::make_shared<MemsetOperation>();
    operation->params = params;
    if (timing == Timing::kSync && softgpu::capturing(stream)) {
        softgpu::capture_builder().invalidate(stream);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    GANTRY_CU(softgpu::enqueue(stream, operation));
    const auto range = MemoryMap::instance().find(params.dst);
    const bool visible = range && (range->on_host() || range->kind == MemoryKind::kManaged);
    if (timing == Timing::kSync && visible) {
        Scheduler::instance().wait(Scheduler::instance().tail(stream));
        return softgpu::take_error(*context);
    }
    return CUDA_SUCCESS;
}

CUDA_MEMSET_NODE_PARAMS line(CUdeviceptr destination, unsigned value, unsigned element_bytes,
                             size_t count) {
    return {destination, count * element_bytes, value, element_bytes, count, 1};
}

CUDA_MEMSET_NODE_PARAMS area(CUdeviceptr destination, size_t pitch, unsigned value,
                             unsigned element_bytes, size_t width, size_t height) {
    return {destination, pitch, value, element_bytes, width, height};
}

}  // namespace

CUresult cuMemsetD8_v2(DefaultStream default_stream, CUdeviceptr dstDevice, unsigned char uc,
                       size_t N) noexcept {
    return fill(default_stream_handle(default_stream), line(dstDevice, uc, 1, N), Timing::kSync);
}

CUresult cuMemsetD16_v2(DefaultStream default_stream, CUdeviceptr dstDevice, unsigned short us,
                        size_t N) noexcept {
    return fill(default_stream_handle(default_stream), line(dstDevice, us, 2, N), Timing::kSync);
}

CUresult cuMemsetD32_v2(DefaultStream default_stream, CUdeviceptr dstDevice, unsigned int ui,
                        size_t N) noexcept {
    return fill(default_stream_handle(default_stream), line(dstDevice, ui, 4, N), Timing::kSync);
}

CUresult cuMemsetD2D8_v2(DefaultStream default_stream, CUdeviceptr dstDevice, size_t dstPitch,
                         unsigned char uc, size_t Width, size_t Height) noexcept {
    return fill(default_stream_handle(default_stream),
                area(dstDevice, dstPitch, uc, 1, Width, Height), Timing::kSync);
}

CUresult cuMemsetD2D16_v2(DefaultStream default_stream, CUdeviceptr dstDevice, size_t dstPitch,
                          unsigned short us, size_t Width, size_t Height) noexcept {
    return fill(default_stream_handle(default_stream),
                area(dstDevice, dstPitch, us, 2, Width, Height), Timing::kSync);
}

CUresult cuMemsetD2D32_v2(DefaultStream default_stream, CUdeviceptr dstDevice, size_t dstPitch,
                          unsigned int ui, size_t Width, size_t Height) noexcept {
    return fill(default_stream_handle(default_stream),
                area(dstDevice, dstPitch, ui, 4, Width, Height), Timing::kSync);
}

CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N,
                         CUstream hStream) noexcept {
    return fill(hStream, line(dstDevice, uc, 1, N), Timing::kAsync);
}

CUresult cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N,
                          CUstream hStream) noexcept {
    return fill(hStream, line(dstDevice, us, 2, N), Timing::kAsync);
}

CUresult cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N,
                          CUstream hStream) noexcept {
    return fill(hStream, line(dstDevice, ui, 4, N), Timing::kAsync);
}

CUresult cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
                           size_t Height, CUstream hStream) noexcept {
    return fill(hStream, area(dstDevice, dstPitch, uc, 1, Width, Height), Timing::kAsync);
}

CUresult cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
                            size_t Height, CUstream hStream) noexcept {
    return fill(hStream, area(dstDevice, dstPitch, us, 2, Width, Height), Timing::kAsync);
}

CUresult cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
                            size_t Height, CUstream hStream) noexcept {
    return fill(hStream, area(dstDevice, dstPitch, ui, 4, Width, Height), Timing::kAsync);
}

}  // namespace gantry::cuda_impl
