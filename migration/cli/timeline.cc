#include "migration/cli/timeline.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string_view>

#include "migration/cli/print.h"

namespace gantry::cli {
namespace {

using control::MoveEvent;
using control::MoveRecord;

/// Of a record, and where its clock stands on the axis.
struct Seen {
    const MoveRecord* record = nullptr;
    double offset_us = 0.0;  ///< To be added to a stamp.

    [[nodiscard]] double at(std::uint64_t us) const {
        return (static_cast<double>(us) + offset_us) / 1e6;
    }
};

struct Alignment {
    double own_minus_peer_us = 0.0;
    std::string text;
};

Alignment align(const MoveRecord& own, const MoveRecord& peer) {
    const bool own_knows = own.clock().is_known();
    if (own_knows || peer.clock().is_known()) {
        const control::PeerClock& clock = own_knows ? own.clock() : peer.clock();
        const auto least = static_cast<double>(clock.own_minus_peer_us_min());
        const auto most = static_cast<double>(clock.own_minus_peer_us_max());
        const double middle = (least + most) / 2.0;
        return {own_knows ? middle : -middle,
                fmt::format("by the move's messages, wrong by {:.2f} ms at most (two clocks that "
                            "run equally fast)",
                            std::abs(most - least) / 2000.0)};
    }
    const auto wall = [](const MoveRecord& record) {
        return static_cast<double>(record.begun_unix_us()) - static_cast<double>(record.begun_us());
    };
    return {wall(peer) - wall(own), "by the hosts' wall clocks; how wrong is not known"};
}

using Names = std::initializer_list<std::string_view>;

bool is_one_of(const MoveEvent& event, const Names& names) {
    return std::any_of(names.begin(), names.end(), [&](std::string_view name) {
        const std::size_t space = name.find(' ');  // "state Requesting": with that detail
        return event.what() == name.substr(0, space) &&
               (space == std::string_view::npos || event.detail() == name.substr(space + 1));
    });
}

/// From an event of `begins` to the next of `ends`; one that does not end lasts to the last stamp.
std::vector<Span> spans_of(const Seen& seen, SpanKind kind, const std::string& title,
                           const Names& begins, const Names& ends) {
    std::vector<Span> out;
    bool is_open = false;
    double last = 0.0;
    for (const MoveEvent& event : seen.record->events()) {
        last = std::max(last, seen.at(event.at_us()));
        if (is_open && is_one_of(event, ends)) {
            out.back().to = seen.at(event.at_us());
            is_open = false;
        } else if (!is_open && is_one_of(event, begins)) {
            out.push_back({kind, seen.at(event.at_us()), 0.0, title});
            is_open = true;
        }
    }
    if (is_open) {
        out.back().to = last;
        out.back().title += ", and no end was seen";
    }
    for (Span& span : out) {
        span.title += fmt::format(": {:.1f} ms", (span.to - span.from) * 1e3);
    }
    return out;
}

std::vector<Mark> marks_of(const Seen& seen, const Names& names,
                           const std::function<std::string(const MoveEvent&)>& title) {
    std::vector<Mark> out;
    for (const MoveEvent& event : seen.record->events()) {
        if (is_one_of(event, names)) {
            out.push_back({seen.at(event.at_us()), title(event)});
        }
    }
    return out;
}

std::vector<Span> rounds_of(const Seen& seen) {
    std::vector<Span> out;
    for (const MoveEvent& event : seen.record->events()) {
        const double at = seen.at(event.at_us());
        if (event.what() == "round_begun") {
            out.push_back({SpanKind::kRound, at, at, fmt::format("round {}", event.round())});
        } else if (is_one_of(event, {"round_sent", "round_failed"}) && !out.empty() &&
                   out.back().to == out.back().from) {
            out.back().to = at;
            out.back().title += event.what() == "round_sent"
                                    ? fmt::format(": {}", bytes_text(event.bytes()))
                                    : ": failed";
            out.back().title += fmt::format(" in {:.0f} ms", (at - out.back().from) * 1e3);
        }
    }
    return out;
}

std::string said(const MoveEvent& event) {
    std::string out = event.what();
    std::replace(out.begin(), out.end(), '_', ' ');
    if (event.round() != 0) {
        out += fmt::format(" {}", event.round());
    }
    if (!event.detail().empty()) {
        out += ": " + event.detail();
    }
    return event.bytes() == 0 ? out : out + ", " + bytes_text(event.bytes());
}

HostLanes source_lanes(const Seen& seen) {
    HostLanes out{seen.record->host(), true, {}};
    const Names job_ends = {"job_done", "job_status completed", "job_status failed",
                            "job_status cancelled", "vm_stopped"};
    out.lanes.push_back({"libvirt job",
                         spans_of(seen, SpanKind::kJob, "libvirt's job",
                                  {"job_status setup", "job_status active", "job_pass"}, job_ends),
                         marks_of(seen, {"job_pass"}, [](const MoveEvent& event) {
                             return fmt::format("pass {} over the guest's memory", event.round());
                         })});
    out.lanes.push_back({"GPU rounds", rounds_of(seen), {}});
    out.lanes.push_back({"guest paused",
                         spans_of(seen, SpanKind::kGuestPaused, "guest paused", {"vm_paused"},
                                  {"vm_resumed", "vm_stopped"}),
                         {}});
    Lane frozen{"GPU frozen",
                spans_of(seen, SpanKind::kDrain, "GPU drains", {"freeze"},
                         {"frozen", "thawed", "state Precopy", "state Serving"}),
                {}};
    auto still = spans_of(seen, SpanKind::kFrozen, "GPU frozen", {"frozen"}, {"granted", "thawed"});
    frozen.spans.insert(frozen.spans.end(), still.begin(), still.end());
    out.lanes.push_back(std::move(frozen));
    out.lanes.push_back(
        {"grant",
         spans_of(seen, SpanKind::kGrant, "grant, on disk", {"grant_asked"}, {"granted", "thawed"}),
         {}});
    return out;
}

HostLanes target_lanes(const Seen& seen) {
    HostLanes out{seen.record->host(), false, {}};
    out.lanes.push_back({"libvirt job",
                         spans_of(seen, SpanKind::kJob, "libvirt's job, incoming", {"vm_started"},
                                  {"vm_resumed", "vm_stopped"}),
                         {}});
    out.lanes.push_back(
        {"GPU rounds applied",
         spans_of(seen, SpanKind::kRound, "GPU state comes", {"reserved"}, {"complete", "refused"}),
         marks_of(seen, {"round_applied"}, [](const MoveEvent& event) {
             return fmt::format("round {} applied", event.round());
         })});
    out.lanes.push_back({"final state",
                         spans_of(seen, SpanKind::kApply, "final state applied and compared",
                                  {"apply"}, {"complete", "state Receiving"}),
                         {}});
    out.lanes.push_back({"grant",
                         spans_of(seen, SpanKind::kGrant, "grant asked for", {"state Requesting"},
                                  {"grant_came", "state Receiving", "state Discarded"}),
                         {}});
    out.lanes.push_back(
        {"first answer",
         spans_of(seen, SpanKind::kActivate, "taken into service", {"activate"}, {"activated"}),
         marks_of(seen, {"first_call"},
                  [](const MoveEvent&) { return std::string("first GPU call of the guest"); })});
    return out;
}

void add_events(const Seen& seen, Timeline* out) {
    for (const MoveEvent& event : seen.record->events()) {
        out->events.push_back({seen.at(event.at_us()), seen.record->host(), said(event)});
    }
}

void add_curves(const Seen& source, Timeline* out) {
    constexpr double kMost = 1e18;  // Another host's word; drawn, and written as whole bytes.
    Curve dirty{"programs change", {}};
    Curve link{"link takes", {}};
    for (const control::MoveSample& sample : source.record->samples()) {
        const double at = source.at(sample.at_us());
        out->bytes_left.points.emplace_back(
            at, std::min(static_cast<double>(sample.bytes_remaining()), kMost));
        if (sample.bytes_per_second() > 0.0) {
            link.points.emplace_back(at, std::min(sample.bytes_per_second(), kMost));
        }
        if (sample.dirty_bytes_per_second() > 0.0) {
            dirty.points.emplace_back(at, std::min(sample.dirty_bytes_per_second(), kMost));
        }
    }
    out->rates = {std::move(link), std::move(dirty)};
}

/// Where the guest or its GPU work stood still, a little wider.
void find_pause(Timeline* out) {
    double from = std::numeric_limits<double>::max();
    double to = 0.0;
    for (const HostLanes& host : out->hosts) {
        for (const Lane& lane : host.lanes) {
            for (const Span& span : lane.spans) {
                const bool is_pause = span.kind != SpanKind::kJob && span.kind != SpanKind::kRound;
                from = is_pause ? std::min(from, span.from) : from;
                to = is_pause ? std::max(to, span.to) : to;
            }
            for (const Mark& mark : lane.marks) {
                to = lane.name == "first answer" ? std::max(to, mark.at) : to;
            }
        }
    }
    if (from < to) {
        const double margin = (to - from) * 0.08;
        out->pause_from = std::max(0.0, from - margin);
        out->pause_to = to + margin;
    }
}

std::string time_text(std::int64_t unix_us) {
    return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC",
                       fmt::gmtime(static_cast<std::time_t>(unix_us / 1'000'000)));
}

void add_facts(const MoveRecord* source, const MoveRecord* target, const std::string& alignment,
               Timeline* out) {
    const MoveRecord& any = source != nullptr ? *source : *target;
    const control::MoveProgress& last = any.last();
    auto& facts = out->facts;
    facts.emplace_back("session", any.session_id());
    facts.emplace_back("migration", any.migration_id());
    facts.emplace_back("begun", time_text(any.begun_unix_us()));
    for (const MoveRecord* one : {source, target}) {
        const char* side = one == source ? "source" : "target";
        facts.emplace_back(side, one == nullptr
                                     ? "its record has not come"
                                     : fmt::format("{}{}{}, gantryd {}", one->host(),
                                                   one->device_name().empty() ? "" : ", ",
                                                   one->device_name(), one->gantry_version()));
    }
    facts.emplace_back("outcome", last.outcome().empty() ? "under way" : last.outcome());
    if (!last.error_reason().empty()) {
        facts.emplace_back("because", last.error_text() + " [" + last.error_reason() + "]");
    }
    facts.emplace_back("took",
                       fmt::format("{:.2f} s", static_cast<double>(last.elapsed_us()) / 1e6));
    if (last.downtime_us() != 0) {
        facts.emplace_back("downtime of GPU work", milliseconds(last.downtime_us()));
    }
    facts.emplace_back("GPU memory", fmt::format("{}, {} sent in {} rounds, {} on the wire",
                                                 bytes_text(last.bytes_total()),
                                                 bytes_text(last.bytes_processed()), last.round(),
                                                 bytes_text(last.bytes_on_wire())));
    if (source != nullptr && target != nullptr && !source->last().memory_digest().empty() &&
        !target->last().memory_digest().empty()) {
        const bool is_equal = source->last().memory_digest() == target->last().memory_digest();
        facts.emplace_back("memory digests of both hosts", is_equal ? "equal" : "DIFFERENT");
    }
    facts.emplace_back("clocks of both hosts", alignment);
    if (any.events_left_out() != 0) {
        facts.emplace_back("stamps left out", std::to_string(any.events_left_out()));
    }
}

}  // namespace

