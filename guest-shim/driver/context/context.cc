// Contexts: primary ones (counted here, made on the host at the first retain), created ones, and
// each thread's current-context stack.
#include "guest-shim/driver/code/code.h"
#include "guest-shim/driver/core/call_rules.h"
#include "guest-shim/driver/core/lent_context.h"
#include "guest-shim/driver/core/ranges.h"
#include "proto/cuda/dark/dark.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/wire_structs.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {
namespace {

constinit SlotTable<Context> g_contexts;
session::FutexMutex g_mutex;  // Guards references, and the host's side of making and ending.
std::atomic<std::uint64_t> g_next_id{1};
std::atomic<bool> g_limits_changed{false};

/// The first slots are the primary contexts, so that their handles are known at once and for ever
/// (primary_context_handle in handle_bits.h).
__attribute__((constructor)) void make_primary_slots() {
    for (int device = 0; device < kMaxDevices; ++device) {
        std::uint64_t handle = 0;
        Context* context = g_contexts.create(HandleKind::kContext, &handle);
        if (context != nullptr) {
            context->handle = handle;
            context->device = device;
            context->primary = true;
            context->id = g_next_id.fetch_add(1);
        }
    }
}

/// The host has destroyed them with their context.
void forget_streams_and_events(std::uint64_t context) {
    g_streams.for_each([&](std::uint64_t handle, const Stream* stream) {
        if (stream->context == context) {
            g_streams.destroy(handle);
            abandon_capture(handle);
        }
    });
    g_events.for_each([&](std::uint64_t handle, const Event* event) {
        if (event->context == context) {
            g_events.destroy(handle);
        }
    });
}

CUresult end_on_host(cuda::Op op, Context* context) {
    if (session::gate() == CUDA_SUCCESS) {
        free_memory_of(context->handle);
    }
    const cuda::wire_hand::ContextEndCall arguments{context->handle,
                                                    static_cast<std::uint32_t>(context->device), 0};
    const CUresult result = call_status(op, arguments);
    context->active.store(false);
    forget_streams_and_events(context->handle);
    forget_modules_of(context->handle);
    bool is_last = context->primary;
    g_contexts.for_each(
        [&](std::uint64_t, const Context* other) { is_last = is_last && !other->active.load(); });
    if (result == CUDA_SUCCESS && is_last) {
        forget_device_memory();
    }
    dark::forget_context(reinterpret_cast<void*>(context->handle));
    return result;
}

CUresult create(CUcontext* out, unsigned flags, CUdevice device) {
    GANTRY_REFUSE_IF(out == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(session::device_facts(device) == nullptr, CUDA_ERROR_INVALID_DEVICE);
    std::uint64_t handle = 0;
    Context* context = g_contexts.create(HandleKind::kContext, &handle);
    GANTRY_REFUSE_IF(context == nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    context->handle = handle;
    context->device = device;
    context->flags = flags;
    context->references = 1;
    context->id = g_next_id.fetch_add(1);
    const cuda::wire_hand::ContextCall arguments{handle, static_cast<std::uint32_t>(device), flags};
    CUresult result = call_status(cuda::Op::cuCtxCreate_v2, arguments);
    if (result == CUDA_SUCCESS) {
        context->active.store(true);
        result = session::push_context(handle);
    }
    if (result != CUDA_SUCCESS) {
        g_contexts.destroy(handle);
        return result;
    }
    *out = reinterpret_cast<CUcontext>(handle);
    return CUDA_SUCCESS;
}

/// The context of a parameter that may be null for the current one.
Context* named_or_current(CUcontext context) {
    return context == nullptr ? current() : find_context(bits(context));
}

bool lend(std::uint64_t context) {
    return find_context(context) != nullptr && session::push_context(context) == CUDA_SUCCESS;
}

}  // namespace

Context* find_context(std::uint64_t handle) noexcept { return g_contexts.find(handle); }

Context* current() noexcept { return g_contexts.find(session::current_context()); }

Context* primary_context(int device) noexcept {
    return g_contexts.find(cuda::primary_context_handle(static_cast<std::uint32_t>(device)));
}

int current_device() noexcept {
    const Context* context = current();
    return context != nullptr ? context->device : 0;
}

bool lend_context_of(CUstream stream) noexcept {
    const Stream* found = bits(stream) > 2 ? g_streams.find(bits(stream)) : nullptr;
    return found != nullptr && lend(found->context);
}

bool lend_context_of(CUevent event) noexcept {
    const Event* found = g_events.find(bits(event));
    return found != nullptr && lend(found->context);
}

bool lend_context_of(CUdeviceptr address) noexcept {
    Range range{};
    return find_range(address, &range) && lend(range.context);
}

bool lend_context_of(const void* address) noexcept {
    return lend_context_of(CUdeviceptr{bits(address)});
}

CUresult synchronize_context() noexcept {
    return session::call(cuda::Op::cuCtxSynchronize, nullptr, 0, nullptr, 0, nullptr, 0, nullptr, 0,
                         nullptr);
}

}  // namespace gantry::shim

namespace gantry::shim::rules {

void note_context_flags(unsigned flags) noexcept {
    if (Context* context = current(); context != nullptr) {
        context->flags = flags;
    }
}

void note_cache_config(CUfunc_cache config) noexcept {
    if (Context* context = current(); context != nullptr) {
        context->cache_config = config;
    }
}

CUresult limits_change() noexcept {
    g_limits_changed.store(true);
    return CUDA_SUCCESS;
}

Answer unchanged_limit(std::size_t* value, CUlimit limit) noexcept {
    const auto number = static_cast<std::uint32_t>(limit);
    const wire::DeviceFacts* facts = session::device_facts(current_device());
    if (value == nullptr || g_limits_changed.load() || number >= wire::kMaxLimits ||
        number >= CU_LIMIT_MAX || facts == nullptr) {
        return {};
    }
    if (facts->limit_status[number] == CUDA_ERROR_INVALID_CONTEXT) {
        return {};  // The card was full then: the host had no context to ask.
    }
    if (facts->limit_status[number] == CUDA_SUCCESS) {
        *value = facts->limits[number];
    }
    return static_cast<CUresult>(facts->limit_status[number]);
}

}  // namespace gantry::shim::rules

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) noexcept {
    GANTRY_REFUSE_IF(pctx == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(session::device_facts(dev) == nullptr, CUDA_ERROR_INVALID_DEVICE);
    Context* context = primary_context(dev);
    session::Guard guard(g_mutex);
    if (!context->active.load()) {
        const cuda::wire_hand::ContextCall arguments{
            context->handle, static_cast<std::uint32_t>(dev), context->flags};
        const CUresult result = call_status(cuda::Op::cuDevicePrimaryCtxRetain, arguments);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        context->active.store(true);
    }
    ++context->references;
    *pctx = reinterpret_cast<CUcontext>(context->handle);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) noexcept {
    GANTRY_REFUSE_IF(session::device_facts(dev) == nullptr, CUDA_ERROR_INVALID_DEVICE);
    Context* context = primary_context(dev);
    session::Guard guard(g_mutex);
    GANTRY_REFUSE_IF(context->references == 0, CUDA_ERROR_INVALID_CONTEXT);
    if (--context->references != 0 || !context->active.load()) {
        return CUDA_SUCCESS;
    }
    return end_on_host(cuda::Op::cuDevicePrimaryCtxRelease_v2, context);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) noexcept {
    GANTRY_REFUSE_IF(session::device_facts(dev) == nullptr, CUDA_ERROR_INVALID_DEVICE);
    Context* context = primary_context(dev);
    session::Guard guard(g_mutex);
    context->flags = 0;  // What was retained stays retained, of a context without state.
    if (!context->active.load()) {
        return CUDA_SUCCESS;
    }
    return end_on_host(cuda::Op::cuDevicePrimaryCtxReset_v2, context);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) noexcept {
    GANTRY_REFUSE_IF(session::device_facts(dev) == nullptr, CUDA_ERROR_INVALID_DEVICE);
    GANTRY_REFUSE_IF((flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) != 0,
                     CUDA_ERROR_INVALID_VALUE);
    Context* context = primary_context(dev);
    session::Guard guard(g_mutex);
    const cuda::wire_hand::ContextCall arguments{context->handle, static_cast<std::uint32_t>(dev),
                                                 flags};
    const CUresult result = call_status(cuda::Op::cuDevicePrimaryCtxSetFlags_v2, arguments);
    if (result == CUDA_SUCCESS) {
        context->flags = flags;
    }
    return result;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int* flags, int* active) noexcept {
    GANTRY_REFUSE_IF(session::device_facts(dev) == nullptr, CUDA_ERROR_INVALID_DEVICE);
    GANTRY_REFUSE_IF(flags == nullptr || active == nullptr, CUDA_ERROR_INVALID_VALUE);
    const Context* context = primary_context(dev);
    *flags = context->flags;
    *active = context->active.load() ? 1 : 0;
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) noexcept {
    return create(pctx, flags, dev);
}

CUresult cuCtxCreate_v3(CUcontext* pctx, CUexecAffinityParam*, int numParams, unsigned int flags,
                        CUdevice dev) noexcept {
    return numParams != 0 ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : create(pctx, flags, dev);
}

CUresult cuCtxCreate_v4(CUcontext* pctx, CUctxCreateParams* ctxCreateParams, unsigned int flags,
                        CUdevice dev) noexcept {
    if (ctxCreateParams != nullptr &&
        (ctxCreateParams->numExecAffinityParams != 0 || ctxCreateParams->cigParams != nullptr)) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return create(pctx, flags, dev);
}

CUresult cuCtxDestroy_v2(CUcontext ctx) noexcept {
    Context* context = find_context(bits(ctx));
    GANTRY_REFUSE_IF(context == nullptr || context->primary, CUDA_ERROR_INVALID_CONTEXT);
    const CUresult result = end_on_host(cuda::Op::cuCtxDestroy_v2, context);
    if (session::current_context() == bits(ctx)) {
        session::pop_context();
    }
    g_contexts.destroy(bits(ctx));
    return result;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx) noexcept {
    GANTRY_REFUSE_IF(ctx == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(find_context(bits(ctx)) == nullptr, CUDA_ERROR_INVALID_CONTEXT);
    return session::push_context(bits(ctx));
}

CUresult cuCtxPopCurrent_v2(CUcontext* pctx) noexcept {
    const std::uint64_t top = session::pop_context();
    GANTRY_REFUSE_IF(top == 0, CUDA_ERROR_INVALID_CONTEXT);
    if (pctx != nullptr) {
        *pctx = reinterpret_cast<CUcontext>(top);
    }
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext ctx) noexcept {
    GANTRY_REFUSE_IF(ctx != nullptr && find_context(bits(ctx)) == nullptr,
                     CUDA_ERROR_INVALID_CONTEXT);
    return session::set_context(bits(ctx));
}

CUresult cuCtxGetCurrent(CUcontext* pctx) noexcept {
    GANTRY_REFUSE_IF(pctx == nullptr, CUDA_ERROR_INVALID_VALUE);
    *pctx = reinterpret_cast<CUcontext>(session::current_context());
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext ctx) noexcept {
    GANTRY_REFUSE_IF(device == nullptr, CUDA_ERROR_INVALID_VALUE);
    const Context* context = named_or_current(ctx);
    GANTRY_REFUSE_IF(context == nullptr, CUDA_ERROR_INVALID_CONTEXT);
    *device = context->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) noexcept { return cuCtxGetDevice_v2(device, nullptr); }

CUresult cuCtxGetId(CUcontext ctx, unsigned long long* ctxId) noexcept {
    GANTRY_REFUSE_IF(ctxId == nullptr, CUDA_ERROR_INVALID_VALUE);
    const Context* context = named_or_current(ctx);
    GANTRY_REFUSE_IF(context == nullptr, CUDA_ERROR_INVALID_CONTEXT);
    *ctxId = context->id;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int* flags) noexcept {
    const Context* context = current();
    if (flags == nullptr || context == nullptr) {
        return flags == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    }
    *flags = context->flags | CU_CTX_MAP_HOST;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize_v2(CUcontext ctx) noexcept {
    const Context* context = named_or_current(ctx);
    GANTRY_REFUSE_IF(context == nullptr, CUDA_ERROR_INVALID_CONTEXT);
    return call_status(cuda::Op::cuCtxSynchronize_v2,
                       cuda::wire::cuCtxSynchronize_v2_call{context->handle});
}

CUresult cuCtxGetCacheConfig(CUfunc_cache* pconfig) noexcept {
    const Context* context = current();
    if (pconfig == nullptr || context == nullptr) {
        return pconfig == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    }
    *pconfig = context->cache_config;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig* pConfig) noexcept {
    const Context* context = current();
    if (pConfig == nullptr || context == nullptr) {
        return pConfig == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    }
    // Since Volta banks are four bytes wide, whatever was asked for.
    *pConfig = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) noexcept {
    Context* context = current();
    GANTRY_REFUSE_IF(context == nullptr, CUDA_ERROR_INVALID_CONTEXT);
    GANTRY_REFUSE_IF(static_cast<unsigned>(config) > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE,
                     CUDA_ERROR_INVALID_VALUE);
    context->shared_config = config;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int* version) noexcept {
    GANTRY_REFUSE_IF(version == nullptr, CUDA_ERROR_INVALID_VALUE);
    const Context* context = named_or_current(ctx);
    GANTRY_REFUSE_IF(context == nullptr, CUDA_ERROR_INVALID_CONTEXT);
    const wire::DeviceFacts* facts = session::device_facts(context->device);
    const std::uint32_t told = facts != nullptr ? facts->context_api_version : 0;
    *version = told != 0 ? told : 3020;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int* leastPriority, int* greatestPriority) noexcept {
    const wire::DeviceFacts* facts = session::device_facts(current_device());
    GANTRY_REFUSE_IF(facts == nullptr, CUDA_ERROR_INVALID_DEVICE);
    if (leastPriority != nullptr) {
        *leastPriority = facts->least_stream_priority;
    }
    if (greatestPriority != nullptr) {
        *greatestPriority = facts->greatest_stream_priority;
    }
    return CUDA_SUCCESS;
}

CUresult cuCtxAttach(CUcontext* pctx, unsigned int flags) noexcept {
    Context* context = current();
    GANTRY_REFUSE_IF(pctx == nullptr || flags != 0, CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(context == nullptr, CUDA_ERROR_INVALID_CONTEXT);
    session::Guard guard(g_mutex);
    ++context->references;
    *pctx = reinterpret_cast<CUcontext>(context->handle);
    return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext ctx) noexcept {
    Context* context = find_context(bits(ctx));
    GANTRY_REFUSE_IF(context == nullptr || session::current_context() != bits(ctx),
                     CUDA_ERROR_INVALID_CONTEXT);
    if (!context->primary) {
        session::Guard guard(g_mutex);
        if (context->references > 1) {
            --context->references;
            return CUDA_SUCCESS;
        }
    }
    return context->primary ? CUDA_SUCCESS : cuCtxDestroy_v2(ctx);
}

}  // namespace gantry::cuda_impl
