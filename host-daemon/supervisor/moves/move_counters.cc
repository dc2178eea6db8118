#include "host-daemon/supervisor/moves/move_counters.h"

namespace gantry::supervisor {

void MoveCounters::note(const control::MoveProgress& move) {
    ++ends_[{move.direction(), move.outcome(), move.error_reason()}];
    ByDirection& all = by_direction_[move.direction()];
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
