#include "host-daemon/execution/process/launch_policy.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "host-daemon/execution/base/crash_log.h"

namespace gantry::worker {
namespace {

using cuda::wire_hand::LaunchCall;

/// nullopt: the command is too short or too long for one.
std::optional<LaunchCall> launch_of(const Command& command) {
    return command.args.size() == sizeof(LaunchCall) ? command.arguments<LaunchCall>()
                                                     : std::nullopt;
}

KernelLaunch kernel_launch(const LaunchCall& launch, std::span<const std::byte> arguments) {
    return {shape_of(launch), arguments};
}

}  // namespace

KernelShape shape_of(const LaunchCall& launch) {
    return {launch.kernel, std::to_array(launch.grid), std::to_array(launch.block),
            launch.shared_bytes};
}

std::uint64_t launch_key(const LaunchCall& launch) {
    std::uint64_t key = launch.kernel;
    const auto mix = [&key](std::uint64_t word) {
        key = (key ^ word) * 0x9e3779b97f4a7c15U;
        key ^= key >> 32;
    };
    for (std::size_t i = 0; i < std::size(launch.grid); ++i) {
        mix(launch.grid[i] | (std::uint64_t{launch.block[i]} << 32));
    }
    mix(launch.shared_bytes);
    return key;
}

LaunchPolicy::LaunchPolicy(const Needs& needs, const Wishes& wishes)
    : contexts_(needs.contexts),
      streams_(needs.streams),
      captures_(needs.captures),
      held_(needs.held),
      errors_(needs.errors),
      pinned_writes_(needs.pinned_writes),
      account_(needs.account),
      batcher_(needs.device, needs.objects),
      batches_(wishes.batches_launches && batcher_.has_graphs()),
      prepares_(batches_ && (wishes.always_prepares || needs.device.extension() == nullptr)) {}

bool LaunchPolicy::may_use_graphs(std::uint64_t context) const {
    return (context == 0 || context == cuda::primary_context_handle(0)) && !is_held_back_ &&
           !errors_.has_lost_context() && !errors_.is_broken() && !held_.active() &&
           !captures_.any();
}

bool LaunchPolicy::launch_one(const Command& command, const LaunchCall& launch,
                              std::span<const std::byte> arguments, CUstream stream) {
    if (!prepares_ || launch.shared_bytes > LaunchBatcher::kSharedBytesMax ||
        !may_use_graphs(command.header.context)) {
        return false;
    }
    const KernelLaunch one = kernel_launch(launch, arguments);
    const bool is_launched = batcher_.launch(
        std::span(&one, 1), HeldWork::key_of(command.header.lane, launch.stream), stream);
    if (is_launched) {
        counters.prepared_launches.fetch_add(1, std::memory_order_relaxed);
    }
    return is_launched;
}

bool LaunchPolicy::joins(std::span<const Command> batch, const Command& next) const {
    const auto launch = launch_of(next);
    if (!launch || next.trailing.size() != launch->param_bytes ||
        launch->shared_bytes > LaunchBatcher::kSharedBytesMax) {
        return false;
    }
    if (batch.empty()) {
        return may_use_graphs(next.header.context);
    }
    const Command& first = batch.front();
    return next.header.lane == first.header.lane && next.header.context == first.header.context &&
           launch->stream == launch_of(first)->stream;
}

/// What on_cuLaunchKernel does for one.
std::optional<CUstream> LaunchPolicy::launch_batch(std::span<const Command> batch) {
    const Command& first = batch.front();
    const std::uint64_t guest_stream = launch_of(first)->stream;
    CUstream stream = nullptr;
    note_command(first.header.op);
    if (contexts_.enter(first.header.context) != CUDA_SUCCESS ||
        streams_.resolve(guest_stream, first.header.lane, &stream) != CUDA_SUCCESS) {
        return std::nullopt;
    }
    std::array<KernelLaunch, LaunchBatcher::kBatch> launches;
    std::transform(batch.begin(), batch.end(), launches.begin(), [](const Command& command) {
        return kernel_launch(*launch_of(command), command.trailing);
    });
    if (account_.is_on() && account_.wants_singly(launches)) {
        return std::nullopt;
    }
    if (!batcher_.launch(launches, HeldWork::key_of(first.header.lane, guest_stream), stream)) {
        return std::nullopt;
    }
    if (account_.is_on()) {
        account_.note_batch(launches);
    }
    pinned_writes_.note_work();
    counters.launches.fetch_add(batch.size(), std::memory_order_relaxed);
    counters.batched_launches.fetch_add(batch.size(), std::memory_order_relaxed);
    return stream;
}

}  // namespace gantry::worker
