#!/usr/bin/env python3
"""A program that writes its GPU memory faster than the link carries it: its move is refused while
it runs, and taken when an operator accepts the pause.

Two gantryds on loopback; the program (this file once more, with --write) fills all its memory in
every step, and precopy is held to a few MiB/s. `gantry watch` follows each move: what is left is
true at any time.
"""

import argparse
import ctypes
import json
import pathlib
import select
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
import guard
from daemons import PATIENCE, Daemon, Failure, free_port, make_certificates, running, wait_until
from programs import Program

WORDS = 16 << 20
BYTES = 4 * WORDS
MIGRATION = 'downtime_max_ms = 700\nbandwidth_mib_s = 40\ncompression = "off"\n'


def expect(condition, text):
    if not condition:
        raise Failure(text)


def write_until_told():
    """Fills its memory with the number of the step, and looks whether it is there."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        got = getattr(cuda, name)(*arguments)
        if got != 0:
            sys.exit(f"{name}: {got}")
    context, memory, word = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint32()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(BYTES))
    poller = select.poll()
    poller.register(sys.stdin, select.POLLIN | select.POLLHUP)
    step = 0
    while not poller.poll(0):
        step += 1
        call("cuMemsetD32_v2", memory, step, ctypes.c_size_t(WORDS))
        last = ctypes.c_uint64(memory.value + BYTES - 4)
        call("cuMemcpyDtoH_v2", ctypes.byref(word), last, ctypes.c_size_t(4))
        if word.value != step:
            sys.exit(f"step {step}: {word.value} is in memory")
        print(f"step {step} done", flush=True)


class Watch:
    """`gantry --json watch` of a session's next move at its source."""

    def __init__(self, daemon, session, folder):
        self.path = folder / f"watch.{session}.{daemon.name}"
        with open(self.path, "wb") as out:
            self.child = subprocess.Popen(
                [daemon.build / "bin/gantry", "--socket", daemon.operator_socket, "--json",
                 "watch", session], stdout=out, stderr=subprocess.STDOUT, env=daemon.environment)
        wait_until("the first line of gantry watch", self.path.read_text)

    def moves(self):
        self.child.wait(timeout=60 * PATIENCE)
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [line["status"]["move"] for line in lines if line["status"].get("move")]


def check_remaining(moves):
    """Never more than there is; something, until the first round has gone."""
    seen = set()
    for move in moves:
        total, left = int(move["bytes_total"]), int(move["bytes_remaining"])
        expect(left <= max(total, BYTES), f"more is left than there is: {move}")
        if move["phase"] == "precopy" and int(move["round"]) == 1:
            seen.add(left)
            expect(left > 0 or int(move["bytes_processed"]) >= BYTES,
                   f"nothing is left in the first round: {move}")
    expect(len(seen) > 2, f"what is left stood still in the first round: {sorted(seen)}")


def pull(source, target, session):
    return target.gantry("--json", "pull", session, "--from", f"127.0.0.1:{source.port}",
                         "--handover", source.handover_socket, timeout=100 * PATIENCE)


def try_all(build, folder):
    make_certificates(folder)
    source, target = (Daemon(build, folder, name, free_port(), extra={"migration": MIGRATION})
                      for name in ("a", "b"))
    with running(source, target):
        program = Program([sys.executable, __file__, "--write"], folder / "out",
                          {"LD_LIBRARY_PATH": f"{build}/shim",
                           "GANTRY_TRANSPORT": f"unix:{source.guest_socket}"})
        try:
            program.await_steps(3)
            session = wait_until("a session", source.sessions)[0]["session_id"]
            refuse(source, target, session, program, folder)
            force(source, target, session, program, folder)
            expect(program.end() == 0, program.text()[-400:])
        except Failure as failure:
            raise Failure(f"{failure}\n{source.log_text()}{target.log_text()}") from failure
        finally:
            program.kill()


def refuse(source, target, session, program, folder):
    watch = Watch(source, session, folder)
    done = pull(source, target, session)
    expect(done.returncode == 1 and "migration.not_converging" in done.stderr, f"{done}")
    for figure in ("MiB are left", "the programs change", "the link takes"):
        expect(figure in done.stderr, f"{figure}: {done}")
    program.goes_on(3)
    moves = watch.moves()
    check_remaining(moves)
    expect(moves[-1]["outcome"] == "refused", f"{moves[-1]}")
    expect(all(int(move["downtime_us"]) == 0 for move in moves), "the program was paused")
    print("a pause that would be too long is refused while the program runs")


def force(source, target, session, program, folder):
    done = target.gantry("force-complete", session)
    expect(done.returncode == 4 and "[migration.none]" in done.stderr, f"{done}")
    done = source.gantry("force-complete", session)
    expect(done.returncode == 0 and "the next move" in done.stdout, f"{done}")
    watch = Watch(source, session, folder)
    done = pull(source, target, session)
    expect(done.returncode == 0, f"{done}")
    program.goes_on(3)
    expect(watch.moves()[-1]["outcome"] == "moved", watch.path.read_text())
    # The source still knows how it ended.
    wait_until("the source to let go", lambda: not source.sessions())
    for command in ("watch", "status"):
        done = source.gantry("--json", command, session)
        expect(done.returncode == 0 and '"moved"' in done.stdout, f"{done}")
    done = target.gantry("force-complete", session)
    expect(done.returncode == 4, f"nothing is under way any more: {done}")
    print("an operator accepted the pause, and the source knows the move that has ended")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--write", action="store_true", help="be the program that is moved")
    arguments = parser.parse_args()
    if arguments.write:
        write_until_told()
        return 0
    with tempfile.TemporaryDirectory(prefix="gconv") as folder:
        try:
            try_all(arguments.build.resolve(), pathlib.Path(folder))
        except (Failure, subprocess.TimeoutExpired) as failure:
            print(f"FAILED: {failure}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    if "--write" in sys.argv:
        main()
    else:
        guard.run(main)
