// MoveHistory: how the last move of each session ended, for operators who look afterwards; and
// WatchFilter: what one `gantry watch` still has to be told. Neither is thread-safe.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "migration/engine/machine.h"
#include "proto/base/result.h"
#include "proto/control/gantryd.pb.h"

namespace gantry::supervisor {

class MoveHistory {
public:
    static constexpr std::size_t kKept = 64;  ///< Sessions; the oldest are forgotten.

    /// Takes the status of a session whose `move` has its outcome; replaces what was known of it.
    void note(control::SessionStatus status);
    /// nullptr: no move of it has ended here.
    [[nodiscard]] const control::SessionStatus* find(const std::string& session_id) const;
    /// Counted up at every note().
    [[nodiscard]] std::uint64_t serial() const { return serial_; }
    /// Those noted after `serial`, oldest first.
    [[nodiscard]] std::vector<control::SessionStatus> since(std::uint64_t serial) const;

private:
    struct Ended {
        std::uint64_t serial = 0;
        control::SessionStatus status;
    };
    std::list<Ended> moves_;  ///< Oldest first; one for each session.
    std::uint64_t serial_ = 0;
};

/// "moved", "rolled back", "refused", "lost"; "" while nothing is decided.
[[nodiscard]] std::string outcome_word(engine::Outcome outcome);
/// "preflight", "precopy", "switchover", "commit", "completed", "failed"; "" when idle.
[[nodiscard]] std::string phase_word(engine::Phase phase);
/// Writes how it ended into `move`.
void end_move(engine::Outcome outcome, const Error& error, control::MoveProgress* move);

/// Percentage, rounds and bytes never run backwards within one move, not even when a second attempt
/// of the same `virsh migrate` begins.
class WatchFilter {
public:
    /// What to write now; nullopt: nothing has changed but the workers' counters.
    std::optional<control::SessionStatus> next(control::SessionStatus status);

private:
    struct Shown {
        std::string bytes;
        control::MoveProgress move;
        bool is_moving = false;
    };
    std::map<std::string, Shown> shown_;
};

/// True while the move has not ended.
[[nodiscard]] bool is_moving(const control::SessionStatus& status);

}  // namespace gantry::supervisor
