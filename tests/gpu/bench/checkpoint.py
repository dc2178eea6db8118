"""Checkpoint and restore of a process's device memory: Gantry's through a gantryd, into a file on
tmpfs; NVIDIA's cuCheckpointProcess* on a native process with the same bytes; and the link to the
device, measured natively right before each round's checkpoints and before each restore."""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from daemons import Daemon, running
from native_programs import figures

HERE = pathlib.Path(__file__).resolve().parent
GIB = 1 << 30
OF_LINK, FROM_GIB = 0.9, 16  # The promise, and the size from which on it holds.
PIECE = 1 << 26
WARMERS = 8
SUSPENDED_SECONDS = 2
SPARE, GROWTH_SECONDS = 3 * GIB, 10
STEPS = re.compile(r"session \S+ (goes on from|lies in) .*? us \((.*)\)$")
SLOW = 0.25e9  # Bytes per second that bound a wait.


def rounds_for(gib, wanted):
    return 1 if gib > 32 else min(wanted, 2 if gib > 4 else 3)


def available():
    """Bytes that the system says it could give out now."""
    for line in pathlib.Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


@contextlib.contextmanager
def store(most):
    """A folder on tmpfs with room for `most` bytes: mounted for the purpose, with large pages,
    which snapshots make use of; where that is not allowed, below /dev/shm."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gantry-bench-"))
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={most},huge=always", "tmpfs",
                                  folder], check=False, capture_output=True, text=True)
        if mounted.returncode == 0:
            stack.callback(subprocess.run, ["umount", "-l", folder], check=False)
            yield pathlib.Path(folder)
            return
        if shutil.disk_usage("/dev/shm").free <= most:
            raise RuntimeError(f"no tmpfs with room for {most} bytes: {mounted.stderr.strip()}")
        yield pathlib.Path(stack.enter_context(
            tempfile.TemporaryDirectory(prefix="gantry-bench-", dir="/dev/shm")))


def has_room(folder, size):
    """Whether the machine can hold a file of `size`, found by writing one: a virtual machine may be
    given its memory only when it uses it, which is then done, and slow for once."""
    path, piece = folder / "room", bytes(PIECE)
    try:
        with open(path, "wb", buffering=0) as file:
            for _ in range(0, size, PIECE):
                deadline = time.monotonic() + GROWTH_SECONDS
                while available() < SPARE:
                    if time.monotonic() > deadline:
                        return False
                    time.sleep(0.1)
                file.write(piece)
        return True
    except OSError:
        return False
    finally:
        path.unlink(missing_ok=True)


def warm(folder, size):
    """Has `size` bytes of memory touched and free right before they are wanted. A virtual machine
    may get its memory from its host at first touch, far slower than the kernel clears pages, and
    hand it back soon after it was freed: that would be measured, and not a checkpoint."""
    paths = [folder / f"warm{i}" for i in range(WARMERS)]
    piece = bytes(PIECE)

    def fill(path):
        with open(path, "wb", buffering=0) as file:
            for _ in range(0, size // WARMERS, PIECE):
                file.write(piece)

    try:
        with concurrent.futures.ThreadPoolExecutor(WARMERS) as pool:
            list(pool.map(fill, paths))
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def resident(bench, mib, environment):
    """The program with `mib` of device memory, checked at the end of the block."""
    program = subprocess.Popen([bench.build / "programs/resident", str(mib)], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               env={**os.environ, **environment})
    try:
        if program.stdout.readline() != "ready\n":
            raise RuntimeError("the resident program did not start")
        yield program
        out = program.communicate("\n", timeout=300)[0]
        if out != "intact\n":
            raise RuntimeError(f"the resident program's memory is not what it was: {out.strip()}")
    finally:
        program.kill()
        program.wait()


def command(daemon, mib, *words):
    begin = time.monotonic()
    done = daemon.gantry("--json", *words, timeout=60 + (mib << 20) / SLOW)
    if done.returncode != 0:
        raise RuntimeError(f"gantry {words[0]}: {done.stderr.strip()} {daemon.log_text(800)}")
    reply = json.loads(done.stdout)
    elapsed = int(reply["elapsed_us"])
    return {"bytes": int(reply["bytes"]), "seconds": elapsed / 1e6,
            "pause": int(reply.get("pause_us", elapsed)) / 1e6, "wall": time.monotonic() - begin}


def print_steps(daemon):
    """What gantryd's log says of each snapshot and restore: the time of its steps."""
    for line in daemon.log_text(1 << 20).splitlines():
        found = STEPS.search(line)
        if found:
            print(f"    {'restore' if found[1] == 'goes on from' else 'checkpoint'}: {found[2]}")


def link_rates(bench):
    """GB/s of page-locked copies of 1 GiB by a native process: pcie_out, pcie_in."""
    library = "libcuda.so.1" if bench.is_gpu else bench.build / "soft/libcuda.so.1"
    return figures([sys.executable, HERE / "driver.py", "pcie", library])


