"""A gantry-worker on the GPU's own driver, and guest processes beside native ones."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

SKIPPED = 77  # Exit status by which a test says that it was not run.


def missing():
    """Why nothing can be run on a GPU here; None when all is there."""
    if not pathlib.Path("/dev/nvidiactl").exists():
        return "no NVIDIA GPU here (/dev/nvidiactl is missing)"
    found = subprocess.run([sys.executable, "-c", "import torch"], check=False,
                           capture_output=True)
    return None if found.returncode == 0 else f"no PyTorch in {sys.executable}"


def worker_environment():
    """Libraries that the worker brings along; never the shim's libcuda.so.1."""
    libraries = os.environ.get("WORKER_LIBRARY_PATH")
    return {**os.environ, "LD_LIBRARY_PATH": libraries} if libraries else dict(os.environ)


class Worker:
    """A gantry-worker that serves local guest processes; ended with the block."""

    def __init__(self, build, folder, extra=()):
        self.path = folder / "worker.sock"
        self.build = build
        self.log = open(folder / "worker.log", "wb")
        self.child = subprocess.Popen(
            [build / "bin/gantry-worker", "--listen", self.path, *extra], stdout=self.log,
            stderr=self.log, env=worker_environment(), start_new_session=True)

    def __enter__(self):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self.child.poll() is None:
            if self.is_listening():
                return self
            time.sleep(0.02)
        self.__exit__()
        raise RuntimeError("gantry-worker did not come up: see worker.log")

    def is_listening(self):
        """The kernel's table of unix sockets marks those that accept connections by 0x10000."""
        with open("/proc/net/unix", encoding="ascii", errors="replace") as table:
            rows = [line.split() for line in table][1:]
        return any(len(row) > 7 and row[7] == str(self.path) and int(row[3], 16) & 0x10000
                   for row in rows)

    def __exit__(self, *_):
        try:
            os.killpg(self.child.pid, signal.SIGTERM)
            self.child.wait(timeout=10)
        except ProcessLookupError:
            pass
        except subprocess.TimeoutExpired:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
        self.log.close()

    def replace(self, to_device=None):
        """Moves every guest into a fresh worker process, on another device of the driver's if one
        is given; returns (worked, text)."""
        target = [] if to_device is None else ["--to-device", str(to_device)]
        moved = subprocess.run([self.build / "bin/gantry-worker", "--replace", self.path, *target],
                               capture_output=True, text=True, check=False, timeout=120,
                               env=worker_environment())
        return moved.returncode == 0, moved.stdout + moved.stderr

    def guest_environment(self, report=None):
        environment = {"GANTRY_TRANSPORT": f"unix:{self.path}",
                       "LD_LIBRARY_PATH": f"{self.build}/shim:" +
                                          os.environ.get("LD_LIBRARY_PATH", "")}
        if report:
            environment["GANTRY_REPORT"] = str(report)
        return environment


def run(command, environment, log, seconds):
    """Runs a process group to its end or its time limit; returns (status, stdout)."""
    with open(log, "wb") as errors, tempfile.TemporaryFile() as out:
        child = subprocess.Popen([str(part) for part in command], stdout=out, stderr=errors,
                                 env={**os.environ, **environment}, start_new_session=True)
        try:
            status = child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            status = "timeout"
            os.kill(child.pid, signal.SIGABRT)  # faulthandler prints every thread's stack.
            time.sleep(1)
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
        out.seek(0)
        return status, out.read().decode(errors="replace")


def lines_of(text):
    """The lines whose bits must agree between two runs."""
    return [line for line in text.splitlines() if line.startswith(("value ", "step "))]
