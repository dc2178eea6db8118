#!/usr/bin/env python3
"""Kills real processes and cuts real links in the middle of real moves.

Two gantryds on loopback with mutual TLS, real workers on the soft GPU, and a CUDA program whose
session is moved with `gantry pull`. Each case does one harm at one named step:

  worker, gantryd   of the source or the target: SIGKILL (gantryd is started again)
  link              between the gantryds, control and bulk streams: what the source (or the target)
                    sends is held back for some seconds, then every connection is reset
  link for good     nothing passes any more, in either direction
  guest link        the program's TCP connection (gantry-guest, gantry-relay), in either direction

With --moved-guest the program is always over TCP, and the gantryds share no memory with it or with
each other: the address that gantry-guest dials leads to the source's relay until the target has its
grant, and then to the target's, as after a move of a VM.

The program must then end with exactly the digests of an undisturbed run, or, where the only copy
of its state died, with a clear CUDA error, within its deadline: never with wrong digests, and never
hang. All that was started is ended, by process id.
"""

import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from link import Link

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
import guard
from daemons import (PATIENCE, Daemon, Failure, free_port, listening_sockets, make_certificates,
                     wait_until)

STEPS, MIB, PAUSE_MS = 20, 16, 80
TCP_MIB = 4  # Every step copies all of it, over gantry-guest, this proxy and gantry-relay.
PROGRAM_DEADLINE_S = 60
SLOW_DISK_S = 4  # A step of a move that writes the disk lasts so long, where it is slow.
CASES_AT_ONCE = 3  # Most of a case is waiting.
CLEAR_ERROR = re.compile(r"^error: \S.*", re.M)


