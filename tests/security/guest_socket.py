#!/usr/bin/env python3
"""What one user can take from the others at guest.sock: not the door, and no more than a share.

Connections that say nothing turn nobody away and are gone after a second; a user has no more
sessions than guest.sessions_of_user; and without a word in gantryd.toml only gantryd's own user and
root may connect.
"""

import argparse
import os
import pathlib
import socket
import stat
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
import guard
from daemons import PATIENCE, Daemon, Failure, running, wait_until
from no_threads import end, start

OTHER_USER = 61184
IDLE = 300


def idle_connections(path, count):
    """So many that say nothing; where this is root, another user's."""
    out = []
    for _ in range(count):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        out.append(one)
        if os.geteuid() == 0:
            os.seteuid(OTHER_USER)
        try:
            one.connect(str(path))
        finally:
            if os.geteuid() != 0 and os.getuid() == 0:
                os.seteuid(0)
        one.settimeout(20 * PATIENCE)
    return out


def run(build, daemon):
    idle = idle_connections(daemon.guest_socket, IDLE)
    begin = time.monotonic()
    child, answer = start(build, daemon)
    errors = end(child)
    if answer != "0":
        raise Failure(f"beside {IDLE} idle connections a program is refused: {answer} {errors}")
    print(f"served beside {IDLE} idle connections after {time.monotonic() - begin:.2f} s")
    for one in idle:  # Each is told why it goes.
        while one.recv(4096):
            pass
    took = time.monotonic() - begin
    print(f"all of them are gone after {took:.2f} s")
    if took > 3 * PATIENCE:
        raise Failure(f"idle connections stay for {took:.1f} s")
    lines = daemon.log_text(1 << 20).count("was not accepted")
    if lines > 40:
        raise Failure(f"{IDLE} idle connections made {lines} lines in the log")

    served = [start(build, daemon) for _ in range(3)]
    if [answer for _, answer in served] != ["0"] * 3:
        raise Failure(f"of three programs: {served}")
    child, answer = start(build, daemon)
    errors = end(child)
    if answer == "0" or "guest.sessions_of_user" not in errors:
        raise Failure(f"a fourth program of guest.sessions_of_user = 3: {answer} {errors}")
    end(served.pop()[0])
    wait_until("a session ends", lambda: len(daemon.sessions()) == 2)
    served.append(start(build, daemon))
    if served[-1][1] != "0":
        raise Failure("no program is served in place of one that has ended")
    for child, _ in served:
        end(child)


def run_closed(daemon):
    mode = stat.S_IMODE(daemon.guest_socket.stat().st_mode)
    if mode != 0o600:
        raise Failure(f"the socket's mode is {mode:o}")
    if os.geteuid() == 0:
        try:
            idle_connections(daemon.guest_socket, 1)
        except PermissionError:
            return
        raise Failure("another user may connect")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    build = parser.parse_args().build.resolve()
    with tempfile.TemporaryDirectory(prefix="gsocket") as folder:
        os.chmod(folder, 0o755)
        opened = Daemon(build, pathlib.Path(folder), "a",
                        extra={"guest": "any_user = true\nsessions_of_user = 3\n"})
        closed = Daemon(build, pathlib.Path(folder), "b")
        try:
            with running(opened, closed):
                run_closed(closed)
                run(build, opened)
        except (Failure, OSError, subprocess.TimeoutExpired) as failure:
            print(f"FAILED: {failure!r}\n{opened.log_text()}{closed.log_text()}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    guard.run(main)
