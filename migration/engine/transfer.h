// Decisions about the bytes: whether compression pays, when precopy has converged and how long the
// pause will be. Pure functions and small books; no sockets, no codec.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
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
/// bytes it finds at the rate of the rounds, and the target's look at all of its memory, which
/// takes about as long as the scan. Never shrinks with `open`.
[[nodiscard]] DowntimeEstimate estimate_downtime(const std::vector<RoundRecord>& rounds,
                                                 std::uint64_t bytes_resident, Duration open);

enum class Convergence {
    kAnotherRound = 1,
    kFits = 2,           ///< The estimate is within the downtime target.
    kNoImprovement = 3,  ///< Two rounds in a row did not shrink what is left by a twentieth.
    kRoundsExhausted = 4,
};
[[nodiscard]] Convergence judge_convergence(const std::vector<RoundRecord>& rounds,
                                            std::uint64_t bytes_resident, const Settings& settings);

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
