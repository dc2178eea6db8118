#include "host-daemon/worker/launch_batcher.h"

#include <algorithm>
#include <chrono>

#include "host-daemon/worker/log.h"
#include "host-daemon/worker/objects.h"
#include "proto/wire/wait.h"

namespace gantry::worker {
namespace {

/// How long a batch waits for an earlier one's end: longer than small kernels take, and short
/// beside what is queued behind large ones.
constexpr std::chrono::microseconds kPatience{200};

std::uint64_t mix(std::uint64_t hash, std::uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 32);
}

std::uint64_t pair_of(std::uint32_t low, std::uint32_t high) {
    return low | (std::uint64_t{high} << 32);
}

}  // namespace

LaunchBatcher::~LaunchBatcher() {
    forget_all();
    for (const CUevent event : marks_) {
        if (event != nullptr) {
            device_.api().cuEventDestroy_v2(event);
        }
    }
}

std::uint64_t LaunchBatcher::hash_of(std::span<const KernelLaunch> batch, std::uint64_t key) {
    std::uint64_t hash = mix(1, key);
    for (const KernelLaunch& launch : batch) {
        hash = mix(hash, launch.kernel);
        hash = mix(hash, pair_of(launch.grid[0], launch.block[0]));
        hash = mix(hash, pair_of(launch.grid[1], launch.block[1]));
        hash = mix(hash, pair_of(launch.grid[2], launch.block[2]) ^
                             (std::uint64_t{launch.shared_bytes} << 16));
    }
    return hash != 0 ? hash : 1;
}

bool LaunchBatcher::is_shape(const Slot& slot, std::span<const KernelLaunch> batch,
                             std::uint64_t key) {
    return slot.stream_key == key &&
           std::equal(batch.begin(), batch.end(), slot.kernels.begin(),
                      [](const KernelLaunch& launch, const Kernel& kernel) {
                          return launch.kernel == kernel.handle && launch.grid == kernel.grid &&
                                 launch.block == kernel.block &&
                                 launch.shared_bytes == kernel.shared_bytes;
                      });
}

LaunchBatcher::Slot* LaunchBatcher::find(std::uint64_t hash, std::span<const KernelLaunch> batch,
                                         std::uint64_t key) {
    for (Slot& slot : slots_) {
        if (slot.hash == hash && is_shape(slot, batch, key)) {
            return &slot;
        }
    }
    return nullptr;
}

bool LaunchBatcher::launch(std::span<const KernelLaunch> batch, std::uint64_t key,
                           CUstream stream) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t hash = hash_of(batch, key);
    decay();
    Slot* slot = find(hash, batch, key);
    if (slot == nullptr) {
        Seen& seen = seen_[hash % kSeen];
        if (seen.hash != hash) {
            seen = Seen{hash, 0, false};
        }
        ++seen.times;
        slot = seen.is_unfit ? nullptr : admit(seen, batch, key, stream);
    }
    if (slot == nullptr || !has_room()) {
        return false;
    }
    if (!set_arguments(*slot, batch)) {
        empty(*slot);
        seen_[hash % kSeen] = Seen{hash, 0, true};
        return false;
    }
    const auto graph = static_cast<std::size_t>(slot - slots_.data());
    if (device_.launch_graphs().launch(graph, stream) != CUDA_SUCCESS) {
        return false;  // Whatever it is, the driver says it of each launch as well.
    }
    ++slot->uses;
    ++launched_;
    mark(stream);
    return true;
}

/// A graph for the shape, if it came more often than another one that has a graph.
LaunchBatcher::Slot* LaunchBatcher::admit(Seen& seen, std::span<const KernelLaunch> batch,
                                          std::uint64_t key, CUstream stream) {
    if (seen.times < kOften) {
        return nullptr;
    }
    const std::span<Slot> slots = std::span(slots_).first(device_.launch_graphs().count());
    const auto least = std::min_element(
        slots.begin(), slots.end(), [](const Slot& a, const Slot& b) { return a.uses < b.uses; });
    if (least == slots.end() || (least->hash != 0 && least->uses * 2 + kOften > seen.times)) {
        return nullptr;
    }
    seen.is_unfit = !is_fit(batch, key, stream);
    if (seen.is_unfit) {
        return nullptr;
    }
    Slot& slot = *least;
    for (std::size_t i = 0; i < batch.size(); ++i) {
        Kernel kernel{batch[i].kernel, nullptr, batch[i].grid, batch[i].block,
                      batch[i].shared_bytes, {}};
        kernel.function = function_of(kernel.handle);
        kernel.arguments.assign(batch[i].arguments.begin(), batch[i].arguments.end());
        const auto graph = static_cast<std::size_t>(least - slots.begin());
        const CUresult result = kernel.function == nullptr
                                    ? CUDA_ERROR_INVALID_HANDLE
                                    : set(graph, i, kernel, kernel.arguments);
        if (result != CUDA_SUCCESS) {
            log_limited("a kernel is launched by itself: a graph does not take it (%d)",
                        static_cast<int>(result));
            empty(slot);
            seen.is_unfit = true;
            return nullptr;
        }
        slot.kernels[i] = std::move(kernel);
    }
    slot.hash = seen.hash;
    slot.stream_key = key;
    slot.uses = seen.times;
    return &slot;
}

