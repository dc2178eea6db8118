#!/usr/bin/env python3
"""gantryd serves on where the system makes no more threads: the program that lacks one is refused.

gantryd runs as a user whose tasks are counted, and may have a few more than it has: so many
programs begin that it gets none. Those that are served stay, the next one is told why it is not,
and when programs have ended others are served again, by the same gantryd.
"""

import argparse
import ctypes
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
import guard
from daemons import PATIENCE, Daemon, Failure, running, wait_until

USER = 61183  # Nobody's: its tasks are gantryd's and its workers'.
FIRST_SPARES = 14
SPARE_TASKS = 30
PROGRAMS_MAX = 40


def program():
    """One that is served until its standard input ends."""
    print(ctypes.CDLL("libcuda.so.1").cuInit(0), flush=True)
    sys.stdin.read()


def tasks_of(user):
    count = 0
    for status in pathlib.Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:
            continue
        if int(lines["Uid"].split()[0]) == user:
            count += int(lines["Threads"])
    return count


class UserDaemon(Daemon):
    """A gantryd of another user, where this test may choose one."""

    user = USER if os.geteuid() == 0 else os.geteuid()
    tasks_max = None

    def limit(self):
        if self.tasks_max is not None:
            resource.setrlimit(resource.RLIMIT_NPROC, (self.tasks_max, self.tasks_max))

    def spawn(self):
        if os.geteuid() == 0:
            os.chown(self.folder.parent, self.user, self.user)
            os.chown(self.folder, self.user, self.user)
        self.starts += 1
        self.log = self.folder / f"log.{self.starts}"
        other = {"user": self.user, "group": self.user} if os.geteuid() == 0 else {}
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen(
                [self.build / "bin" / "gantryd", "--config", self.folder / "gantryd.toml"],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.environment,
                preexec_fn=self.limit, extra_groups=[] if other else None, **other)


def start(build, daemon):
    child = subprocess.Popen(
        [sys.executable, __file__, "--program"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
        env={**os.environ, "LD_LIBRARY_PATH": str(build / "shim"), "GANTRY_CONNECT_TIMEOUT_MS":
             str(int(20_000 * PATIENCE)), "GANTRY_TRANSPORT": f"unix:{daemon.guest_socket}"})
    return child, child.stdout.readline().strip()


def end(child):
    _, errors = child.communicate(timeout=20 * PATIENCE)
    return errors


def expect_alive(daemon):
    if daemon.child.poll() is not None:
        raise Failure(f"gantryd ended with {daemon.child.returncode}")


def restart(daemon, tasks_max):
    daemon.tasks_max = tasks_max
    daemon.kill(signal.SIGTERM)
    daemon.start()


def sweep(build, daemon, idle_tasks):
    """With each number of tasks too few for one program: wherever it is that one is lacking."""
    answers = []
    for spare in range(FIRST_SPARES):
        try:
            restart(daemon, idle_tasks + spare)
        except Failure:  # It asks a worker what device there is, and has none left for that.
            if daemon.child.poll() != 1 or not daemon.logged("[daemon.threads]"):
                raise
            answers.append("no start")
            continue
        child, answer = start(build, daemon)
        end(child)
        expect_alive(daemon)
        answers.append(answer)
    print(f"with 0 to {FIRST_SPARES - 1} tasks more than an idle gantryd has: {answers}")
    if "0" in answers[:2] or not set(answers) - {"0", "no start"}:
        raise Failure("no program lacked a task")


def run(build, daemon):
    idle_tasks = tasks_of(daemon.user)
    sweep(build, daemon, idle_tasks)
    restart(daemon, idle_tasks + SPARE_TASKS)
    served, refused = [], None
    while refused is None and len(served) < PROGRAMS_MAX:
        child, answer = start(build, daemon)
        expect_alive(daemon)
        if answer == "0":
            served.append(child)
        else:
            refused = (answer, end(child))
    if refused is None or not served:
        raise Failure(f"{len(served)} programs were served by {SPARE_TASKS} tasks")
    print(f"{len(served)} programs are served, the next one is told: {refused}")
    for _ in range(5):  # It stays so, however many ask.
        child, answer = start(build, daemon)
        end(child)
        expect_alive(daemon)
        if answer == "0":
            raise Failure("a program was served by what another one lacked")
    # Not by `gantry status`: gRPC may lack a thread for it as well.
    if len(daemon.record_pids()) != len(served):
        raise Failure(f"{len(daemon.record_pids())} workers of {len(served)} programs")
    for child in served:
        if child.poll() is not None:
            raise Failure(f"a served program ended: {end(child)}")
        end(child)
    wait_until("the sessions end", lambda: not daemon.record_pids())
    child, answer = start(build, daemon)
    errors = end(child)
    if answer != "0":
        raise Failure(f"afterwards a program is refused: {answer} {errors}")
    expect_alive(daemon)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--program", action="store_true")
    arguments = parser.parse_args()
    if arguments.program:
        program()
        return 0
    build = arguments.build.resolve()
    with tempfile.TemporaryDirectory(prefix="gthreads") as folder:
        daemon = UserDaemon(build, pathlib.Path(folder), "a",
                            extra={"guest": "any_user = true\n"})
        try:
            with running(daemon):
                run(build, daemon)
        except (Failure, subprocess.TimeoutExpired) as failure:
            print(f"FAILED: {failure}\n{daemon.log_text()}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    guard.run(main)
