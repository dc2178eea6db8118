#!/usr/bin/env python3
"""Two sessions on one GPU: weights, priority and the bound on waiting, and the switch that ends it.

What is compared is the time that gantryd's arbiter counted, and what each program got done.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
from daemons import PATIENCE, Daemon, Failure, running, wait_until

STARVATION_MS = 100


def expect(condition, text):
    if not condition:
        raise Failure(text)


class Program:
    def __init__(self, options, daemon, rounds, burst, pause_us, seconds):
        known = {session["session_id"] for session in daemon.sessions()}
        environment = {**os.environ, "LD_LIBRARY_PATH": f"{options.build}/shim",
                       "GANTRY_TRANSPORT": f"unix:{daemon.guest_socket}"}
        self.child = subprocess.Popen(
            [options.program, *map(str, (rounds, burst, pause_us, seconds))], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        expect(self.child.stdout.readline() == "ready\n", "the program did not start")
        (self.session,) = {one["session_id"] for one in daemon.sessions()} - known

    def go(self):
        self.child.stdin.write("\n")
        self.child.stdin.flush()

    def result(self):
        """Launches, P50 and P99 of a burst in us."""
        line = self.child.stdout.readline()
        self.child.wait(timeout=60 * PATIENCE)
        expect(self.child.returncode == 0, f"a program ended with {self.child.returncode}")
        return [float(word) for word in line.split()]


def sched(daemon, *words):
    done = daemon.gantry("--json", "sched", *words)
    expect(done.returncode == 0, f"sched {words}: {done}")
    return json.loads(done.stdout)


def standings(reply):
    return {one["session_id"]: one for gpu in reply["gpus"] for one in gpu["sessions"]}


def pair(options, daemon, shares, loads):
    """Runs two programs beside each other; what the arbiter says while both run, and their
    results."""
    programs = [Program(options, daemon, *load) for load in loads]
    for program, (priority, weight) in zip(programs, shares):
        sched(daemon, "set", program.session, "--priority", priority, "--weight", weight)
    before = standings(sched(daemon, "status"))
    for program in programs:
        program.go()
    first = programs[0].child
    try:
        first.wait(timeout=max(load[3] for load in loads) - 1)
        raise Failure("a program ended before its time")
    except subprocess.TimeoutExpired:
        pass
    after = standings(sched(daemon, "status"))
    held = [int(after[one.session]["held_us"]) - int(before[one.session]["held_us"])
            for one in programs]
    return held, [after[one.session] for one in programs], [one.result() for one in programs]


def weights(options, daemon):
    # These wait for each batch: the one that comes back takes what it is owed.
    loads = [(options.rounds, 8, 0, 6)] * 2
    held, _, results = pair(options, daemon, [(4, 75), (4, 25)], loads)
    part = 100 * held[0] / sum(held)
    # The policy keeps three points (tests/sim/sharing); this machine is late now and then. Without
    # taking it came to 60 to 67 %.
    expect(69 < part < 81, f"weights of 75 and 25 got {part:.1f} % of the time")
    done = [result[0] for result in results]
    expect(min(done) > 0, f"launches: {done}")
    print(f"weights 75 and 25: {part:.1f} % of the time, {done[0]:.0f} and {done[1]:.0f} launches")


def priority(options, daemon):
    loads = [(options.rounds, 8, -1, 6), (options.rounds, 8, 0, 6)]
    held, (high, low), results = pair(options, daemon, [(9, 100), (1, 100)], loads)
    done = [result[0] for result in results]
    expect(int(low["windows_once"]) > 0, f"the one below never got a window: {low}")
    expect(int(high["windows_once"]) == 0 and high["permit"] == "told", f"the one above: {high}")
    expect(int(low["wait_us_max"]) >= STARVATION_MS * 900, f"it waited less than the bound: {low}")
    expect(int(low["wait_us_max"]) <= 2 * STARVATION_MS * 1000 * PATIENCE, f"its wait: {low}")
    expect(held[0] > 1.5 * held[1], f"held: {held} us")
    print(f"priority 9 over 1: {done[0]:.0f} and {done[1]:.0f} launches, "
          f"{low['windows_once']} windows, longest wait {int(low['wait_us_max']) / 1000:.0f} ms")


def filling(options, daemon):
    """High rests for 7 ms between bursts: low's kernels are run there, once their time is known."""
    loads = [(options.rounds // 4, 8, 7000, 6), (options.rounds // 20, 2, -1, 6)]
    _, (high, low), results = pair(options, daemon, [(9, 100), (1, 100)], loads)
    done = [result[0] for result in results]
    expect(int(low["fills"]) > 10, f"no gaps were filled: {low}")
    expect(int(high["fills"]) == 0 and high["permit"] == "told", f"the one above: {high}")
    expect(min(done) > 0, f"launches: {done}")
    expect(int(low["wait_us_max"]) <= 2 * STARVATION_MS * 1000 * PATIENCE, f"its wait: {low}")
    print(f"gaps: {done[0]:.0f} and {done[1]:.0f} launches, {low['fills']} gaps filled, "
          f"{low['windows_once']} windows")


def switched_off(options, daemon):
    high = Program(options, daemon, options.rounds, 8, 0, 4)
    low = Program(options, daemon, options.rounds, 8, 0, 4)
    sched(daemon, "set", high.session, "--priority", 9)
    off = sched(daemon, "off")
    expect(not off["enabled"] and {one["permit"] for one in standings(off).values()} == {"open"},
           f"off: {off}")
    high.go()
    low.go()
    done = [high.result()[0], low.result()[0]]
    expect(min(done) * 4 > max(done) > 0, f"launches with the switch off: {done}")
    sched(daemon, "on")
    print(f"switched off: {done[0]:.0f} and {done[1]:.0f} launches")


def refused(options, daemon):
    program = Program(options, daemon, options.rounds, 1, 0, 1)
    for words in (("--priority", 10), ("--weight", 0), ("--weight", 1001)):
        done = daemon.gantry("sched", "set", program.session, *words)
        expect(done.returncode == 1 and "[arbiter.share]" in done.stderr, f"{words}: {done}")
    program.go()
    program.result()
    wait_until("its end", lambda: not daemon.sessions())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=20000, help="length of a kernel")
    parser.add_argument("--driver", help="CUDA driver library; left out: the soft GPU")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gantry-share-") as folder:
        daemon = Daemon(options.build, pathlib.Path(folder), "host", driver=options.driver,
                        extra={"worker": "arbitrate = true\n"})
        with running(daemon):
            refused(options, daemon)
            weights(options, daemon)
            priority(options, daemon)
            switched_off(options, daemon)
        daemon = Daemon(options.build, pathlib.Path(folder), "filling", driver=options.driver,
                        extra={"worker": "arbitrate = true\nfill_gaps = true\n"})
        with running(daemon):
            filling(options, daemon)
    return 0


if __name__ == "__main__":
    sys.exit(main())
