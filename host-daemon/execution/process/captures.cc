#include "host-daemon/execution/process/captures.h"

namespace gantry::worker {

bool Captures::is_capturing(CUstream stream) const {
    auto status = CU_STREAM_CAPTURE_STATUS_NONE;
    return any() && device_.api().cuStreamIsCapturing != nullptr &&
           device_.api().cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void Captures::begin(std::uint64_t key) {
    const MutexLock lock(mutex_);
    if (keys_.insert(key).second) {
        count_.fetch_add(1);
        on_change(Change::kBegun);
    }
}

void Captures::end(std::uint64_t key) {
    const MutexLock lock(mutex_);
    if (keys_.erase(key) != 0) {
        count_.fetch_sub(1);
        on_change(Change::kEnded);
    }
    if (keys_.empty()) {  // What captures were making that have been given up.
        for (const std::uint64_t graph : graphs_) {
            objects_.erase(graph);
        }
        graphs_.clear();
    }
}

void Captures::note_graph(std::uint64_t handle) {
    const MutexLock lock(mutex_);
    graphs_.insert(handle);
}

bool Captures::makes_graph(std::uint64_t handle) const {
    const MutexLock lock(mutex_);
    return graphs_.contains(handle);
}

void Captures::keep_graph(std::uint64_t handle) {
    const MutexLock lock(mutex_);
    graphs_.erase(handle);
}

void Captures::drop_graph(std::uint64_t handle) {
    const MutexLock lock(mutex_);
    if (graphs_.erase(handle) != 0) {
        objects_.erase(handle);
    }
}

}  // namespace gantry::worker
