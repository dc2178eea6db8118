#!/usr/bin/env python3
"""Replaces the worker of a program that frees and allocates memory all the time, again and again.

What was allocated, freed, or freed and allocated again at the same address between the rounds of a
replacement must be right after it: churn.cu checks every buffer. Each way in turn, until the
program has ended by itself.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import replacement
from daemons import Failure

BUFFERS = 8


def run(build, program, steps, way):
    with tempfile.TemporaryDirectory(prefix="gantry-") as folder:
        rig = replacement.Rig(build, program, pathlib.Path(folder), way,
                              words=(str(BUFFERS), str(steps)))
        try:
            rig.await_step(10)
            reports = []
            while rig.child.poll() is None:
                done = rig.replace()
                if done.returncode == 0:
                    reports.append(json.loads(done.stdout.split(": ", 1)[1]))
                elif rig.child.poll() is None:
                    raise Failure(f"not replaced: {done.stdout}{done.stderr}")
            output, status = rig.end()
            if status != 0 or "PASS churn" not in output:
                raise Failure(f"status {status}: {output[-400:]}")
            if len(reports) < 2 or any(report["way"] != way for report in reports):
                raise Failure(f"{len(reports)} replacements: {reports}")
        except Failure as failure:
            raise Failure(f"{failure}\n{(pathlib.Path(folder) / 'log').read_text()}") from failure
        finally:
            rig.close()
    pauses = sorted(report["pause_us"] / 1000 for report in reports)
    print(f"{way}: {len(reports)} replacements in {steps} steps, pauses of {pauses[0]:.1f} to "
          f"{pauses[-1]:.1f} ms, every buffer as it was left")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--ways", default="peer,hand_over,staged")
    arguments = parser.parse_args()
    failed = 0
    for way in arguments.ways.split(","):
        try:
            run(arguments.build.resolve(), arguments.program.resolve(), arguments.steps, way)
        except (Failure, subprocess.TimeoutExpired) as failure:
            failed += 1
            print(f"FAIL {way}: {failure}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
