// Decisions about the bytes: whether compression pays, when a live copy has converged and how long
// the pause will be. Pure functions and small books; no sockets, no codec.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "migration/engine/machine.h"
#include "migration/engine/state.h"

namespace gantry::engine {

// ---- compression ----

struct CompressionInputs {
    double link_bytes_per_second = 0.0;        ///< Measured on this migration.
    double compress_bytes_per_second = 0.0;    ///< Of raw input, on the threads that may be used.
    double decompress_bytes_per_second = 0.0;  ///< Of raw output, at the target.
    double ratio = 1.0;                        ///< Compressed / raw, of recent samples.
};
/// True when sending compressed is faster by more than a tenth. The stages overlap (a pipeline), so
/// the slowest decides: raw moves at `link`, compressed at min(compress, link / ratio, decompress).
[[nodiscard]] bool compression_pays(const CompressionInputs& inputs);

// ---- convergence ----

struct RoundRecord {
    std::uint64_t bytes_changed = 0;  ///< Found by the scan at its start.
    std::uint64_t bytes_sent = 0;     ///< Put on the link, after elision and compression.
    Duration elapsed{};               ///< From its beginning until its acknowledgement.
    Duration scan{};                  ///< Part of it: the graph, and finding out what had changed.
    Duration since_last{};  ///< From the beginning of the round before; 0: that one's `elapsed`.
};

/// Bytes that a scan would find changed `open` after the last round's beginning. The rounds say how
/// much changed within how long; between these points (and from none at 0) it is a straight line,
/// beyond the longest one it goes on as between the last two (at most as from 0 to there), so a
/// guest that writes the same memory over and over is not taken for one that writes ever more.
/// Never shrinks with `open`.
/// Before the second round, and at most: `bytes_resident`.
[[nodiscard]] std::uint64_t estimate_remaining_bytes(const std::vector<RoundRecord>& rounds,
                                                     std::uint64_t bytes_resident, Duration open);
/// Raw content bytes per second, scans left out, over the newest rounds that sent anything; 0:
/// unknown.
[[nodiscard]] double estimate_rate(const std::vector<RoundRecord>& rounds);

/// Fixed costs of the pause: drain, final graph, grant.
inline constexpr Duration kDowntimeFixed{60'000};

struct DowntimeEstimate {
    std::uint64_t bytes_remaining = 0;
    double bytes_per_second = 0.0;
    std::optional<Duration> downtime;  ///< Nullopt while the rate is unknown.
};
/// Of a pause that comes `open` after the last round's beginning: kDowntimeFixed, the scan, the
/// bytes it finds, and the target's look at all of its memory, which takes about as long as the
/// scan. Scan and rate are those of the quickest of the newest rounds, as the programs, which slow
/// a live copy, stand still in the pause. Never shrinks with `open`.
[[nodiscard]] DowntimeEstimate estimate_downtime(const std::vector<RoundRecord>& rounds,
                                                 std::uint64_t bytes_resident, Duration open);

/// Bytes that the last scan found changed a second since the one before; 0: not known yet.
[[nodiscard]] double dirty_rate(const std::vector<RoundRecord>& rounds);
/// Why a pause of more than `downtime_max` is refused, with the figures that say so.
[[nodiscard]] std::string not_converging_text(const DowntimeEstimate& estimate,
                                              double dirty_bytes_per_second, Duration downtime_max);

enum class Convergence {
    kAnotherRound = 1,
    kFits = 2,           ///< The pause can take what is left.
    kNoImprovement = 3,  ///< The last rounds did not shrink enough.
    kRoundsExhausted = 4,
};

/// What moves and replacements want of their rounds.
struct RoundRules {
    std::size_t rounds_max = 0;
    Duration pause_max{};         ///< Of what the pause is expected to take.
    std::uint64_t bytes_few = 0;  ///< Not worth a further round.
    double shrinks_to = 1.0;      ///< A round of more, of the one before, has not shrunk.
    std::size_t stalls = 1;       ///< Rounds in a row that have not shrunk: no improvement ...
    std::size_t stalls_from = 2;  ///< ... once there are so many rounds.
};
[[nodiscard]] RoundRules rules_of_move(const Settings& settings);
/// pause_max: for the copy alone.
[[nodiscard]] RoundRules rules_of_replacement(Duration pause_max);

/// The rounds of one live copy so far, and whether a further one pays. Not thread-safe.
class Rounds {
public:
    Rounds() = default;
    explicit Rounds(const RoundRules& rules) : rules_(rules) {}

    void add(const RoundRecord& round) { records_.push_back(round); }
    void clear() { records_.clear(); }
    [[nodiscard]] const std::vector<RoundRecord>& records() const { return records_; }
    /// For a scan that comes before the decision: the copy of what it has found, at the rate of the
    /// best round (small ones are slow for their fixed costs). Nullopt: unknown.
    [[nodiscard]] std::optional<Duration> copy_time(std::uint64_t bytes) const;
    /// For a scan that is part of the round: a pause that comes as long after this round's
    /// beginning as the round took. Nullopt: unknown, or before the second round.
    [[nodiscard]] std::optional<Duration> downtime(std::uint64_t bytes_resident) const;
    [[nodiscard]] bool fits(std::optional<Duration> pause) const {
        return pause && *pause <= rules_.pause_max;
    }
    /// After a round.
    [[nodiscard]] Convergence judge(std::optional<Duration> pause) const;

private:
    RoundRules rules_;
    std::vector<RoundRecord> records_;
};

// ---- progress ----

/// Turns phases and bytes into a percentage that never runs backwards within one migration.
class ProgressMeter {
public:
    /// Starts a new migration at 0.
    void reset();
    /// fraction: done part of the phase, 0 to 1; clamped.
    double advance(Phase phase, double fraction);
    [[nodiscard]] double percent() const { return percent_; }

private:
    double percent_ = 0.0;
};

/// What an operator sees of a move whose earlier attempts, `before` in all, have failed: nothing
/// of it runs backwards.
void add_attempts(const Progress& before, Progress* progress);

/// The target's percentage while the first round comes: so much content of so much memory. The
/// round counts for half of precopy there.
[[nodiscard]] double first_round_percent(std::uint64_t bytes_content, std::uint64_t bytes_total);

}  // namespace gantry::engine
