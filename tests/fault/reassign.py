#!/usr/bin/env python3
"""`gantry reassign` through a real gantryd: a running program goes from one soft GPU to another.

From device to device and by way of host memory, with gantryd killed and started again between, and
with the fresh worker killed in mid-move. The program's digests must be those of an undisturbed run,
and the status, the promised memory and the sandbox those of the device that the session is on. What
cannot be is refused by a reason, and changes nothing.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from replacement import DEADLINE_S, MIB, STEPS_AFTER, Rig

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
from daemons import PATIENCE, Failure, replacements, wait_until
from programs import Program, Undisturbed

QUOTA_MIB = 384
# Two that have room for two programs, and one that has room for none.
DEVICES = (("First", 900), ("Second", 900), ("Tiny", 64), ("Half", 500))
DEVICE = """[[device]]
name = "{name}"
compute_capability = "9.0"
sm_count = 8
memory_bytes = {bytes}
uuid = "67616e74-7279-4032-8030-00000000000{number}"
pci = "0000:{number}0:00.0"
"""


def profile(folder):
    path = folder / "devices.toml"
    path.write_text("".join(DEVICE.format(name=name, bytes=mib << 20, number=number)
                            for number, (name, mib) in enumerate(DEVICES)))
    return path


def demand(truth, text):
    if not truth:
        raise Failure(text)


class Case(Rig):
    """Rig's program, on the first of DEVICES."""

    def __init__(self, arguments, folder, hold=None):
        super().__init__(arguments.build, arguments.program, folder, "peer", hold, extra={
            "worker": f'profile = "{profile(folder)}"\n', "guest": f"memory_mib = {QUOTA_MIB}\n",
            "placement": 'policy = "first"\n'})

    def ask(self, device, *how):
        return self.daemon.gantry("--json", "reassign", self.session, "--device", device, *how,
                                  timeout=2 * DEADLINE_S * PATIENCE)

    def replace(self):
        return self.ask("1")

    def status(self):
        return json.loads(self.daemon.gantry("--json", "status").stdout)

    def check_on(self, device, promised_on_first):
        """What the session is on, as status, books and the worker itself have it."""
        status = self.status()
        session, = [one for one in status["sessions"] if one["session_id"] == self.session]
        worker, = session["workers"]
        demand((session["device"], session["device_name"], worker["device"], worker["state"]) ==
               (device, DEVICES[device][0], device, "serving"), f"not on {device}: {session}")
        demand(int(status["memory_promised_bytes"]) == promised_on_first * QUOTA_MIB << 20,
               f"promised on the first: {status}")
        visible = f"CUDA_VISIBLE_DEVICES={device}".encode()
        environment = pathlib.Path(f"/proc/{worker['pid']}/environ").read_bytes().split(b"\0")
        demand(visible in environment, f"the worker sees {environment}")

    def refused(self, reason, device, *how):
        before = self.daemon.worker_pids()
        done = self.ask(device, *how)
        demand(done.returncode == 1 and json.loads(done.stderr)["error"]["reason"] == reason,
               f"{reason} was expected: {done}")
        demand(self.daemon.worker_pids() == before, "the refusal changed the worker")

    def moved(self, way, device, *how):
        self.program.goes_on()
        report, = replacements(self.ask(str(device), *how))
        demand(report["way"] == way and report["bytes_copied"] >= MIB << 20, f"{report}")
        self.program.goes_on(STEPS_AFTER)
        return f"{report['pause_us'] / 1000:.1f}"


def to_and_fro(case, undisturbed):
    pauses = [case.moved("peer", 1)]
    case.check_on(1, 0)
    case.refused("reassign.same_device", "1")
    case.refused("reassign.device", "9")
    case.refused("reassign.request", "256")
    case.refused("gpu.memory.too_small", "2")
    pauses.append(case.moved("staged", 0, "--staged"))
    case.check_on(0, 1)
    pauses.append(case.moved("peer", 3))
    case.check_on(3, 0)
    case.daemon.kill()
    case.daemon.start()
    case.check_on(3, 0)
    pauses.append(case.moved("peer", 1))
    case.check_on(1, 0)
    undisturbed.check(case.program, case.program.end(DEADLINE_S))
    print(f"pauses of {', '.join(pauses)} ms, digests equal, all refusals as they should be")


def two_programs(case, undisturbed):
    """The books of each device: where another program has the memory, there is none left."""
    other = Program(case.program.child.args, case.program.out.with_name("other"), {
        "LD_LIBRARY_PATH": f"{case.daemon.build}/shim",
        "GANTRY_TRANSPORT": f"unix:{case.daemon.guest_socket}"})
    try:
        other.await_steps(1, DEADLINE_S)
        second, = [one["session_id"] for one in case.daemon.sessions()
                   if one["session_id"] != case.session]
        case.check_on(0, 2)
        case.moved("peer", 3)
        case.check_on(3, 1)
        first, case.session = case.session, second
        case.refused("gpu.memory.in_use", "3")
        case.session = first
        other.goes_on(1)
        undisturbed.check(other, other.end(DEADLINE_S))
        wait_until("the other session's end", lambda: len(case.daemon.sessions()) == 1)
        case.check_on(3, 0)
        undisturbed.check(case.program, case.program.end(DEADLINE_S))
    finally:
        other.kill()
    print("memory that is promised on a device is not promised twice")


def suspended(case, undisturbed):
    """One that is suspended has no worker to be moved, and is restored where it was."""
    case.moved("peer", 1)
    file = case.hold_file.with_name("s.gsnap")
    done = case.daemon.gantry("snapshot", case.session, file, "--suspend")
    demand(done.returncode == 0, f"not suspended: {done}")
    case.refused("session.busy", "0")
    done = case.daemon.gantry("restore", case.session, file)
    demand(done.returncode == 0, f"not restored: {done}")
    case.check_on(1, 0)
    case.program.goes_on(STEPS_AFTER)
    undisturbed.check(case.program, case.program.end(DEADLINE_S))
    print("a suspended session is not moved, and is restored on its device")


def cut_short(case, undisturbed):
    """The fresh worker dies while the old one is frozen."""
    case.program.goes_on()
    done = case.replace_and_kill("frozen", "fresh")
    demand(done.returncode == 1, f"moved into a dead worker: {done}")
    case.program.goes_on(STEPS_AFTER)
    case.check_on(0, 1)
    case.moved("peer", 1)
    case.check_on(1, 0)
    undisturbed.check(case.program, case.program.end(DEADLINE_S))
    print("a reassignment that failed leaves the session where it was, and can be made again")


def run(arguments, act, undisturbed):
    with tempfile.TemporaryDirectory(prefix="gantry-") as folder:
        case = Case(arguments, pathlib.Path(folder), arguments.hold if act is cut_short else None)
        try:
            act(case, undisturbed)
        except Failure as failure:
            raise Failure(f"{failure}\n{case.log()}") from failure
        finally:
            case.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("build", "program", "hold"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--only", help="one case")
    arguments = parser.parse_args()
    for name in ("build", "program", "hold"):
        setattr(arguments, name, getattr(arguments, name).resolve())
    undisturbed, failed = Undisturbed(arguments.build, arguments.program, MIB), 0
    for act in (to_and_fro, two_programs, suspended, cut_short):
        if arguments.only in (None, act.__name__):
            try:
                run(arguments, act, undisturbed)
            except (Failure, subprocess.TimeoutExpired) as failure:
                failed += 1
                print(f"FAIL {act.__name__}: {failure}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
