#!/usr/bin/env python3
"""Takes a program that makes and ends memory and objects all the time to another worker, again and
again: by replacing its worker (each way of a replacement), and by moves between two gantryds.

What was allocated, freed, or freed and allocated again at the same address between the rounds must
be right after it, and so must libraries, arrays, textures, streams and events: churn.cu checks
them. Each way in turn, until the program has made --steps and was taken elsewhere --times.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

import replacement
from daemons import Daemon, Failure, free_port, make_certificates, replacements, wait_until
from programs import Program

BUFFERS = 8
PRINTED_EVERY = 10  # Steps; churn.cu.


def again_and_again(arguments, program, take_elsewhere):
    """take_elsewhere: raises Failure where that was not done. How often it was done."""
    program.await_steps(1)
    times = 0
    while times < arguments.times or program.steps() * PRINTED_EVERY < arguments.steps:
        take_elsewhere()
        times += 1
        program.goes_on(1)
    status = program.end()
    if status != 0 or "PASS churn" not in program.text():
        raise Failure(f"status {status}: {program.text()[-400:]}")
    return times


def move(arguments):
    """From one gantryd to the other and back."""
    with tempfile.TemporaryDirectory(prefix="gantry-") as holder:
        folder = pathlib.Path(holder)
        make_certificates(folder)
        ends = [Daemon(arguments.build, folder, name, free_port()) for name in "ab"]
        program = None
        try:
            for daemon in ends:
                daemon.start()
            program = Program(
                [arguments.program, BUFFERS], folder / "out",
                {"LD_LIBRARY_PATH": f"{arguments.build}/shim",
                 "GANTRY_TRANSPORT": f"unix:{ends[0].guest_socket}"})
            session = wait_until("a session", ends[0].sessions)[0]["session_id"]

            def take_elsewhere():
                here, there = ends
                done = there.gantry("pull", session, "--from", f"127.0.0.1:{here.port}",
                                    "--handover", here.handover_socket)
                if done.returncode != 0:
                    raise Failure(f"not moved: {done.stdout}{done.stderr}")
                ends.reverse()
            times = again_and_again(arguments, program, take_elsewhere)
            steps = steps_made(program.text())
        except Failure as failure:
            logs = "".join(daemon.log_text() for daemon in ends)
            raise Failure(f"{failure}\n{logs}") from failure
        finally:
            if program is not None:
                program.kill()
            for daemon in ends:
                daemon.end_all()
    print(f"move: {times} moves in {steps} steps, everything as it was left")


def steps_made(text):
    return int(re.findall(r"^step (\d+) ", text, re.M)[-1])


def run(arguments, way):
    if way == "move":
        move(arguments)
        return
    with tempfile.TemporaryDirectory(prefix="gantry-") as folder:
        rig = replacement.Rig(arguments.build, arguments.program, pathlib.Path(folder), way,
                              words=(BUFFERS,))
        pauses = []

        def take_elsewhere():
            report, = replacements(rig.replace())
            if report["way"] != way:
                raise Failure(f"not {way}: {report}")
            pauses.append(report["pause_us"] / 1000)
        try:
            times = again_and_again(arguments, rig.program, take_elsewhere)
            steps = steps_made(rig.program.text())
        except Failure as failure:
            raise Failure(f"{failure}\n{rig.log()}") from failure
        finally:
            rig.close()
    print(f"{way}: {times} replacements in {steps} steps, pauses of {min(pauses):.1f} to "
          f"{max(pauses):.1f} ms, everything as it was left")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=600, help="that the program makes at least")
    parser.add_argument("--times", type=int, default=4,
                        help="that it is taken elsewhere at least, in each way")
    parser.add_argument("--ways", default="peer,hand_over,staged,move")
    arguments = parser.parse_args()
    arguments.build, arguments.program = arguments.build.resolve(), arguments.program.resolve()
    failed = 0
    for way in arguments.ways.split(","):
        try:
            run(arguments, way)
        except (Failure, subprocess.TimeoutExpired) as failure:
            failed += 1
            print(f"FAIL {way}: {failure}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
