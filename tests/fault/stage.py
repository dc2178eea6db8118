"""Two gantryds on loopback, a CUDA program, and its move from one to the other, for sweep.py.

A gantryd can be held at a named step (hold.cc), so that what is done to it, to its peer, to a
worker or to a link is done exactly then, however short the step is.
"""

import contextlib
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from link import CUT_S, Link

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
from daemons import PATIENCE, Daemon, Failure, free_port, listening_sockets, wait_until
from programs import Program

MIB, PAUSE_MS = 8, 65
LETS_GO_S = 2.0  # Of a session that has ended.
TCP_GONE_S = 75  # gantry-relay waits a minute for a guest whose link is away (relay_session.h).
TCP_MIB = 2  # Every step copies all of it, over gantry-guest, this proxy and gantry-relay.

# What a move may take to its end after the harm: its own time, and what the engine's settings give
# the two gantryds to notice and to begin again (migration/engine/machine.h, registry/vm_events.cc).
MOVE_S = 5.0
RESERVATION_S = 5.0 * PATIENCE  # As configured here: a link that was cut must not outlast it.
RETRY_MAX_S, JOB_POLL_S, JOB_ABSENT_GRACE_S, PULLER_SILENCE_S = 4.0, 2.0, 6.0, 15.0
AGAIN_S = RETRY_MAX_S + JOB_POLL_S + MOVE_S  # The longest repeat, a look, another move.
# As often a target tries to serve what it was granted before it gives it up.
ACTIVATIONS_S = 8 * JOB_POLL_S + RETRY_MAX_S
DEADLINES_S = {
    "worker": AGAIN_S,
    "gantryd": AGAIN_S + RESERVATION_S,
    "link": CUT_S + AGAIN_S + RESERVATION_S,
    "guest link": CUT_S + AGAIN_S,
    "for good": PULLER_SILENCE_S + JOB_ABSENT_GRACE_S + AGAIN_S,
}


