#!/usr/bin/env python3
"""Replaces the worker of a running program, and kills either worker at each step of it.

--way hand_over: the device memory changes hands. peer, staged: it is copied, as to another device
of the host, from device to device or by way of the host's memory.

The program (steps.cu) prints a digest of its device memory a step, until it is told to end. After a
replacement, and after one that failed while the old worker could still serve, it must go on with
the digests of an undisturbed run; where nobody is left that has its state, it must end with a clear
CUDA error; and never hang.
"""

import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
from daemons import PATIENCE, Daemon, Failure, replacements, wait_until
from programs import Program, Undisturbed

MIB, PAUSE_MS = 32, 50
REPLACEMENTS = 5
STEPS_BETWEEN, STEPS_AFTER = 2, 3  # That the program makes before what is done to it, and after.
DEADLINE_S = 60
FLAGS = {"hand_over": [], "peer": ["--copy"], "staged": ["--staged"]}
CLEAR_ERROR = re.compile(r"^error: \S.*", re.M)

# Whether the program must go on, by the step at which which worker is killed.
GOES_ON = {("checked", "fresh"): True, ("prepared", "fresh"): True, ("frozen", "fresh"): True,
           ("final", "fresh"): True, ("attached", "fresh"): True, ("released", "fresh"): False,
           ("activated", "fresh"): False,
           ("checked", "old"): False, ("prepared", "old"): False, ("frozen", "old"): False,
           ("final", "old"): True, ("attached", "old"): True, ("released", "old"): True,
           ("activated", "old"): True}


class Rig:
    """A gantryd, and the program through the shim."""

    def __init__(self, build, program, folder, way, hold=None, words=(MIB, 0, PAUSE_MS),
                 extra=None):
        """hold: the library that holds a gantryd at a step (hold.cc). extra: see Daemon."""
        self.way, self.program, self.hold_file = way, None, folder / "hold"
        preload = {"LD_PRELOAD": str(hold), "HOLD_FILE": str(self.hold_file)} if hold else {}
        self.daemon = Daemon(build, folder, "a", driver=build / "soft/libcuda.so.1",
                             environment=preload, extra=extra)
        try:
            self.daemon.start()
            self.program = Program([program, *words], folder / "out",
                                   {"LD_LIBRARY_PATH": f"{build}/shim",
                                    "GANTRY_TRANSPORT": f"unix:{self.daemon.guest_socket}"})
            self.program.await_steps(1, DEADLINE_S)
            self.session = self.daemon.sessions()[0]["session_id"]
        except BaseException:
            self.close()
            raise

    def replace(self):
        return self.daemon.replace_worker(self.session, *FLAGS[self.way],
                                          timeout=2 * DEADLINE_S * PATIENCE)

    def replace_and_kill(self, step, whom):
        """The worker is killed while gantryd is held right after the step."""
        line = f"line replacement {step} ("
        told = self.hold_file.with_name("hold.held")
        self.hold_file.write_text(line)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            done = pool.submit(self.replace)
            try:
                wait_until(f"gantryd at '{step}'", lambda: told.exists() or done.done(), DEADLINE_S,
                           0.002)
                if not told.exists():
                    raise Failure(f"never came to '{step}': {done.result()}")
                pids = re.search(rf"replacement {step} \(process (\d+) by (\d+)\)",
                                 self.daemon.log_text(1 << 20))
                os.kill(int(pids[1 if whom == "old" else 2]), signal.SIGKILL)
            finally:
                self.hold_file.unlink()
            return done.result()

    def log(self):
        return self.daemon.log_text(20000)

    def close(self):
        with contextlib.suppress(FileNotFoundError):
            self.hold_file.unlink()
        if self.program is not None:
            self.program.kill()
        self.daemon.end_all()


def run_case(arguments, undisturbed, kill_at):
    """kill_at None: REPLACEMENTS replacements, none disturbed."""
    with tempfile.TemporaryDirectory(prefix="gantry-") as folder:
        rig = Rig(arguments.build, arguments.program, pathlib.Path(folder), arguments.way,
                  arguments.hold if kill_at else None)
        try:
            if kill_at:
                killed(rig, undisturbed, kill_at)
            else:
                replaced(rig, undisturbed)
        except Failure as failure:
            raise Failure(f"{failure}\n{rig.log()}") from failure
        finally:
            rig.close()


