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
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
from daemons import PATIENCE, Failure, wait_until
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
    """A worker that serves by itself, and the program through the shim."""

    def __init__(self, build, program, folder, way, kill_at=None,
                 words=(MIB, 0, PAUSE_MS)):
        self.build, self.folder, self.way, self.program = build, folder, way, None
        self.socket = folder / "worker.sock"
        self.log = open(folder / "log", "wb")
        command = [build / "bin/gantry-worker", "--listen", self.socket,
                   "--driver", build / "soft/libcuda.so.1", "--region-mib", "64"]
        self.worker = subprocess.Popen(command + (["--kill-at", kill_at] if kill_at else []),
                                       stdout=self.log, stderr=self.log)
        try:
            wait_until("gantry-worker",
                       lambda: "serving local" in (folder / "log").read_text(), DEADLINE_S)
            self.program = Program([program, *words], folder / "out",
                                   {"LD_LIBRARY_PATH": f"{build}/shim",
                                    "GANTRY_TRANSPORT": f"unix:{self.socket}"})
        except BaseException:
            self.close()
            raise

    def replace(self, *more):
        return subprocess.run([self.build / "bin/gantry-worker", "--replace", self.socket,
                               *FLAGS[self.way], *more],
                              capture_output=True, text=True, timeout=DEADLINE_S * PATIENCE,
                              check=False)

    def close(self):
        if self.program is not None:
            self.program.kill()
        self.worker.terminate()
        self.worker.wait(timeout=20 * PATIENCE)
        self.log.close()


def run_case(build, program, undisturbed, way, kill_at):
    """kill_at None: REPLACEMENTS replacements, none disturbed."""
    with tempfile.TemporaryDirectory(prefix="gantry-") as folder:
        rig = Rig(build, program, pathlib.Path(folder), way,
                  ":".join(kill_at) if kill_at else None)
        try:
            if kill_at:
                killed(rig, undisturbed, kill_at)
            else:
                replaced(rig, undisturbed)
        except Failure as failure:
            raise Failure(f"{failure}\n{(pathlib.Path(folder) / 'log').read_text()}") from failure
        finally:
            rig.close()


def replaced(rig, undisturbed):
    program, pauses = rig.program, []
    program.goes_on(STEPS_BETWEEN)
    check_rehearsal(rig.replace("--rehearse", "1"), rig.way)
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
    done = rig.replace()
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


def check_rehearsal(done, way):
    """Nothing is moved, and the report says when each part was done."""
    if way == "hand_over":
        if done.returncode == 0 or "handover.rehearsal" not in done.stdout:
            raise Failure(f"a rehearsal of what copies nothing: {done.stdout}{done.stderr}")
        return
    if done.returncode != 0 or not done.stdout.startswith("rehearsed\n"):
        raise Failure(f"the rehearsal failed: {done.stdout}{done.stderr}")
    report = json.loads(done.stdout.split(": ", 1)[1])
    parts = {what.removesuffix(" paced") for _, what, *_ in report["spans"]}
    wanted = {"launch", "prepare", "scan", "rest", "get_graph",
              "pull_blocks" if way == "peer" else "read_blocks"}
    if not wanted <= parts or report["pause_us"] != 0 or "freeze" in parts:
        raise Failure(f"no rehearsal: {report}")


def check_report(done, way):
    if done.returncode != 0:
        raise Failure(f"the replacement failed: {done.stdout}{done.stderr}")
    report = json.loads(done.stdout.split(": ", 1)[1])
    if report["way"] != way:
        raise Failure(f"not {way}: {report}")
    if way != "hand_over":
        if report["bytes_copied"] < MIB << 20:
            raise Failure(f"only {report['bytes_copied']} bytes were copied: {report}")
        return report["pause_us"]
    if report["bytes_handed_over"] < MIB << 20:
        raise Failure(f"only {report['bytes_handed_over']} bytes changed hands: {report}")
    if report["bytes_copied"] > 1 << 20:  # Module variables, and nothing of the arena.
        raise Failure(f"{report['bytes_copied']} bytes were copied: {report}")
    return report["pause_us"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--way", choices=sorted(FLAGS), default="hand_over")
    parser.add_argument("--only", help="STEP:WHOM, or 'none' for the undisturbed case")
    arguments = parser.parse_args()
    build, program = arguments.build.resolve(), arguments.program.resolve()
    undisturbed = Undisturbed(build, program, MIB)
    failed = 0
    cases = [None] + list(GOES_ON)
    if arguments.only:
        cases = [None if arguments.only == "none" else tuple(arguments.only.split(":"))]
    for case in cases:
        try:
            run_case(build, program, undisturbed, arguments.way, case)
        except (Failure, subprocess.TimeoutExpired) as failure:
            failed += 1
            print(f"FAIL {case}: {failure}", file=sys.stderr)
    print(f"{len(cases) - failed} of {len(cases)} cases passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
