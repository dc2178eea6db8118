#include "host-daemon/softgpu/streams/copy_submit.h"

#include <cstring>

#include "host-daemon/softgpu/memory/map.h"
#include "host-daemon/softgpu/streams/device_output.h"
#include "host-daemon/softgpu/streams/enqueue.h"

namespace gantry::softgpu {
namespace {

constexpr std::uint64_t kStagedBytesMax = 65536;

std::uint64_t bytes_of(const CopyPlan& plan) { return plan.width_bytes * plan.height * plan.depth; }

/// Waits for all that comes before, then copies in the calling thread.
CUresult copy_here(const std::shared_ptr<Stream>& stream, const CopyPlan& plan) {
    Scheduler::instance().wait(Scheduler::instance().points_before(stream));
    GANTRY_CU(poison());
    execute_copy(plan);
    DeviceOutput::instance().flush();
    const auto context = stream->context();
    return context == nullptr ? CUDA_SUCCESS : take_error(*context);
}

CUresult copy_later(const std::shared_ptr<Stream>& stream, const ResolvedCopy& copy,
                    const CUDA_MEMCPY3D& params, bool stage) {
    auto operation = std::make_shared<CopyOperation>();
    operation->plan = copy.plan;
    operation->params = params;
    if (stage) {
        CopySide& source = operation->plan.source;
        operation->staged.resize(copy.plan.width_bytes);
        std::memcpy(operation->staged.data(), reinterpret_cast<const void*>(source.address),
                    copy.plan.width_bytes);
        source.address = reinterpret_cast<std::uint64_t>(operation->staged.data());
    }
    return enqueue(stream, std::move(operation));
}

bool stageable(const ResolvedCopy& copy) {
    return copy.source_place == CopyPlace::kPageable &&
           copy.destination_place == CopyPlace::kDevice && copy.plan.height == 1 &&
           copy.plan.depth == 1 && copy.plan.width_bytes <= kStagedBytesMax;
}

bool is_on_host(CopyPlace place) {
    return place == CopyPlace::kPinned || place == CopyPlace::kPageable;
}

CUmemorytype type_of(LinearSide side) {
    return side.type == CU_MEMORYTYPE_UNIFIED && !MemoryMap::instance().find(side.address)
               ? CU_MEMORYTYPE_HOST
               : side.type;
}

}  // namespace

CUresult submit_copy_sync(const std::shared_ptr<Stream>& stream, ResolvedCopy copy,
                          const CUDA_MEMCPY3D& params) {
    if (capturing(stream)) {
        capture_builder().invalidate(stream);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    GANTRY_CU(refuse_legacy_during_capture(stream));
    if (copy.plan.empty()) {
        return CUDA_SUCCESS;
    }
    const bool idle = Scheduler::instance().points_before(stream).empty();
    const bool on_device =
        copy.source_place == CopyPlace::kDevice && copy.destination_place == CopyPlace::kDevice;
    if (!idle && (on_device || stageable(copy))) {
        return copy_later(stream, copy, params, !on_device);
    }
    return copy_here(stream, copy.plan);
}

CUresult submit_copy_async(const std::shared_ptr<Stream>& stream, ResolvedCopy copy,
                           const CUDA_MEMCPY3D& params) {
    if (copy.plan.empty() && !capturing(stream)) {
        return CUDA_SUCCESS;
    }
    if (capturing(stream)) {
        return copy_later(stream, copy, params, false);
    }
    GANTRY_CU(refuse_legacy_during_capture(stream));
    const bool idle = Scheduler::instance().points_before(stream).empty();
    if (idle && bytes_of(copy.plan) <= kStagedBytesMax) {
        execute_copy(copy.plan);
        return CUDA_SUCCESS;
    }
    if (stageable(copy)) {
        return copy_later(stream, copy, params, true);
    }
    const bool pageable =
        copy.source_place == CopyPlace::kPageable || copy.destination_place == CopyPlace::kPageable;
    const bool stays = is_on_host(copy.source_place) && is_on_host(copy.destination_place);
    return pageable || stays ? copy_here(stream, copy.plan)
                             : copy_later(stream, copy, params, false);
}

CUDA_MEMCPY3D describe_copy(LinearSide destination, LinearSide source, std::uint64_t bytes) {
    CUDA_MEMCPY3D params{};
    params.srcMemoryType = type_of(source);
    if (params.srcMemoryType == CU_MEMORYTYPE_HOST) {
        params.srcHost = reinterpret_cast<const void*>(source.address);
    } else {
        params.srcDevice = source.address;
    }
    params.dstMemoryType = type_of(destination);
    if (params.dstMemoryType == CU_MEMORYTYPE_HOST) {
        params.dstHost = reinterpret_cast<void*>(destination.address);
    } else {
        params.dstDevice = destination.address;
    }
    params.WidthInBytes = bytes;
    params.Height = 1;
    params.Depth = 1;
    return params;
}

CUDA_MEMCPY3D describe_copy(const CUDA_MEMCPY2D& copy) {
    CUDA_MEMCPY3D params{};
    params.srcXInBytes = copy.srcXInBytes;
    params.srcY = copy.srcY;
    params.srcMemoryType = copy.srcMemoryType;
    params.srcHost = copy.srcHost;
    params.srcDevice = copy.srcDevice;
    params.srcArray = copy.srcArray;
    params.srcPitch = copy.srcPitch;
    params.dstXInBytes = copy.dstXInBytes;
    params.dstY = copy.dstY;
    params.dstMemoryType = copy.dstMemoryType;
    params.dstHost = copy.dstHost;
    params.dstDevice = copy.dstDevice;
    params.dstArray = copy.dstArray;
    params.dstPitch = copy.dstPitch;
    params.WidthInBytes = copy.WidthInBytes;
    params.Height = copy.Height;
    params.Depth = 1;
    return params;
}

CUDA_MEMCPY3D describe_copy(const CUDA_MEMCPY3D_PEER& copy) {
    static_assert(sizeof(CUDA_MEMCPY3D) == sizeof(CUDA_MEMCPY3D_PEER));
    CUDA_MEMCPY3D params;
    std::memcpy(&params, &copy, sizeof params);  // Same layout; contexts lie in reserved fields.
    params.reserved0 = nullptr;
    params.reserved1 = nullptr;
    return params;
}

}  // namespace gantry::softgpu
