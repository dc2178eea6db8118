// RoundGate: which batches of which round the target applies, and when a round is over there.
//
// Batches of one round come in any order over any stream and are applied at the same time. A batch
// of an older round is applied neither beside nor after one of a newer round: it would overwrite
// newer bytes. Pure: the caller has the streams, the threads and the lock. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <set>

namespace gantry::engine {

class RoundGate {
public:
    enum class Entry : std::uint8_t {
        kApply = 1,     ///< end() follows.
        kWait = 2,      ///< Ask again after the next end().
        kDrop = 3,      ///< Stale, or a repetition.
        kUnwanted = 4,  ///< Not now: it must be sent again, so it is not acknowledged.
    };
    enum class Verdict : std::uint8_t {
        kOpen = 1,
        kApplied = 2,  ///< Every batch of the round: said once for each await().
        kLost = 3,     ///< The round has to be sent again.
    };

    /// Before a batch is applied. Unless `is_receiving` complete state is held, and not touched.
    [[nodiscard]] Entry begin(std::uint64_t round, std::uint64_t batch, bool is_receiving);
    Verdict end(std::uint64_t round, bool is_applied);
    /// From MsgRoundEnd. A round that is lost is said to be so each time: the word may get lost.
    Verdict await(std::uint64_t round, std::uint64_t batch_count);
    /// The newest that was heard of; 0: none.
    [[nodiscard]] std::uint64_t round() const { return round_; }

private:
    void enter(std::uint64_t round);
    Verdict look();

    std::uint64_t round_ = 0;
    std::set<std::uint64_t> begun_;
    std::uint64_t applied_count_ = 0;
    std::optional<std::uint64_t> awaited_count_;
    std::uint64_t dropped_round_ = 0;  ///< The newest with a batch that was not wanted, or failed.
    std::uint64_t at_work_ = 0;        ///< Batches being applied ...
    std::uint64_t at_work_round_ = 0;  ///< ... all of one round.
};

}  // namespace gantry::engine
