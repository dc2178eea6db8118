#!/usr/bin/env python3
"""Kills real processes and cuts real links in the middle of real moves.

Two gantryds on loopback with mutual TLS, real workers on the soft GPU, and a CUDA program that goes
on until it is told to end, whose session is moved with `gantry pull`. Each case does one harm at
one named step:

  worker, gantryd   of the source or the target: SIGKILL (gantryd is started again)
  link              between the gantryds, control and bulk streams: what the source (or the target)
                    sends is held back for some seconds, then every connection is reset
  link for good     nothing passes any more, in either direction; a target that has asked for the
                    grant waits for it beyond `gantry abort`, and is let go when it passes again
  program           the CUDA program itself: SIGKILL
  guest link        the program's TCP connection (gantry-guest, gantry-relay), in either direction

The gantryd whose step it is stands still there until the harm is done (hold.cc), and a case whose
harm finds nothing to harm has failed.

With --moved-guest the program is always over TCP, and the gantryds share no memory with it or with
each other: the address that gantry-guest dials leads to the source's relay until the target has its
grant, and then to the target's, as after a move of a VM.

Of each case it is said what the protocol promises (`promise`): the session is moved all the same,
stays where it was, or is lost with the only copy of its state. That, and nothing else, must come
about within the deadline that the engine's settings give: the program goes on with exactly the
digests of an undisturbed run, or ends with a clear CUDA error; never with wrong digests, and never
does it hang. Never do both hosts own its session; when it has ended nobody does, and `gantry pull`
has ended too. All that was started is ended, by process id.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("GANTRY_PATIENCE", "1")  # Of the deadlines below; more on a busy machine.
from stage import ACTIVATIONS_S, DEADLINES_S, MIB, TCP_MIB, Stage, full_log, is_running

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
import guard
from daemons import PATIENCE, Failure, make_certificates, wait_until
from programs import Undisturbed

CASES_AT_ONCE = 6  # Most of a case is waiting.
TARGET_LETS_GO_S = 1.0  # What a target that may let go takes for it at most.
STEPS_AFTER = 3  # That a program makes which goes on.
CLEAR_ERROR = re.compile(r"^error: \S.*", re.M)

# The steps of a move, in their order: whose they are, and where that gantryd is held.
MOVE = {
    "describing": ("source", "line -> Describing ("),
    "offered": ("source", "line -> Offered ("),
    "reserving": ("target", "line -> Reserving ("),
    "receiving": ("target", "line -> Receiving ("),
    "precopy": ("source", "line -> Precopy ("),
    "freezing": ("source", "line -> Freezing ("),
    "final round": ("source", "line -> FinalRound ("),
    "frozen": ("source", "line -> Frozen ("),
    "applying": ("target", "line -> Applying ("),
    "requesting": ("target", "line -> Requesting ("),
    "granting": ("source", "line -> Granting ("),
    "grant written": ("source", "sync 1"),  # ... to a file of another name,
    "grant renamed": ("source", "sync 2"),  # ... which has its name now, and is not yet durable.
    "granted": ("source", "line -> Granted ("),
    "activating": ("target", "line -> Activating ("),
    "owner written": ("target", "sync 1"),
    "owner renamed": ("target", "sync 2"),
    "serving": ("target", "line -> Serving ("),
    "done": ("target", "line -> Done ("),
}
ORDER = {step: place for place, step in enumerate(MOVE)}
# After the death of the target's worker while the grant was being written: it is given back.
RETURN = {
    "returning": ("target", "line -> Returning ("),
    "taking back": ("source", "line -> TakingBack ("),
    "taken back, written": ("source", "sync 1"),
    "taken back, renamed": ("source", "sync 2"),
}


def harm_worker(stage, daemon):
    """Without a question to gantryd, which may be held."""
    pids = [pid for pid in daemon.record_pids() if is_running(pid)]
    if not pids:
        raise Failure("no worker is there to be killed")
    kill_workers(pids)
    stage.release()


def kill_workers(pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until("the end of the workers", lambda: not any(map(is_running, pids)), 5, 0.002)
    time.sleep(0.1)  # Their gantryd knows it now.


def harm_daemon(stage, daemon):
    daemon.kill()
    stage.release()
    time.sleep(0.3)
    daemon.start()


def harm_link(stage, daemon):
    """`daemon` is the side whose words do not arrive. The target calls, the source listens."""
    stage.link.cut("to_caller" if daemon is stage.source else "to_listener", stage.release)
    if stage.link.withheld_bytes == 0:
        raise Failure("nothing was on its way that the cut has kept back")


def harm_link_for_good(stage):
    stage.link.cut_for_good()
    stage.release()


def harm_guest_link(stage, daemon):
    """As of the hosts: the guest calls, the host listens. `source`: the host is not heard."""
    stage.guest_link.cut("to_caller" if daemon is stage.source else "to_listener", stage.release)


HARMS = {"worker": harm_worker, "gantryd": harm_daemon, "link": harm_link,
         "guest link": harm_guest_link}


# The whole list with both kinds of guest takes more time than it adds: with memory shared until the
# grant, the guest's link is cut at these steps only; a guest that moves is as any other up to the
# freeze, and so are the gantryds' own links.
GUEST_LINK_STEPS = ("precopy", "frozen", "granted", "serving")


def is_told_elsewhere(victim, step, moved_guest):
    if moved_guest:
        return ORDER[step] < ORDER["freezing"] or victim == "link"
    return victim == "guest link" and step not in GUEST_LINK_STEPS


def finds_nothing(side, victim, step, moved_guest):
    """Why a harm is not in the list: there is nothing at that step for it to harm."""
    if victim == "worker" and side == "target" and ORDER[step] <= ORDER["precopy"]:
        return "the target's worker is started by the first round"
    if victim == "worker" and side == "source" and step == "serving" and not moved_guest:
        return "the source's worker ended when it gave the program's memory away"
    if side == "source" and step == "done":
        return "nothing is left at the source"
    if victim == "link" and step == "done":
        return "nothing is sent any more"
    return None


MOVED, STAYED, LOST = "moved", "stayed", "lost"


def promise(arguments, side, victim, step):
    """What comes of the session: a set, of one where the step says it all."""
    at = ORDER[step]
    if victim == "worker" and side == "source":
        # A program that shares memory with the hosts comes by way of the source's worker; one over
        # TCP is told of its death by the source's relay, if it is there still.
        is_needed = at < ORDER["activating" if arguments.moved_guest else "serving"]
        return {LOST} if is_needed else {MOVED}
    if victim == "worker" and at >= ORDER["serving"]:
        return {LOST}
    if victim == "worker" and step == "owner renamed":
        # The record is the last thing before the worker is told to serve. A gantryd that hears of
        # the worker's end behind that order has no second attempt: seen once in some 150 cases.
        return {MOVED, LOST}
    if victim == "gantryd" and at <= ORDER["precopy"]:
        # Nothing is frozen yet, and a gantryd that was started again knows of no move. But a target
        # that has no offer asks for one again, and may have begun a move so.
        return {MOVED, STAYED} if side == "source" and at <= ORDER["offered"] else {STAYED}
    if victim == "gantryd" and side == "target" and arguments.moved_guest and (
            at >= ORDER["serving"]):
        # It holds what the guest's relay has to ask for; its worker takes that for the guest's end.
        return {MOVED, LOST}
    return {MOVED}


def check(stage, undisturbed, victim, promised):
    """promised: what may come of the session, of MOVED, STAYED and LOST. Says what came."""
    deadline_s = DEADLINES_S[victim]
    program = stage.program
    if MOVED in promised:
        stage.await_program(
            "the end of the move", lambda: stage.was_moved() or (
                STAYED in promised and not stage.mover.is_alive()), deadline_s)
    elif stage.mover is not None and victim != "for good":
        stage.await_program("the end of `gantry pull`", lambda: not stage.mover.is_alive(),
                            deadline_s)
    if promised == {LOST}:
        stage.await_program("its error", lambda: False, deadline_s)
    more = program.steps() + STEPS_AFTER
    stage.await_program("more steps", lambda: program.steps() >= more, deadline_s)
    outcome = MOVED if stage.was_moved() else STAYED
    status = program.end(deadline_s)
    if program.step_lines() != undisturbed.steps(program.steps()):
        raise Failure(f"wrong digests (status {status}):\n{program.text()}")
    text = f"{outcome}, digests equal"
    if outcome == STAYED and stage.pulled is not None:
        text += f" ({stage.said_of_move().strip()})"
    if status != 0:
        error = CLEAR_ERROR.search(program.text())
        if status != 2 or error is None:
            raise Failure(f"status {status}, output:\n{program.text()}")
        outcome, text = LOST, "clear error: " + error[0]
    if outcome not in promised:
        raise Failure(f"{text}; promised: {' or '.join(sorted(promised))}; `gantry pull` said: "
                      f"{stage.said_of_move()}")
    if victim == "for good":  # The target waits for its source until an operator lets it go.
        stage.target.gantry("abort", stage.session)
        if "-> Requesting" in full_log(stage.target):
            check_waits_for_source(stage)
            stage.link.mend()
    stage.check_all_ended(max(deadline_s, ACTIVATIONS_S))
    return text


def check_waits_for_source(stage):
    """A target that has asked for the grant may own the session without knowing it: whatever an
    operator says, it lets go only when its source has said that it does not."""
    wait_until("the target's withdrawal", lambda: "-> Withdrawing" in full_log(stage.target))
    stage.mover.join(TARGET_LETS_GO_S)
    if not stage.mover.is_alive():
        raise Failure("the target has let go what its source may have granted")


def told(stage, failure):
    logs = [path for daemon in (stage.source, stage.target)
            for path in sorted(daemon.folder.glob("log.*"))]
    logs += sorted(stage.folder.glob("*.log")) + sorted(stage.source.folder.glob("*.out"))
    text = "".join(f"--- {path.relative_to(stage.folder)}\n{path.read_text()[-4000:]}\n"
                   for path in logs)
    return Failure(f"{failure}\n{text}")


def end(stage, side):
    return stage.source if side == "source" else stage.target


def run_case(arguments, wanted, side, victim, step):
    with Stage(arguments, over_tcp=victim == "guest link") as stage:
        try:
            stage.run_program()
            whose, where = MOVE[step]
            stage.hold(end(stage, whose), where)
            stage.begin_move()
            stage.wait_held(end(stage, whose))
            HARMS[victim](stage, end(stage, side))
            return check(stage, wanted[stage.mib], victim,
                         promise(arguments, side, victim, step))
        except Failure as failure:
            raise told(stage, failure) from None


def run_returned(arguments, wanted, side, victim, step):
    """The target's worker dies while the source writes the grant, so that the target gives it back;
    and while it does, something else is harmed."""
    with Stage(arguments) as stage:
        try:
            stage.run_program()
            stage.hold(stage.source, MOVE["grant written"][1])
            stage.begin_move()
            stage.wait_held(stage.source)
            whose, where = RETURN[step]
            if whose == "target":
                stage.hold(stage.target, where)
            kill_workers(stage.target.record_pids())
            wait_until("the target's withdrawal",
                       lambda: "-> Withdrawing" in full_log(stage.target))
            stage.hold(stage.source, where if whose == "source" else "nowhere")
            stage.wait_held(end(stage, whose))
            HARMS[victim](stage, end(stage, side))
            return check(stage, wanted[stage.mib], victim,
                         {LOST} if victim == "worker" else {MOVED})
        except Failure as failure:
            raise told(stage, failure) from None


def run_cut_for_good(arguments, wanted, step):
    with Stage(arguments) as stage:
        try:
            stage.run_program()
            whose, where = MOVE[step]
            stage.hold(end(stage, whose), where)
            stage.begin_move()
            stage.wait_held(end(stage, whose))
            harm_link_for_good(stage)
            if step != "precopy":
                stage.await_program("the source to take the session back",
                                    lambda: "(Thawed)" in full_log(stage.source),
                                    DEADLINES_S["for good"])
            return check(stage, wanted[stage.mib], "for good", {STAYED})
        except Failure as failure:
            raise told(stage, failure) from None


def lose_host(stage, daemon):
    """Its gantryd and its workers, for good."""
    stage.lost.append(daemon)
    daemon.kill()
    kill_workers(daemon.record_pids())
    stage.release()


def operator(stage, daemon, word):
    """What an operator says, as often as it takes until it fits."""
    def says():
        done = daemon.gantry(word, stage.session)
        return done.returncode == 0
    wait_until(f"`gantry {word}`", says, DEADLINES_S["gantryd"], 0.2)


def run_ended(arguments, wanted, step):
    """The program itself is killed: nothing of it may stay, at either end."""
    with Stage(arguments) as stage:
        try:
            stage.run_program()
            whose, where = MOVE[step]
            stage.hold(end(stage, whose), where)
            stage.begin_move()
            stage.wait_held(end(stage, whose))
            stage.program.kill()
            stage.release()
            stage.check_all_ended(ACTIVATIONS_S)
            return "all has ended"
        except Failure as failure:
            raise told(stage, failure) from None


def run_discarded(arguments, wanted):
    """The target's host is lost with the session that it was granted: what the source keeps for it
    goes, with the program, when an operator says so."""
    with Stage(arguments) as stage:
        try:
            stage.run_program()
            stage.hold(stage.source, MOVE["granted"][1])
            stage.begin_move()
            stage.wait_held(stage.source)
            lose_host(stage, stage.target)
            operator(stage, stage.source, "discard")
            return check(stage, wanted[stage.mib], "gantryd", {LOST})
        except Failure as failure:
            raise told(stage, failure) from None


def run_before(arguments, wanted, victim):
    with Stage(arguments, over_tcp=victim == "guest link") as stage:
        try:
            stage.run_program()
            HARMS[victim](stage, stage.source)
            return check(stage, wanted[stage.mib], victim,
                         {LOST} if victim == "worker" else {STAYED})
        except Failure as failure:
            raise told(stage, failure) from None


def run_plain(arguments, wanted, over_tcp):
    with Stage(arguments, over_tcp) as stage:
        try:
            stage.run_program()
            stage.begin_move()
            outcome = check(stage, wanted[stage.mib], "worker", {MOVED})
            if arguments.moved_guest and "its guest has come" not in full_log(stage.target):
                raise Failure("the guest was never at the target")
            return outcome
        except Failure as failure:
            raise told(stage, failure) from None


def all_cases(moved_guest):
    cases = {"plain move": lambda a, w: run_plain(a, w, False),
             "plain move, program over TCP": lambda a, w: run_plain(a, w, True)}
    for victim in HARMS:
        for side in ("source", "target"):
            for step in MOVE:
                if not (finds_nothing(side, victim, step, moved_guest) or
                        is_told_elsewhere(victim, step, moved_guest)):
                    cases[f"{side} {victim} at {step}"] = (
                        lambda a, w, s=side, v=victim, t=step: run_case(a, w, s, v, t))
    for side, victim, step in (("target", "gantryd", "returning"),
                               ("source", "gantryd", "returning"),
                               ("target", "link", "returning"),
                               ("target", "gantryd", "taking back"),
                               ("source", "gantryd", "taking back"),
                               ("source", "worker", "taking back"),
                               ("source", "link", "taking back"),
                               ("source", "gantryd", "taken back, written"),
                               ("source", "gantryd", "taken back, renamed")):
        cases[f"{side} {victim} at {step}"] = (
            lambda a, w, s=side, v=victim, t=step: run_returned(a, w, s, v, t))
    for step in ("precopy", "frozen", "requesting"):
        cases[f"link for good at {step}"] = lambda a, w, t=step: run_cut_for_good(a, w, t)
    if not moved_guest:
        for step in MOVE:
            cases[f"program at {step}"] = lambda a, w, t=step: run_ended(a, w, t)
        cases["target host for good at granted, discarded at the source"] = run_discarded
    for victim in ("worker", "gantryd", "guest link"):
        cases[f"source {victim} before a move"] = lambda a, w, v=victim: run_before(a, w, v)
    return cases


def timed(case, arguments, wanted):
    begun = time.monotonic()
    try:
        outcome, failed = case(arguments, wanted), False
    except (Failure, subprocess.TimeoutExpired) as failure:  # The second: a gantryd does not end.
        outcome, failed = f"FAILED: {failure}", True
    return f"{outcome} ({time.monotonic() - begun:.1f} s)", failed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--hold", type=pathlib.Path, required=True,
                        help="library that holds a gantryd at a step")
    parser.add_argument("--bandwidth", type=int, default=64, help="MiB/s of precopy")
    parser.add_argument("--moved-guest", action="store_true",
                        help="the program is over TCP, and moves to a host with another relay")
    parser.add_argument("--only", help="cases whose name matches this regular expression")
    parser.add_argument("--at-once", type=int, default=CASES_AT_ONCE, help="cases at a time")
    parser.add_argument("--list", action="store_true", help="name the cases and end")
    arguments = parser.parse_args()
    chosen = {name: case for name, case in all_cases(arguments.moved_guest).items()
              if not arguments.only or re.search(arguments.only, name)}
    if arguments.list:
        print("\n".join(chosen))
        return 0
    arguments.build = arguments.build.resolve()
    arguments.hold = arguments.hold.resolve()
    failed = 0
    wanted = {mib: Undisturbed(arguments.build, arguments.program, mib) for mib in (MIB, TCP_MIB)}
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
