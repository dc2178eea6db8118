#include "host-daemon/supervisor/moves/move_history.h"

#include <algorithm>

namespace gantry::supervisor {

void MoveHistory::note(control::SessionStatus status) {
    moves_.remove_if(
        [&](const Ended& one) { return one.status.session_id() == status.session_id(); });
    moves_.push_back({++serial_, std::move(status)});
    if (moves_.size() > kKept) {
        moves_.pop_front();
    }
}

const control::SessionStatus* MoveHistory::find(const std::string& session_id) const {
    const auto found = std::find_if(moves_.begin(), moves_.end(), [&](const Ended& one) {
        return one.status.session_id() == session_id;
    });
    return found == moves_.end() ? nullptr : &found->status;
}

std::vector<control::SessionStatus> MoveHistory::since(std::uint64_t serial) const {
    std::vector<control::SessionStatus> out;
    for (const Ended& one : moves_) {
        if (one.serial > serial) {
            out.push_back(one.status);
        }
    }
    return out;
}

std::string outcome_word(engine::Outcome outcome) {
    switch (outcome) {
        case engine::Outcome::kNone:
        case engine::Outcome::kRetry: return "";
        case engine::Outcome::kMoved: return "moved";
        case engine::Outcome::kRolledBack: return "rolled back";
        case engine::Outcome::kRefused: return "refused";
        case engine::Outcome::kLost: return "lost";
    }
    return "";
}

std::string phase_word(engine::Phase phase) {
    switch (phase) {
        case engine::Phase::kIdle: return "";
        case engine::Phase::kPreflight: return "preflight";
        case engine::Phase::kPrecopy: return "precopy";
        case engine::Phase::kSwitchover: return "switchover";
        case engine::Phase::kCommit: return "commit";
        case engine::Phase::kDone: return "completed";
        case engine::Phase::kFailed: return "failed";
    }
    return "";
}

void end_move(engine::Outcome outcome, const Error& error, control::MoveProgress* move) {
    move->set_outcome(outcome_word(outcome));
    if (outcome == engine::Outcome::kMoved) {
        move->set_phase(phase_word(engine::Phase::kDone));
        move->set_percent(100.0);
        move->set_bytes_remaining(0);
    } else {
        move->set_phase(phase_word(engine::Phase::kFailed));
        move->set_error_reason(error.reason);
        move->set_error_text(error.text);
    }
}

bool is_moving(const control::SessionStatus& status) {
    return status.has_move() && status.move().outcome().empty();
}

std::optional<control::SessionStatus> WatchFilter::next(control::SessionStatus status) {
    Shown& shown = shown_[status.session_id()];
    if (status.has_move() && shown.is_moving) {  // else another move begins at 0
        control::MoveProgress& move = *status.mutable_move();
        move.set_percent(std::max(move.percent(), shown.move.percent()));
        if (move.direction() == shown.move.direction()) {
            move.set_round(std::max(move.round(), shown.move.round()));
            move.set_bytes_processed(
                std::max(move.bytes_processed(), shown.move.bytes_processed()));
            move.set_bytes_on_wire(std::max(move.bytes_on_wire(), shown.move.bytes_on_wire()));
        }
    }
    control::SessionStatus compared = status;
    compared.clear_workers();
    compared.mutable_move()->clear_elapsed_us();
    std::string bytes = compared.SerializeAsString();
    if (shown.bytes == bytes) {
        return std::nullopt;
    }
    shown = {std::move(bytes), status.move(), is_moving(status)};
    return status;
}

}  // namespace gantry::supervisor
