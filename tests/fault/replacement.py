#!/usr/bin/env python3
"""Replaces the worker of a running program, and kills either worker at each step of it.

--way hand_over: the device memory changes hands. peer, staged: it is copied, as to another device
of the host, from device to device or by way of the host's memory.

The program (steps.cu) prints a digest of its device memory a step. After a replacement, and after
one that failed while the old worker could still serve, it must end with the digests of an
undisturbed run; where nobody is left that has its state, with a clear CUDA error; and never hang.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
from daemons import Failure, wait_until

STEPS, MIB, PAUSE_MS = 12, 32, 110
REPLACEMENTS = 5
UNDISTURBED_STEPS = 60  # The program must not end before its replacements, on a busy machine too.
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
                 words=(str(MIB), str(STEPS), str(PAUSE_MS))):
        self.build, self.program, self.folder, self.way = build, program, folder, way
        self.socket = folder / "worker.sock"
        self.log = open(folder / "log", "wb")
        command = [build / "bin/gantry-worker", "--listen", self.socket,
                   "--driver", build / "soft/libcuda.so.1", "--region-mib", "64"]
        self.worker = subprocess.Popen(command + (["--kill-at", kill_at] if kill_at else []),
                                       stdout=self.log, stderr=self.log)
        wait_until("gantry-worker",
                   lambda: "serving local" in (folder / "log").read_text(), DEADLINE_S)
        environment = {**os.environ, "LD_LIBRARY_PATH": f"{build}/shim",
                       "GANTRY_TRANSPORT": f"unix:{self.socket}"}
        self.child = subprocess.Popen(
            [program, *words], env=environment,
            stdout=open(folder / "out", "wb"), stderr=subprocess.STDOUT)

    def output(self):
        return (self.folder / "out").read_text(errors="replace")

    def await_step(self, step):
        wait_until(f"step {step}", lambda: f"step {step} " in self.output() or
                   self.child.poll() is not None, DEADLINE_S)

    def replace(self, *more):
        return subprocess.run([self.build / "bin/gantry-worker", "--replace", self.socket,
                               *FLAGS[self.way], *more],
                              capture_output=True, text=True, timeout=DEADLINE_S, check=False)

    def end(self):
        """The program's output and status; it has its deadline."""
        try:
            status = self.child.wait(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired as timeout:
            raise Failure(f"the program hangs; so far: {self.output()}") from timeout
        return self.output(), status

    def close(self):
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        self.worker.terminate()
        self.worker.wait(timeout=20)
        self.log.close()


def digests(output):
    return re.findall(r"^step \d+ .*", output, re.M)


def run_case(build, program, expected, way, kill_at):
    """kill_at None: REPLACEMENTS replacements, none disturbed."""
    with tempfile.TemporaryDirectory(prefix="gantry-") as folder:
        steps = STEPS if kill_at else UNDISTURBED_STEPS
        expected = expected[:steps]
        rig = Rig(build, program, pathlib.Path(folder), way,
                  ":".join(kill_at) if kill_at else None, (str(MIB), str(steps), str(PAUSE_MS)))
        try:
            pauses = []
            if not kill_at:
                rig.await_step(1)
                check_rehearsal(rig.replace("--rehearse", "1"), way)
            for count in range(1 if kill_at else REPLACEMENTS):
                rig.await_step(2 + 2 * count)
                done = rig.replace()
                if not kill_at:
                    pauses.append(check_report(done, way))
            began = time.monotonic()
            output, status = rig.end()
        except Failure as failure:
            raise Failure(f"{failure}\n{(pathlib.Path(folder) / 'log').read_text()}") from failure
        finally:
            rig.close()
        judge(output, status, expected, GOES_ON[kill_at] if kill_at else True, done)
        if kill_at:
            outcome = "went on" if status == 0 else CLEAR_ERROR.search(output)[0]
            print(f"{kill_at[1]} killed at {kill_at[0]}: {outcome} "
                  f"({time.monotonic() - began:.1f} s)")
        else:
            print(f"{len(pauses)} replacements: pauses of "
                  f"{', '.join(f'{pause / 1000:.1f}' for pause in pauses)} ms, "
                  f"{way}, digests equal")


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


def judge(output, status, expected, goes_on, done):
    said = f"{output}\nreplace said: {done.stdout}{done.stderr}"
    seen = digests(output)
    if seen != expected[:len(seen)]:
        raise Failure(f"wrong digests: {said}")
    if goes_on and (status != 0 or seen != expected):
        raise Failure(f"the program did not go on: status {status}, {said}")
    if not goes_on and (status == 0 or not CLEAR_ERROR.search(output)):
        raise Failure(f"no clear CUDA error: status {status}, {said}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--way", choices=sorted(FLAGS), default="hand_over")
    parser.add_argument("--only", help="STEP:WHOM, or 'none' for the undisturbed case")
    arguments = parser.parse_args()
    build, program = arguments.build.resolve(), arguments.program.resolve()
    direct = subprocess.run([program, str(MIB), str(UNDISTURBED_STEPS), "0"],
                            capture_output=True, text=True,
                            env={**os.environ, "LD_LIBRARY_PATH": f"{build}/soft"},
                            timeout=DEADLINE_S, check=True)
    expected = digests(direct.stdout)
    if len(expected) != UNDISTURBED_STEPS:
        print(f"FAIL: the undisturbed run printed {len(expected)} digests:\n{direct.stdout}")
        return 1
    failed = 0
    cases = [None] + list(GOES_ON)
    if arguments.only:
        cases = [None if arguments.only == "none" else tuple(arguments.only.split(":"))]
    for case in cases:
        try:
            run_case(build, program, expected, arguments.way, case)
        except (Failure, subprocess.TimeoutExpired) as failure:
            failed += 1
            print(f"FAIL {case}: {failure}", file=sys.stderr)
    print(f"{len(cases) - failed} of {len(cases)} cases passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
