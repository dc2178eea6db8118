// MoveLog: where a runner says what it sees of a move. gantryd keeps it (move_records.h); the
// simulation does not.
//
// Threads: any. Cost: as the sink's; without one, nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "migration/engine/machine.h"
#include "migration/engine/messages.h"

namespace gantry::supervisor {

enum class MoveSide { kOutgoing, kIncoming };

struct MoveStamp {
    std::string what;
    std::string detail = {};
    std::uint64_t round = 0;
    std::uint64_t bytes = 0;
    std::uint64_t at_us = 0;  ///< 0: now.
};

class MoveSink {
public:
    MoveSink() = default;
    virtual ~MoveSink() = default;
    MoveSink(const MoveSink&) = delete;
    MoveSink& operator=(const MoveSink&) = delete;

    /// Whose attempt it is: told with every stamp, since any of them may be the first.
    struct Whose {
        MoveSide side = MoveSide::kOutgoing;
        engine::MigrationId migration;
        std::string session_id;
        std::string vm_name;
    };
    virtual void note(const Whose& whose, MoveStamp stamp) = 0;
    virtual void note_peer(const Whose& whose, const std::string& peer) = 0;
    virtual void sample(const Whose& whose, const engine::Progress& progress) = 0;
    virtual void note_heard(const Whose& whose, const engine::MessageTime& time,
                            std::uint64_t at_us) = 0;
    [[nodiscard]] virtual engine::MessageTime stamp_message(const Whose& whose) = 0;
};

/// One side's stamps of one session.
class MoveLog {
public:
    MoveLog() = default;
    MoveLog(MoveSink& sink, MoveSide side, std::string session_id, std::string vm_name)
        : sink_(&sink), whose_{side, {}, std::move(session_id), std::move(vm_name)} {}

    void note(const std::optional<engine::MigrationId>& migration, MoveStamp stamp) const {
        if (sink_ != nullptr && migration) {
            sink_->note(whose(*migration), std::move(stamp));
        }
    }
    void note_peer(engine::MigrationId migration, const std::string& peer) const {
        if (sink_ != nullptr) {
            sink_->note_peer(whose(migration), peer);
        }
    }
    void sample(const std::optional<engine::MigrationId>& migration,
                const engine::Progress& progress) const {
        if (sink_ != nullptr && migration) {
            sink_->sample(whose(*migration), progress);
        }
    }
    void note_heard(engine::MigrationId migration, const engine::MessageTime& time,
                    std::uint64_t at_us) const {
        if (sink_ != nullptr) {
            sink_->note_heard(whose(migration), time, at_us);
        }
    }
    [[nodiscard]] engine::MessageTime stamp_message(engine::MigrationId migration) const {
        return sink_ != nullptr ? sink_->stamp_message(whose(migration)) : engine::MessageTime{};
    }

private:
    [[nodiscard]] MoveSink::Whose whose(engine::MigrationId migration) const {
        MoveSink::Whose out = whose_;
        out.migration = migration;
        return out;
    }

    MoveSink* sink_ = nullptr;
    MoveSink::Whose whose_;
};

}  // namespace gantry::supervisor
