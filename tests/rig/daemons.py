"""Real gantryds on loopback for tests: certificates, configuration, start, end. One machine."""

import contextlib
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import time

# Deadlines are written for an idle machine of two cores; they bound a hang and decide nothing else.
# Programs must not inherit it: they refuse settings of Gantry's that they do not know.
PATIENCE = float(os.environ.pop("GANTRY_PATIENCE", "4"))


class Failure(Exception):
    """What a test has to say when something did not come about."""


def listening_sockets():
    """Paths of unix sockets in listening state (flag 0x10000 of the kernel's table)."""
    with open("/proc/net/unix", encoding="ascii", errors="replace") as table:
        rows = [line.split() for line in table][1:]
    return {row[7] for row in rows if len(row) > 7 and int(row[3], 16) & 0x10000}


def wait_until(what, condition, seconds=20.0, interval_s=0.01):
    """Polls `condition` until it is true; its value. Failure after `seconds` of patience."""
    seconds *= PATIENCE
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(interval_s)
    raise Failure(f"waited {seconds} s in vain for {what}")


def make_certificates(folder):
    """ca.pem, host.pem and host.key in `folder`, good for 127.0.0.1 for two days."""
    script = """
set -e
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem \
    -days 2 -subj /CN=authority
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout host.key -out host.csr \
    -subj /CN=host
echo subjectAltName=IP:127.0.0.1 >ext
openssl x509 -req -in host.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext \
    -out host.pem
"""
    # The machine's own openssl, with its own libraries.
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    subprocess.run(["sh", "-c", script], cwd=folder, check=True, stderr=subprocess.DEVNULL,
                   env=environment)


given_ports = set()


def free_port():
    """A TCP port of 127.0.0.1 that nobody listens on now, and none of those that outgoing
    connections are given: a daemon that is ended and started again must find it free. Each is
    given once: a daemon that has one may not listen yet."""
    while True:
        port = random.randrange(20000, 32000)
        if port in given_ports:
            continue
        try:
            with socket.create_server(("127.0.0.1", port)):
                given_ports.add(port)
                return port
        except OSError:
            pass