class Stage:
    """Both gantryds, the program, and the move; ends everything at the end of the block."""

    def __init__(self, arguments, over_tcp=False, slow_disk=None):
        self.arguments, self.slow_disk = arguments, slow_disk
        self.over_tcp = over_tcp or arguments.moved_guest
        over_tcp = self.over_tcp
        self.mib = TCP_MIB if over_tcp else MIB

    def __enter__(self):
        self.holder = tempfile.TemporaryDirectory(prefix="gfault")
        self.folder = pathlib.Path(self.holder.name)
        for name in ("ca.pem", "host.pem", "host.key"):
            shutil.copy(self.arguments.certificates / name, self.folder)
        extra = {"migration": f"bandwidth_mib_s = {self.arguments.bandwidth}\nreservation_s = 5\n"}
        self.source, self.target = (Daemon(self.arguments.build, self.folder, name, free_port(),
                                           extra=extra) for name in "ab")
        slow = {"source": self.source, "target": self.target}.get(self.slow_disk)
        if slow:
            slow.environment = dict(os.environ, LD_PRELOAD=str(self.arguments.slow_sync),
                                    SLOW_SYNC_S=str(SLOW_DISK_S))
        self.program, self.helpers = None, []
        self.link, self.guest_link, self.ended = Link(self.source.port), None, threading.Event()
        self.source.start()
        self.target.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        if self.program is not None and self.program.poll() is None:
            self.program.kill()
            self.program.wait()
        for helper in self.helpers:
            helper.kill()
            helper.wait()
        for link in (self.link, self.guest_link):
            if link is not None:
                link.close()
        for daemon in (self.source, self.target):
            daemon.end_all()
        self.holder.cleanup()

    def helper(self, name, *words):
        """A program of ours beside the daemons; the path of what it prints."""
        log = self.folder / f"{name}-{len(self.helpers)}.log"
        with open(log, "wb") as out:
            self.helpers.append(subprocess.Popen(
                [self.arguments.build / "bin" / name, *map(str, words)], stdout=out, stderr=out,
                stdin=subprocess.DEVNULL))
        return log

    def guest_transport(self):
        if not self.over_tcp:
            return self.source.guest_socket
        ports = [self.relay(self.source)]
        self.guest_link = Link(ports[0])
        if self.arguments.moved_guest:
            ports.append(self.relay(self.target))
            threading.Thread(target=self.lead_guest, args=ports, daemon=True).start()
        path = self.folder / "guest.sock"
        self.helper("gantry-guest", "--listen", path, "--host",
                    f"127.0.0.1:{self.guest_link.port}")
        wait_until("gantry-guest", lambda: str(path) in listening_sockets())
        return path

    def relay(self, daemon):
        log = self.helper("gantry-relay", "--listen", "127.0.0.1:0", "--daemon",
                          daemon.guest_socket)
        told = wait_until("gantry-relay", lambda: re.search(r"port (\d+)\n", log.read_text()))
        return int(told.group(1))

    def lead_guest(self, to_source, to_target):
        """The guest is at the target once that was granted the session, unless it gave it back."""
        while not self.ended.wait(0.01):
            is_there = (self.target.logged("-> Activating") and
                        not self.target.logged("-> Returning"))
            port = to_target if is_there else to_source
            if port != self.guest_link.far_port:
                self.guest_link.far_port = port
                self.guest_link.reset()

    def run_program(self):
        self.output = open(self.source.folder / "program.out", "w+b")
        environment = dict(os.environ,
                           GANTRY_TRANSPORT=f"unix:{self.guest_transport()}",
                           LD_LIBRARY_PATH=str(self.arguments.build / "shim"))
        self.program = subprocess.Popen(
            [self.arguments.program, str(self.mib), str(STEPS), str(PAUSE_MS)], stdout=self.output,
            stderr=subprocess.STDOUT, env=environment)
        wait_until("the program's first steps", self.has_begun, 40)
        self.session = self.source.sessions()[0]["session_id"]

    def has_begun(self):
        if self.program.poll() is not None:
            raise Failure(f"the program ended early:\n{self.text()}")
        return self.text().count("step") >= 3

    def text(self):
        self.output.flush()
        return pathlib.Path(self.output.name).read_text()

    def begin_move(self):
        def pull():
            handover = [] if self.arguments.moved_guest else ["--handover",
                                                              self.source.handover_socket]
            self.pulled = self.target.gantry(
                "pull", self.session, "--from", f"127.0.0.1:{self.link.port}", *handover,
                timeout=PROGRAM_DEADLINE_S * PATIENCE)
        self.pulled = None
        self.mover = threading.Thread(target=lambda: contextlib.suppress(Exception) and pull(),
                                      daemon=True)
        self.mover.start()

    def at_step(self, step):
        """Waits for a named step of the move, told by the gantryds' logs."""
        marks = {"offered": (self.source, "-> Offered"), "precopy": (self.source, "-> Precopy"),
                 "freezing": (self.source, "-> Freezing"), "frozen": (self.source, "-> Frozen"),
                 "granting": (self.source, "-> Granting"),
                 "granted": (self.source, "-> Granted"),
                 "owning": (self.target, "-> Activating"),
                 "serving": (self.target, "-> Serving")}
        daemon, mark = marks[step]
        wait_until(f"step {step}", lambda: daemon.logged(mark), 30)

    def finish(self):
        try:
            return self.program.wait(timeout=PROGRAM_DEADLINE_S * PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failure("the program hangs; its output:\n" + self.text()) from None


def undisturbed(arguments, mib):
    environment = dict(os.environ, LD_LIBRARY_PATH=str(arguments.build / "soft"))
    done = subprocess.run([arguments.program, str(mib), str(STEPS), "0"], capture_output=True,
                          text=True, env=environment, timeout=120 * PATIENCE, check=True)
    return done.stdout


def harm_worker(stage, daemon):
    end = time.monotonic() + 2
    pids = daemon.worker_pids()
    while not pids and time.monotonic() < end:
        pids = daemon.worker_pids()
    for pid in pids:  # after the grant the source's worker may have ended by itself: no harm then
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def harm_recorded_worker(stage, daemon):
    """Without a question to gantryd, whose disk is slow at the moment."""
    pids = daemon.record_pids()
    if not pids:
        raise Failure("no worker is recorded")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def harm_daemon(stage, daemon):
    daemon.kill()
    time.sleep(0.3)
    daemon.start()


def harm_link(stage, daemon):
    """`daemon` is the side whose words do not arrive. The target calls, the source listens."""
    stage.link.cut("to_caller" if daemon is stage.source else "to_listener")


def harm_link_for_good(stage, daemon):
    stage.link.cut_for_good()


def harm_guest_link(stage, daemon):
    """As of the hosts: the guest calls, the host listens. `source`: the host is not heard."""
    stage.guest_link.cut("to_caller" if daemon is stage.source else "to_listener")


HARMS = {"worker": harm_worker, "gantryd": harm_daemon, "link": harm_link,
         "guest link": harm_guest_link}
# Steps at both ends, in the order of a move.
STEPS_OF_MOVE = ("offered", "precopy", "freezing", "frozen", "granted", "serving")


def check(stage, wanted, may_fail):
    status = stage.finish()
    text = stage.text()
    if status == 0 and text == wanted:
        return "digests equal"
    steps = "".join(line + "\n" for line in text.splitlines() if line.startswith("step"))
    if not wanted.startswith(steps):
        raise Failure(f"wrong digests (status {status}):\n{text}")
    if may_fail() and status == 2 and CLEAR_ERROR.search(text):
        return "clear error: " + CLEAR_ERROR.search(text).group(0)
    raise Failure(f"status {status}, output:\n{text}")


def harmed(stage, wanted, harm, side, step, may_fail):
    try:
        stage.run_program()
        if step != "before":
            stage.begin_move()
            stage.at_step(step)
        harm(stage, stage.source if side == "source" else stage.target)
        return check(stage, wanted[stage.mib], may_fail)
    except Failure as failure:
        logs = [path for daemon in (stage.source, stage.target)
                for path in sorted(daemon.folder.glob("log.*"))]
        logs += sorted(stage.folder.glob("*.log")) + sorted(stage.source.folder.glob("*.out"))
        text = "".join(f"--- {path.relative_to(stage.folder)}\n{path.read_text()[-4000:]}\n"
                       for path in logs)
        raise Failure(f"{failure}\n{text}") from None


def run_case(arguments, wanted, side, victim, step):
    with Stage(arguments, over_tcp=victim == "guest link") as stage:
        # Only the death of the worker that holds the only copy may cost the program its run: the
        # source's, and the target's once it was granted (by the time the harm was done).
        # And a target's gantryd, whose successor does not know where a guest over TCP was to come.
        may_fail = lambda: (  # noqa: E731
            victim == "worker" and (side == "source" or stage.source.logged("-> Granting")) or
            victim == "gantryd" and side == "target" and arguments.moved_guest and
            stage.source.logged("-> Granting"))
        return harmed(stage, wanted, HARMS[victim], side, step, may_fail)


def run_returned(arguments, wanted, slow_disk, step):
    """The target's worker dies after the grant was asked for and before it could serve: while the
    source writes the grant, or while the target writes that it owns the session. Slow disks make
    sure that it is then. Nothing may be lost: the source takes the session back."""
    with Stage(arguments, slow_disk=slow_disk) as stage:
        outcome = harmed(stage, wanted, harm_recorded_worker, "target", step, lambda: False)
        if not (stage.target.logged("-> Returning") and stage.source.logged("-> TakingBack")):
            raise Failure("the grant was not returned, so nothing was tested")
        return outcome


def run_cut_for_good(arguments, wanted, step):
    with Stage(arguments) as stage:
        outcome = harmed(stage, wanted, harm_link_for_good, "source", step, lambda: False)
        # While the program was not frozen it may have ended before anybody gave up; and the grant
        # may have got through before the cut.
        settled = ("(Thawed)", "ended at its source: RolledBack", "-> Granting")
        if step == "frozen" and not any(map(stage.source.logged, settled)):
            raise Failure("the source has not taken the session back")
        return outcome


def run_plain(arguments, wanted, over_tcp):
    with Stage(arguments, over_tcp) as stage:
        outcome = harmed(stage, wanted, lambda *_: None, "source", "serving", lambda: False)
        if arguments.moved_guest and not stage.target.logged("its guest has come"):
            raise Failure("the guest was never at the target")
        return outcome


def all_cases():
    cases = {"plain move": lambda a, w: run_plain(a, w, False),
             "plain move, program over TCP": lambda a, w: run_plain(a, w, True)}
    for victim in HARMS:
        for side in ("source", "target"):
            for step in STEPS_OF_MOVE:
                cases[f"{side} {victim} at {step}"] = (
                    lambda a, w, s=side, v=victim, t=step: run_case(a, w, s, v, t))
    for side, step in (("source", "granting"), ("target", "owning")):
        cases[f"target worker while {step}"] = (
            lambda a, w, d=side, t=step: run_returned(a, w, d, t))
    for step in ("precopy", "frozen"):
        cases[f"link for good at {step}"] = lambda a, w, t=step: run_cut_for_good(a, w, t)
    for victim in ("worker", "gantryd", "guest link"):
        cases[f"source {victim} before a move"] = (
            lambda a, w, v=victim: run_case(a, w, "source", v, "before"))
    return cases


def timed(case, arguments, wanted):
    begun = time.monotonic()
    try:
        outcome, failed = case(arguments, wanted), False
    except Failure as failure:
        outcome, failed = f"FAILED: {failure}", True
    return f"{outcome} ({time.monotonic() - begun:.1f} s)", failed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--slow-sync", type=pathlib.Path, required=True,
                        help="library that makes fsync slow")
    parser.add_argument("--bandwidth", type=int, default=16, help="MiB/s of precopy")
    parser.add_argument("--moved-guest", action="store_true",
                        help="the program is over TCP, and moves to a host with another relay")
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--at-once", type=int, default=CASES_AT_ONCE, help="cases at a time")
    parser.add_argument("--list", action="store_true", help="name the cases and end")
    arguments = parser.parse_args()
    chosen = {name: case for name, case in all_cases().items()
              if not arguments.only or arguments.only in name}
    if arguments.list:
        print("\n".join(chosen))
        return 0
    arguments.build = arguments.build.resolve()
    arguments.slow_sync = arguments.slow_sync.resolve()
    failed = 0
    wanted = {mib: undisturbed(arguments, mib) for mib in (MIB, TCP_MIB)}
    with tempfile.TemporaryDirectory(prefix="gfault") as certificates:
        arguments.certificates = pathlib.Path(certificates)
        make_certificates(certificates)
        with concurrent.futures.ThreadPoolExecutor(arguments.at_once) as pool:
            running = {pool.submit(timed, case, arguments, wanted): name
                       for name, case in chosen.items()}
            for done in concurrent.futures.as_completed(running):
                text, has_failed = done.result()
                failed += has_failed
                print(f"{running[done]}: {text}", flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} cases passed")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    guard.run(main)
