// Kernel launches, host callbacks, occupancy of clusters.
#include "host-daemon/execution/dispatch/handlers.h"

#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {
namespace {

using cuda::wire_hand::LaunchAttribute;
using cuda::wire_hand::LaunchCall;
using cuda::wire_hand::LaunchExCall;

/// The `extra` form of packed arguments. Valid while `params` lives.
struct PackedArguments {
    explicit PackedArguments(std::span<const std::byte> params_in)
        : params(params_in), bytes(params_in.size()) {}
    void** get() {
        list[0] = CU_LAUNCH_PARAM_BUFFER_POINTER;
        list[1] = const_cast<std::byte*>(params.data());
        list[2] = CU_LAUNCH_PARAM_BUFFER_SIZE;
        list[3] = &bytes;
        list[4] = CU_LAUNCH_PARAM_END;
        return bytes == 0 ? nullptr : list;
    }
    std::span<const std::byte> params;
    std::size_t bytes;
    void* list[5] = {};
};

CUresult resolve_launch(Call& call, const LaunchCall& launch, CUfunction* function,
                        CUstream* stream) {
    std::uint64_t native = 0;
    if (const CUresult result = call.resolve(HandleKind::kFunction, launch.kernel, &native);
        result != CUDA_SUCCESS) {
        return result;
    }
    *function = reinterpret_cast<CUfunction>(native);
    return call.stream(launch.stream, stream);
}

/// Reads the attributes in front of `trailing` and gives events the driver's handles.
CUresult read_attributes(Call& call, std::uint32_t count, std::span<const std::byte>& trailing,
                         std::vector<CUlaunchAttribute>* out) {
    if (count > cuda::wire_hand::kMaxLaunchAttributes) {
        return call.malformed(call.op(), "too many launch attributes");
    }
    const auto raw = Call::read_array<LaunchAttribute>(trailing, count);
    if (!raw) {
        return call.malformed(call.op(), "launch attributes longer than the command");
    }
    for (const LaunchAttribute& attribute : *raw) {
        CUlaunchAttribute native{};
        native.id = static_cast<CUlaunchAttributeID>(attribute.id);
        static_assert(sizeof(native.value) == sizeof(attribute.value));
        std::memcpy(&native.value, attribute.value, sizeof(native.value));
        if (native.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT ||
            native.id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT) {
            // Both begin with the event in the ABI's structures.
            std::uint64_t event = 0;
            if (const CUresult result =
                    call.resolve(HandleKind::kEvent, attribute.value[0], &event);
                result != CUDA_SUCCESS) {
                return result;
            }
            std::memcpy(&native.value, &event, sizeof(event));
        } else if (native.id == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        out->push_back(native);
    }
    return CUDA_SUCCESS;
}

CUresult make_config(Call& call, const LaunchExCall& launch, std::span<const std::byte>& trailing,
                     std::vector<CUlaunchAttribute>* attributes, CUlaunchConfig* config,
                     CUfunction* function) {
    CUresult result = resolve_launch(call, launch.launch, function, &config->hStream);
    if (result == CUDA_SUCCESS) {
        result = read_attributes(call, launch.attribute_count, trailing, attributes);
    }
    config->gridDimX = launch.launch.grid[0];
    config->gridDimY = launch.launch.grid[1];
    config->gridDimZ = launch.launch.grid[2];
    config->blockDimX = launch.launch.block[0];
    config->blockDimY = launch.launch.block[1];
    config->blockDimZ = launch.launch.block[2];
    config->sharedMemBytes = launch.launch.shared_bytes;
    config->attrs = attributes->data();
    config->numAttrs = static_cast<unsigned int>(attributes->size());
    return result;
}

/// Tells the gate of a launch when it goes out of scope.
class GatedLaunch {
public:
    GatedLaunch(GuestProcess& process, CUstream stream, const LaunchCall& launch)
        : process_(process), stream_(stream) {
        if (is_gated()) {
            key_ = launch_key(launch);
            before_ = process_.launch_gate.launching(stream_);
        }
    }
    ~GatedLaunch() {
        if (key_ != 0) {
            process_.launch_gate.launched(stream_, key_, before_);
        }
    }
    GatedLaunch(const GatedLaunch&) = delete;
    GatedLaunch& operator=(const GatedLaunch&) = delete;

private:
    [[nodiscard]] bool is_gated() const {
        return !process_.launch_gate.is_open() && !process_.graphs.captures.any();
    }

    GuestProcess& process_;
    CUstream stream_;
    std::uint64_t key_ = 0;  ///< 0: the gate is not told.
    EventPool::Event before_;
};

/// Launches, and notes what a cooperative grid needs of a device.
CUresult launch_configured(Call& call, const LaunchCall& launch, const CUlaunchConfig& config,
                           CUfunction function, PackedArguments& packed) {
    call.queued_in(config.hStream);
    call.process().launches.counters.launches.fetch_add(1, std::memory_order_relaxed);
    CUresult result = CUDA_SUCCESS;
    {
        const GatedLaunch gated(call.process(), config.hStream, launch);
        const LaunchAccount::Launch measured(call.process().account, shape_of(launch),
                                             config.hStream);
        result = call.api().cuLaunchKernelEx(&config, function, nullptr, packed.get());
    }
    bool is_cooperative = false;
    for (unsigned i = 0; i < config.numAttrs; ++i) {
        is_cooperative |= config.attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE &&
                          config.attrs[i].value.cooperative != 0;
    }
    if (result == CUDA_SUCCESS && is_cooperative) {
        call.process().code.device_use.note_cooperative(
            launch.kernel, std::uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2],
            launch.block[0] * launch.block[1] * launch.block[2], launch.shared_bytes);
    }
    return result;
}

void run_host_function(void* callback) { CallbackBroker::run(callback, CUDA_SUCCESS); }

void run_stream_callback(CUstream, CUresult status, void* callback) {
    CallbackBroker::run(callback, static_cast<std::uint32_t>(status));
}

CUresult launch_callback(Call& call, const cuda::wire_hand::HostFunctionCall& wanted,
                         gantry::wire::CallbackKind kind) {
    CUstream stream = nullptr;
    if (const CUresult result = call.stream(wanted.stream, &stream); result != CUDA_SUCCESS) {
        return result;
    }
    gantry::wire::CallbackReply reply{};
    reply.function = wanted.function;
    reply.user_data = wanted.user_data;
    reply.stream = wanted.stream;
    reply.kind = kind;
    CallbackBroker& broker = call.process().channel.callbacks;
    CallbackBroker::Callback* callback = call.process().graphs.captures.is_capturing(stream)
                                             ? broker.add_repeating(reply)
                                             : broker.add(reply, call.header().position);
    const driver::DriverApi& api = call.api();
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
    if (kind == gantry::wire::CallbackKind::kHostFunction) {
        result = api.cuLaunchHostFunc(stream, run_host_function, callback);
    } else if (api.cuStreamAddCallback != nullptr) {
        result = api.cuStreamAddCallback(stream, run_stream_callback, callback, 0);
    }
    if (result != CUDA_SUCCESS) {
        broker.forget(callback);
    }
    return result;
}

}  // namespace

