"""Times of a program's steps, from its lines `step N END_NS DURATION_US ...` (CLOCK_MONOTONIC)."""

import dataclasses
import statistics

WINDOW = 9  # Steps whose median says how it is going: one slow step is no state.


@dataclasses.dataclass
class Step:
    number: int
    begin_s: float
    end_s: float
    text: str

    @property
    def ms(self):
        return 1000 * (self.end_s - self.begin_s)


class Steps:
    def __init__(self, rows):
        self.rows = rows

    @classmethod
    def parse(cls, lines):
        rows = []
        for line in lines:
            words = line.split()
            if len(words) >= 4 and words[0] == "step":
                end, took = int(words[2]) / 1e9, float(words[3]) / 1e6
                rows.append(Step(int(words[1]), end - took, end, " ".join(words[4:])))
        return cls(rows)

    def between(self, begin_s, end_s):
        """Those that lie in the span as a whole."""
        return Steps([row for row in self.rows if row.begin_s >= begin_s and row.end_s <= end_s])

    def touching(self, begin_s, end_s):
        return Steps([row for row in self.rows if row.end_s >= begin_s and row.begin_s <= end_s])

    def median_ms(self):
        return statistics.median(row.ms for row in self.rows) if self.rows else float("inf")

    def mean_ms(self):
        return statistics.fmean(row.ms for row in self.rows) if self.rows else float("inf")

    def longest(self):
        return max(self.rows, key=lambda row: row.ms, default=None)

    def longest_ms(self):
        return max((row.ms for row in self.rows), default=0.0)

    def back_below(self, bound_ms, since_s):
        """Seconds from `since_s` until the steps are (median of WINDOW) below the bound; None when
        that never was."""
        for at in range(len(self.rows) - WINDOW + 1):
            window = self.rows[at:at + WINDOW]
            if window[0].end_s >= since_s and statistics.median(row.ms for row in window
                                                                ) <= bound_ms:
                return max(0.0, window[0].begin_s - since_s)
        return None
