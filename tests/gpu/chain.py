"""A gantryd on the GPU's own driver, and guest processes beside native ones."""

import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
from daemons import Daemon, Failure, replacements

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


def host_environment():
    """Libraries that gantryd and gantry bring along; never the shim's libcuda.so.1."""
    libraries = os.environ.get("WORKER_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": libraries} if libraries else {}


def add_worker_libraries():
    """For Gantry's own programs that this process starts in its own environment: the same, looked
    for after all else."""
    libraries = os.environ.get("WORKER_LIBRARY_PATH")
    folders = [os.environ.get("LD_LIBRARY_PATH"), libraries]
    if libraries:
        os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))


class Host:
    """A gantryd that serves local guest processes; ended with the block."""

    def __init__(self, build, folder, driver=None, region_mib=4096, extra=None):
        """driver: the CUDA driver library of its workers, if not NVIDIA's. extra: lines by section
        of gantryd.toml."""
        self.build, self.folder = build, folder
        self.daemon = Daemon(build, folder, "d", driver=str(driver or "libcuda.so.1"),
                             environment=host_environment(), region_mib=region_mib, extra=extra)
        self.path = self.daemon.guest_socket

    def __enter__(self):
        try:
            self.daemon.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def has_guest(self):
        """Whether a guest is attached, from the kernel's table: each has a socket of that name
        whose flags lack 0x10000, which is that of the one that accepts connections."""
        with open("/proc/net/unix", encoding="ascii", errors="replace") as table:
            rows = [line.split() for line in table][1:]
        return any(not int(row[3], 16) & 0x10000 for row in rows
                   if len(row) > 7 and row[7] == str(self.path))

    def __exit__(self, *_):
        self.daemon.end_all()

    def log(self):
        """What gantryd said, and those of its workers that did not end as they should."""
        workers = sorted((self.daemon.folder / "run/workers").glob("*.log"))
        return self.daemon.log_text(1 << 24) + "".join(
            f"--- {path.name}\n{path.read_text(errors='replace')}" for path in workers)

    def replace(self, to_device=None, copy=False, staged=False, seconds=120):
        """Moves every guest into a fresh worker process, on another device of the driver's if one
        is given; with `copy` device memory is copied on the same device too, with `staged` by way
        of host memory. The reports; Failure when one was not moved and has not ended either."""
        how = ["--staged"] if staged else ["--copy"] if copy and to_device is None else []
        what = ["replace-worker"] if to_device is None else ["reassign", "--device", str(to_device)]
        reports = []
        for session in [one["session_id"] for one in self.daemon.sessions()]:
            try:
                done = self.daemon.gantry("--json", *what, session, *how, timeout=seconds)
            except subprocess.TimeoutExpired:
                raise Failure(f"no answer within {seconds} s") from None
            try:
                reports += replacements(done)
            except Failure:
                if any(one["session_id"] == session for one in self.daemon.sessions()):
                    raise
        return reports

    def guest_environment(self, report=None):
        environment = {"GANTRY_TRANSPORT": f"unix:{self.path}", **ONE_DEVICE,
                       "LD_LIBRARY_PATH": f"{self.build}/shim:" +
                                          os.environ.get("LD_LIBRARY_PATH", "")}
        if report:
            environment["GANTRY_REPORT"] = str(report)
        return environment


def moves_text(reports):
    """Of Host.replace(); empty when no guest was there."""
    return "; ".join(
        f"process {one['old_pid']} to {one['pid']}: {one['way']}, "
        f"{one['bytes_handed_over'] >> 20} MiB handed over, {one['bytes_copied'] >> 20} copied, "
        f"pause {one['pause_us'] / 1000:.1f} ms" for one in reports)


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
