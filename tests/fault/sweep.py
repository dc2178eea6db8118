#!/usr/bin/env python3
"""Kills and cuts real processes in the middle of real moves.

Two gantryds on loopback with mutual TLS, real workers on the soft GPU, and a CUDA program whose
session is moved with `gantry pull`. Each case does one harm at one named step; the program must then
end with exactly the digests of an undisturbed run, or with a clear CUDA error, within its deadline:
never with wrong digests, and never hang. All that was started is ended, by process id.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

STEPS, MIB, PAUSE_MS = 24, 32, 100
PROGRAM_DEADLINE_S = 60
CLEAR_ERROR = re.compile(r"^error: \S.*", re.M)


class Failure(Exception):
    pass


def wait_until(what, condition, seconds=20.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise Failure(f"waited {seconds} s in vain for {what}")


def make_certificates(folder):
    script = """
set -e
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem \
    -days 2 -subj /CN=authority
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout host.key -out host.csr \
    -subj /CN=host
echo subjectAltName=IP:127.0.0.1 >ext
openssl x509 -req -in host.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext \
    -out host.pem
"""
    subprocess.run(["sh", "-c", script], cwd=folder, check=True, stderr=subprocess.DEVNULL)


class Daemon:
    """One gantryd; `kill` and `start` again keep its folders, as a restart of the service does."""

    def __init__(self, build, folder, name, port, arguments):
        self.folder, self.name, self.port = folder / name, name, port
        self.folder.mkdir()
        self.build, self.child, self.starts = build, None, 0
        (self.folder / "gantryd.toml").write_text(f"""
