#!/usr/bin/env python3
"""`gantry account` of a program whose kernels, their numbers and the ratio of their lengths are
known; its metric; and the refusal where nothing is accounted.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
from daemons import PATIENCE, Daemon, Failure, free_port, running

SHORTS, LONGS, RATIO = 300, 100, 10


def expect(condition, text):
    if not condition:
        raise Failure(text)


class Program:
    def __init__(self, build, program, daemon):
        environment = {**os.environ, "LD_LIBRARY_PATH": f"{build}/shim",
                       "GANTRY_TRANSPORT": f"unix:{daemon.guest_socket}"}
        begun = time.monotonic()
        self.child = subprocess.Popen([program, str(SHORTS), str(LONGS)], env=environment,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        expect(self.child.stdout.readline() == "ready\n", "the program did not start")
        self.took_s = time.monotonic() - begun

    def finish(self):
        self.child.communicate("\n", timeout=60 * PATIENCE)
        expect(self.child.returncode == 0, f"the program ended with {self.child.returncode}")


def accounted(build, program, daemon, port):
    guest = Program(build, program, daemon)
    session = daemon.sessions()[0]["session_id"]
    done = daemon.gantry("--json", "account", session)
    expect(done.returncode == 0, f"account: {done}")
    account = json.loads(done.stdout)
    (one,) = account["programs"]
    kernels = {kernel["entry"]: kernel for kernel in one["kernels"]}
    (short,) = [kernel for entry, kernel in kernels.items() if "short_kernel" in entry]
    (long,) = [kernel for entry, kernel in kernels.items() if "long_kernel" in entry]
    expect(int(short["launches"]) == SHORTS and int(long["launches"]) == LONGS,
           f"launches: {short}, {long}")
    expect((short["grid"], short["block"]) == ([1, 1, 1], [64, 1, 1]) and
           (long["grid"], long["block"]) == ([1, 1, 1], [128, 1, 1]), f"shapes: {short}, {long}")
    expect(len(short["image_sha256"]) == 64 and short["image_sha256"] == long["image_sha256"],
           f"images: {short}, {long}")
    for kernel in (short, long):
        expect(0 < int(kernel["samples"]) <= int(kernel["launches"]), f"samples: {kernel}")
    ratio = (long["gpu_us"] / LONGS) / (short["gpu_us"] / SHORTS)
    expect(RATIO / 2 < ratio < RATIO * 2, f"a long kernel took {ratio:.1f} times a short one")
    expect(account["gpu_us"] == one["gpu_us"] and 0 < one["gpu_us"] < guest.took_s * 1e6,
           f"{account['gpu_us']} us of {guest.took_s} s")
    text = daemon.gantry("account", session).stdout
    expect("long_kernel" in text and "short_kernel" in text, f"the text form: {text}")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as page:
        lines = [line for line in page.read().decode().splitlines()
                 if line.startswith("gantry_worker_gpu_seconds_total{")]
    expect(len(lines) == 1 and session in lines[0] and
           0.5 < float(lines[0].split()[-1]) * 1e6 / account["gpu_us"] < 2, f"metric: {lines}")
    guest.finish()
    print(f"{SHORTS} short and {LONGS} long kernels, {ratio:.1f} times as long")


def refused(build, program, daemon):
    guest = Program(build, program, daemon)
    done = daemon.gantry("account", daemon.sessions()[0]["session_id"])
    expect(done.returncode == 1 and "[account.off]" in done.stderr, f"off: {done}")
    guest.finish()
    print("where nothing is accounted, the command says so")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--driver", help="CUDA driver library; left out: the soft GPU")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gantry-account-") as folder:
        work = pathlib.Path(folder)
        port = free_port()
        on = Daemon(arguments.build, work, "on", driver=arguments.driver, extra={
            "worker": "account = true\n", "metrics": f'listen = "127.0.0.1:{port}"\n'})
        off = Daemon(arguments.build, work, "off", driver=arguments.driver)
        with running(on):
            accounted(arguments.build, arguments.program, on, port)
        with running(off):
            refused(arguments.build, arguments.program, off)
    return 0


if __name__ == "__main__":
    sys.exit(main())