def gantry_rates(bench, folder, mib, rounds, awaited=True):
    """GB/s of `gantry snapshot --suspend` and, SUSPENDED_SECONDS later, `gantry restore`, of the
    commands as a whole, and of the pause that `gantry snapshot` makes in a program that goes on;
    and of the link, before a round's checkpoints from the device, before its restore to it.
    `awaited`: whether gantryd makes a context meanwhile, as it does unless it is told not to."""
    rates = {"checkpoint": [], "restore": [], "pause": [], "checkpoint_wall": [],
             "restore_wall": [], "link_out": [], "link_in": []}
    work = folder / f"gantryd-{mib}-{'awaited' if awaited else 'alone'}"
    work.mkdir()
    daemon = Daemon(bench.build, work, "a", driver=bench.runner.driver("system"),
                    extra={"worker": f"await_restore = {str(awaited).lower()}\n"})
    with running(daemon):
        environment = {"LD_LIBRARY_PATH": bench.runner.library_path("shim"),
                       "GANTRY_TRANSPORT": f"unix:{daemon.guest_socket}"}
        with resident(bench, mib, environment):
            session = daemon.sessions()[0]["session_id"]
            file = work / "session.gsnap"
            for _ in range(rounds):
                rates["link_out"].append(link_rates(bench)["pcie_out"])
                warm(folder, mib << 20)
                took = command(daemon, mib, "snapshot", session, file)
                rates["pause"].append(took["bytes"] / took["pause"] / 1e9)
                file.unlink()
                warm(folder, mib << 20)
                for name, words in (("checkpoint", ("snapshot", session, file, "--suspend")),
                                    ("restore", ("restore", session, file))):
                    if name == "restore":
                        time.sleep(SUSPENDED_SECONDS)
                        rates["link_in"].append(link_rates(bench)["pcie_in"])
                    took = command(daemon, mib, *words)
                    if took["bytes"] < mib << 20:
                        raise RuntimeError(f"{name}: {took['bytes']} bytes of {mib} MiB")
                    rates[name].append(took["bytes"] / took["seconds"] / 1e9)
                    rates[f"{name}_wall"].append(took["bytes"] / took["wall"] / 1e9)
                for path in work.glob("session.gsnap*"):
                    path.unlink()
            print_steps(daemon)
    return rates


def nvidia_rates(bench, folder, mib, rounds):
    """GB/s of NVIDIA's own checkpoint (lock and checkpoint) and restore (restore and unlock)."""
    rates = {"checkpoint": [], "restore": []}
    with resident(bench, mib, {}) as program:
        for _ in range(rounds):
            warm(folder, mib << 20)
            took = figures([sys.executable, HERE / "driver.py", "checkpoint", program.pid])
            for name, calls in (("checkpoint", ("lock", "checkpoint")),
                                ("restore", ("restore", "unlock"))):
                rates[name].append((mib << 20) / sum(took[call] for call in calls) / 1e9)
    return rates


def size_rows(bench, folder, gib):
    mib, table = round(gib * 1024), bench.table
    rounds = rounds_for(gib, bench.rounds)
    gantry = gantry_rates(bench, folder, mib, rounds)
    promised = OF_LINK if gib >= FROM_GIB and bench.is_gpu else None
    table.pair(f"checkpoint {gib:g} GiB, while the program waits / the link to the device",
               gantry["pause"], gantry["link_out"], "GB/s", promised, True, beside="link")
    for name, way in (("checkpoint", "link_out"), ("restore", "link_in")):
        table.pair(f"{name} {gib:g} GiB / the link to the device", gantry[name], gantry[way],
                   "GB/s", promised, True, beside="link")
        table.add(f"{name} {gib:g} GiB, the whole command", gantry[f"{name}_wall"], "GB/s")
    alone = gantry_rates(bench, folder, mib, rounds, awaited=False)
    table.pair(f"restore {gib:g} GiB, context and all (await_restore off) / the link to the device",
               alone["restore"], alone["link_in"], "GB/s", promised, True, beside="link")
    for way, text in (("link_out", "from the device"), ("link_in", "to the device")):
        table.add(f"the link beside {gib:g} GiB, page-locked copies of 1 GiB, {text}",
                  gantry[way] + alone[way], "GB/s")
    if not bench.is_gpu:
        table.skipped(f"{gib:g} GiB beside cuCheckpointProcess*", "the soft GPU has no such call")
        return
    with table.attempt(f"{gib:g} GiB by cuCheckpointProcess*"):
        nvidia = nvidia_rates(bench, folder, mib, rounds)
        for name in ("checkpoint", "restore"):
            table.pair(f"{name} {gib:g} GiB / cuCheckpointProcess*",
                       [statistics.median(gantry[name])], [statistics.median(nvidia[name])],
                       "GB/s", higher_is_better=True, beside="NVIDIA")


def run(bench):
    """Checkpoint and restore, beside the link to the device and NVIDIA's cuCheckpointProcess*."""
    table = bench.table
    if not (bench.build / "programs/resident").exists():
        table.skipped("checkpoint and restore", "programs/resident was not built (no nvcc)")
        return
    sizes = [float(size) for size in bench.arguments.gib.split(",")]
    with store(int(max(sizes) * 1.02 * GIB) + 2 * GIB) as folder:
        for gib in sizes:
            if not has_room(folder, int((gib * 1.02 + 0.25) * GIB)):
                table.skipped(f"checkpoint and restore, {gib:g} GiB",
                              f"only {available() / GIB:.0f} GiB of host memory are there")
                continue
            with table.attempt(f"checkpoint and restore, {gib:g} GiB"):
                size_rows(bench, folder, gib)
