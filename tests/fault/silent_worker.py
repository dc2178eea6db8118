#!/usr/bin/env python3
"""A worker that answers nothing holds up whoever asks for it, and no other session.

Nor does one that does not end, since its program was killed while a kernel of it ran for ever.
"""

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
from daemons import PATIENCE, Daemon, Failure, running, wait_until
from stage import is_running

ASKS_S = 1.0  # After so long `gantry status` waits for the worker, which it does for 10 s.


ENDLESS_PTX = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .entry endless()
{
again:
    bra again;
}
\0"""


def program(is_endless):
    """One that is served until its standard input ends."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, module, kernel = (ctypes.c_void_p() for _ in range(3))
    results = [cuda.cuInit(0)]
    if is_endless:
        results += [cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
                    cuda.cuCtxSetCurrent(context),
                    cuda.cuModuleLoadData(ctypes.byref(module), ENDLESS_PTX),
                    cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"endless"),
                    cuda.cuLaunchKernel(kernel, *[1] * 6, 0, None, None, None)]
    print(max(results), os.getpid(), flush=True)
    sys.stdin.read()


def start(build, daemon, *words):
    """The program, and the process of it that is served: its guard's child (rig/guard.py)."""
    child = subprocess.Popen(
        [sys.executable, __file__, "--program", *words], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
        env={**os.environ, "LD_LIBRARY_PATH": str(build / "shim"),
             "GANTRY_TRANSPORT": f"unix:{daemon.guest_socket}"})
    answer = child.stdout.readline().split()
    if len(answer) != 2 or answer[0] != "0":
        raise Failure(f"cuInit: {answer}")
    return child, int(answer[1])


def run(build, daemon):
    programs = [start(build, daemon)[0]]
    (silent,) = daemon.worker_pids()
    os.kill(silent, signal.SIGSTOP)
    status = subprocess.Popen([build / "bin/gantry", "--socket", daemon.operator_socket, "status"],
                              stdout=subprocess.PIPE, text=True)
    try:
        time.sleep(ASKS_S)
        if status.poll() is not None:
            raise Failure("gantry status did not ask the worker")
        programs.append(start(build, daemon)[0])
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


def run_endless(build, daemon):
    """The program of an endless kernel is killed, then another ends: its worker is gone first."""
    endless, served = start(build, daemon, "--endless")
    (stuck,) = daemon.worker_pids()
    other, _ = start(build, daemon)
    (others,) = set(daemon.worker_pids()) - {stuck}
    os.kill(served, signal.SIGKILL)  # Not its guard, which would have it end well, if it is slow.
    endless.communicate()
    wait_until("gantryd sees the end", lambda: daemon.logged("has ended without a goodbye"), 5)
    other.communicate(timeout=20 * PATIENCE)
    wait_until("the other program's worker ends", lambda: not is_running(others))
    if not is_running(stuck):
        raise Failure("another program's worker ended after that of an endless kernel only")
    wait_until("the worker of the endless kernel is killed", lambda: not is_running(stuck))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--program", action="store_true")
    parser.add_argument("--endless", action="store_true", help="With --program: a kernel of it")
    arguments = parser.parse_args()
    if arguments.program:
        program(arguments.endless)
        return 0
    with tempfile.TemporaryDirectory(prefix="gsilent") as folder:
        daemon = Daemon(arguments.build.resolve(), pathlib.Path(folder), "a")
        try:
            with running(daemon):
                run(arguments.build.resolve(), daemon)
                wait_until("the first programs' workers end", lambda: not daemon.worker_pids())
                run_endless(arguments.build.resolve(), daemon)
        except (Failure, subprocess.TimeoutExpired) as failure:
            print(f"FAILED: {failure}\n{daemon.log_text()}", file=sys.stderr)
            return 1
    print("another program starts while gantry status waits for a silent worker, and ends while "
          "gantryd waits for one that does not")
    return 0


if __name__ == "__main__":
    guard.run(main)
