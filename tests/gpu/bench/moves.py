"""Live moves of a running job into a fresh worker: what is copied, how long the GPU stands still,
and how much slower the job's steps are meanwhile. To the second GPU of the host where there is one,
else to a fresh worker on the same GPU, with a copy."""

import json
import os
import pathlib
import subprocess
import sys
import threading
import time

import phases
import svg
from chain import Failure, Host, missing
from steps import Steps

HERE = pathlib.Path(__file__).resolve().parent
BEFORE_S, AFTER_S = 4.0, 3.0
START_SECONDS, MOVE_SECONDS = 180, 300
PAUSE_MS, PEER_PAUSE_MS, SLOWER = 300, 150, 1.10


class Job:
    """A program that prints its steps; told to end by a line."""

    def __init__(self, command, environment):
        self.child = subprocess.Popen([str(word) for word in command], text=True,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT,
                                      env={**os.environ, **environment})
        self.lines, self.ready = [], threading.Event()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.child.stdout:
            self.lines.append(line.rstrip("\n"))
            if line == "ready\n":
                self.ready.set()
        self.ready.set()

    def await_ready(self):
        if not self.ready.wait(START_SECONDS) or "ready" not in self.lines:
            raise RuntimeError(f"the job did not start: {self.crash_log()}")

    def crash_log(self):
        return " / ".join(line for line in self.lines[-30:] if not line.startswith("step"))

    def finish(self):
        """Its steps; an error when it did not end well."""
        try:
            self.child.stdin.close()
            status = self.child.wait(timeout=120)
        finally:
            self.kill()
        if status != 0 or not any(line.startswith("PASS") for line in self.lines):
            raise RuntimeError(f"the job ended with {status}: {self.crash_log()}")
        return Steps.parse(self.lines)

    def kill(self):
        self.child.kill()
        self.child.wait()
        self.reader.join(timeout=30)


def devices():
    found = pathlib.Path("/proc/driver/nvidia/gpus")
    return len(list(found.iterdir())) if found.is_dir() else 1


def rate_of(one):
    """Bytes per second that a round copied."""
    return 1e6 * one["bytes"] / one["copy_us"] if one["copy_us"] > 0 else 0.0


class Moved:
    """What a move's report says, whichever way it went."""

    def __init__(self, report):
        self.report, self.rounds = report, report["rounds"]
        self.bytes = report["bytes_copied"]
        self.final_bytes = report["bytes_copied_frozen"]
        self.pause_ms = report["pause_us"] / 1000
        self.total_ms = report["elapsed_us"] / 1000

    def copy_rate(self):
        """Bytes per second of copying, in the largest round."""
        return rate_of(max(self.rounds, key=lambda one: one["bytes"]))

    def frozen_rate(self):
        """The same while the job stood still, in the last round."""
        return rate_of(self.rounds[-1])

    def pause_allowed_ms(self):
        """By the faster rate: live copies that wait for the job allow no longer pause."""
        rate = max(self.copy_rate(), self.frozen_rate())
        return PAUSE_MS + (1000 * self.final_bytes / rate if rate else 0)


