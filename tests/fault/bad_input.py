#!/usr/bin/env python3
"""What operators and tenants get wrong, end to end: a clear error, and the program goes on.

Real gantryds with mutual TLS and real workers on the soft GPU. The program of the sweep runs on the
first host; each refusal must name its reason and leave the session served where it was.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
import guard
from daemons import (PATIENCE, Daemon, Failure, free_port, gpu_memory_bytes, make_certificates,
                     running, wait_until)
from programs import Program, Undisturbed

QUOTA_MIB = 512
MIB, PAUSE_MS = 8, 65
END_AWAITED_S = 6  # kEndAwaited of host-daemon/supervisor/registry/ending_sessions.cc
PROGRAM_DEADLINE_S = 60 * PATIENCE


def expect(condition, text):
    if not condition:
        raise Failure(text)


def environment(arguments, daemon):
    return dict(os.environ, LD_LIBRARY_PATH=str(arguments.build / "shim"),
                GANTRY_TRANSPORT=f"unix:{daemon.guest_socket}")


def run(arguments, daemon, program, *words):
    return subprocess.run([program, *map(str, words)], env=environment(arguments, daemon),
                          capture_output=True, text=True, timeout=PROGRAM_DEADLINE_S)


def quota_exceeded(arguments, work):
    """CUDA_ERROR_OUT_OF_MEMORY in the program, by the quota and not by the GPU, and it goes on."""
    for quota, wanted in ((QUOTA_MIB, 1), (2 * QUOTA_MIB, 0)):
        daemon = Daemon(arguments.build, work, f"quota-{quota}",
                        extra={"guest": f"memory_mib = {quota}\n"})
        with running(daemon):
            done = run(arguments, daemon, arguments.program, QUOTA_MIB + 64, 1, 0)
            expect(done.returncode == wanted, f"quota of {quota} MiB: {done}")
            expect(("error: out of memory" in done.stdout) == (wanted == 1), f"{quota}: {done}")
            done = run(arguments, daemon, arguments.out_of_memory)
            expect(done.returncode == 0 and "PASS" in done.stdout, f"{quota} MiB: {done}")


def started(arguments, daemon, out, pause_ms=0, steps=0):
    """steps 0: until it is told to end."""
    return Program([arguments.program, MIB, steps, pause_ms], out, environment(arguments, daemon))


def one_after_the_other(arguments, work):
    """`a; b`, of which each has most of the GPU: b waits until the worker of a has ended. The
    worker of one is stopped, so that it hears of nothing while its program is killed."""
    memory = gpu_memory_bytes(arguments.build, work)
    out = work / "one-after-the-other.out"
    for share in (0.6, 0.3):  # Refused otherwise; started otherwise, beside what is not free yet.
        daemon = Daemon(arguments.build, work, f"share-{share}",
                        extra={"guest": f"memory_mib = {int(memory * share) >> 20}\n"})
        children = []
        with running(daemon):
            try:
                for _ in range(3):
                    done = run(arguments, daemon, arguments.program, MIB, 1, 0)
                    expect(done.returncode == 0, f"one after the other: {done}")
                children.append(started(arguments, daemon, work / "first.out"))
                children[0].await_steps(1)
                (worker,) = daemon.worker_pids()
                os.kill(worker, signal.SIGSTOP)
                children[0].kill()
                children.append(started(arguments, daemon, out, steps=1))
                time.sleep(0.7)
                expect(not children[1].has_ended() and not out.read_text(),
                       f"the second program did not wait: {out.read_text()}")
                os.kill(worker, signal.SIGCONT)
                expect(children[1].wait() == 0, out.read_text())
            except Failure as failure:
                raise Failure(f"{failure}\n{daemon.log_text()}") from None
            finally:
                for child in children:
                    child.kill()


def end_not_noticed(arguments, work):
    """A worker that hears nothing of its program's end: the next one waits for it, and no other."""
    daemon = Daemon(arguments.build, work, "not-noticed", extra={"guest": "memory_mib = 64\n"})
    with running(daemon):
        first = started(arguments, daemon, work / "unheard.out")
        try:
            first.await_steps(1)
            (worker,) = daemon.worker_pids()
            os.kill(worker, signal.SIGSTOP)
            first.kill()
            took = []
            for _ in range(2):
                begun = time.monotonic()
                done = run(arguments, daemon, arguments.program, MIB, 1, 0)
                took.append(time.monotonic() - begun)
                expect(done.returncode == 0, f"beside a worker that is stopped: {done}")
            expect(took[0] > END_AWAITED_S, f"the second program did not wait: {took} s")
            expect(took[1] < took[0] - END_AWAITED_S / 2, f"the third one waited too: {took} s")
            os.kill(worker, signal.SIGCONT)
            wait_until("the end of the worker", lambda: not daemon.sessions())
        except Failure as failure:
            raise Failure(f"{failure}\n{daemon.log_text()}") from None
        finally:
            first.kill()


