"""The benchmark's table: rows of one figure, or of a figure beside the native one."""

import contextlib
import json
import statistics
import subprocess

from daemons import Failure

FAILURES = (OSError, RuntimeError, ValueError, KeyError, IndexError, subprocess.SubprocessError,
            Failure)


def geometric_mean(values):
    return statistics.geometric_mean(values)


def ratios(above, below, name):
    return [a[name] / b[name] for a, b in zip(above, below)]


def values(runs, name):
    return [run[name] for run in runs]


class Table:
    """Rows in the order of adding, each under the section that is open; printed as they come."""

    def __init__(self):
        self.rows = []
        self.section = ""
        self.notes = {}

    def open(self, section):
        self.section = section
        print(f"\n== {section}", flush=True)

    def row(self, name, **fields):
        self.rows.append({"section": self.section, "name": name, **fields})
        print(line_of(self.rows[-1]), flush=True)

    @staticmethod
    def judged(value, limit, higher_is_better):
        if limit is None:
            return {"promise": "", "kept": True}
        kept = value >= limit if higher_is_better else value <= limit
        return {"promise": f"{'>=' if higher_is_better else '<='} {limit:g}", "kept": bool(kept)}

    def add(self, name, samples, unit, promise=None, at_least=False):
        """The median of `samples`, held against `promise` (a bound from above, or from below)."""
        value = statistics.median(samples)
        self.row(name, value=value, least=min(samples), most=max(samples), samples=len(samples),
                 unit=unit, **self.judged(value, promise, at_least))

    def pair(self, name, through, native, unit, limit=None, higher_is_better=False,
             beside="native"):
        """Samples taken in turn with the native ones, or with what `beside` names; `limit` bounds
        the median of through / native of each turn. Bare numbers are one sample each."""
        through, native = ([one] if isinstance(one, (int, float)) else list(one)
                           for one in (through, native))
        turns = [a / b for a, b in zip(through, native)]
        ratio = statistics.median(turns)
        self.row(name, value=statistics.median(through), native=statistics.median(native),
                 beside=beside, ratio=ratio, ratio_least=min(turns), ratio_most=max(turns),
                 samples=len(turns), unit=unit, **self.judged(ratio, limit, higher_is_better))
        return ratio

    def mean(self, name, of, limit):
        """The geometric mean of ratios; FAILED when there are none."""
        if not of:
            self.failed(name, "none of its members could be measured")
            return
        ratio = geometric_mean(of)
        self.row(name, ratio=ratio, samples=len(of), unit="ratio",
                 **self.judged(ratio, limit, False))

    def check(self, name, passed, text):
        """Something that holds or does not, rather than a figure."""
        self.row(name, text=text, kept=bool(passed), promise="")

    def failed(self, name, reason):
        self.row(name, failed=" ".join(str(reason).split())[-600:], kept=False, promise="")

    def skipped(self, name, reason):
        self.row(name, skipped=str(reason), kept=True, promise="")

    @contextlib.contextmanager
    def attempt(self, name):
        """A row that stays in the table when what measures it breaks down."""
        try:
            yield
        except FAILURES as failure:
            self.failed(name, f"{type(failure).__name__}: {failure}")

    def of_section(self, section):
        return [row for row in self.rows if row["section"] == section]

    def has_failed(self):
        return any("failed" in row for row in self.rows)

    def note(self, line):
        self.notes.setdefault(self.section, []).append(line)
        print(f"  {line}", flush=True)

    def to_json(self, about):
        return json.dumps({**about, "rows": self.rows, "notes": self.notes}, indent=1) + "\n"


def line_of(row):
    name = f"{row['name']:52}"
    if "failed" in row:
        return f"{name} FAILED: {row['failed']}"
    if "skipped" in row:
        return f"{name} SKIPPED: {row['skipped']}"
    if "text" in row:
        return f"{name} {row['text']}  {'kept' if row['kept'] else 'MISSED'}"
    verdict = "" if row["promise"] == "" else "kept" if row["kept"] else "MISSED"
    if "native" in row:
        figures = (f"{row['value']:10.3f} {row['unit']:7} {row['beside']} {row['native']:.3f}, "
                   f"ratio {row['ratio']:.3f} ({spread(row, 'ratio_')})")
    elif "ratio" in row:
        figures = f"{row['ratio']:10.4f} {row['unit']:7}"
    else:
        figures = f"{row['value']:10.3f} {row['unit']:7} ({spread(row, '')})"
    return f"{name} {figures:66} {row['promise']:9} {verdict}".rstrip()


def spread(row, prefix):
    least, most = row[f"{prefix}least"], row[f"{prefix}most"]
    return f"{least:.3f} to {most:.3f}" if row["samples"] > 1 else "once"
