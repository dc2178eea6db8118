#!/usr/bin/env python3
"""Moves to a GPU with other limits, end to end: on the small profile a program goes on with what it
was told, or the move is refused before it begins, by a reason that names what is lacking."""

import argparse
import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
import guard
from daemons import PATIENCE, Daemon, Failure, free_port, make_certificates, running, wait_until

SMALL_MIB = 2048  # Of small-86; the other hosts have twice as much.
PROGRAM_DEADLINE_S = 60 * PATIENCE


def expect(condition, text):
    if not condition:
        raise Failure(text)


class Program:
    """The program in one of its modes, waiting at its midpoint inside the block."""

    def __init__(self, arguments, work, mode, daemon):
        self.mark, self.out = work / f"{mode}.mid", work / f"{mode}.out"
        self.environment = dict(os.environ, LD_LIBRARY_PATH=str(arguments.build / "shim"),
                                GANTRY_TRANSPORT=f"unix:{daemon.guest_socket}",
                                PROGRAM_MIDPOINT=str(self.mark))
        self.command = [arguments.program, mode]

    def __enter__(self):
        with open(self.out, "wb") as log:
            self.child = subprocess.Popen(self.command, stdout=log, stderr=log,
                                          env=self.environment)
        wait_until("the midpoint", lambda: self.mark.exists() or self.child.poll() is not None)
        expect(self.child.poll() is None, self.out.read_text())
        return self

    def finish(self):
        """Its output, once it has gone on from the midpoint to its end."""
        pathlib.Path(f"{self.mark}.go").touch()
        code = self.child.wait(timeout=PROGRAM_DEADLINE_S)
        expect(code == 0 and "PASS" in self.out.read_text(), f"{code}: {self.out.read_text()}")
        return self.out.read_text()

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            self.child.kill()
        self.child.wait()


def only_session(daemon):
    sessions = wait_until("one session", lambda: len(found := daemon.sessions()) == 1 and found, 2)
    return sessions[0]["session_id"]


def pull(target, source):
    return target.gantry("pull", only_session(source), "--from", f"127.0.0.1:{source.port}",
                         "--handover", source.handover_socket)


def moved(target, source):
    done = pull(target, source)
    expect(done.returncode == 0, f"{source.name} -> {target.name}: {done.stderr}")
    wait_until(f"{source.name} to let go", lambda: not source.sessions())


def refused(target, source, reason, words):
    """By pull and by preflight, alike, and before anything was copied or paused."""
    late = ("-> Precopy", "-> Freezing")
    before = [source.log_text(1 << 30).count(step) for step in late]
    pulled = pull(target, source)
    expect(pulled.returncode != 0, f"{source.name} -> {target.name}: not refused")
    asked = source.gantry("preflight", only_session(source), f"127.0.0.1:{target.port}")
    expect(asked.returncode != 0, f"{source.name} -> {target.name}: preflight says yes")
    for text in (pulled.stderr, asked.stdout + asked.stderr):
        for word in (reason, target.name, *words):
            expect(word in text, f"not {word} but {text}")
    expect([source.log_text(1 << 30).count(step) for step in late] == before,
           f"refused after it had begun:\n{source.log_text(1 << 30)}")
    # gantryd answers, and lets go of it at once.
    wait_until("nothing left at the target", lambda: not target.sessions(), 2)
    return pulled.stderr.strip()


def cooperative(arguments, work, large, _, small):
    """Grids by the number of multiprocessors that the program was told: a soft GPU has room. Its
    worker can be replaced there, though the program was told of another device."""
    with Program(arguments, work, "cooperative", large) as program:
        moved(small, large)
        done = small.gantry("replace-worker", only_session(small))
        expect(done.returncode == 0, f"replace-worker after the move: {done.stdout}{done.stderr}")
        program.finish()


def shared(arguments, work, large, other, small):
    """Shared memory that the target's blocks cannot have: refused, also one move later, when the
    grant is known from the other host alone."""
    words = ("max_shared_memory_per_block_optin", "204800", "101376")
    with Program(arguments, work, "shared", large) as program:
        print("shared:", refused(small, large, "gpu.attribute.too_low", words))
        moved(other, large)
        refused(small, other, "gpu.attribute.too_low", words)
        program.finish()


def memory(arguments, work, large, _, small):
    """What is free is what the target's GPU can give; the total is what the program was told."""
    with Program(arguments, work, "memory", large) as program:
        moved(small, large)
        out = program.finish()
    before, total, now, total_now = map(int, re.search(
        r"before (\d+) of (\d+) MiB, now (\d+) of (\d+) MiB", out).groups())
    expect(before > SMALL_MIB, f"{before} MiB free at the source tell nothing")
    expect(total == total_now and SMALL_MIB - 512 < now <= SMALL_MIB - 64, out)
    print("memory:", out.splitlines()[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--profiles", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    with tempfile.TemporaryDirectory(prefix="gdev") as folder:
        work = pathlib.Path(folder)
        make_certificates(work)
        whole = (arguments.profiles / "h200-like.toml").read_text(encoding="utf-8")
        (work / "large.toml").write_text(re.sub(
            r"(?m)^memory_bytes = .*$", f"memory_bytes = {2 * SMALL_MIB << 20}", whole))
        large, other, small = (
            Daemon(arguments.build, work, name, free_port(),
                   extra={"worker": f'profile = "{profile}"\n'})
            for name, profile in (("large", work / "large.toml"), ("other", work / "large.toml"),
                                  ("small", arguments.profiles.resolve() / "small-86.toml")))
        try:
            with running(large, other, small):
                for case in (shared, cooperative, memory):
                    case(arguments, work, large, other, small)
                    for daemon in (large, other, small):
                        wait_until("its end", lambda daemon=daemon: not daemon.sessions())
        except Failure as failure:
            print(f"FAILED: {failure}", file=sys.stderr)
            for daemon in (large, other, small):
                sys.stderr.write(daemon.log_text())
            return 1
    return 0


if __name__ == "__main__":
    guard.run(main)