CUresult on_cuLaunchKernel(CallContext& context, const wire::cuLaunchKernel_call& launch,
                           std::span<const std::byte> trailing, Reply&) {
    Call& call = as_call(context);
    CUfunction function = nullptr;
    CUstream stream = nullptr;
    if (trailing.size() != launch.param_bytes) {
        return call.malformed(call.op(), "size of the packed arguments");
    }
    if (const CUresult result = resolve_launch(call, launch, &function, &stream);
        result != CUDA_SUCCESS) {
        return result;
    }
    call.queued_in(stream);
    LaunchPolicy& launches = call.process().launches;
    launches.counters.launches.fetch_add(1, std::memory_order_relaxed);
    const GatedLaunch gated(call.process(), stream, launch);
    const LaunchAccount::Launch measured(call.process().account, shape_of(launch), stream);
    if (!call.may_wait() && launches.launch_one(call.command(), launch, trailing, stream)) {
        return CUDA_SUCCESS;
    }
    PackedArguments packed(trailing);
    return call.api().cuLaunchKernel(function, launch.grid[0], launch.grid[1], launch.grid[2],
                                     launch.block[0], launch.block[1], launch.block[2],
                                     launch.shared_bytes, stream, nullptr, packed.get());
}

CUresult on_cuLaunchCooperativeKernel(CallContext& context,
                                      const wire::cuLaunchCooperativeKernel_call& launch,
                                      std::span<const std::byte> trailing, Reply&) {
    Call& call = as_call(context);
    if (trailing.size() != launch.param_bytes) {
        return call.malformed(call.op(), "size of the packed arguments");
    }
    // The dedicated entry point takes no packed arguments, so the attribute says it.
    LaunchExCall extended{};
    extended.launch = launch;
    std::vector<CUlaunchAttribute> attributes;
    CUlaunchConfig config{};
    CUfunction function = nullptr;
    std::span<const std::byte> none;
    if (const CUresult result = make_config(call, extended, none, &attributes, &config, &function);
        result != CUDA_SUCCESS) {
        return result;
    }
    CUlaunchAttribute cooperative{};
    cooperative.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    cooperative.value.cooperative = 1;
    config.attrs = &cooperative;
    config.numAttrs = 1;
    PackedArguments packed(trailing);
    return launch_configured(call, launch, config, function, packed);
}

