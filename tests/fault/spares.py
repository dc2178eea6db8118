#!/usr/bin/env python3
"""Spare workers (worker.spares, worker.await_restore) of a real gantryd: taken, missed, killed, and
never left behind.

The program fills device memory, waits to be told, and checks every word of it.
"""

import argparse
import contextlib
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

SPARES, MIB = 2, 16


def expect(condition, text):
    if not condition:
        raise Failure(text)


def is_alive(pid):
    with contextlib.suppress(OSError, IndexError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def spares(daemon):
    """Workers of this gantryd that serve nobody."""
    below = {pid for pid in guard.descendants(daemon.child.pid) if is_alive(pid)}
    return below - set(daemon.worker_pids())


def all_spares(daemon):
    found = spares(daemon)
    return found if len(found) == SPARES else None


def leftovers(daemon):
    """Processes that nobody has waited for, and sockets beyond those of the spares."""
    dead = [pid for pid in guard.descendants(daemon.child.pid) if not is_alive(pid)]
    sockets = sorted((daemon.folder / "run/workers").glob("*.sock"))
    return dead + (sockets if len(sockets) != SPARES else [])


class Program:
    """One that is served; ended by finish(), which says what it found."""

    def __init__(self, build, daemon):
        self.daemon = daemon
        environment = {**os.environ, "LD_LIBRARY_PATH": f"{build}/shim",
                       "GANTRY_TRANSPORT": f"unix:{daemon.guest_socket}"}
        self.child = subprocess.Popen([build / "programs/resident", str(MIB)], env=environment,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        expect(self.child.stdout.readline() == "ready\n", "the program did not start")

    def finish(self):
        workers = self.daemon.worker_pids()
        out = self.child.communicate("\n", timeout=60 * PATIENCE)[0]
        expect(out == "intact\n", f"the program said {out}")
        wait_until("the end of its worker",
                   lambda: len(list(filter(is_alive, workers))) < len(workers))


def taken_and_refilled(build, daemon):
    before = wait_until("the spares", lambda: all_spares(daemon))
    program = Program(build, daemon)
    (worker,) = daemon.worker_pids()
    expect(worker in before, f"worker {worker} is none of the spares {before}")
    after = wait_until("another spare", lambda: all_spares(daemon))
    expect(before - {worker} < after, f"of {before} there are {after}")
    session, file = daemon.sessions()[0]["session_id"], daemon.folder / "session.gsnap"
    done = daemon.gantry("snapshot", session, file, "--suspend")
    expect(done.returncode == 0 and not is_alive(worker), f"suspended: {done}")
    done = daemon.gantry("restore", session, file)
    (fresh,) = daemon.worker_pids()
    expect(done.returncode == 0 and fresh in after, f"restored into {fresh} of {after}: {done}")
    program.finish()
    print("a program, and a restored session, take a spare; its place is filled")


def restored(build, daemon, is_awaited):
    """A program that was suspended for two seconds; with a worker ready for it, or without."""
    program = Program(build, daemon)
    session, file = daemon.sessions()[0]["session_id"], daemon.folder / "session.gsnap"
    done = daemon.gantry("snapshot", session, file, "--suspend")
    expect(done.returncode == 0, f"suspended: {done}")
    if is_awaited:
        ready = wait_until("a worker for the restore", lambda: spares(daemon))
        wait_until("its context",
                   lambda: all(daemon.logged(f"spare worker {pid} is ready") for pid in ready))
    else:
        time.sleep(2)
        ready = set()
        expect(not spares(daemon), "a spare that is not wanted")
    done = daemon.gantry("restore", session, file)
    expect(done.returncode == 0, f"restored: {done}")
    expect((set(daemon.worker_pids()) <= ready) == is_awaited,
           f"restored into {daemon.worker_pids()}, ready: {ready}")
    program.finish()


def awaited(build, daemon):
    restored(build, daemon, is_awaited=True)
    wait_until("the end of what nobody awaits", lambda: not spares(daemon))
    program = Program(build, daemon)
    session, file = daemon.sessions()[0]["session_id"], daemon.folder / "another.gsnap"
    done = daemon.gantry("snapshot", session, file, "--suspend")
    expect(done.returncode == 0, f"suspended: {done}")
    wait_until("a worker for the restore", lambda: spares(daemon))
    program.child.kill()
    program.child.communicate()
    wait_until("the end of a worker whose session has ended", lambda: not spares(daemon))
    print("a suspended session has a worker ready, while it is suspended and no longer")


def killed(build, daemon):
    for pid in wait_until("the spares", lambda: all_spares(daemon)):
        os.kill(pid, signal.SIGKILL)
    programs = [Program(build, daemon) for _ in range(SPARES + 1)]
    wait_until("spares", lambda: all_spares(daemon))
    for program in programs:
        program.finish()
    wait_until("the spares", lambda: all_spares(daemon))
    wait_until(f"the end of all else: {leftovers(daemon)}", lambda: not leftovers(daemon))
    for pid in spares(daemon):  # Nobody takes one: dead ones are replaced all the same.
        os.kill(pid, signal.SIGKILL)
    wait_until("other spares", lambda: all_spares(daemon))
    print("programs that find no spare, or dead ones, are served all the same")


def nothing_left_behind(build, daemon):
    for how in (signal.SIGKILL, signal.SIGTERM):
        old = wait_until("the spares", lambda: all_spares(daemon))
        program = Program(build, daemon)
        (worker,) = daemon.worker_pids()
        idle = old - {worker}
        daemon.kill(how)
        wait_until("the end of the spares", lambda pids=idle: not any(map(is_alive, pids)))
        expect(is_alive(worker), "the worker of a running program ended with gantryd")
        daemon.start()
        wait_until("the program's session", lambda pid=worker: daemon.worker_pids() == [pid])
        program.finish()
        print(f"gantryd ended by signal {how}: the spares end, what serves goes on")


def run(build, work):
    daemon = Daemon(build, work, "a", extra={"worker": f"spares = {SPARES}\n"})
    with running(daemon):
        try:
            taken_and_refilled(build, daemon)
            killed(build, daemon)
            nothing_left_behind(build, daemon)
        except Failure:
            sys.stderr.write(daemon.log_text())
            raise
    with running(daemon := Daemon(build, work, "none")):
        expect(not spares(daemon), "spares that nobody asked for")
        awaited(build, daemon)
    with running(daemon := Daemon(build, work, "off", extra={"worker": "await_restore = false\n"})):
        restored(build, daemon, is_awaited=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    build = parser.parse_args().build.resolve()
    with tempfile.TemporaryDirectory(prefix="gantry-") as folder:
        try:
            run(build, pathlib.Path(folder))
        except (Failure, subprocess.TimeoutExpired) as failure:
            print(f"FAIL: {failure}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    guard.run(main)
