#include "host-daemon/supervisor/moves/move_counters.h"

namespace gantry::supervisor {

void MoveCounters::note(const control::SessionStatus& status) {
    const control::MoveProgress& move = status.move();
    ++ends_[{move.direction(), move.outcome(), move.error_reason()}];
    Whose whose{move.direction(), status.vm_name(), status.vm_uuid()};
    if (!moves_.contains(whose) && moves_.size() >= kVmsMax) {
        whose.vm_name = whose.vm_uuid = "";
    }
    Moves& all = moves_[whose];
    all.wire_bytes += move.bytes_on_wire();
    if (move.outcome() != "moved") {
        return;
    }
    all.duration.note(static_cast<double>(move.elapsed_us()) / 1e6);
    if (move.downtime_us() != 0) {
        all.downtime.note(static_cast<double>(move.downtime_us()) / 1e6);
    }
}

}  // namespace gantry::supervisor
