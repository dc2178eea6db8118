#!/usr/bin/env python3
"""All GPUs of a host in one gantryd: real gantryds on hosts of two soft GPUs.

Two sessions land on different GPUs, a third one finds both full, one that is too large for either
is refused at once; status, top, sched, metrics, the log and --check name each GPU; a session goes
to the other GPU and back with the digests of an undisturbed run; gantryd is killed and started
again, and each session is where it was; a move comes to the GPU that is free; and only those that
worker.devices names are served. What is refused has a reason, and changes nothing.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
import guard
from daemons import PATIENCE, Daemon, Failure, free_port, make_certificates, running, wait_until
from programs import Program, Undisturbed

MIB, PAUSE_MS, DEADLINE_S = 16, 50, 60
QUOTA_MIB = 256
# Each has room for one session.
GPUS = (("First", 400), ("Second", 330))
GPU = """[[device]]
name = "{name}"
compute_capability = "9.0"
sm_count = 8
memory_bytes = {bytes}
uuid = "67616e74-7279-4032-8040-00000000000{number}"
pci = "0000:{number}0:00.0"
"""


def expect(condition, text):
    if not condition:
        raise Failure(text)


class Host:
    """A gantryd and the programs that it serves."""

    def __init__(self, options, folder, name, worker="", **sections):
        self.options, self.folder, self.programs = options, folder, []
        profile = folder / "gpus.toml"
        profile.write_text("".join(GPU.format(name=gpu, bytes=mib << 20, number=number)
                                   for number, (gpu, mib) in enumerate(GPUS)))
        self.metrics_port = free_port()
        extra = {"worker": f'profile = "{profile}"\narbitrate = true\n{worker}',
                 "guest": f"memory_mib = {sections.pop('memory_mib', QUOTA_MIB)}\n",
                 "metrics": f'listen = "127.0.0.1:{self.metrics_port}"\n'}
        self.daemon = Daemon(options.build, folder, name,
                             driver=options.build / "soft/libcuda.so.1",
                             extra={**extra, **sections.pop("extra", {})}, **sections)

    def launch(self):
        out = self.folder / f"{self.daemon.name}.out{len(self.programs)}"
        self.programs.append(Program(
            [self.options.program, MIB, 0, PAUSE_MS], out,
            {"LD_LIBRARY_PATH": f"{self.options.build}/shim",
             "GANTRY_TRANSPORT": f"unix:{self.daemon.guest_socket}"}))
        return self.programs[-1]

    def begin(self):
        """Another program, and its session."""
        known = {one["session_id"] for one in self.daemon.sessions()}
        program = self.launch()
        program.await_steps(1, DEADLINE_S)
        session, = {one["session_id"] for one in self.daemon.sessions()} - known
        return program, session

    def ask(self, *words):
        done = self.daemon.gantry("--json", *words, timeout=2 * DEADLINE_S * PATIENCE)
        expect(done.returncode == 0, f"{words}: {done}")
        return json.loads(done.stdout)

    def preflight(self, *words):
        done = self.daemon.gantry("--json", "preflight", *words)
        expect(done.stdout, f"{words}: {done}")
        return json.loads(done.stdout)

    def text(self, *words):
        done = self.daemon.gantry(*words)
        expect(done.returncode == 0, f"{words}: {done}")
        return done.stdout

    def refused(self, reason, *words):
        done = self.daemon.gantry("--json", *words)
        expect(done.returncode == 1 and json.loads(done.stderr)["error"]["reason"] == reason,
               f"{reason} was expected of {words}: {done}")
        return json.loads(done.stderr)["error"]["text"]

    def places(self):
        """The GPU of each session, as the session and its worker have it."""
        out = {}
        for session in self.ask("status")["sessions"]:
            worker, = session["workers"]
            environment = pathlib.Path(f"/proc/{worker['pid']}/environ").read_bytes().split(b"\0")
            expect(worker["device"] == session["device"] and
                   f"CUDA_VISIBLE_DEVICES={session['device']}".encode() in environment and
                   session["device_name"] == GPUS[session["device"]][0],
                   f"{session} sees {environment}")
            out[session["session_id"]] = session["device"]
        return out

    def promised_mib(self):
        return [int(gpu["memory_promised_bytes"]) >> 20 for gpu in self.ask("status")["gpus"]]

    def metrics(self):
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.read().decode()

    def close(self):
        for program in self.programs:
            program.kill()


def one_each(options, folder, undisturbed):
    host = Host(options, folder, "a")
    with running(host.daemon):
        try:
            first, a = host.begin()
            second, b = host.begin()
            expect(host.places() == {a: 0, b: 1}, f"{host.places()}")
            full(host)
            is_named(host, a, b)
            host.daemon.kill()
            host.daemon.start()
            expect(host.places() == {a: 0, b: 1}, f"after a restart: {host.places()}")
            expect(host.promised_mib() == [QUOTA_MIB, QUOTA_MIB], f"{host.promised_mib()}")
            full(host)
            to_and_fro(host, first, second, a, b, undisturbed)
        except Failure as failure:
            raise Failure(f"{failure}\n{host.daemon.log_text()}") from failure
        finally:
            host.close()
    print("two sessions on two GPUs, each named; a restart and a way to and fro change no digest")


def full(host):
    """A program for which no GPU has room ends with an error; gantryd says of each why."""
    program = host.launch()
    expect(program.wait(DEADLINE_S) != 0 and "error: " in program.text(), program.text())
    host.programs.pop()
    for number, (name, mib) in enumerate(GPUS):
        says = f"GPU {number} ({name}) has {mib} MiB, of which {QUOTA_MIB} MiB are promised"
        expect(host.daemon.logged(says), f"the log does not say: {says}")
    expect(host.daemon.logged("gpu.memory.in_use"), "the log has no reason")


def is_named(host, a, b):
    status = host.ask("status")
    for number, (name, mib) in enumerate(GPUS):
        gpu = status["gpus"][number]
        expect((gpu["device"], gpu["name"], gpu["compute_capability"], gpu["sessions"]) ==
               (number, name, "9.0", 1), f"{gpu}")
        expect(gpu["uuid"] == f"67616e74727940328040{number:012}", f"{gpu}")
        expect(int(gpu["memory_bytes"]) == mib << 20, f"{gpu}")
        expect(int(gpu["memory_promised_bytes"]) == QUOTA_MIB << 20, f"{gpu}")
        expect(MIB << 20 <= int(gpu["memory_used_bytes"]) < 2 * MIB << 20, f"{gpu}")
        text = host.text("status")
        expect(f"GPU {number}:   {name}, {mib}.0 MiB: " in text, text)
        expect(f"   on GPU {number}: {name}\n" in text, text)
        expect(f"GPU {number}       [" in host.text("top", "--once"), host.text("top", "--once"))
        sched = host.ask("sched", "status")["gpus"][number]
        expect((sched["device"], sched["device_name"]) == (number, name), f"{sched}")
        expect(f"GPU {number}, {name}: " in host.text("sched", "status"), "gantry sched status")
        metrics = host.metrics()
        for line in (f'gantry_device_usable{{gpu="{number}"}} 1',
                     f'gantry_device_sessions{{gpu="{number}"}} 1',
                     f'gantry_device_memory_bytes{{gpu="{number}"}} {mib << 20}',
                     f'gantry_device_memory_promised_bytes{{gpu="{number}"}} {QUOTA_MIB << 20}'):
            expect(f"{line}\n" in metrics, f"{line} is not in\n{metrics}")
        expect(f'gantry_device_info{{gpu="{number}",uuid="{gpu["uuid"]}",model="{name}"}} 1\n'
               in metrics, metrics)
    for session, number in ((a, 0), (b, 1)):
        found = [line for line in host.metrics().splitlines()
                 if line.startswith("gantry_worker_kernel_launches_total{") and session in line]
        expect(len(found) == 1 and f'gpu="{number}"' in found[0], f"{found}")
        expect(host.daemon.logged(f"session {session} (local program) opened at epoch"), "the log")
        preflight = host.preflight(session)
        expect((preflight["source_gpu"], preflight["source_device"]) == (number, GPUS[number][0]),
               f"{preflight}")
        # What it was promised itself is no obstacle.
        expect([one["reason"] for one in preflight["findings"]] == ["peer.off"], f"{preflight}")
    expect({gpu["gpu"] for gpu in host.ask("top", "--once")["programs"]} == {0, 1}, "gantry top")


def to_and_fro(host, first, second, a, b, undisturbed):
    host.refused("gpu.memory.in_use", "reassign", a, "--device", "1")
    says = host.refused("reassign.device", "reassign", a, "--device", "9")
    expect("this host serves: 0, 1" in says, says)
    undisturbed.check(second, second.end(DEADLINE_S))
    wait_until("the other session's end", lambda: host.places() == {a: 0})
    for number in (1, 0):
        host.ask("reassign", a, "--device", str(number))
        expect(host.places() == {a: number}, f"{host.places()}")
        promised = [0, 0]
        promised[number] = QUOTA_MIB
        expect(host.promised_mib() == promised, f"{host.promised_mib()}")
        first.goes_on(3)
    undisturbed.check(first, first.end(DEADLINE_S))


def too_large(options, folder, _undisturbed):
    host = Host(options, folder, "a", memory_mib=500)
    with running(host.daemon):
        try:
            program = host.launch()
            expect(program.wait(DEADLINE_S) != 0, program.text())
            for says in ("GPU 0 (First) has 400 MiB in all, 500 MiB are wanted",
                         "GPU 1 (Second) has 330 MiB in all, 500 MiB are wanted",
                         "gpu.memory.too_small"):
                expect(host.daemon.logged(says), f"{says}\n{host.daemon.log_text()}")
            expect(host.promised_mib() == [0, 0], f"{host.promised_mib()}")
        finally:
            host.close()
    print("a session that is too large for either is refused")


def served(options, folder, _undisturbed):
    """worker.devices, and the older worker.device; --check names the GPUs."""
    for name, keys in (("a", "devices = [1]\n"), ("b", "device = 1\n")):
        host = Host(options, folder, name, worker=keys)
        with running(host.daemon):
            try:
                _, session = host.begin()
                expect(host.places() == {session: 1}, f"{host.places()}")
                expect([gpu["device"] for gpu in host.ask("status")["gpus"]] == [1], "status")
                host.refused("reassign.device", "reassign", session, "--device", "0")
            finally:
                host.close()
        checked = check(options, host)
        expect("GPU 1: Second, UUID 67616e74727940328040000000000001, compute capability 9.0, "
               "330 MiB\n" in checked and "GPU 0" not in checked, checked)
    both = check(options, Host(options, folder, "c"))
    expect("GPU 0: First, " in both and "GPU 1: Second, " in both, both)
    print("only what is named is served, and --check names it")


def check(options, host):
    done = subprocess.run([options.build / "bin/gantryd", "--check", "--config",
                           host.daemon.folder / "gantryd.toml"], capture_output=True, text=True,
                          timeout=DEADLINE_S * PATIENCE)
    expect(done.returncode == 0, f"{done}")
    return done.stdout


def policies(options, folder, _undisturbed):
    """Small sessions, for which there is room everywhere."""
    for name, policy, expected in (("a", "first", [0, 0, 0]), ("b", "spread", [0, 1, 0]),
                                   ("c", "free_memory", [0, 0, 1])):
        host = Host(options, folder, name, memory_mib=40,
                    extra={"placement": f'policy = "{policy}"\n'})
        with running(host.daemon):
            try:
                sessions = [host.begin()[1] for _ in expected]
                got = [host.places()[session] for session in sessions]
                expect(got == expected, f"{policy}: {got}")
            finally:
                host.close()
    print("each policy has its order")


def move(options, folder, undisturbed):
    """The target's first GPU is promised to another session: the move comes to the second."""
    make_certificates(folder)
    source = Host(options, folder, "a", worker="devices = [0]\n", port=free_port())
    target = Host(options, folder, "b", port=free_port(),
                  extra={"placement": 'policy = "first"\n'})
    with running(source.daemon, target.daemon):
        try:
            resident, other = target.begin()
            program, session = source.begin()
            address = f"127.0.0.1:{target.daemon.port}"
            seen = source.preflight(session, address)
            expect((seen["can_move"], seen["source_gpu"], seen["target_gpu"],
                    seen["target_device"]) == (True, 0, 1, "Second"), f"{seen}")
            target.ask("pull", session, "--from", f"127.0.0.1:{source.daemon.port}", "--handover",
                       source.daemon.handover_socket)
            expect(target.places() == {other: 0, session: 1}, f"{target.places()}")
            expect(target.promised_mib() == [QUOTA_MIB, QUOTA_MIB], f"{target.promised_mib()}")
            program.goes_on(3)
            target.daemon.kill()
            target.daemon.start()
            expect(target.places() == {other: 0, session: 1}, f"{target.places()}")
            third, late = source.begin()
            seen = source.preflight(late, address)
            expect(not seen["can_move"] and
                   [one["reason"] for one in seen["findings"]] == 2 * ["gpu.memory.in_use"] and
                   [one["text"][:6] for one in seen["findings"]] == ["GPU 0:", "GPU 1:"],
                   f"{seen}")
            done = target.daemon.gantry(
                "--json", "pull", late, "--from", f"127.0.0.1:{source.daemon.port}", "--handover",
                source.daemon.handover_socket)
            expect(done.returncode == 1 and "gpu.memory.in_use" in done.stderr, f"{done}")
            for one in (program, resident, third):
                undisturbed.check(one, one.end(DEADLINE_S))
        except Failure as failure:
            raise Failure(f"{failure}\n{source.daemon.log_text()}{target.daemon.log_text()}") \
                from failure
        finally:
            source.close()
            target.close()
    print("a move comes to the GPU that is free, is refused where none is, and a restart keeps it")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("build", "program"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--only", help="one case")
    options = parser.parse_args()
    options.build, options.program = options.build.resolve(), options.program.resolve()
    undisturbed, failed = Undisturbed(options.build, options.program, MIB), 0
    for act in (one_each, too_large, served, policies, move):
        if options.only not in (None, act.__name__):
            continue
        with tempfile.TemporaryDirectory(prefix="gantry-gpus-") as folder:
            try:
                act(options, pathlib.Path(folder), undisturbed)
            except (Failure, subprocess.TimeoutExpired) as failure:
                failed += 1
                print(f"FAIL {act.__name__}: {failure}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    guard.run(main)
