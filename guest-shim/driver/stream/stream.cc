// Streams: named and made here without waiting; their facts answered here.
#include "guest-shim/driver/core/objects.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/shim_marshal.h"
#include "proto/cuda/gen/wire_structs.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {

constinit SlotTable<Stream> g_streams;

namespace {

// As an H200's driver numbers them.
constexpr std::uint64_t kLegacyStreamId = 7;
constexpr std::uint64_t kPerThreadStreamId = 15;
constexpr std::uint64_t kFirstStreamId = 16;
std::atomic<std::uint64_t> g_next_id{kFirstStreamId};

CUresult make_stream(CUstream* out, unsigned flags, int priority, bool with_priority) {
    GANTRY_REFUSE_IF(
        out == nullptr || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0,
        CUDA_ERROR_INVALID_VALUE);
    if (const CUresult closed = session::gate(); closed != CUDA_SUCCESS) {
        return closed;
    }
    const wire::DeviceFacts* facts = session::device_facts(current_device());
    if (priority > facts->least_stream_priority) {
        priority = facts->least_stream_priority;
    } else if (priority < facts->greatest_stream_priority) {
        priority = facts->greatest_stream_priority;
    }
    std::uint64_t handle = 0;
    Stream* stream = g_streams.create(HandleKind::kStream, &handle);
    GANTRY_REFUSE_IF(stream == nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    *stream = Stream{handle, session::current_context(), g_next_id.fetch_add(1), flags, priority};
    CUresult result = CUDA_SUCCESS;
    if (with_priority) {
        const cuda::wire::cuStreamCreateWithPriority_call arguments{handle, flags, priority};
        result = post_args(cuda::Op::cuStreamCreateWithPriority, arguments);
    } else {
        const cuda::wire::cuStreamCreate_call arguments{handle, flags, 0};
        result = post_args(cuda::Op::cuStreamCreate, arguments);
    }
    if (result != CUDA_SUCCESS) {
        g_streams.destroy(handle);
        return result;
    }
    *out = reinterpret_cast<CUstream>(handle);
    return CUDA_SUCCESS;
}

/// Facts of any stream, default ones included; false for garbage.
bool describe(CUstream stream, Stream* out) {
    if (bits(stream) <= 2) {
        const std::uint64_t id = bits(stream) == 2 ? kPerThreadStreamId : kLegacyStreamId;
        *out = Stream{bits(stream), session::current_context(), id, 0, 0};
        return true;
    }
    const Stream* found = g_streams.find(bits(stream));
    if (found == nullptr) {
        return false;
    }
    *out = *found;
    return true;
}

template <typename Value, typename Reader>
CUresult tell(Value* out, CUstream stream, Reader read) {
    Stream facts{};
    GANTRY_REFUSE_IF(out == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(!describe(stream, &facts), CUDA_ERROR_INVALID_HANDLE);
    *out = read(facts);
    return CUDA_SUCCESS;
}

}  // namespace
}  // namespace gantry::shim

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuStreamCreate(CUstream* phStream, unsigned int Flags) noexcept {
    return make_stream(phStream, Flags, 0, false);
}

CUresult cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int priority) noexcept {
    return make_stream(phStream, flags, priority, true);
}

CUresult cuStreamDestroy_v2(CUstream hStream) noexcept {
    GANTRY_REFUSE_IF(!g_streams.destroy(bits(hStream)), CUDA_ERROR_INVALID_HANDLE);
    if (captures_open()) {
        abandon_capture(bits(hStream));
    }
    return post_args(cuda::Op::cuStreamDestroy_v2,
                     cuda::wire::cuStreamDestroy_v2_call{bits(hStream)});
}

CUresult cuStreamGetPriority(CUstream hStream, int* priority) noexcept {
    return tell(priority, hStream, [](const Stream& facts) { return facts.priority; });
}

/// The questions that native takes for a look at the work of a stream, which while it is captured
/// is refused and costs the capture (seen with driver 580; cuStreamGetPriority and cuStreamGetCtx
/// are none of them).
template <typename T, typename Read>
static CUresult tell_of_work(T* out, CUstream stream, Read read) {
    const bool is_refused = captures_open() && is_captured(stream);
    return is_refused ? cuStreamQuery(stream) : tell(out, stream, read);
}

CUresult cuStreamGetFlags(CUstream hStream, unsigned int* flags) noexcept {
    return tell_of_work(flags, hStream, [](const Stream& facts) { return facts.flags; });
}

CUresult cuStreamGetId(CUstream hStream, unsigned long long* streamId) noexcept {
    return tell_of_work(streamId, hStream, [](const Stream& facts) { return facts.id; });
}

CUresult cuStreamGetDevice(CUstream hStream, CUdevice* device) noexcept {
    return tell_of_work(device, hStream, [](const Stream& facts) {
        const Context* context = find_context(facts.context);
        return context != nullptr ? context->device : 0;
    });
}

CUresult cuStreamGetCtx(CUstream hStream, CUcontext* pctx) noexcept {
    return tell(pctx, hStream,
                [](const Stream& facts) { return reinterpret_cast<CUcontext>(facts.context); });
}

CUresult cuStreamGetCtx_v2(CUstream hStream, CUcontext* pCtx, CUgreenCtx* pGreenCtx) noexcept {
    if (pGreenCtx != nullptr) {
        *pGreenCtx = nullptr;
    }
    return cuStreamGetCtx(hStream, pCtx);
}

CUresult cuStreamSynchronize(CUstream hStream) noexcept {
    return synchronize_stream(bits(hStream));
}

CUresult cuStreamQuery(CUstream hStream) noexcept {
    return session::is_synchronised(bits(hStream)) ? CUDA_SUCCESS : marshal::cuStreamQuery(hStream);
}

}  // namespace gantry::cuda_impl
