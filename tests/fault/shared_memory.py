#!/usr/bin/env python3
"""A process gives memory or events to another one: while they are open neither can be moved.

Through a real gantryd. Both sessions refuse a snapshot and a replacement of their worker by
name, and go on.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
import guard
from daemons import PATIENCE, Daemon, Failure, running, wait_until

DEADLINE_S = 100 * PATIENCE


def demand(truth, text):
    if not truth:
        raise Failure(text)


def check(arguments, work):
    daemon = Daemon(arguments.build, work, "a")
    mark = work / "open"
    environment = dict(os.environ, LD_LIBRARY_PATH=str(arguments.build / "shim"),
                       GANTRY_TRANSPORT=f"unix:{daemon.guest_socket}", PROGRAM_HOLDS="1",
                       PROGRAM_MIDPOINT=str(mark))
    out = work / "program.out"
    with running(daemon):
        with open(out, "wb") as log:
            program = subprocess.Popen([arguments.program], stdout=log, stderr=log,
                                       env=environment)
        try:
            wait_until("what is open in two processes",
                       lambda: mark.exists() or program.poll() is not None, DEADLINE_S)
            demand(program.poll() is None, f"the program ended early: {out.read_text()}")
            sessions = [entry["session_id"] for entry in daemon.sessions()]
            demand(len(sessions) == 2, f"not two sessions: {sessions}")
            for session in sessions:
                for words in (("snapshot", session, work / "file.gsnap", "--suspend"),
                              ("replace-worker", session)):
                    done = daemon.gantry(*words)
                    said = done.stdout + done.stderr
                    demand(done.returncode != 0, f"{words[0]} was not refused: {said}")
                    demand(arguments.reason in said,
                           f"{words[0]}: not {arguments.reason} but {said}")
                    print(f"{words[0]}: {done.stderr.strip()}")
            pathlib.Path(f"{mark}.go").touch()
            demand(program.wait(timeout=DEADLINE_S) == 0, out.read_text())
            demand("PASS" in out.read_text(), out.read_text())
        except Failure as failure:
            raise Failure(f"{failure}\n{daemon.log_text()}") from None
        finally:
            if program.poll() is None:
                program.kill()
            program.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--reason", required=True)
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    with tempfile.TemporaryDirectory(prefix="gshare") as folder:
        try:
            check(arguments, pathlib.Path(folder))
        except Failure as failure:
            print(f"FAILED: {failure}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    guard.run(main)