def move_refused(arguments, work, name, undisturbed, reason, target_profile="h200-like",
                 foreign=False, worker=None):
    """`gantry pull` fails before anything is paused, says `reason`, and the program goes on."""
    folder = work / name
    folder.mkdir()
    make_certificates(folder)
    source = Daemon(arguments.build, folder, "a", free_port(),
                    extra={"guest": f"memory_mib = {3 * 1024}\n"})
    if foreign:
        folder = folder / "foreign"
        folder.mkdir()
        make_certificates(folder)
    profile = arguments.profiles / f"{target_profile}.toml"
    target = Daemon(arguments.build, folder, "b", free_port(), worker=worker,
                    extra={"worker": f'profile = "{profile}"\n'})
    with running(source, target):
        out = folder / "program.out"
        program = started(arguments, source, out, PAUSE_MS)
        try:
            program.await_steps(2)
            session = source.sessions()[0]["session_id"]
            workers = source.worker_pids()
            done = target.gantry("pull", session, "--from", f"127.0.0.1:{source.port}",
                                 "--handover", source.handover_socket)
            expect(done.returncode != 0, f"{name}: the move was not refused")
            expect(reason in done.stderr, f"{name}: not {reason} but {done.stderr}")
            expect(not source.logged("-> Freezing"), f"{name}: refused after the pause had begun")
            # gantryd answers, and lets go of it at once.
            wait_until(f"{name}: nothing left at the target", lambda: not target.sessions(), 2)
            expect(source.worker_pids() == workers, f"{name}: the session is not as it was")
            program.goes_on()
            undisturbed.check(program, program.end())
        except Failure as failure:
            raise Failure(f"{name}: {failure}\n{source.log_text()}{target.log_text()}") from None
        finally:
            program.kill()
    print(f"{name}: {done.stderr.strip()}")


def other_release(arguments, work):
    """A gantry-worker as one of another release: its CUDA API table has another hash."""
    text = (arguments.build / "proto/cuda/gen/opcodes.h").read_text()
    known = int(re.search(r"kTableHash = (0x\w+?)ull", text).group(1), 16)
    whole = (arguments.build / "bin/gantry-worker").read_bytes()
    old, new = (value.to_bytes(8, "little") for value in (known, known ^ 0xff))
    expect(old in whole, "the worker does not have the hash of its API table in it")
    worker = work / "gantry-worker"
    worker.write_bytes(whole.replace(old, new))
    worker.chmod(0o755)
    return worker


def worker_dies(arguments, work):
    """The program gets a CUDA error and no hang; the log says how the worker ended, and where."""
    daemon = Daemon(arguments.build, work, "dies")
    out = work / "dies.out"
    with running(daemon):
        program = started(arguments, daemon, out)
        try:
            program.await_steps(2)
            os.kill(daemon.worker_pids()[0], signal.SIGSEGV)
            expect(program.wait() > 0, out.read_text()[-500:])
            expect("error: unknown error" in out.read_text(), out.read_text()[-500:])
            words = re.compile(r"ended: signal 11 \(Segmentation fault\): .* its log is (\S+), and "
                               r"ends with: .*the last command of the guest: (cu\w+|an? .*);")
            wait_until("the reason in the log", lambda: words.search(daemon.log_text()))
        except Failure as failure:
            raise Failure(f"{failure}\n{daemon.log_text()}") from None
        finally:
            program.kill()
        print("worker dies:", words.search(daemon.log_text()).group(0))


def damaged_record(arguments, work):
    """What a gantryd wrote down of a session and somebody has changed: said, and nothing else."""
    daemon = Daemon(arguments.build, work, "damaged")
    sessions = daemon.folder / "run" / "sessions"
    sessions.mkdir(parents=True)
    session = {"id": "local-1-1", "kind": "local", "vm_name": "", "quota_bytes": 1,
               "cc_min": [0, 0], "region_path": "", "region_bytes": 0, "guest_key": ""}
    records = {"arrival": {"source": 5}, "suspended": {"path": []}, "session": 7}
    for name, value in records.items():
        record = {"session": session, "workers": [], name: value}
        (sessions / f"{name}.json").write_text(json.dumps(record))
    with running(daemon):
        for name in records:
            expect(daemon.logged(f"{name}.json is damaged"), f"{name}: {daemon.log_text()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--out-of-memory", type=pathlib.Path, required=True)
    parser.add_argument("--profiles", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    arguments.build, arguments.profiles = arguments.build.resolve(), arguments.profiles.resolve()
    undisturbed = Undisturbed(arguments.build, arguments.program, MIB)
    with tempfile.TemporaryDirectory(prefix="gbad") as folder:
        work = pathlib.Path(folder)
        try:
            quota_exceeded(arguments, work)
            print("quota exceeded: out of memory, and the program goes on")
            one_after_the_other(arguments, work)
            end_not_noticed(arguments, work)
            print("one after the other: each had most of the GPU")
            worker_dies(arguments, work)
            damaged_record(arguments, work)
            print("damaged records of sessions: said, and gantryd starts")
            move_refused(arguments, work, "GPU too small", undisturbed, "gpu.memory",
                         target_profile="small-86")
            move_refused(arguments, work, "foreign certificates", undisturbed, "certificate",
                         foreign=True)
            move_refused(arguments, work, "another release", undisturbed, "version.table",
                         worker=other_release(arguments, work))
        except Failure as failure:
            print(f"FAILED: {failure}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    guard.run(main)