[daemon]
run_directory = "{self.folder}/run"
state_directory = "{self.folder}/state"
host_name = "{name}"
log_level = "debug"
[operator]
socket = "{self.folder}/run/operator.sock"
[guest]
socket = "{self.folder}/run/guest.sock"
region_mib = 64
[vm]
libvirt_uri = ""
[worker]
executable = "{build}/bin/gantry-worker"
driver = "{build}/lib/libcuda-soft.so.1"
user = ""
private_tmp = false
image_cache = ""
[peer]
listen = "127.0.0.1:{port}"
authority = "{folder}/ca.pem"
certificate = "{folder}/host.pem"
key = "{folder}/host.key"
streams = 2
[migration]
bandwidth_mib_s = {arguments.bandwidth}
reservation_s = 5
""")

    @property
    def guest_socket(self):
        return self.folder / "run" / "guest.sock"

    def start(self):
        self.starts += 1
        self.log = self.folder / f"log.{self.starts}"
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen(
                [self.build / "bin" / "gantryd", "--config", self.folder / "gantryd.toml"],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_until(f"gantryd {self.name}", self.is_ready, 30)

    def is_ready(self):
        if self.child.poll() is not None:
            raise Failure(f"gantryd {self.name} ended:\n{self.log.read_text()}")
        return "is ready" in self.log.read_text()

    def kill(self, how=signal.SIGKILL):
        if self.child is not None:
            with contextlib.suppress(ProcessLookupError):
                self.child.send_signal(how)
            self.child.wait(timeout=20)
            self.child = None

    def gantry(self, *words, timeout=40):
        return subprocess.run(
            [self.build / "bin" / "gantry", "--socket", self.folder / "run" / "operator.sock",
             *words], capture_output=True, text=True, timeout=timeout)

    def sessions(self):
        done = self.gantry("--json", "status")
        return json.loads(done.stdout)["sessions"] if done.returncode == 0 else []

    def worker_pids(self):
        return [worker["pid"] for session in self.sessions() for worker in session["workers"]]

    def record_pids(self):
        """From the run directory, so also when gantryd is dead."""
        pids = []
        for path in (self.folder / "run" / "sessions").glob("*.json"):
            with contextlib.suppress(json.JSONDecodeError, FileNotFoundError):
                pids += [worker["pid"] for worker in json.loads(path.read_text())["workers"]]
        return pids

    def logged(self, text):
        return any(text in path.read_text() for path in self.folder.glob("log.*"))


class Stage:
    """Both gantryds, the program, and the move; ends everything at the end of the block."""

    def __init__(self, arguments, index):
        self.arguments, self.index = arguments, index

    def __enter__(self):
        self.holder = tempfile.TemporaryDirectory(prefix="gfault")
        folder = pathlib.Path(self.holder.name)
        make_certificates(folder)
        port = 17000 + (os.getpid() * 64 + self.index * 2) % 8000
        self.source = Daemon(self.arguments.build, folder, "a", port, self.arguments)
        self.target = Daemon(self.arguments.build, folder, "b", port + 1, self.arguments)
        self.program, self.known_pids = None, set()
        self.source.start()
        self.target.start()
        return self

    def __exit__(self, *_):
        if self.program is not None and self.program.poll() is None:
            self.program.kill()
            self.program.wait()
        for daemon in (self.source, self.target):
            self.known_pids.update(daemon.record_pids())
            if daemon.child is not None:
                self.known_pids.update(daemon.worker_pids())
            daemon.kill(signal.SIGTERM)
        for pid in self.known_pids:
            self.end_worker(pid)
        self.holder.cleanup()

    @staticmethod
    def end_worker(pid):
        with contextlib.suppress(OSError):
            name = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"gantry-worker" in name:
                os.kill(pid, signal.SIGKILL)

    def run_program(self):
        self.output = open(self.source.folder / "program.out", "w+b")
        environment = dict(os.environ,
                           GANTRY_TRANSPORT=f"unix:{self.source.guest_socket}",
                           LD_LIBRARY_PATH=str(self.arguments.build / "shim"))
        self.program = subprocess.Popen(
            [self.arguments.program, str(MIB), str(STEPS), str(PAUSE_MS)], stdout=self.output,
            stderr=subprocess.STDOUT, env=environment)
        wait_until("the program's first steps", lambda: self.text().count("step") >= 3, 40)
        self.session = self.source.sessions()[0]["session_id"]

    def text(self):
        self.output.flush()
        return pathlib.Path(self.output.name).read_text()

    def begin_move(self):
        def pull():
            self.pulled = self.target.gantry(
                "pull", self.session, "--from", f"127.0.0.1:{self.source.port}", "--handover",
                self.source.folder / "run" / "handover.sock", timeout=PROGRAM_DEADLINE_S)
        self.pulled = None
        self.mover = threading.Thread(target=lambda: contextlib.suppress(Exception) and pull(),
                                      daemon=True)
        self.mover.start()

    def at_step(self, step):
        """Waits for a named step of the move, told by the gantryds' logs."""
        marks = {"offered": (self.source, "-> Offered"), "precopy": (self.source, "-> Precopy"),
                 "freezing": (self.source, "-> Freezing"), "frozen": (self.source, "-> Frozen"),
                 "granted": (self.source, "-> Granted"),
                 "serving": (self.target, "-> Serving")}
        daemon, mark = marks[step]
        wait_until(f"step {step}", lambda: daemon.logged(mark), 30)

    def finish(self):
        try:
            return self.program.wait(timeout=PROGRAM_DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise Failure("the program hangs; its output:\n" + self.text()) from None


def undisturbed(arguments):
    environment = dict(os.environ, LD_LIBRARY_PATH=str(arguments.build / "soft"))
    done = subprocess.run([arguments.program, str(MIB), str(STEPS), "0"], capture_output=True,
                          text=True, env=environment, timeout=120, check=True)
    return done.stdout


def harm_worker(stage, daemon):
    end = time.monotonic() + 2
    pids = daemon.worker_pids()
    while not pids and time.monotonic() < end:
        pids = daemon.worker_pids()
    for pid in pids:  # after the grant the source's worker may have ended by itself: no harm then
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def harm_daemon(stage, daemon):
    stage.known_pids.update(daemon.record_pids())
    daemon.kill()
    time.sleep(0.3)
    daemon.start()


HARMS = {"worker": harm_worker, "gantryd": harm_daemon}
# What may come of it: the digests always may; these cases may end with a clear error as well.
STEPS_OF_MOVE = ("precopy", "freezing", "granted")


def check(stage, wanted, may_fail):
    status = stage.finish()
    text = stage.text()
    if status == 0 and text == wanted:
        return "digests equal"
    steps = "".join(line + "\n" for line in text.splitlines() if line.startswith("step"))
    if not wanted.startswith(steps):
        raise Failure(f"wrong digests (status {status}):\n{text}")
    if may_fail and status == 2 and CLEAR_ERROR.search(text):
        return "clear error: " + CLEAR_ERROR.search(text).group(0)
    raise Failure(f"status {status}, output:\n{text}")


def run_case(arguments, index, wanted, side, victim, step):
    with Stage(arguments, index) as stage:
        try:
            stage.run_program()
            if step != "before":
                stage.begin_move()
                stage.at_step(step)
            HARMS[victim](stage, stage.source if side == "source" else stage.target)
            # Only the death of the worker that holds the only copy may cost the program its run.
            may_fail = victim == "worker" and (side == "source" or step == "granted")
            return check(stage, wanted, may_fail)
        except Failure as failure:
            logs = "".join(f"--- {daemon.name}\n{path.read_text()[-4000:]}\n"
                           for daemon in (stage.source, stage.target)
                           for path in sorted(daemon.folder.glob("log.*")))
            raise Failure(f"{failure}\n{logs}") from None


def run_plain(arguments, index, wanted):
    with Stage(arguments, index) as stage:
        stage.run_program()
        stage.begin_move()
        stage.at_step("serving")
        return check(stage, wanted, False)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--bandwidth", type=int, default=16, help="MiB/s of precopy")
    parser.add_argument("--only", help="cases whose name contains this")
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    cases = {"plain move": lambda i, w: run_plain(arguments, i, w)}
    for side in ("source", "target"):
        for victim in HARMS:
            for step in STEPS_OF_MOVE:
                cases[f"{side} {victim} at {step}"] = (
                    lambda i, w, s=side, v=victim, t=step: run_case(arguments, i, w, s, v, t))
    for victim in HARMS:
        cases[f"source {victim} before a move"] = (
            lambda i, w, v=victim: run_case(arguments, i, w, "source", v, "before"))
    wanted = undisturbed(arguments)
    failed = 0
    chosen = [(name, case) for name, case in cases.items()
              if not arguments.only or arguments.only in name]
    for index, (name, case) in enumerate(chosen):
        begun = time.monotonic()
        try:
            outcome = case(index, wanted)
        except Failure as failure:
            failed += 1
            outcome = f"FAILED: {failure}"
        print(f"{name}: {outcome} ({time.monotonic() - begun:.1f} s)", flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} cases passed")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
