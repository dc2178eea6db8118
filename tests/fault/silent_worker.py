#!/usr/bin/env python3
"""A worker that answers nothing holds up whoever asks for it, and no other session."""

import argparse
import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
import guard
from daemons import PATIENCE, Daemon, Failure, running

ASKS_S = 1.0  # After so long `gantry status` waits for the worker, which it does for 10 s.


def program():
    """One that is served until its standard input ends."""
    print(ctypes.CDLL("libcuda.so.1").cuInit(0), flush=True)
    sys.stdin.read()


def start(build, daemon):
    child = subprocess.Popen(
        [sys.executable, __file__, "--program"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env={**os.environ, "LD_LIBRARY_PATH": str(build / "shim"),
                        "GANTRY_TRANSPORT": f"unix:{daemon.guest_socket}"})
    if (answer := child.stdout.readline()) != "0\n":
        raise Failure(f"cuInit: {answer}")
    return child


def run(build, daemon):
    programs = [start(build, daemon)]
    (silent,) = daemon.worker_pids()
    os.kill(silent, signal.SIGSTOP)
    status = subprocess.Popen([build / "bin/gantry", "--socket", daemon.operator_socket, "status"],
                              stdout=subprocess.PIPE, text=True)
    try:
        time.sleep(ASKS_S)
        if status.poll() is not None:
            raise Failure("gantry status did not ask the worker")
        programs.append(start(build, daemon))
        if status.poll() is not None:
            raise Failure("another program waited until the silent worker had been given up")
        text = status.communicate(timeout=30 * PATIENCE)[0]
        if status.returncode != 0 or "local-" not in text:
            raise Failure(f"gantry status: {status.returncode} {text}")
    finally:
        os.kill(silent, signal.SIGCONT)
        status.kill()
        status.wait()
        for child in programs:
            child.communicate(timeout=20 * PATIENCE)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--program", action="store_true")
    arguments = parser.parse_args()
    if arguments.program:
        program()
        return 0
    with tempfile.TemporaryDirectory(prefix="gsilent") as folder:
        try:
            with running(Daemon(arguments.build.resolve(), pathlib.Path(folder), "a")) as (daemon,):
                run(arguments.build.resolve(), daemon)
        except (Failure, subprocess.TimeoutExpired) as failure:
            print(f"FAILED: {failure}", file=sys.stderr)
            return 1
    print("another program starts while gantry status waits for a silent worker")
    return 0


if __name__ == "__main__":
    guard.run(main)