class Stage:
    """Both gantryds, the program, and the move; ends everything at the end of the block."""

    def __init__(self, arguments, over_tcp=False):
        self.arguments, self.over_tcp = arguments, over_tcp or arguments.moved_guest
        self.mib = TCP_MIB if self.over_tcp else MIB

    def __enter__(self):
        self.holder = tempfile.TemporaryDirectory(prefix="gfault")
        self.folder = pathlib.Path(self.holder.name)
        for name in ("ca.pem", "host.pem", "host.key"):
            shutil.copy(self.arguments.certificates / name, self.folder)
        extra = {"migration": f"bandwidth_mib_s = {self.arguments.bandwidth}\n"
                              f"reservation_s = {RESERVATION_S:.0f}\n"}
        self.source, self.target = (
            Daemon(self.arguments.build, self.folder, name, free_port(), extra=extra,
                   environment={"LD_PRELOAD": str(self.arguments.hold),
                                "HOLD_FILE": str(self.folder / name / "hold")})
            for name in "ab")
        self.program, self.helpers, self.mover, self.pulled = None, [], None, None
        self.lost = []  # Hosts that will not come back.
        self.link, self.guest_link, self.ended = Link(self.source.port), None, threading.Event()
        for daemon in (self.source, self.target):
            daemon.spawn()
        for daemon in (self.source, self.target):
            daemon.wait_ready()
        return self

    def __exit__(self, *_):
        self.ended.set()
        if self.program is not None:
            self.program.kill()
        for helper in self.helpers:
            helper.kill()
            helper.wait()
        for link in (self.link, self.guest_link):
            if link is not None:
                link.close()
        for daemon in (self.source, self.target):
            hold_file(daemon).unlink(missing_ok=True)
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
                          daemon.guest_socket, "--allow-keyless")
        told = wait_until("gantry-relay", lambda: re.search(r"port (\d+)\n", log.read_text()))
        return int(told.group(1))

    def lead_guest(self, to_source, to_target):
        """The guest is at the target once that was granted the session, until it gives it back:
        what the newest of its attempts has come to counts."""
        while not self.ended.wait(0.01):
            told = full_log(self.target)
            is_there = told.rfind("-> Activating") > told.rfind("-> Returning")
            port = to_target if is_there else to_source
            if port != self.guest_link.far_port:
                self.guest_link.far_port = port
                self.guest_link.reset()

    def run_program(self):
        self.program = Program([self.arguments.program, self.mib, 0, PAUSE_MS],
                               self.source.folder / "program.out",
                               {"GANTRY_TRANSPORT": f"unix:{self.guest_transport()}",
                                "LD_LIBRARY_PATH": f"{self.arguments.build}/shim"})
        self.program.await_steps(3, 40)
        self.session = self.source.sessions()[0]["session_id"]

    def begin_move(self):
        def pull():
            handover = [] if self.arguments.moved_guest else ["--handover",
                                                              self.source.handover_socket]
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.pulled = self.target.gantry(
                    "pull", self.session, "--from", f"127.0.0.1:{self.link.port}", *handover,
                    timeout=120 * PATIENCE)
        self.mover = threading.Thread(target=pull, daemon=True)
        self.mover.start()

    def said_of_move(self):
        """What `gantry pull` said when it ended; nothing: it has not ended."""
        return "" if self.pulled is None else self.pulled.stdout + self.pulled.stderr

    def was_moved(self):
        return "-> Done" in full_log(self.target)

    def hold(self, daemon, where):
        """From now on `daemon` stops where hold.cc is told to; where it is held now, it goes on."""
        new = daemon.folder / "hold.new"
        new.write_text(where)
        new.rename(hold_file(daemon))

    def wait_held(self, daemon):
        where = hold_file(daemon).read_text()
        wait_until(f"{daemon.name} at '{where}'", lambda: held_at(daemon) == where, 15, 0.002)

    def release(self):
        """What is held goes on, if it has not been killed."""
        for daemon in (self.source, self.target):
            hold_file(daemon).unlink(missing_ok=True)

    def record(self, daemon):
        """(epoch, granted away) of the session as `daemon`'s disk has it; None: nothing."""
        with contextlib.suppress(FileNotFoundError):
            text = (daemon.folder / "state" / "epochs" / self.session).read_text()
            if found := re.search(r"epoch (\d+)\ngranted (\d)", text):
                return int(found.group(1)), found.group(2) == "1"
        return None

    def owners(self):
        """Which of the two own the session, as their disks have it: never both. A lost host's disk
        does not count, by an operator's word."""
        def owned(daemon, record):
            return daemon not in self.lost and record is not None and not record[1]
        # It may go from one to the other between two looks: both own it only if the target does
        # before and after the look at the source.
        before, of_source, after = map(self.record, (self.target, self.source, self.target))
        if before == after and owned(self.target, after) and owned(self.source, of_source):
            raise Failure(f"both hosts own the session: {of_source}, {after}")
        return [daemon.name for daemon, record in ((self.target, after), (self.source, of_source))
                if owned(daemon, record)]

    def await_program(self, what, condition, deadline_s):
        """Waits for the condition, or the program's end. Meanwhile at most one host owns its
        session."""
        end = time.monotonic() + deadline_s * PATIENCE
        while not condition() and not self.program.has_ended():
            self.owners()
            if time.monotonic() > end:
                raise Failure(f"waited {deadline_s * PATIENCE} s in vain for {what}; the program's "
                              f"output:\n{self.program.text()}")
            time.sleep(0.01)

    def awaits_guest(self):
        """The target serves the session, and its guest was told at the source that its worker has
        died: it is waited for a minute, as long as gantry-guest dials."""
        log = full_log(self.target)
        return (self.over_tcp and self.program.child.returncode != 0 and
                " is served here now" in log and "its guest has come" not in log)

    def check_all_ended(self, deadline_s):
        """After the program's end: the operator's command has ended, nobody owns the session, and
        no worker is left; but at the target, if it waits for its guest yet."""
        if self.mover is not None:
            self.mover.join(deadline_s * PATIENCE)
            if self.mover.is_alive():
                raise Failure("`gantry pull` does not end")
        alive = [daemon for daemon in (self.source, self.target) if daemon.child is not None]

        def go_on():
            return [daemon for daemon in alive
                    if daemon.sessions() and not (daemon is self.target and self.awaits_guest())]
        # A guest over TCP whose goodbye was lost with its link is waited for a minute.
        patience_s = max(deadline_s, TCP_GONE_S / PATIENCE) if self.over_tcp else deadline_s
        wait_until("the end of the session on both hosts", lambda: not go_on(), patience_s, 0.1)
        if self.awaits_guest():
            alive.remove(self.target)

        def remains():
            left = [pid for daemon in alive for pid in daemon.record_pids() if is_running(pid)]
            owners = [name for name in self.owners() if name in [daemon.name for daemon in alive]]
            return owners, left
        # A gantryd lists a session no more before it has let go all of it.
        end = time.monotonic() + LETS_GO_S * PATIENCE
        while any(remains()) and time.monotonic() < end:
            time.sleep(0.05)
        owners, left = remains()
        if owners or left:
            raise Failure(f"after its program's end {owners} own the session, and workers {left} "
                          "run")


def hold_file(daemon):
    return daemon.folder / "hold"


def held_at(daemon):
    with contextlib.suppress(FileNotFoundError):
        return (daemon.folder / "hold.held").read_text()
    return None


def full_log(daemon):
    return "".join(path.read_text() for path in sorted(daemon.folder.glob("log.*")))


def is_running(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