def replaced(rig, undisturbed):
    program, pauses = rig.program, []
    for _ in range(REPLACEMENTS):
        program.goes_on(STEPS_BETWEEN)
        pauses.append(check_report(rig.replace(), rig.way))
    program.goes_on(STEPS_AFTER)
    undisturbed.check(program, program.end(DEADLINE_S))
    print(f"{len(pauses)} replacements: pauses of "
          f"{', '.join(f'{pause / 1000:.1f}' for pause in pauses)} ms, {rig.way}, digests equal")


def killed(rig, undisturbed, kill_at):
    program = rig.program
    program.goes_on(STEPS_BETWEEN)
    done = rig.replace_and_kill(*kill_at)
    began = time.monotonic()
    try:
        if GOES_ON[kill_at]:
            program.goes_on(STEPS_AFTER)
            undisturbed.check(program, program.end(DEADLINE_S))
            outcome = "went on"
        else:
            outcome = broken(program, undisturbed)
    except Failure as failure:
        raise Failure(f"{failure}\nreplace said: {done.stdout}{done.stderr}") from failure
    print(f"{kill_at[1]} killed at {kill_at[0]}: {outcome} ({time.monotonic() - began:.1f} s)")


def broken(program, undisturbed):
    """The program's clear error. It ends by itself: nobody has told it to."""
    status = program.wait(DEADLINE_S)
    error = CLEAR_ERROR.search(program.text())
    if program.step_lines() != undisturbed.steps(program.steps()):
        raise Failure(f"wrong digests: {program.text()}")
    if status <= 0 or error is None:
        raise Failure(f"no clear CUDA error: status {status}, {program.text()}")
    return error[0]


def check_report(done, way):
    report, = replacements(done)
    if report["way"] != way:
        raise Failure(f"not {way}: {report}")
    check_course(report, way)
    if way != "hand_over":
        if report["bytes_copied"] < MIB << 20:
            raise Failure(f"only {report['bytes_copied']} bytes were copied: {report}")
        return report["pause_us"]
    if report["bytes_handed_over"] < MIB << 20:
        raise Failure(f"only {report['bytes_handed_over']} bytes changed hands: {report}")
    if report["bytes_copied"] > 1 << 20:  # Module variables, and nothing of the arena.
        raise Failure(f"{report['bytes_copied']} bytes were copied: {report}")
    return report["pause_us"]


def check_course(report, way):
    """The report says when each part was done, and in which rounds memory was copied."""
    parts = {span["what"].removesuffix(" paced") for span in report["spans"]}
    wanted = {"launch", "prepare", "scan", "get_graph", "freeze", "activate"}
    wanted |= {"peer": {"pull_blocks"}, "staged": {"read_blocks"}}.get(way, set())
    steps = {step["step"] for step in report["pause_steps"]}
    if not wanted <= parts or not {"freeze", "activate"} <= steps:
        raise Failure(f"no whole course: {report}")
    if (way == "hand_over") != (not report["rounds"]):
        raise Failure(f"rounds of {way}: {report}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--way", choices=sorted(FLAGS), default="hand_over")
    parser.add_argument("--only", help="STEP:WHOM, or 'none' for the undisturbed case")
    parser.add_argument("--hold", type=pathlib.Path, required=True,
                        help="library that holds a gantryd at a step")
    arguments = parser.parse_args()
    for name in ("build", "program", "hold"):
        setattr(arguments, name, getattr(arguments, name).resolve())
    undisturbed = Undisturbed(arguments.build, arguments.program, MIB)
    failed = 0
    cases = [None] + list(GOES_ON)
    if arguments.only:
        cases = [None if arguments.only == "none" else tuple(arguments.only.split(":"))]
    for case in cases:
        try:
            run_case(arguments, undisturbed, case)
        except (Failure, subprocess.TimeoutExpired) as failure:
            failed += 1
            print(f"FAIL {case}: {failure}", file=sys.stderr)
    print(f"{len(cases) - failed} of {len(cases)} cases passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
