#!/usr/bin/env python3
"""Takes a program that makes and ends memory and objects all the time to another worker, again and
again: by replacing its worker (each way of a replacement), and by moves between two gantryds.

What was allocated, freed, or freed and allocated again at the same address between the rounds must
be right after it, and so must libraries, arrays, textures, streams and events: churn.cu checks
them. Each way in turn, until the program has ended by itself.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import replacement
from daemons import Daemon, Failure, free_port, make_certificates

BUFFERS = 8
MOVES_MIN = 4
PROGRAM_DEADLINE_S = 60


def judge(output, status):
    if status != 0 or "PASS churn" not in output:
        raise Failure(f"status {status}: {output[-400:]}")


def move(build, program, steps):
    """From one gantryd to the other and back."""
    with tempfile.TemporaryDirectory(prefix="gantry-") as holder:
        folder = pathlib.Path(holder)
        make_certificates(folder)
        here, there = (Daemon(build, folder, name, free_port()) for name in "ab")
        child = None
        try:
            for daemon in (here, there):
                daemon.start()
            with open(folder / "out", "wb") as out:
                child = subprocess.Popen(
                    [program, str(BUFFERS), str(steps)], stdout=out, stderr=out,
                    env={**os.environ, "LD_LIBRARY_PATH": f"{build}/shim",
                         "GANTRY_TRANSPORT": f"unix:{here.guest_socket}"})
            replacement.wait_until("a session", here.sessions)
            session = here.sessions()[0]["session_id"]
            moves = 0
            while child.poll() is None:
                done = there.gantry("pull", session, "--from", f"127.0.0.1:{here.port}",
                                    "--handover", here.handover_socket)
                if done.returncode == 0:
                    moves += 1
                    here, there = there, here
                elif child.poll() is None:
                    raise Failure(f"not moved: {done.stdout}{done.stderr}")
            judge((folder / "out").read_text(errors="replace"),
                  child.wait(timeout=PROGRAM_DEADLINE_S))
            if moves < MOVES_MIN:
                raise Failure(f"{moves} moves only")
        except Failure as failure:
            logs = "".join(daemon.log_text() for daemon in (here, there))
            raise Failure(f"{failure}\n{logs}") from failure
        finally:
            if child is not None and child.poll() is None:
                child.kill()
                child.wait()
            here.end_all()
            there.end_all()
    print(f"move: {moves} moves in {steps} steps, everything as it was left")


def run(build, program, steps, way):
    if way == "move":
        move(build, program, steps)
        return
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
            judge(output, status)
            if len(reports) < 2 or any(report["way"] != way for report in reports):
                raise Failure(f"{len(reports)} replacements: {reports}")
        except Failure as failure:
            raise Failure(f"{failure}\n{(pathlib.Path(folder) / 'log').read_text()}") from failure
        finally:
            rig.close()
    pauses = sorted(report["pause_us"] / 1000 for report in reports)
    print(f"{way}: {len(reports)} replacements in {steps} steps, pauses of {pauses[0]:.1f} to "
          f"{pauses[-1]:.1f} ms, everything as it was left")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--ways", default="peer,hand_over,staged,move")
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
