#include "host-daemon/execution/process/launch_batcher.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "host-daemon/execution/base/log.h"
#include "host-daemon/execution/objects/objects.h"
#include "proto/wire/wait.h"

namespace gantry::worker {
namespace {

using std::chrono::steady_clock;

/// How long a batch waits for an earlier one's end: longer than small kernels take, and short
/// beside what is queued behind large ones.
constexpr std::chrono::microseconds kPatience{200};
/// A device that has nothing to do again so soon after it was spared a wait has small kernels only.
constexpr std::chrono::microseconds kSparedAgain{300};

std::uint64_t mix(std::uint64_t hash, std::uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 32);
}

std::uint64_t pair_of(std::uint32_t low, std::uint32_t high) {
    return low | (std::uint64_t{high} << 32);
}

std::uint64_t hash_of(LaunchBatcher::Launches launches, std::uint64_t key) {
    std::uint64_t hash = mix(1, key);
    for (const auto& [shape, arguments] : launches) {
        hash = mix(hash, shape.kernel);
        hash = mix(hash, pair_of(shape.grid[0], shape.block[0]));
        hash = mix(hash, pair_of(shape.grid[1], shape.block[1]));
        hash = mix(hash, pair_of(shape.grid[2], shape.block[2]) ^
                             (std::uint64_t{shape.shared_bytes} << 16));
    }
    return hash != 0 ? hash : 1;
}

}  // namespace

LaunchBatcher::LaunchBatcher(Device& device, const ObjectTable& objects)
    : device_(device), objects_(objects) {
    for (Graph& graph : graphs_) {
        graph.kernels.resize(LaunchGraphs::kernels_of(number_of(graph)));
    }
}

LaunchBatcher::~LaunchBatcher() {
    forget_all();
    const auto end = [this](CUevent event) {
        if (event != nullptr) {
            device_.api().cuEventDestroy_v2(event);
        }
    };
    std::for_each(marks_.begin(), marks_.end(), end);
    for (const Graph& graph : graphs_) {
        end(graph.ended);
    }
}

bool LaunchBatcher::launch(Launches launches, std::uint64_t key, CUstream stream) {
    const MutexLock lock(mutex_);
    decay();
    const bool is_batch = launches.size() == kBatch;
    if (is_batch && !has_room()) {
        return false;
    }
    const std::uint64_t hash = hash_of(launches, key);
    Graph* graph = find(launches, hash, key);
    if (graph == nullptr && is_fit(launches, key, stream)) {
        graph = choose(launches, hash, key, stream);
    }
    if (graph == nullptr || !set(*graph, launches)) {
        return false;
    }
    if (device_.launch_graphs().launch(number_of(*graph), stream) != CUDA_SUCCESS) {
        return false;  // Whatever it is, the driver says it of each launch as well.
    }
    graph->key = key;
    ++graph->uses;
    bool is_noted = note_end(graph->ended, stream);
    if (is_batch && ++batches_ % kMark == 0) {
        is_noted &= note_end(marks_[(batches_ / kMark - 1) % kMarks], stream);
    }
    if (!is_noted) {
        device_.api().cuStreamSynchronize(stream);  // What is not known later must be true now.
    }
    return true;
}

/// The graph of this shape. It has these kernels and was launched into this stream, so both are
/// such as graphs may have.
LaunchBatcher::Graph* LaunchBatcher::find(Launches launches, std::uint64_t hash,
                                          std::uint64_t key) {
    const Numbers numbers = numbers_for(launches.size());
    for (std::size_t i = numbers.first; i < numbers.end; ++i) {
        Graph& graph = graphs_[i];
        if (hashes_[i] == hash && graph.key == key &&
            std::equal(launches.begin(), launches.end(), graph.kernels.begin(),
                       [](const KernelLaunch& launch, const Kernel& kernel) {
                           return kernel.shape == launch.shape;
                       })) {
            return &graph;
        }
    }
    return nullptr;
}

LaunchBatcher::Graph* LaunchBatcher::choose(Launches launches, std::uint64_t hash,
                                            std::uint64_t key, CUstream stream) {
    if (Graph* const graph = give(numbers_for(launches.size()), hash, key); graph != nullptr) {
        return graph;
    }
    return launches.size() == kBatch && may_keep_waiting(stream) ? loose(launches, key) : nullptr;
}

