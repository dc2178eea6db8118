#include "migration/engine/transfer.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>

namespace gantry::engine {
namespace {

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

/// Within which what round `i`, not the first, found changed was written.
Duration interval_before(const std::vector<RoundRecord>& rounds, std::size_t i) {
    return rounds[i].since_last.count() != 0 ? rounds[i].since_last : rounds[i - 1].elapsed;
}

/// Share of the bar that each phase ends at, in per cent.
struct PhaseSpan {
    double begin;
    double end;
};

PhaseSpan phase_span(Phase phase) {
    switch (phase) {
        case Phase::kIdle: return {0.0, 0.0};
        case Phase::kPreflight: return {0.0, 2.0};
        case Phase::kPrecopy: return {2.0, 85.0};
        case Phase::kSwitchover: return {85.0, 97.0};
        case Phase::kCommit: return {97.0, 99.0};
        case Phase::kDone: return {100.0, 100.0};
        case Phase::kFailed: return {0.0, 0.0};  // stays where it was
    }
    return {0.0, 0.0};
}

/// Newest rounds that say what the pause will be like, but for the first: it also makes the
/// target's memory, and it alone looks at nothing.
constexpr std::size_t kRoundsOfPause = 3;

/// Of three rounds that differ by chance alone, the quickest is about so much too quick.
constexpr double kWithoutChance = 0.93;

/// Bytes a second of the quickest of them. The programs, which hold up some rounds more than
/// others, stand still in the pause. Rounds much smaller than the others say little.
double rate_of_pause(const std::vector<RoundRecord>& rounds) {
    std::vector<RoundRecord> used(
        rounds.end() - static_cast<std::ptrdiff_t>(std::min(rounds.size(), kRoundsOfPause)),
        rounds.end());
    if (used.size() == rounds.size() && used.size() > 1) {
        used.erase(used.begin());
    }
    std::uint64_t most = 0;
    for (const RoundRecord& round : used) {
        most = std::max(most, round.bytes_changed);
    }
    std::erase_if(used, [most](const RoundRecord& r) { return r.bytes_changed < most / 4; });
    double rate = estimate_rate(used);
    for (const RoundRecord& round : used) {
        rate = std::max(rate, kWithoutChance * estimate_rate({round}));
    }
    return rate > 0.0 ? rate : estimate_rate(rounds);
}

/// Of the quickest scan, for the same reason.
Duration scan_of_pause(const std::vector<RoundRecord>& rounds) {
    Duration least{};
    for (std::size_t i = rounds.size() - 1, used = 0; i > 0 && used < kRoundsOfPause; --i, ++used) {
        least = used == 0 ? rounds[i].scan : std::min(least, rounds[i].scan);
    }
    return least;
}

}  // namespace

bool compression_pays(const CompressionInputs& inputs) {
    if (inputs.link_bytes_per_second <= 0.0 || inputs.ratio <= 0.0) {
        return false;
    }
    const double compressed =
        std::min({inputs.compress_bytes_per_second, inputs.decompress_bytes_per_second,
                  inputs.link_bytes_per_second / inputs.ratio});
    return compressed > 1.1 * inputs.link_bytes_per_second;
}

std::uint64_t estimate_remaining_bytes(const std::vector<RoundRecord>& rounds,
                                       std::uint64_t bytes_resident, Duration open) {
    if (rounds.size() < 2) {
        return bytes_resident;
    }
    struct Point {
        double time;
        double bytes;
    };
    constexpr std::size_t kRoundsUsed = 4;
    std::vector<Point> points;
    for (std::size_t i = rounds.size() - 1; i > 0 && points.size() < kRoundsUsed; --i) {
        points.push_back({std::max(seconds(interval_before(rounds, i)), 1e-6),
                          static_cast<double>(rounds[i].bytes_changed)});
    }
    std::sort(points.begin(), points.end(),
              [](const Point& a, const Point& b) { return a.time < b.time; });
    const double wanted = seconds(open);
    Point below{0.0, 0.0};
    double slope = 0.0;
    for (const Point& point : points) {
        const Point next{point.time, std::max(point.bytes, below.bytes)};
        if (next.time > below.time) {
            slope = (next.bytes - below.bytes) / (next.time - below.time);
        }
        if (wanted < next.time) {
            break;
        }
        below = next;
    }
    if (wanted > below.time && below.time == points.back().time) {
        slope = std::min(slope, below.bytes / below.time);  // two points may lie close together
    }
    const double remaining = below.bytes + slope * std::max(0.0, wanted - below.time);
    return static_cast<std::uint64_t>(std::min(remaining, static_cast<double>(bytes_resident)));
}

double estimate_rate(const std::vector<RoundRecord>& rounds) {
    constexpr std::size_t kRoundsUsed = 3;
    double bytes = 0.0;
    double time = 0.0;
    std::size_t used = 0;
    for (auto it = rounds.rbegin(); it != rounds.rend() && used < kRoundsUsed; ++it) {
        if (it->bytes_changed > 0 && it->elapsed > it->scan) {
            bytes += static_cast<double>(it->bytes_changed);
            time += seconds(it->elapsed - it->scan);
            ++used;
        }
    }
    return time > 0.0 ? bytes / time : 0.0;
}

DowntimeEstimate estimate_downtime(const std::vector<RoundRecord>& rounds,
                                   std::uint64_t bytes_resident, Duration open) {
    DowntimeEstimate estimate;
    estimate.bytes_remaining = estimate_remaining_bytes(rounds, bytes_resident, open);
    estimate.bytes_per_second = rate_of_pause(rounds);
    const Duration scan = rounds.empty() ? Duration{} : scan_of_pause(rounds);
    if (estimate.bytes_remaining == 0) {
        estimate.downtime = kDowntimeFixed + 2 * scan;
    } else if (estimate.bytes_per_second > 0.0) {
        const double us =
            1e6 * static_cast<double>(estimate.bytes_remaining) / estimate.bytes_per_second;
        estimate.downtime =
            kDowntimeFixed + 2 * scan + Duration(static_cast<std::int64_t>(std::min(us, 1e15)));
    }
    return estimate;
}

double dirty_rate(const std::vector<RoundRecord>& rounds) {
    if (rounds.size() < 2) {
        return 0.0;
    }
    return static_cast<double>(rounds.back().bytes_changed) /
           std::max(seconds(interval_before(rounds, rounds.size() - 1)), 1e-6);
}

std::string not_converging_text(const DowntimeEstimate& estimate, double dirty_bytes_per_second,
                                Duration downtime_max) {
    constexpr double kMib = 1024.0 * 1024.0;
    char text[400];
    std::snprintf(text, sizeof(text),
                  "the pause would take about %.1f s, migration.downtime_max_ms allows %.1f s: "
                  "%.0f MiB are left, the programs change %.0f MiB/s and the link takes %.0f "
                  "MiB/s. Move while they do less, give the link more bandwidth, or accept the "
                  "pause with `gantry force-complete`",
                  seconds(estimate.downtime.value_or(Duration{})), seconds(downtime_max),
                  static_cast<double>(estimate.bytes_remaining) / kMib,
                  dirty_bytes_per_second / kMib, estimate.bytes_per_second / kMib);
    return text;
}

RoundRules rules_of_move(const Settings& settings) {
    return {settings.rounds_max, settings.downtime_target, 0, 0.95, 2, 4};
}

RoundRules rules_of_replacement(Duration pause_max) { return {8, pause_max, 16U << 20, 0.5, 1, 2}; }

std::optional<Duration> Rounds::copy_time(std::uint64_t bytes) const {
    double best = 0.0;
    for (const RoundRecord& round : records_) {
        best = std::max(best, estimate_rate({round}));
    }
    if (best <= 0.0) {
        return std::nullopt;
    }
    return Duration(static_cast<std::int64_t>(1e6 * static_cast<double>(bytes) / best));
}

std::optional<Duration> Rounds::downtime(std::uint64_t bytes_resident) const {
    return records_.size() < 2
               ? std::nullopt
               : estimate_downtime(records_, bytes_resident, records_.back().elapsed).downtime;
}

Convergence Rounds::judge(std::optional<Duration> pause) const {
    if ((!records_.empty() && records_.back().bytes_changed <= rules_.bytes_few) || fits(pause)) {
        return Convergence::kFits;
    }
    const std::size_t count = records_.size();
    if (count >= rules_.rounds_max) {
        return Convergence::kRoundsExhausted;
    }
    if (count < rules_.stalls_from) {
        return Convergence::kAnotherRound;
    }
    for (std::size_t i = count - rules_.stalls; i < count; ++i) {
        if (static_cast<double>(records_[i].bytes_changed) <=
            rules_.shrinks_to * static_cast<double>(records_[i - 1].bytes_changed)) {
            return Convergence::kAnotherRound;
        }
    }
    return Convergence::kNoImprovement;
}

void add_attempts(const Progress& before, Progress* progress) {
    progress->percent = std::max(progress->percent, before.percent);
    progress->round += before.round;
    progress->bytes_content += before.bytes_content;
    progress->bytes_sent += before.bytes_sent;
    progress->elapsed += before.elapsed;
}

double first_round_percent(std::uint64_t bytes_content, std::uint64_t bytes_total) {
    const PhaseSpan span = phase_span(Phase::kPrecopy);
    const auto done = static_cast<double>(std::min(bytes_content, bytes_total));
    const double share = bytes_total == 0 ? 0.0 : done / static_cast<double>(bytes_total);
    return span.begin + (span.end - span.begin) * 0.5 * share;
}

void ProgressMeter::reset() { percent_ = 0.0; }

double ProgressMeter::advance(Phase phase, double fraction) {
    const PhaseSpan span = phase_span(phase);
    const double at = span.begin + (span.end - span.begin) * std::clamp(fraction, 0.0, 1.0);
    percent_ = std::max(percent_, at);
    return percent_;
}

}  // namespace gantry::engine
