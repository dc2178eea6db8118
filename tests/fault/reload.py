#!/usr/bin/env python3
"""SIGHUP and the service manager: gantryd says when it serves, opens a log that was rotated away
anew, takes the log's level from its file, changes nothing for a file with a mistake, and says which
changes wait for a restart.
"""

import argparse
import pathlib
import signal
import socket
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
from daemons import PATIENCE, Daemon, Failure, running, wait_until


def expect(condition, text):
    if not condition:
        raise Failure(text)


class Manager:
    """A service manager's end of NOTIFY_SOCKET."""

    def __init__(self, folder):
        self.path = folder / "notify"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.socket.settimeout(10 * PATIENCE)

    def next(self):
        try:
            return self.socket.recv(4096).decode()
        except TimeoutError:
            raise Failure("the service manager is told nothing") from None


def reload(daemon, manager):
    daemon.child.send_signal(signal.SIGHUP)
    told = manager.next(), manager.next()
    expect(told == ("RELOADING=1", "READY=1"), f"the manager was told {told}")


def exercise(build, work):
    manager = Manager(work)
    log = work / "gantryd.log"
    daemon = Daemon(build, work, "reload", extra={"daemon": f'log_file = "{log}"\n'},
                    environment={"NOTIFY_SOCKET": str(manager.path)})
    settings = daemon.folder / "gantryd.toml"
    right = settings.read_text()
    daemon.is_ready = lambda: log.exists() and "is ready" in log.read_text()
    with running(daemon):
        expect(manager.next() == "READY=1", "the manager was not told that gantryd serves")

        log.rename(work / "rotated.log")
        reload(daemon, manager)
        expect("SIGHUP" in log.read_text(), "the log was not opened anew")
        expect("SIGHUP" not in (work / "rotated.log").read_text(), "the rotated log is written on")

        # At level warn the line that a reload writes is not written.
        settings.write_text(right.replace('log_level = "debug"', 'log_level = "warn"'))
        lines = log.read_text()
        reload(daemon, manager)
        expect(log.read_text() == lines, f"level warn lets through:\n{log.read_text()}")

        settings.write_text(right + "mistake\n")
        reload(daemon, manager)
        expect("nothing is changed: " + str(settings) in log.read_text(),
               f"a mistake is not told:\n{log.read_text()}")

        settings.write_text(right.replace("region_mib = 64", "region_mib = 128"))
        reload(daemon, manager)
        expect("other changes, which take a restart" in log.read_text(),
               f"nothing is said of other changes:\n{log.read_text()}")
        expect(daemon.gantry("status").returncode == 0, "gantryd does not answer after reloads")
        daemon.child.send_signal(signal.SIGTERM)
        expect(manager.next() == "STOPPING=1", "the manager was not told of the end")
        wait_until("gantryd's end", lambda: daemon.child.poll() is not None)
        expect(daemon.child.returncode == 0, f"gantryd ended with {daemon.child.returncode}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reload.") as work:
        try:
            exercise(arguments.build.resolve(), pathlib.Path(work))
        except Failure as failure:
            print(f"FAILED: {failure}")
            return 1
    print("PASS")
    return 0


if __name__ == "__main__":
    sys.exit(main())
