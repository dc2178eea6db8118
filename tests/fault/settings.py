#!/usr/bin/env python3
"""Misspelt settings in the environment, and `gantry watch` of what is not there: errors at once.

Whole programs as they are given out, each with a variable that is none of Gantry's, one letter off
one that is; and each with every name that the project knows, which is no mistake.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
import guard
from daemons import PATIENCE, Daemon, Failure, running

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Program, arguments that end at once without the mistake, exit status with and without it.
PROGRAMS = (
    ("gantryd", ["--check", "--config", "/nonexistent"], 1, 1),
    ("gantry", ["--socket", "/nonexistent", "status"], 2, 3),
    ("gantry-worker", [], 2, 2),
    ("gantry-relay", ["--listen", "none"], 2, 2),
    ("gantry-guest", ["--host", "none"], 2, 2),
)
WRONG = "unknown setting GANTRY_FINGERPRINT in the environment; the nearest that is known is " \
        "GANTRY_FINGERPRINTS: correct it or unset it"
# What Kubernetes gives a pod beside a Service named "gantry", and another tool its jobs.
FOREIGN = {"GANTRY_SERVICE_HOST": "10.0.0.1", "GANTRY_PORT": "tcp://10.0.0.1:7700",
           "GANTRY_PORT_7700_TCP_ADDR": "10.0.0.1", "GANTRY_VERSION": "3.1.0", "GANTRY_HOST": "x"}


def expect(condition, text):
    if not condition:
        raise Failure(text)


def run(program, *words, **variables):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GANTRY_")}
    return subprocess.run([program, *words], env={**clean, **variables}, capture_output=True,
                          text=True, timeout=30 * PATIENCE)


def known_settings():
    table = (ROOT / "proto/base/settings.h").read_text()
    return re.findall(r'"(GANTRY_[A-Z_]+)"', table)


def settings_in_use():
    """Names that anything in the tree reads from its environment, with one file of each."""
    reads = re.compile(r'(?:getenv\("|key_is\(\*entry, key_bytes, "|environ(?:\.\w+\(|\[)["\']'
                       r'|\$\{?|ENVIRONMENT )(GANTRY_[A-Z_]+)')
    found = {}
    for top in ("guest-shim", "host-daemon", "migration", "scripts", "tests"):
        for path in (ROOT / top).rglob("*"):
            if path.is_file() and path.name != "CMakeLists.txt" and path.stat().st_size < 1 << 20:
                for name in reads.findall(path.read_text(errors="replace")):
                    found.setdefault(name, path)
    return found


def misspelt(build):
    for name, words, wrong, right in PROGRAMS:
        program = build / "bin" / name
        done = run(program, *words, GANTRY_FINGERPRINT="gpu")
        expect(done.returncode == wrong and WRONG in done.stderr, f"{name}: {done}")
        done = run(program, *words, **{one: "" for one in known_settings()})
        expect(done.returncode == right and "unknown setting" not in done.stderr, f"{name}: {done}")
        done = run(program, *words, **FOREIGN)
        expect(done.returncode == right and "unknown setting" not in done.stderr, f"{name}: {done}")
        expect(run(program, "--help", GANTRY_FINGERPRINT="gpu").returncode in (0, 2), name)
        print(f"{name}: a misspelt setting is refused, and no name of ours or of others")
    done = run(build / "bin/gantry", "--socket", "/nonexistent", "hook", "released", "g1",
               GANTRY_FINGERPRINT="gpu")
    expect(done.returncode == 0 and not done.stderr, f"what lets go was refused: {done}")
    hook(build)


def hook(build):
    """libvirt's own script, of a VM without our metadata and of one of ours."""
    script = ROOT / "migration/libvirt/hooks/50-gantry"
    for ours, wanted in (("", 0), ("<x xmlns:gantry='urn:gantry:vm:1'/>", 1)):
        clean = {name: value for name, value in os.environ.items()
                 if not name.startswith("GANTRY_")}
        done = subprocess.run(["sh", script, "g1", "migrate", "begin", "-"], input=ours, text=True,
                              env={**clean, **FOREIGN, "GANTRY": build / "bin/gantry"},
                              capture_output=True, timeout=60 * PATIENCE)
        expect(done.returncode == wanted and "unknown setting" not in done.stderr, f"{done}")
    print("50-gantry: takes no offence at names of others")


def watch_unknown(build, work):
    with running(Daemon(build, work, "watch")) as (daemon,):
        for words in (["g1"], ["g1", "--forever"]):
            done = daemon.gantry("watch", *words)
            expect(done.returncode == 4 and "session.unknown" in done.stderr, f"{done}")
        try:
            done = daemon.gantry("watch", "g1", "--wait", timeout=2)
            raise Failure(f"--wait did not wait: {done}")
        except subprocess.TimeoutExpired:
            pass
    print("gantry watch: a session that is not there is an error at once, or waited for if asked")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    build = parser.parse_args().build.resolve()
    with tempfile.TemporaryDirectory(prefix="gset") as folder:
        try:
            missing = {name: str(path) for name, path in settings_in_use().items()
                       if name not in known_settings()}
            expect(not missing, f"read somewhere, not in proto/base/settings.h: {missing}")
            unused = set(known_settings()) - set(settings_in_use())
            expect(not unused, f"in proto/base/settings.h, and read nowhere: {unused}")
            misspelt(build)
            watch_unknown(build, pathlib.Path(folder))
        except Failure as failure:
            print(f"FAILED: {failure}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    guard.run(main)
