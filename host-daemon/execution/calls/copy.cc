// Copies between addresses that both sides know: device memory, the pinned pool, arrays.
#include "host-daemon/execution/base/log.h"
#include "host-daemon/execution/calls/native_copy.h"
#include "host-daemon/execution/dispatch/handlers.h"

#include <algorithm>

#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {
namespace {

/// A copy by unified addressing takes any unknown address for host memory of this process: so only
/// addresses of the guest's, or such as the driver knows, may pass.
bool may_name(Call& call, std::uint64_t address, std::uint64_t bytes) {
    if (bytes == 0 || call.process().memory.device.owns(address, bytes)) {
        return true;
    }
    const driver::DriverApi& api = call.api();
    unsigned int type = 0;
    return api.cuPointerGetAttribute != nullptr && address + (bytes - 1) >= address &&
           api.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) ==
               CUDA_SUCCESS &&
           api.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                     address + (bytes - 1)) == CUDA_SUCCESS;
}

/// Bytes that a copy touches at a linear end; nullopt on overflow.
std::optional<std::uint64_t> reach(const cuda::wire_hand::CopyEnd& end, std::uint64_t width,
                                   std::uint64_t height, std::uint64_t depth) {
    constexpr std::uint64_t kMost = 1ull << 46;
    const std::uint64_t rows = end.height > height ? end.height : height;
    if (width > kMost || height > kMost || depth > kMost || end.pitch > kMost || rows > kMost ||
        end.x_bytes > kMost || end.y > kMost || end.z > kMost) {
        return std::nullopt;
    }
    const __uint128_t last_row =
        (static_cast<__uint128_t>(end.z + depth - 1) * rows + (end.y + height - 1)) * end.pitch;
    const __uint128_t bytes = last_row + end.x_bytes + width;
    return bytes > kMost ? std::nullopt
                         : std::optional<std::uint64_t>(static_cast<std::uint64_t>(bytes));
}

/// Keeps a copy into the pinned pool that was just queued, for a move of the guest's memory.
void note_copy(Call& call, const PinnedWrites::Box& box, std::uint64_t reach, CUstream stream) {
    GuestProcess& process = call.process();
    if (!process.memory.pinned_writes.enabled() || process.channel.memory() == nullptr ||
        !process.channel.memory()->pinned_contains(box.address, reach)) {
        return;
    }
    if (process.graphs.captures.any()) {
        // A captured copy writes nothing, and an event would become part of the graph.
        CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
        if (call.api().cuStreamIsCapturing == nullptr ||
            call.api().cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
            status != CU_STREAM_CAPTURE_STATUS_NONE) {
            return;
        }
    }
    process.memory.pinned_writes.add(box, stream);
}

PinnedWrites::Box box_of(const CUDA_MEMCPY3D_v2& copy) {
    PinnedWrites::Box box;
    box.slice_pitch = copy.dstPitch * std::max<std::uint64_t>(copy.dstHeight, copy.Height);
    box.address =
        copy.dstDevice + copy.dstZ * box.slice_pitch + copy.dstY * copy.dstPitch + copy.dstXInBytes;
    box.width = copy.WidthInBytes;
    box.pitch = copy.dstPitch;
    box.rows = copy.Height;
    box.slices = copy.Depth;
    return box;
}

struct NativeEnd {
    CUmemorytype type = CU_MEMORYTYPE_UNIFIED;
    CUdeviceptr address = 0;
    CUarray array = nullptr;
};

CUresult resolve_end(Call& call, const cuda::wire_hand::Copy3DCall& copy,
                     const cuda::wire_hand::CopyEnd& end, NativeEnd* out) {
    if (end.array != 0) {
        out->type = CU_MEMORYTYPE_ARRAY;
        out->array = call.process().objects.native_as<CUarray>(end.array, HandleKind::kArray);
        return out->array != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    }
    const auto bytes = reach(end, copy.width_bytes, copy.height, copy.depth);
    if (!bytes || !may_name(call, end.address, *bytes)) {
        log_limited("a copy of the guest was refused: %llu bytes at %llx are no memory of its GPU",
                    static_cast<unsigned long long>(bytes.value_or(0)),
                    static_cast<unsigned long long>(end.address));
        return CUDA_ERROR_INVALID_VALUE;
    }
    out->address = end.address;
    return CUDA_SUCCESS;
}

}  // namespace

CUresult to_native_copy(Call& call, const cuda::wire_hand::Copy3DCall& copy,
                        CUDA_MEMCPY3D_v2* out) {
    NativeEnd source;
    NativeEnd target;
    if (const CUresult result = resolve_end(call, copy, copy.source, &source);
        result != CUDA_SUCCESS) {
        return result;
    }
    if (const CUresult result = resolve_end(call, copy, copy.target, &target);
        result != CUDA_SUCCESS) {
        return result;
    }
    *out = CUDA_MEMCPY3D_v2{};
    out->srcXInBytes = copy.source.x_bytes;
    out->srcY = copy.source.y;
    out->srcZ = copy.source.z;
    out->srcLOD = copy.source.lod;
    out->srcMemoryType = source.type;
    out->srcDevice = source.address;
    out->srcArray = source.array;
    out->srcPitch = copy.source.pitch;
    out->srcHeight = copy.source.height;
    out->dstXInBytes = copy.target.x_bytes;
    out->dstY = copy.target.y;
    out->dstZ = copy.target.z;
    out->dstLOD = copy.target.lod;
    out->dstMemoryType = target.type;
    out->dstDevice = target.address;
    out->dstArray = target.array;
    out->dstPitch = copy.target.pitch;
    out->dstHeight = copy.target.height;
    out->WidthInBytes = copy.width_bytes;
    out->Height = copy.height;
    out->Depth = copy.depth;
    return CUDA_SUCCESS;
}

CUresult on_cuMemcpyAsync(CallContext& context, const wire::cuMemcpyAsync_call& copy,
                          std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    if (!may_name(call, copy.dst, copy.ByteCount) || !may_name(call, copy.src, copy.ByteCount)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUstream stream = nullptr;
    if (const CUresult result = call.stream(copy.hStream, &stream); result != CUDA_SUCCESS) {
        return result;
    }
    call.queued_in(stream);
    const CUresult result = call.api().cuMemcpyAsync(copy.dst, copy.src, copy.ByteCount, stream);
    if (result == CUDA_SUCCESS && copy.ByteCount != 0) {
        note_copy(call, {copy.dst, copy.ByteCount}, copy.ByteCount, stream);
    }
    return result;
}

CUresult on_cuMemcpy3DAsync_v2(CallContext& context, const wire::cuMemcpy3DAsync_v2_call& copy,
                               std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    if (call.api().cuMemcpy3DAsync_v2 == nullptr) {
        return call.unsupported(call.op());
    }
    if (copy.width_bytes == 0 || copy.height == 0 || copy.depth == 0) {
        return CUDA_SUCCESS;
    }
    CUDA_MEMCPY3D_v2 native;
    CUstream stream = nullptr;
    CUresult result = to_native_copy(call, copy, &native);
    if (result == CUDA_SUCCESS) {
        result = call.stream(copy.stream, &stream);
    }
    if (result == CUDA_SUCCESS) {
        result = call.api().cuMemcpy3DAsync_v2(&native, stream);
    }
    if (result == CUDA_SUCCESS && copy.target.array == 0) {
        const PinnedWrites::Box box = box_of(native);
        const std::uint64_t reach =
            (box.slices - 1) * box.slice_pitch + (box.rows - 1) * box.pitch + box.width;
        note_copy(call, box, reach, stream);
    }
    return result;
}

}  // namespace gantry::worker
