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
}

}  // namespace gantry::worker