/// One of these, to a shape that came more often than what has it.
LaunchBatcher::Graph* LaunchBatcher::give(Numbers numbers, std::uint64_t hash, std::uint64_t key) {
    Seen& seen = seen_[hash % kSeen];
    if (seen.hash != hash) {
        seen = Seen{hash, 0};
    }
    if (++seen.times < kOften) {
        return nullptr;
    }
    const std::span<Graph> graphs =
        std::span(graphs_).subspan(numbers.first, numbers.end - numbers.first);
    Graph& least =
        *std::min_element(graphs.begin(), graphs.end(),
                          [](const Graph& a, const Graph& b) { return a.uses < b.uses; });
    std::uint64_t& owner = hashes_[number_of(least)];
    if ((owner != 0 && least.uses * 2 + kOften > seen.times) || !may_launch_into(least, key)) {
        return nullptr;
    }
    owner = hash;
    least.uses = seen.times;
    return &least;
}

LaunchBatcher::Graph* LaunchBatcher::loose(Launches batch, std::uint64_t key) {
    Graph* best = nullptr;
    std::ptrdiff_t most = -1;
    for (Graph& graph : std::span(graphs_).subspan(kShaped, kLoose)) {
        const std::ptrdiff_t alike =
            std::inner_product(batch.begin(), batch.end(), graph.kernels.begin(), std::ptrdiff_t{0},
                               std::plus<>(), [](const KernelLaunch& launch, const Kernel& kernel) {
                                   return kernel.shape == launch.shape ? 1 : 0;
                               });
        if (alike > most && may_launch_into(graph, key)) {
            most = alike;
            best = &graph;
        }
    }
    return best;
}

/// A loose graph takes long to set. Where the stream has nothing to do it is spared that once: if
/// its kernels are no small ones it has enough to do the next time.
bool LaunchBatcher::may_keep_waiting(CUstream stream) {
    if (device_.api().cuStreamQuery(stream) != CUDA_SUCCESS) {
        return true;
    }
    const auto now = steady_clock::now();
    const bool may = now < spared_until_;
    spared_until_ = now + kSparedAgain;
    return may;
}

bool LaunchBatcher::may_launch_into(const Graph& graph, std::uint64_t key) {
    return graph.ended == nullptr || graph.key == key ||
           device_.api().cuEventQuery(graph.ended) == CUDA_SUCCESS;
}

bool LaunchBatcher::is_fit(Launches launches, std::uint64_t key, CUstream stream) {
    if (functions_.size() > kKnown || plain_streams_.size() > kKnown) {
        functions_.clear();
        plain_streams_.clear();
    }
    const auto [plain, is_new] = plain_streams_.try_emplace(key, false);
    if (is_new) {
        int priority = 0;
        plain->second = device_.api().cuStreamGetPriority(stream, &priority) == CUDA_SUCCESS &&
                        priority == 0 && !objects_.is_configured(key);
    }
    return plain->second && std::all_of(launches.begin(), launches.end(),
                                        [this](const KernelLaunch& launch) GANTRY_REQUIRES(mutex_) {
                                            return function_of(launch.shape.kernel) != nullptr;
                                        });
}

/// Null: it is launched by itself.
CUfunction LaunchBatcher::function_of(std::uint64_t handle) {
    const auto [function, is_new] = functions_.try_emplace(handle, nullptr);
    if (is_new && !objects_.is_configured(handle)) {
        function->second = find_function(handle);
    }
    return function->second;
}

/// What a graph takes: launches take a library's kernel as well. Null: there is no such object.
CUfunction LaunchBatcher::find_function(std::uint64_t handle) const {
    if (cuda::handle_kind(handle) != HandleKind::kKernel) {
        return objects_.native_as<CUfunction>(handle, HandleKind::kFunction);
    }
    const auto kernel = objects_.native_as<CUkernel>(handle, HandleKind::kKernel);
    const auto& get = device_.api().cuKernelGetFunction;
    CUfunction function = nullptr;
    return kernel != nullptr && get != nullptr && get(&function, kernel) == CUDA_SUCCESS ? function
                                                                                         : nullptr;
}

