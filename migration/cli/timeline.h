// One move as a picture: what both hosts have recorded of it, on one axis of time, as lanes of
// spans and marks, curves, facts and a list. Pure; what draws it is in timeline_forms.h.
//
// Time is in seconds since the first stamp, by the clock of the host that was asked. The other
// host's stamps are laid on it by the messages of the move; how wrong that may be is said.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "proto/control/gantryd.pb.h"

namespace gantry::cli {

/// What a span shows; each has a colour.
enum class SpanKind { kJob, kRound, kGuestPaused, kDrain, kFrozen, kGrant, kApply, kActivate };
inline constexpr std::size_t kSpanKinds = 8;

struct Span {
    SpanKind kind = SpanKind::kJob;
    double from = 0.0;
    double to = 0.0;
    std::string title;
};
struct Mark {
    double at = 0.0;
    std::string title;
};
struct Lane {
    std::string name;
    std::vector<Span> spans;
    std::vector<Mark> marks;
};
struct HostLanes {
    std::string host;
    bool is_source = true;
    std::vector<Lane> lanes;
};
struct Curve {
    std::string name;
    std::vector<std::pair<double, double>> points;  ///< Time; bytes, or bytes a second.
};
struct ListedEvent {
    double at = 0.0;
    std::string host;
    std::string text;
};

struct Timeline {
    std::string title;
    std::vector<std::pair<std::string, std::string>> facts;
    std::vector<HostLanes> hosts;  ///< The source first, if it is known.
    Curve bytes_left;
    std::vector<Curve> rates;
    std::vector<ListedEvent> events;
    double end = 0.0;
    /// From shortly before the pause to shortly after it; equal: there was none.
    double pause_from = 0.0;
    double pause_to = 0.0;
};

[[nodiscard]] Timeline make_timeline(const control::MoveRecordsReply& records);

}  // namespace gantry::cli
