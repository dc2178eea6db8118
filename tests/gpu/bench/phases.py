"""What each part of a move costs the job that runs meanwhile: its steps laid beside the spans of
the move's report (host-daemon/replacement/timeline.h)."""

import collections
import dataclasses


@dataclasses.dataclass
class Span:
    whom: str
    what: str
    begin_s: float
    end_s: float

    @property
    def name(self):
        return f"{self.what} ({self.whom})"


@dataclasses.dataclass
class Cost:
    times: int = 0
    busy_ms: float = 0.0
    lost_ms: float = 0.0    # Of the job's steps, shared out by how long they overlapped.
    worst_ms: float = 0.0   # The longest step that overlapped, less a usual one.


def spans_of(report):
    begun = report["begun_us"] / 1e6
    return [Span(one["whom"], one["what"], begun + one["at_us"] / 1e6,
                 begun + (one["at_us"] + one["us"]) / 1e6) for one in report["spans"]]


def costs_of(steps, spans, usual_ms):
    """By the span's name. What a step took beyond a usual one is shared out among the spans that it
    overlaps, by how long; a step that overlaps none counts for the name None."""
    costs = collections.defaultdict(Cost)
    for span in spans:
        costs[span.name].times += 1
        costs[span.name].busy_ms += 1000 * (span.end_s - span.begin_s)
    for step in steps.rows:
        overlaps = collections.defaultdict(float)
        for span in spans:
            shared = min(span.end_s, step.end_s) - max(span.begin_s, step.begin_s)
            if shared > 0:
                overlaps[span.name] += shared
        all_of_it = sum(overlaps.values())
        beyond = step.ms - usual_ms
        for name, shared in (overlaps or {None: 1.0}).items():
            cost = costs[name]
            cost.lost_ms += beyond * shared / (all_of_it or 1.0)
            cost.worst_ms = max(cost.worst_ms, beyond)
        if not overlaps:
            costs[None].times += 1
    return dict(costs)


def lines_of(costs):
    """A table, the dearest first."""
    yield f"{'part':34} {'times':>5} {'busy ms':>9} {'lost ms':>9} {'lost/ms':>8} {'worst ms':>9}"
    for name, cost in sorted(costs.items(), key=lambda item: -item[1].lost_ms):
        share = f"{cost.lost_ms / cost.busy_ms:8.3f}" if cost.busy_ms else " " * 8
        yield (f"{name or 'steps beside any part':34} {cost.times:5} {cost.busy_ms:9.1f} "
               f"{cost.lost_ms:9.1f} {share} {cost.worst_ms:9.1f}")


def slow_lines(steps, spans, usual_ms, most=12):
    """The slowest steps, with what went on."""
    slow = sorted((row for row in steps.rows if row.ms > 1.1 * usual_ms), key=lambda row: -row.ms)
    begun = min((span.begin_s for span in spans), default=0)
    for row in sorted(slow[:most], key=lambda row: row.begin_s):
        during = [span.name for span in spans
                  if span.begin_s < row.end_s and span.end_s > row.begin_s]
        yield (f"slow step at {1000 * (row.begin_s - begun):8.1f} ms: {row.ms:7.1f} ms, during "
               f"{', '.join(dict.fromkeys(during)) or 'nothing'}")
