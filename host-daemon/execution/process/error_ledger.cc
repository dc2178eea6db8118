#include "host-daemon/execution/process/error_ledger.h"

namespace gantry::worker {

void ErrorLedger::note(std::uint32_t lane, CUresult result, bool is_answered) {
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY) {
        return;
    }
    if (driver::is_sticky(result)) {
        note_sticky(result);
    }
    if (!is_answered && lane < wire::kLaneCount) {
        std::uint32_t none = 0;
        of_lanes_[lane].compare_exchange_strong(none, static_cast<std::uint32_t>(result));
        event_board_.late_error();
    }
}

void ErrorLedger::note_sticky(CUresult result) {
    std::uint32_t none = 0;
    sticky_.compare_exchange_strong(none, static_cast<std::uint32_t>(result));
    if (wire::HostWords* const words = words_.load(); words != nullptr) {
        words->sticky_error.store(sticky(), std::memory_order_release);
    }
}

void ErrorLedger::lose_context(CUresult error) {
    sticky_ = static_cast<std::uint32_t>(error);
    has_lost_context_ = error != CUDA_SUCCESS;
}

ErrorLedger::OfLanes ErrorLedger::save() const {
    OfLanes saved{};
    for (std::size_t lane = 0; lane < saved.size(); ++lane) {
        saved[lane] = of_lanes_[lane].load();
    }
    return saved;
}

void ErrorLedger::load(const OfLanes& of_lanes) {
    for (std::size_t lane = 0; lane < of_lanes.size(); ++lane) {
        of_lanes_[lane].store(of_lanes[lane]);
    }
}

}  // namespace gantry::worker