CUresult on_cuLaunchKernelEx(CallContext& context, const wire::cuLaunchKernelEx_call& launch,
                             std::span<const std::byte> trailing, Reply&) {
    Call& call = as_call(context);
    std::vector<CUlaunchAttribute> attributes;
    CUlaunchConfig config{};
    CUfunction function = nullptr;
    if (const CUresult result =
            make_config(call, launch, trailing, &attributes, &config, &function);
        result != CUDA_SUCCESS) {
        return result;
    }
    if (trailing.size() != launch.launch.param_bytes) {
        return call.malformed(call.op(), "size of the packed arguments");
    }
    PackedArguments packed(trailing);
    return launch_configured(call, launch.launch, config, function, packed);
}

CUresult on_cuLaunchHostFunc(CallContext& context, const wire::cuLaunchHostFunc_call& call,
                             std::span<const std::byte>, Reply&) {
    return launch_callback(as_call(context), call, gantry::wire::CallbackKind::kHostFunction);
}

CUresult on_cuStreamAddCallback(CallContext& context, const wire::cuStreamAddCallback_call& call,
                                std::span<const std::byte>, Reply&) {
    return launch_callback(as_call(context), call, gantry::wire::CallbackKind::kStreamCallback);
}

namespace {

/// Answers with what one of the driver's entry points says of a launch; it may be missing.
CUresult answer_occupancy(CallContext& context,
                          CUresult (*ask)(int*, CUfunction, const CUlaunchConfig*),
                          const LaunchExCall& launch, std::span<const std::byte> trailing,
                          Reply& reply) {
    Call& call = as_call(context);
    if (ask == nullptr) {
        return call.unsupported(call.op());
    }
    std::vector<CUlaunchAttribute> attributes;
    CUlaunchConfig config{};
    CUfunction function = nullptr;
    CUresult result = make_config(call, launch, trailing, &attributes, &config, &function);
    cuda::wire_hand::OccupancyReply answer{};
    if (result == CUDA_SUCCESS) {
        result = ask(&answer.value, function, &config);
    }
    reply.put(answer);
    return result;
}

}  // namespace

CUresult on_cuOccupancyMaxPotentialClusterSize(
    CallContext& context, const wire::cuOccupancyMaxPotentialClusterSize_call& launch,
    std::span<const std::byte> trailing, Reply& reply) {
    return answer_occupancy(context, as_call(context).api().cuOccupancyMaxPotentialClusterSize,
                            launch, trailing, reply);
}

CUresult on_cuOccupancyMaxActiveClusters(CallContext& context,
                                         const wire::cuOccupancyMaxActiveClusters_call& launch,
                                         std::span<const std::byte> trailing, Reply& reply) {
    return answer_occupancy(context, as_call(context).api().cuOccupancyMaxActiveClusters, launch,
                            trailing, reply);
}

}  // namespace gantry::worker