def rows(bench, name, moved, steps, span, elsewhere):
    table = bench.table
    begin, end = span
    before = steps.between(begin - BEFORE_S, begin)
    # The pause is at the move's end; a slow step in front of it belongs to the precopy.
    stood = steps.touching(max(begin, end - moved.pause_ms / 1000 - 0.25), end).longest()
    if stood is None or not before.rows:
        raise RuntimeError("no step of the job touches the move")
    during = steps.between(begin, stood.begin_s)
    after = steps.between(stood.end_s + 1.0, end + 600)
    table.add(f"{name}: rounds", [len(moved.rounds)], "rounds")
    table.add(f"{name}: copied in all", [moved.bytes / 1e9], "GB")
    table.add(f"{name}: copied while it stood still", [moved.final_bytes / 1e6], "MB")
    table.add(f"{name}: rate of copying", [moved.copy_rate() / 1e9], "GB/s")
    table.add(f"{name}: ... while it stood still", [moved.frozen_rate() / 1e9], "GB/s")
    table.add(f"{name}: whole move", [moved.total_ms], "ms")
    allowed = moved.pause_allowed_ms() if bench.is_gpu else None
    table.add(f"{name}: GPU downtime, by the report", [moved.pause_ms], "ms", allowed)
    if bench.is_gpu and elsewhere and moved.report.get("way") == "peer":
        table.add(f"{name}: the same, over NVLink", [moved.pause_ms], "ms", PEER_PAUSE_MS)
        table.add(f"{name}: rate over NVLink", [moved.copy_rate() / 1e9], "GB/s", 300,
                  at_least=True)
    longest = steps.touching(begin, end).longest_ms()
    table.add(f"{name}: longest step, less a step before", [longest - before.median_ms()], "ms")
    if during.rows:
        table.pair(f"{name}: step during precopy / before", [during.mean_ms()],
                   [before.mean_ms()], "ms", SLOWER if bench.is_gpu else None, beside="before")
        table.note(f"{name}: {len(during.rows)} steps during precopy, {len(before.rows)} before")
    else:
        table.skipped(f"{name}: step during precopy / before",
                      "no step lies within the precopy as a whole")
    if after.rows:
        table.add(f"{name}: step after / before", [after.mean_ms() / before.mean_ms()], "ratio")
    spans = phases.spans_of(moved.report)
    for line in phases.lines_of(phases.costs_of(during, spans, before.median_ms())):
        table.note(f"{name}: {line}")
    for line in phases.slow_lines(steps.between(begin, end + AFTER_S), spans, before.median_ms()):
        table.note(f"{name}: {line}")
    report = {key: value for key, value in moved.report.items() if key != "spans"}
    table.note(f"{name}: {json.dumps(report)}")
    seen = steps.between(begin - BEFORE_S, end + AFTER_S)
    bench.plots[name] = svg.timeline(
        f"{name}: milliseconds a step", [(row.end_s, row.ms) for row in seen.rows],
        [(begin, end, "the move")])


def ask(host, target):
    """Has the host's guest moved; its report and when it was."""
    begin = time.monotonic()
    try:
        report, = host.replace(seconds=MOVE_SECONDS, **target)
    except (Failure, ValueError) as failure:
        raise RuntimeError(f"the move failed: {failure}") from failure
    return Moved(report), (begin, time.monotonic())


def one(bench, name, command, target):
    """Moves the job once and adds its rows; the lines that it printed."""
    driver = None if bench.is_gpu else bench.build / "soft/libcuda.so.1"
    with Host(bench.build, bench.folder(name), driver) as host:
        job = Job(command, host.guest_environment())
        try:
            job.await_ready()
            time.sleep(BEFORE_S)
            moved, span = ask(host, target)
            time.sleep(AFTER_S)
            steps = job.finish()
        finally:
            job.kill()
    rows(bench, name, moved, steps, span, "to_device" in target)
    return steps


def losses(steps):
    return [row.text for row in steps.rows]


def training_rows(bench, mib, targets):
    """Of the PyTorch training job, moved once to each target; all its losses are then held against
    one native run's."""
    moved = {}
    for name, target in targets.items():
        with bench.table.attempt(name):
            moved[name] = losses(one(bench, name, [sys.executable, HERE / "move_job.py", mib, 600],
                                     target))
    if not moved:
        return
    steps = max(map(len, moved.values()))
    native = Job([sys.executable, HERE / "move_job.py", 1, 600, steps], {})
    native.await_ready()
    native.child.wait(timeout=MOVE_SECONDS)
    expected = losses(native.finish())
    for name, seen in moved.items():
        bench.table.check(f"{name}: losses equal to the native ones, bit for bit",
                          len(expected) == steps and seen == expected[:len(seen)],
                          f"{len(seen)} steps")


def run(bench):
    """Live moves of a CUDA program and of a PyTorch training job with memory that lies still; of
    the job also by way of the host's memory where there are two GPUs."""
    table, mib = bench.table, round(bench.arguments.resident_gib * 1024)
    elsewhere = bench.is_gpu and devices() > 1
    target = {"to_device": 1} if elsewhere else {"copy": True}
    table.note("to the host's second GPU" if elsewhere else
               "to a fresh worker on the same GPU, with a copy")
    changing, work = ("256", "60") if bench.is_gpu else ("1", "1")
    with table.attempt("program"):
        one(bench, "program", [bench.build / "programs/checked_steps", mib, changing, work, 600],
            target)
    if not bench.is_gpu or missing():
        table.skipped("PyTorch training job", missing() or "the soft GPU runs no PyTorch")
        return
    targets = {"training": target}
    if elsewhere:
        targets["training-staged"] = {**target, "staged": True}
    with table.attempt("training: the native run"):
        training_rows(bench, mib, targets)
