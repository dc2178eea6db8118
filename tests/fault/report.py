#!/usr/bin/env python3
"""GANTRY_REPORT and GANTRY_TRACE of a real program: shim, gantryd and worker on the soft GPU.

The program (this file once more, with --calls) makes a known number of calls by ctypes: some that
are served, one that fails, two kinds that are refused. Each must be in the files by its name and as
often as it was made; the trace in the order in which the calls were made, by the thread that made
them.
"""

import argparse
import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
import guard
from daemons import PATIENCE, Daemon, Failure, running

INVALID_VALUE, OPERATING_SYSTEM, NOT_SUPPORTED = 1, 304, 801
MEMSETS, REFUSED_COPIES, WRONG_FREES, ROUND_TRIPS = 7, 5, 3, 11


def expect(condition, text):
    if not condition:
        raise Failure(text)


def make_calls():
    cuda = ctypes.CDLL("libcuda.so.1")
    number, pointer = ctypes.c_int(), ctypes.c_uint64()

    def call(name, *arguments, result=0):
        got = getattr(cuda, name)(*arguments)
        if got != result:
            sys.exit(f"{name}: {got}, not {result}")

    call("cuInit", 0)
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(1 << 20))
    for i in range(MEMSETS):
        call("cuMemsetD32Async", pointer, 0x5eed00 + i, ctypes.c_size_t(1 << 10), None)
    for _ in range(REFUSED_COPIES):  # of the first ABI, with 32-bit addresses
        call("cuMemcpyHtoD", 0, None, 4, result=NOT_SUPPORTED)
    call("cuMemcpyDtoD", 0, 0, 4, result=NOT_SUPPORTED)
    for _ in range(WRONG_FREES):
        call("cuMemFree_v2", ctypes.c_uint64(0x1234), result=INVALID_VALUE)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    for _ in range(ROUND_TRIPS):
        call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    call("cuMemFree_v2", pointer)
    call("cuDeviceGetCount", ctypes.byref(number))
    print("thread", os.getpid())


def program(arguments, daemon, wanted=0, **settings):
    environment = {**os.environ, "LD_LIBRARY_PATH": str(arguments.build / "shim"),
                   "GANTRY_TRANSPORT": f"unix:{daemon.guest_socket}", **settings}
    done = subprocess.run([sys.executable, __file__, "--calls"], env=environment,
                          capture_output=True, text=True, timeout=60 * PATIENCE)
    expect(done.returncode == wanted, f"the program: {done}")
    return done


def read_report(path):
    """{(kind, name, result or None): count}"""
    found = {}
    for line in path.read_text().splitlines():
        kind, name, *numbers = line.split()
        key = (kind, name, int(numbers[0]) if kind == "failed" else None)
        expect(key not in found, f"twice in the report: {line}")
        found[key] = int(numbers[-1])
    return found


def check_report(report):
    expect(report.get(("refused", "cuMemcpyHtoD", None)) == REFUSED_COPIES, report)
    expect(report.get(("refused", "cuMemcpyDtoD", None)) == 1, report)
    expect(report.get(("failed", "cuMemFree_v2", INVALID_VALUE)) == WRONG_FREES, report)
    expect(report.get(("round-trip", "cuMemGetInfo_v2", None)) == ROUND_TRIPS, report)
    others = {key for key in report if key[0] in ("refused", "failed")}
    expect(len(others) == 3, f"more was refused or failed than the program saw: {others}")
    expect(not any(name == "cuMemsetD32Async" for _, name, _ in report), report)


def check_trace(text, thread):
    lines = [line.split(maxsplit=2) for line in text.splitlines()]
    expect(all(len(line) == 3 and " trailing=" in line[2] for line in lines), text[:500])
    expect({int(line[1]) for line in lines} == {thread}, "a line of another thread")
    times = [int(line[0]) for line in lines]
    expect(times == sorted(times), "lines out of order")
    values = [line[2] for line in lines if line[2].startswith("cuMemsetD32Async")]
    expect(len(values) == MEMSETS, f"{len(values)} memsets: {values}")
    for i, one in enumerate(values):
        expect(any(word in one for word in (hex(0x5eed00 + i), str(0x5eed00 + i))), one)
    asked = sum(line[2].startswith("cuMemGetInfo") for line in lines)
    expect(asked == ROUND_TRIPS, f"{asked} cuMemGetInfo")
    expect(not any(line[2].startswith("cuMemcpyHtoD") for line in lines),
           "a refused call was forwarded")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--calls", action="store_true")
    arguments = parser.parse_args()
    if arguments.calls:
        make_calls()
        return 0
    arguments.build = arguments.build.resolve()
    with tempfile.TemporaryDirectory(prefix="greport") as folder:
        work = pathlib.Path(folder)
        try:
            with running(Daemon(arguments.build, work, "a")) as (daemon,):
                trace = work / "trace"
                done = program(arguments, daemon, GANTRY_REPORT=str(work / "report"),
                               GANTRY_TRACE=str(trace))
                pid = int(done.stdout.split()[1])
                check_report(read_report(work / f"report.{pid}"))
                check_trace(trace.read_text(), pid)
                files = set(work.iterdir())
                program(arguments, daemon)
                expect(set(work.iterdir()) == files, "files although nobody asked for them")
                missing = work / "no" / "such"
                for setting in ("GANTRY_REPORT", "GANTRY_TRACE"):
                    done = program(arguments, daemon, 1, **{setting: str(missing)})
                    expect(f"{setting}={missing}: No such file" in done.stderr and
                           f"cuInit: {OPERATING_SYSTEM}," in done.stderr, f"{done}")
        except Failure as failure:
            print(f"FAILED: {failure}", file=sys.stderr)
            return 1
    print("what was refused, failed, waited and forwarded is in the files, by name and count")
    return 0


if __name__ == "__main__":
    guard.run(main)
