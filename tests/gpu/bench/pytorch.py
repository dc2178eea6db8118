"""The PyTorch set: members.py natively and through Gantry, member by member, in turn.

Both processes live side by side; for each member both build it and run its checked steps, whose
values must agree bit for bit; then it is timed natively and through Gantry, in turn, round by
round. Each round draws a core, on which either process calls the driver: where a process stays on
the core that it has come to, it has the same neighbours for the whole of a run, and between two
cores an interpreter's step differs by a factor of two. A process that dies or hangs fails that
member and is started anew for the next one.
"""

import json
import math
import os
import pathlib
import random
import select
import statistics
import struct
import subprocess
import sys
import time

from chain import Host

HERE = pathlib.Path(__file__).resolve().parent
EACH_LIMIT, MEAN_LIMIT, TINY_LIMIT = 1.05, 1.02, 1.0
START_SECONDS, ANSWER_SECONDS = 120, 120
COUNTED_STEPS = 20
TEXT = {"cnn": "CNN", "gpt": "GPT", "fp32": "fp32", "bf16": "bf16", "eager": "eager",
        "graph": "CUDA graph"}


class Process:
    """A members.py that answers requests; started at the first one."""

    def __init__(self, name, options, environment, folder):
        self.name, self.options, self.environment = name, options, environment
        self.errors = folder / f"{name}.err"
        self.child, self.members, self.buffer, self.unread = None, None, b"", 0

    def start(self):
        with open(self.errors, "ab") as errors:
            self.child = subprocess.Popen(
                [sys.executable, HERE / "members.py", *self.options], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=errors, env={**os.environ, **self.environment})
        self.buffer, self.unread = b"", 0
        self.members = self.read(START_SECONDS)["members"]

    def read(self, seconds):
        deadline = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            ready = select.select([self.child.stdout], [], [], max(left, 0))[0]
            data = os.read(self.child.stdout.fileno(), 65536) if ready else b""
            if not data:
                status = self.child.poll()
                self.end()
                why = f"no answer within {seconds} s" if left <= 0 else f"ended ({status})"
                raise RuntimeError(f"{self.name}: {why}: {self.crash_log()}")
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line)

    def crash_log(self):
        return self.errors.read_text(errors="replace")[-500:]

    def ask(self, *words):
        self.tell(*words)
        return self.answer()

    def tell(self, *words):
        if self.child is None:
            self.start()
        while self.unread:  # The asker gave up on the other process before it came to this one.
            self.read(ANSWER_SECONDS)
            self.unread -= 1
        self.child.stdin.write((" ".join(map(str, words)) + "\n").encode())
        self.child.stdin.flush()
        self.unread += 1

    def answer(self):
        answer = self.read(ANSWER_SECONDS)
        self.unread -= 1
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {answer['error']}")
        return answer

    def end(self):
        if self.child is not None:
            self.child.kill()
            self.child.wait()
            self.child.stdin.close()
            self.child.stdout.close()
            self.child = None


def title(member):
    kind, *parts = member.split("_")
    if kind == "tiny":
        return "an operation on one element, in a loop"
    what = {"train": "training step", "infer": "inference, batch 1"}[kind]
    return f"{what}, {', '.join(TEXT[part] for part in parts)}"


class Set:
    """Measures members and keeps what the rows at the end need."""

    def __init__(self, table, native, gantry, rounds, seconds):
        self.table, self.native, self.gantry = table, native, gantry
        self.rounds, self.seconds = rounds, seconds
        self.ratios, self.asked, self.equal, self.waits = {}, [], [], {}

    def compare(self, member, native, gantry):
        wrong = [step for step, (a, b) in enumerate(zip(native, gantry)) if a != b]
        if not all(math.isfinite(struct.unpack(">d", bytes.fromhex(one))[0]) for one in native):
            self.table.failed(f"values of {title(member)}", "natively not all finite")
        elif wrong or len(native) != len(gantry):
            self.table.failed(f"values of {title(member)}",
                              f"differ from the native ones from step {wrong[0]} on")
        else:
            self.equal.append(member)

    def member(self, name):
        self.asked.append(name)
        sides = (self.native, self.gantry)
        times = ([], [])
        for side in sides:
            side.tell("values", name)
        self.compare(name, *[side.answer()["values"] for side in sides])
        for _ in range(self.rounds):
            core = random.choice(sorted(os.sched_getaffinity(0)))
            for side, mine in zip(sides, times):
                answer = side.ask("time", name, self.seconds, core)
                mine.append(1e6 * statistics.median(answer["times"]))
        native, through = times
        scale, unit = (1000, "ms") if statistics.median(native) > 1000 else (1, "us")
        self.ratios[name] = self.table.pair(
            title(name), [one / scale for one in through], [one / scale for one in native], unit,
            TINY_LIMIT if name == "tiny_kernels" else EACH_LIMIT)
        with self.table.attempt(f"waits for the host: {title(name)}"):
            self.waits[name] = self.gantry.ask("waits", name, COUNTED_STEPS)["waits"]

    def summary(self):
        of_set = [ratio for name, ratio in self.ratios.items() if name != "tiny_kernels"]
        of_training = [ratio for name, ratio in self.ratios.items() if name.startswith("train")]
        self.table.mean(f"geometric mean of training and inference ({len(of_set)})", of_set,
                        MEAN_LIMIT)
        self.table.mean(f"geometric mean of training ({len(of_training)})", of_training,
                        MEAN_LIMIT)
        self.table.check("values equal to the native ones, bit for bit",
                         self.asked and self.equal == self.asked,
                         f"{len(self.equal)} of {len(self.asked)} members")
        for name, waits in self.waits.items():
            self.table.add(f"waits for the host a step: {title(name)}",
                           [sum(waits.values()) / COUNTED_STEPS], "waits", 1)
            calls = ", ".join(f"{call} {count / COUNTED_STEPS:g}" for call, count in
                              sorted(waits.items(), key=lambda item: -item[1]))
            self.table.note(f"{name}: {calls or 'nothing waited'}")


def measure(table, native, gantry, rounds, seconds=0.6, only=None):
    """Rows of the set from two processes, of which `gantry` was given the shim."""
    measured = Set(table, native, gantry, rounds, seconds)
    try:
        for side in (native, gantry):
            side.start()
        for name in list(native.members):
            if only is not None and name not in only:
                continue
            with table.attempt(title(name)):
                measured.member(name)
            for side in (native, gantry):
                with table.attempt(f"end of {title(name)}"):
                    side.ask("drop", name)
        measured.summary()
    finally:
        native.end()
        gantry.end()


def run(table, build, folder, rounds, only=None):
    with Host(build, folder) as host:
        measure(table, Process("native", (), {}, folder),
                Process("gantry", (), host.guest_environment(folder / "report"), folder),
                rounds, only=only)
