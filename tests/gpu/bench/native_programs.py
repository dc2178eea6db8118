"""Rows that nvcc's programs and train.py give on NVIDIA's driver, natively and through Gantry."""

import json
import os
import pathlib
import statistics
import subprocess
import tempfile

from table import values

TESTS = pathlib.Path(__file__).resolve().parents[1]


def output_of(command, environment=None, seconds=600):
    merged = {**os.environ, **(environment or {})}
    result = subprocess.run([str(part) for part in command], env=merged, capture_output=True,
                            text=True, check=False, timeout=seconds)
    if result.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {result.returncode}: {result.stderr}")
    return result.stdout


def figures(command, environment=None):
    """What a program prints as 'name value' lines, as a dictionary."""
    return {name: float(value) for name, value in
            (line.split() for line in output_of(command, environment).splitlines()
             if len(line.split()) == 2)}


def shim(bench, path):
    """The environment of a program that the worker at `path` serves."""
    return {"LD_LIBRARY_PATH": bench.runner.library_path("shim"),
            "GANTRY_TRANSPORT": f"unix:{path}"}


def interleaved(bench, program):
    """Figures of runs natively and through shim and worker, in turn: two lists."""
    native, through = [], []
    with bench.runner.worker() as path:
        for _ in range(bench.rounds):
            native.append(figures([program]))
            through.append(figures([program], shim(bench, path)))
    return native, through


def launches(bench):
    native, through = interleaved(bench, bench.build / "programs/launch_loop")
    for name, text, limit in (("loop_us", "a launch in a loop of 100,000", 1.0),
                              ("mixed_us", "... of three kernels, other arguments each time", 1.0),
                              ("random_us", "... of two, in an order that does not repeat", 1.0),
                              ("issue_us", "launch issue in the application's thread", 0.2),
                              ("sync_us", "launch and synchronise", 1.08),
                              ("null_us", "memory information (a round trip)", 1.0)):
        bench.table.pair(text, values(through, name), values(native, name), "us", limit)
    bench.table.add("launch issue, Gantry", values(through, "issue_us"), "us", 0.5)
    bench.table.add("null round trip over shared memory", values(through, "null_us"), "us", 0.6)


def copies(bench):
    """Copies between host and device by kind and size."""
    native, through = interleaved(bench, bench.build / "programs/copies")
    for name in native[0]:
        limit = 0.97 if name.startswith("pinned") else 1.0
        bench.table.pair(f"copy {name}", values(through, name), values(native, name), "GB/s",
                         limit, higher_is_better=True)


def memory(bench):
    """Fingerprints and staged copies, beside plain page-locked copies."""
    got = figures([bench.build / "bin/gantry-block-rate", "libcuda.so.1"])
    bench.table.add("fingerprint scan", [got["fingerprint"]], "GB/s", 4300, at_least=True)
    for way in ("out", "in"):
        bench.table.pair(f"staged copy of blocks / plain page-locked copy, {way}",
                         got[f"staged_{way}"], got[f"plain_{way}"], "GB/s", 0.95, True,
                         beside="plain")


def training(bench):
    """Steps per second of tests/gpu/train.py: eager with a CUDA graph, and by torch.compile."""
    for name, extra in (("eager", ["--eager"]), ("torch.compile", [])):
        with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
            result = subprocess.run(
                [str(TESTS / "training"), "--build", str(bench.build), "--steps", "300",
                 "--rounds", str(min(bench.rounds, 3)), "--json", file.name, "--", "--every", "50",
                 *extra], check=False, capture_output=True, text=True)
            if result.returncode == 77:
                bench.table.skipped("PyTorch training", result.stdout.strip())
                return
            got = json.loads(file.read() or "{}")
        row = f"train.py, {name}"
        if result.returncode != 0 or not got or not statistics.fmean(got["native"]):
            bench.table.failed(row, f"{result.stdout}{result.stderr}")
            continue
        bench.table.pair(row, got["gantry"], got["native"], "steps/s", 0.98, True)
