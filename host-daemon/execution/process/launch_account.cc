#include "host-daemon/execution/process/launch_account.h"

#include <algorithm>

#include "host-daemon/execution/base/log.h"
#include "host-daemon/execution/device/event_times.h"

namespace gantry::worker {
namespace {

std::size_t mix_word(std::size_t hash, std::uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 32);
}

}  // namespace

std::size_t LaunchAccount::Hash::operator()(const KernelShape& shape) const {
    std::size_t hash = mix_word(shape.shared_bytes, shape.kernel);
    for (std::size_t i = 0; i < shape.grid.size(); ++i) {
        hash = mix_word(hash, shape.grid[i] | (std::uint64_t{shape.block[i]} << 32));
    }
    return hash;
}

LaunchAccount::~LaunchAccount() {
    for (const Pair& pair : pairs_) {
        for (CUevent event : {pair.before, pair.behind}) {
            if (event != nullptr) {
                needs_.device.api().cuEventDestroy_v2(event);
            }
        }
    }
}

void LaunchAccount::begin() {
    const MutexLock lock(mutex_);
    if (is_on() || !needs_.device.has_context()) {
        return;
    }
    needs_.device.bind_thread();
    const driver::DriverApi& api = needs_.device.api();
    for (std::size_t i = 0; i < kPairs; ++i) {
        if (api.cuEventCreate(&pairs_[i].before, CU_EVENT_DEFAULT) != CUDA_SUCCESS ||
            api.cuEventCreate(&pairs_[i].behind, CU_EVENT_DEFAULT) != CUDA_SUCCESS) {
            log_line("launches are counted, but not measured: the driver makes no events");
            break;
        }
        free_.push_back(i);
    }
    is_on_.store(true, std::memory_order_relaxed);
}

/// Null: there are too many.
LaunchAccount::Kernel* LaunchAccount::find(const KernelShape& shape) {
    const auto found = kernels_.find(shape);
    if (found != kernels_.end()) {
        return &found->second;
    }
    if (kernels_.size() >= kKernelsMax) {
        return nullptr;
    }
    Kernel& kernel = kernels_[shape];
    kernel.shape = shape;
    identify(kernel);
    return &kernel;
}

/// Now: its module may be gone when somebody asks.
void LaunchAccount::identify(Kernel& kernel) const {
    const auto text_of = [](const RecordedCommand& command) {
        const auto* const text = reinterpret_cast<const char*>(command.trailing.data());
        return std::string(text, std::find(text, text + command.trailing.size(), '\0'));
    };
    auto object = needs_.objects.get(kernel.shape.kernel);
    if (object && object->creation.trailing.empty() && object->parent != 0) {
        object = needs_.objects.get(object->parent);  // A function of a library's kernel.
    }
    if (object) {
        kernel.entry = text_of(object->creation);
    }
    const auto loaded = needs_.modules.get(needs_.objects.root_of(kernel.shape.kernel));
    if (loaded && loaded->image != nullptr) {
        kernel.image = loaded->image->sha256;
    }
}

bool LaunchAccount::is_due(const Kernel& kernel) {
    return kernel.launches < kFirst ||
           kernel.launches % (kernel.launches < kOftenUntil ? kOften : kEvery) == 0;
}

void LaunchAccount::collect() {
    const driver::DriverApi& api = needs_.device.api();
    while (!queued_.empty()) {
        const std::size_t number = queued_.front();
        const Pair& pair = pairs_[number];
        const CUresult result = api.cuEventQuery(pair.behind);
        if (result == CUDA_ERROR_NOT_READY) {
            return;
        }
        float ms = 0;
        if (result == CUDA_SUCCESS &&
            elapsed_time(api, pair.before, pair.behind, &ms) == CUDA_SUCCESS) {
            pair.kernel->add_sample(static_cast<double>(ms) * 1000);
            sum_up(*pair.kernel);
        }
        free_.push_back(number);
        queued_.pop_front();
    }
}

/// Its time has changed, by a launch or a sample.
void LaunchAccount::sum_up(Kernel& kernel) {
    const double now = kernel.gpu_us();
    sum_us_ += now - kernel.summed_us;
    kernel.summed_us = now;
}

std::uint64_t LaunchAccount::gpu_ns() {
    if (!is_on()) {
        return 0;
    }
    const MutexLock lock(mutex_);
    if (!needs_.captures.any()) {  // Which a question of the driver could cost.
        collect();
    }
    return static_cast<std::uint64_t>(std::max(0.0, sum_us_) * 1000);
}

bool LaunchAccount::wants_singly(LaunchBatcher::Launches launches) {
    const MutexLock lock(mutex_);
    return std::any_of(launches.begin(), launches.end(),
                       [this](const KernelLaunch& launch) GANTRY_REQUIRES(mutex_) {
                           const Kernel* const kernel = find(launch.shape);
                           return kernel != nullptr && is_due(*kernel);
                       });
}

void LaunchAccount::note_batch(LaunchBatcher::Launches launches) {
    const MutexLock lock(mutex_);
    for (const KernelLaunch& launch : launches) {
        if (Kernel* const kernel = find(launch.shape)) {
            ++kernel->launches;
            sum_up(*kernel);
        }
    }
}

std::size_t LaunchAccount::begin_launch(const KernelShape& shape, CUstream stream) {
    std::size_t number = kNoPair;
    {
        const MutexLock lock(mutex_);
        Kernel* const kernel = find(shape);
        if (kernel == nullptr) {
            return kNoPair;
        }
        const bool is_wanted = is_due(*kernel);
        ++kernel->launches;
        sum_up(*kernel);
        if (!is_wanted || needs_.captures.any() || needs_.held.active()) {
            return kNoPair;
        }
        collect();
        if (free_.empty()) {
            return kNoPair;
        }
        number = free_.back();
        free_.pop_back();
        pairs_[number].kernel = kernel;
    }
    // Not under the lock: a driver may wait for room.
    if (needs_.device.api().cuEventRecord(pairs_[number].before, stream) == CUDA_SUCCESS) {
        return number;
    }
    const MutexLock lock(mutex_);
    free_.push_back(number);  // The stream is of another context.
    return kNoPair;
}

void LaunchAccount::end_launch(std::size_t number, CUstream stream) {
    if (number == kNoPair) {
        return;
    }
    const CUresult result = needs_.device.api().cuEventRecord(pairs_[number].behind, stream);
    const MutexLock lock(mutex_);
    if (result == CUDA_SUCCESS) {
        queued_.push_back(number);
    } else {
        free_.push_back(number);
    }
}

std::vector<LaunchAccount::Kernel> LaunchAccount::list() {
    const MutexLock lock(mutex_);
    if (is_on()) {
        needs_.device.bind_thread();
        collect();
    }
    std::vector<Kernel> out;
    out.reserve(kernels_.size());
    for (const auto& [shape, kernel] : kernels_) {
        out.push_back(kernel);
    }
    return out;
}

}  // namespace gantry::worker