def chosen_device(driver):
    """worker.device, where CUDA_VISIBLE_DEVICES says around a test which GPU it may have."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return f"device = {visible}\n" if driver == "libcuda.so.1" and visible.isdigit() else ""


class Daemon:
    """One gantryd; `kill` and `start` again keep its folders, as a restart of the service does.

    `folder` holds the certificates; port None: it takes part in no migration. `driver`: the CUDA
    driver library of its workers. `extra`: lines by section of gantryd.toml, added to ours.
    `environment`: variables added to those of this process. `worker`: another gantry-worker.
    `region_mib`: what a program shares with its worker at most.
    """

    def __init__(self, build, folder, name, port=None, driver=None, extra=None,
                 environment=None, worker=None, region_mib=64):
        self.folder, self.name, self.port = folder / name, name, port
        self.folder.mkdir()
        self.build, self.child, self.starts = build, None, 0
        self.environment = {**os.environ, **(environment or {})}
        sections = {
            "daemon": f'run_directory = "{self.folder}/run"\n'
                      f'state_directory = "{self.folder}/state"\n'
                      f'host_name = "{name}"\nlog_level = "debug"\n',
            "operator": f'socket = "{self.operator_socket}"\n',
            "guest": f'socket = "{self.guest_socket}"\nregion_mib = {region_mib}\n',
            "vm": 'libvirt_uri = ""\n',
            "worker": f'executable = "{worker or build / "bin/gantry-worker"}"\n'
                      f'driver = "{driver or build / "lib/libcuda-soft.so.1"}"\n'
                      'user = ""\nprivate_tmp = false\nprivate_network = false\n' +
                      chosen_device(driver)}
        if driver == "libcuda.so.1":  # Programs of a test are to share a card.
            sections["placement"] = 'policy = "first"\n'
        if port is not None:
            sections["peer"] = (f'listen = "127.0.0.1:{port}"\nauthority = "{folder}/ca.pem"\n'
                                f'certificate = "{folder}/host.pem"\nkey = "{folder}/host.key"\n'
                                'streams = 2\n')
        for section, lines in (extra or {}).items():
            sections[section] = sections.get(section, "") + lines
        (self.folder / "gantryd.toml").write_text(
            "".join(f"[{section}]\n{lines}" for section, lines in sections.items()))

    @property
    def operator_socket(self):
        return self.folder / "run" / "operator.sock"

    @property
    def guest_socket(self):
        return self.folder / "run" / "guest.sock"

    @property
    def handover_socket(self):
        return self.folder / "run" / "handover.sock"

    def spawn(self):
        self.starts += 1
        self.log = self.folder / f"log.{self.starts}"
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen(
                [self.build / "bin" / "gantryd", "--config", self.folder / "gantryd.toml"],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.environment)

    def wait_ready(self):
        wait_until(f"gantryd {self.name}", self.is_ready, 30)

    def start(self):
        self.spawn()
        self.wait_ready()

    def is_ready(self):
        if self.child.poll() is not None:
            raise Failure(f"gantryd {self.name} ended:\n{self.log.read_text()}")
        return "is ready" in self.log.read_text()

    def kill(self, how=signal.SIGKILL):
        if self.child is not None:
            with contextlib.suppress(ProcessLookupError):
                self.child.send_signal(how)
            self.child.wait(timeout=20 * PATIENCE)
            self.child = None

    def end_all(self):
        """Ends gantryd and every worker that it or an earlier one of this folder started."""
        pids = set(self.record_pids())
        if self.child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                pids.update(self.worker_pids())
        self.kill(signal.SIGTERM)
        for pid in pids:
            with contextlib.suppress(OSError):
                if b"gantry-worker" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)

    def gantry(self, *words, timeout=40 * PATIENCE):
        return subprocess.run(
            [self.build / "bin" / "gantry", "--socket", self.operator_socket,
             *map(str, words)], capture_output=True, text=True, timeout=timeout,
            env=self.environment)

    def sessions(self):
        done = self.gantry("--json", "status")
        return json.loads(done.stdout)["sessions"] if done.returncode == 0 else []

    def replace_worker(self, session, *how, **keywords):
        """`gantry replace-worker SESSION HOW...`; see replacements()."""
        return self.gantry("--json", "replace-worker", session, *how, **keywords)

    def worker_pids(self):
        return [worker["pid"] for session in self.sessions() for worker in session["workers"]]

    def record_pids(self):
        """From the run directory, so also when gantryd is dead."""
        pids = []
        for path in (self.folder / "run" / "sessions").glob("*.json"):
            with contextlib.suppress(json.JSONDecodeError, FileNotFoundError):
                pids += [worker["pid"] for worker in json.loads(path.read_text())["workers"]]
        return pids

    def logged(self, text):
        return any(text in path.read_text() for path in self.folder.glob("log.*"))

    def log_text(self, characters_max=4000):
        return "".join(f"--- {self.name}\n{path.read_text()[-characters_max:]}\n"
                       for path in sorted(self.folder.glob("log.*")))


def replacements(done):
    """What `gantry --json replace-worker` or `reassign` says of each worker, as a dictionary.
    Numbers of 64 bits are text in protobuf's JSON."""
    def plain(value):
        if isinstance(value, dict):
            return {name: plain(one) for name, one in value.items()}
        if isinstance(value, list):
            return [plain(one) for one in value]
        return int(value) if isinstance(value, str) and value.isdigit() else value
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, done.args))} ended with {done.returncode}: "
                      f"{done.stdout}{done.stderr}")
    return plain(json.loads(done.stdout))["workers"]


@contextlib.contextmanager
def running(*daemons):
    """Starts all at once and ends them, with their workers, at the end of the block."""
    try:
        for daemon in daemons:
            daemon.spawn()
        for daemon in daemons:
            daemon.wait_ready()
        yield daemons
    finally:
        for daemon in daemons:
            daemon.end_all()


def gpu_memory_bytes(build, work):
    """Of the soft GPU that a gantryd of this machine finds."""
    daemon = Daemon(build, work, "probe")
    with running(daemon):
        return int(json.loads(daemon.gantry("--json", "status").stdout)["memory_bytes"])