/// False: the graph has no kernels any more, and the one that it did not take is left out.
bool LaunchBatcher::set(Graph& graph, Launches launches) {
    for (std::size_t i = 0; i < launches.size(); ++i) {
        const KernelLaunch& launch = launches[i];
        Kernel& kernel = graph.kernels[i];
        if (kernel.shape == launch.shape &&
            std::ranges::equal(kernel.arguments, launch.arguments)) {
            continue;
        }
        if (const CUresult result = set(number_of(graph), i, launch); result != CUDA_SUCCESS) {
            log_limited("a kernel is launched by itself: a graph does not take it (%d)",
                        static_cast<int>(result));
            functions_[launch.shape.kernel] = nullptr;
            empty(graph);
            return false;
        }
        kernel.shape = launch.shape;
        kernel.arguments.assign(launch.arguments.begin(), launch.arguments.end());
    }
    return true;
}

CUresult LaunchBatcher::set(std::size_t graph, std::size_t index, const KernelLaunch& launch) {
    std::size_t bytes = launch.arguments.size();
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER,
                     const_cast<std::byte*>(launch.arguments.data()), CU_LAUNCH_PARAM_BUFFER_SIZE,
                     &bytes, CU_LAUNCH_PARAM_END};
    CUDA_KERNEL_NODE_PARAMS params{};
    const KernelShape& shape = launch.shape;
    params.func = function_of(shape.kernel);
    params.gridDimX = shape.grid[0];
    params.gridDimY = shape.grid[1];
    params.gridDimZ = shape.grid[2];
    params.blockDimX = shape.block[0];
    params.blockDimY = shape.block[1];
    params.blockDimZ = shape.block[2];
    params.sharedMemBytes = shape.shared_bytes;
    params.extra = bytes == 0 ? nullptr : extra;
    return device_.launch_graphs().set(graph, index, params);
}

void LaunchBatcher::empty(Graph& graph) {
    for (std::size_t i = 0; i < graph.kernels.size(); ++i) {
        if (graph.kernels[i].shape.kernel != 0) {
            device_.launch_graphs().clear(number_of(graph), i);
            graph.kernels[i] = {};
        }
    }
    hashes_[number_of(graph)] = 0;
    graph.uses = 0;
}

/// False where the device has enough to do: launches of their own cost nobody time then.
bool LaunchBatcher::has_room() {
    const CUevent event = marks_[batches_ / kMark % kMarks];
    if (batches_ % kMark != 0 || event == nullptr) {
        return true;
    }
    CUresult result = device_.api().cuEventQuery(event);
    if (result == CUDA_ERROR_NOT_READY && !is_full_) {
        const auto until = steady_clock::now() + kPatience;
        while (result == CUDA_ERROR_NOT_READY && steady_clock::now() < until) {
            wire::cpu_relax();
            result = device_.api().cuEventQuery(event);
        }
    }
    is_full_ = result != CUDA_SUCCESS;
    return !is_full_;
}

bool LaunchBatcher::note_end(CUevent& event, CUstream stream) {
    const driver::DriverApi& api = device_.api();
    if (event == nullptr && api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
        event = nullptr;
        return false;
    }
    return api.cuEventRecord(event, stream) == CUDA_SUCCESS;
}

/// What came often long ago counts less.
void LaunchBatcher::decay() {
    if (++since_decay_ < kDecayEvery) {
        return;
    }
    since_decay_ = 0;
    for (Graph& graph : graphs_) {
        graph.uses /= 2;
    }
    for (Seen& seen : seen_) {
        seen.times /= 2;
    }
}

void LaunchBatcher::leave_out(std::uint64_t handle) {
    const MutexLock lock(mutex_);
    functions_.erase(handle);  // Looked at anew.
    plain_streams_.erase(handle);
    for (Graph& graph : graphs_) {
        if (graph.key == handle ||
            std::any_of(graph.kernels.begin(), graph.kernels.end(),
                        [handle](const Kernel& kernel) { return kernel.shape.kernel == handle; })) {
            empty(graph);
        }
    }
}

void LaunchBatcher::forget_all() {
    const MutexLock lock(mutex_);
    for (Graph& graph : graphs_) {
        empty(graph);
    }
    functions_.clear();
    plain_streams_.clear();
    seen_ = {};
}

}  // namespace gantry::worker
