"""A gantry-worker on the GPU's own driver, and guest processes beside native ones."""

import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

# A guest process has one device. What CUDA_VISIBLE_DEVICES says around a test chooses the worker's.
ONE_DEVICE = {"CUDA_VISIBLE_DEVICES": "0"}
SKIPPED = 77  # Exit status by which a test says that it was not run.


def missing_gpu(number=0):
    """Why no CUDA program can be run on that GPU here; None when there is one."""
    if not pathlib.Path("/dev/nvidiactl").exists():
        return "no NVIDIA GPU here (/dev/nvidiactl is missing)"
    if number > 0:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
        count = len(re.findall(r"^GPU \d+", listed.stdout, re.M))
        return f"no GPU {number} here, there are {count}" if count <= number else None
    return None


def missing(number=0):
    """Why PyTorch cannot be run on that GPU here; None when all is there."""
    if why := missing_gpu(number):
        return why
    found = subprocess.run([sys.executable, "-c", "import torch"], check=False,
                           capture_output=True)
    return None if found.returncode == 0 else f"no PyTorch in {sys.executable}"


def library_folders():
    """Where CUDA's libraries lie here: the toolkit's and those of NVIDIA's Python packages."""
    found = [pathlib.Path("/usr/local/cuda/lib64")]
    package = importlib.util.find_spec("nvidia")
    for place in (package.submodule_search_locations or []) if package else []:
        found += sorted(pathlib.Path(place).glob("*/lib"))
    return [str(folder) for folder in found if folder.is_dir()]


def search_path(*first):
    """An LD_LIBRARY_PATH: these folders, what is set already, then where CUDA's libraries lie."""
    folders = [*map(str, first), *os.environ.get("LD_LIBRARY_PATH", "").split(":"),
               *library_folders()]
    return ":".join(folder for folder in folders if folder)


def worker_environment():
    """Libraries that the worker brings along; never the shim's libcuda.so.1."""
    libraries = os.environ.get("WORKER_LIBRARY_PATH")
    return {**os.environ, "LD_LIBRARY_PATH": libraries} if libraries else dict(os.environ)


def add_worker_libraries():
    """For Gantry's own programs that this process starts in its own environment: the same, looked
    for after all else."""
    libraries = os.environ.get("WORKER_LIBRARY_PATH")
    folders = [os.environ.get("LD_LIBRARY_PATH"), libraries]
    if libraries:
        os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))


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

    def sockets(self):
        """The flags of each unix socket of the worker's name, from the kernel's table: 0x10000 for
        the one that accepts connections, 0 for the worker's end of each guest's."""
        with open("/proc/net/unix", encoding="ascii", errors="replace") as table:
            rows = [line.split() for line in table][1:]
        return [int(row[3], 16) for row in rows if len(row) > 7 and row[7] == str(self.path)]

    def is_listening(self):
        return any(flags & 0x10000 for flags in self.sockets())

    def has_guest(self):
        return any(not flags & 0x10000 for flags in self.sockets())

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

    def replace(self, to_device=None, copy=False, seconds=120):
        """Moves every guest into a fresh worker process, on another device of the driver's if one
        is given; with `copy` device memory is copied on the same device too. Returns (worked,
        text)."""
        how = [] if to_device is None else ["--to-device", str(to_device)]
        how += ["--copy"] if copy else []
        try:
            moved = subprocess.run([self.build / "bin/gantry-worker", "--replace", self.path, *how],
                                   capture_output=True, text=True, check=False, timeout=seconds,
                                   env=worker_environment())
        except subprocess.TimeoutExpired:
            return False, f"no answer within {seconds} s"
        return moved.returncode == 0, moved.stdout + moved.stderr

    def guest_environment(self, report=None):
        environment = {"GANTRY_TRANSPORT": f"unix:{self.path}", **ONE_DEVICE,
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