Timeline make_timeline(const control::MoveRecordsReply& records) {
    const MoveRecord& own = records.own();
    const MoveRecord* const peer = records.has_peer() ? &records.peer() : nullptr;
    const Alignment alignment = peer != nullptr ? align(own, *peer) : Alignment{};
    double first_us = static_cast<double>(own.begun_us());
    if (peer != nullptr) {
        first_us =
            std::min(first_us, static_cast<double>(peer->begun_us()) + alignment.own_minus_peer_us);
    }
    const Seen own_seen{&own, -first_us};
    const Seen peer_seen{peer, alignment.own_minus_peer_us - first_us};
    const bool is_source = own.direction() != "incoming";
    const Seen& source = is_source ? own_seen : peer_seen;
    const Seen& target = is_source ? peer_seen : own_seen;

    Timeline out;
    out.bytes_left.name = "bytes left";
    const std::string from = source.record != nullptr ? source.record->host() : "?";
    const std::string to = target.record != nullptr ? target.record->host() : "?";
    out.title = fmt::format("{}: {} to {}",
                            own.vm_name().empty() ? own.session_id() : own.vm_name(), from, to);
    add_facts(source.record, target.record,
              peer != nullptr ? alignment.text : "only one host's record is here", &out);
    if (source.record != nullptr) {
        out.hosts.push_back(source_lanes(source));
        add_events(source, &out);
        add_curves(source, &out);
    }
    if (target.record != nullptr) {
        out.hosts.push_back(target_lanes(target));
        add_events(target, &out);
    }
    std::stable_sort(out.events.begin(), out.events.end(),
                     [](const ListedEvent& a, const ListedEvent& b) { return a.at < b.at; });
    out.end = std::max(out.events.empty() ? 0.0 : out.events.back().at, 1e-3);
    find_pause(&out);
    return out;
}

}  // namespace gantry::cli