bool LaunchBatcher::is_fit(std::span<const KernelLaunch> batch, std::uint64_t key,
                           CUstream stream) const {
    int priority = 0;
    if (device_.api().cuStreamGetPriority(stream, &priority) != CUDA_SUCCESS || priority != 0 ||
        objects_.is_configured(key)) {
        return false;
    }
    return std::none_of(batch.begin(), batch.end(), [this](const KernelLaunch& launch) {
        return objects_.is_configured(launch.kernel);
    });
}

/// What a graph takes: launches take a library's kernel as well. Null: there is no such object.
CUfunction LaunchBatcher::function_of(std::uint64_t handle) const {
    if (cuda::handle_kind(handle) != HandleKind::kKernel) {
        return objects_.native_as<CUfunction>(handle, HandleKind::kFunction);
    }
    const auto kernel = objects_.native_as<CUkernel>(handle, HandleKind::kKernel);
    const auto& get = device_.api().cuKernelGetFunction;
    CUfunction function = nullptr;
    return kernel != nullptr && get != nullptr && get(&function, kernel) == CUDA_SUCCESS
               ? function
               : nullptr;
}

CUresult LaunchBatcher::set(std::size_t graph, std::size_t index, const Kernel& kernel,
                            std::span<const std::byte> arguments) {
    std::size_t bytes = arguments.size();
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<std::byte*>(arguments.data()),
                     CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = kernel.function;
    params.gridDimX = kernel.grid[0];
    params.gridDimY = kernel.grid[1];
    params.gridDimZ = kernel.grid[2];
    params.blockDimX = kernel.block[0];
    params.blockDimY = kernel.block[1];
    params.blockDimZ = kernel.block[2];
    params.sharedMemBytes = kernel.shared_bytes;
    params.extra = bytes == 0 ? nullptr : extra;
    return device_.launch_graphs().set(graph, index, params);
}

bool LaunchBatcher::set_arguments(Slot& slot, std::span<const KernelLaunch> batch) {
    for (std::size_t i = 0; i < batch.size(); ++i) {
        Kernel& kernel = slot.kernels[i];
        const std::span<const std::byte> arguments = batch[i].arguments;
        if (std::ranges::equal(kernel.arguments, arguments)) {
            continue;
        }
        if (set(static_cast<std::size_t>(&slot - slots_.data()), i, kernel, arguments) !=
            CUDA_SUCCESS) {
            return false;
        }
        kernel.arguments.assign(arguments.begin(), arguments.end());
    }
    return true;
}

void LaunchBatcher::empty(Slot& slot) {
    const auto graph = static_cast<std::size_t>(&slot - slots_.data());
    for (std::size_t i = 0; i < kBatch && graph < device_.launch_graphs().count(); ++i) {
        device_.launch_graphs().clear(graph, i);
    }
    slot = {};
}

/// False where the device has enough to do: launches of their own cost nobody time then.
bool LaunchBatcher::has_room() {
    const CUevent event = marks_[launched_ / kMark % kMarks];
    if (launched_ % kMark != 0 || event == nullptr) {
        return true;
    }
    CUresult result = device_.api().cuEventQuery(event);
    if (result == CUDA_ERROR_NOT_READY && !is_full_) {
        const auto until = std::chrono::steady_clock::now() + kPatience;
        while (result == CUDA_ERROR_NOT_READY && std::chrono::steady_clock::now() < until) {
            wire::cpu_relax();
            result = device_.api().cuEventQuery(event);
        }
    }
    is_full_ = result != CUDA_SUCCESS;
    return !is_full_;
}

/// Notes behind every kMark batches that they have ended.
void LaunchBatcher::mark(CUstream stream) {
    if (launched_ % kMark != 0) {
        return;
    }
    CUevent& event = marks_[(launched_ / kMark - 1) % kMarks];
    if (event == nullptr &&
        device_.api().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
        event = nullptr;
        return;
    }
    device_.api().cuEventRecord(event, stream);
}

/// What came often long ago counts less.
void LaunchBatcher::decay() {
    if (++since_decay_ < kDecayEvery) {
        return;
    }
    since_decay_ = 0;
    for (Slot& slot : slots_) {
        slot.uses /= 2;
    }
    for (Seen& seen : seen_) {
        seen.times /= 2;
    }
}

void LaunchBatcher::leave_out(std::uint64_t handle) {
    const std::lock_guard lock(mutex_);
    for (Slot& slot : slots_) {
        const bool has_it = std::any_of(
            slot.kernels.begin(), slot.kernels.end(),
            [handle](const Kernel& kernel) { return kernel.handle == handle; });
        if (slot.hash != 0 && (has_it || slot.stream_key == handle)) {
            seen_[slot.hash % kSeen] = Seen{slot.hash, 0, true};
            empty(slot);
        }
    }
}

void LaunchBatcher::forget_all() {
    const std::lock_guard lock(mutex_);
    for (Slot& slot : slots_) {
        if (slot.hash != 0) {
            empty(slot);
        }
    }
    seen_ = {};
}

}  // namespace gantry::worker
