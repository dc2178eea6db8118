"""One program natively, through Gantry, and with its worker replaced in the middle of the run."""

import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import chain

POLL_SECONDS = 0.002

# Where in its time on the GPU a program's worker is replaced: first live, at its half. A program
# that is over before the fresh worker has taken its place is stopped meanwhile, as a VM is while
# its memory changes hosts, at the half again and then early on.
MIDDLES = (("live", 0.5), ("paused", 0.5), ("paused", 0.2))


class Replacements:
    """The seconds that the quickest replacement of a worker took so far, of all samples."""

    def __init__(self):
        self.quickest = 0.0

    def add(self, seconds):
        self.quickest = min(self.quickest or seconds, seconds)


class Program:
    """A program that runs in a folder of its own; ended with the block, whole group."""

    def __init__(self, command, folder, environment, out, seconds):
        self.out, self.seconds, self.begin = out, seconds, time.monotonic()
        with open(f"{out}.out", "wb") as stdout, open(f"{out}.err", "wb") as stderr:
            self.child = subprocess.Popen(
                command, cwd=folder, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                stdout=stdout, stderr=stderr, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.signal(signal.SIGKILL)
        self.child.wait()

    def signal(self, number):
        try:
            os.killpg(self.child.pid, number)
        except ProcessLookupError:
            pass

    def is_running(self):
        return self.child.poll() is None and time.monotonic() < self.begin + self.seconds

    def wait_until(self, condition):
        """Until it is true or the program has ended; whether it became true."""
        while self.is_running():
            if condition():
                return True
            time.sleep(POLL_SECONDS)
        return False

    def status(self):
        """Its exit status; `timeout` when its time was up."""
        try:
            left = self.begin + self.seconds - time.monotonic()
            return self.child.wait(timeout=max(0.0, left))
        except subprocess.TimeoutExpired:
            return f"timeout ({self.seconds:.0f} s)"

    def text(self):
        return "".join(pathlib.Path(f"{self.out}.{part}").read_text(errors="replace")
                       for part in ("out", "err"))


class Runs:
    """The runs of one sample. `out`: the folder that keeps what they printed; `replacements`: those
    of all samples."""

    def __init__(self, sample, options, out, replacements):
        self.sample, self.options, self.out = sample, options, out
        self.replacements = replacements
        out.mkdir(parents=True, exist_ok=True)

    def middles(self, phase):
        """Those of MIDDLES that a program of `phase` seconds on the GPU may live to see the end
        of: in what is left of it after a live one, the quickest replacement so far must fit."""
        return [(way, part) for way, part in MIDDLES
                if way != "live" or phase * (1 - part) > self.replacements.quickest]

    def program(self, name, environment, work):
        """Starts it in a fresh copy of its folder, so that no run sees another's files."""
        source, folder = self.options.samples / self.sample.folder, work / "folder"
        # The program itself is not copied: while another thread forks, the child holds the file
        # open for writing, and it could not be executed.
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns(self.sample.program))
        (folder / self.sample.program).symlink_to(source / self.sample.program)
        command = [f"./{self.sample.program}", *self.sample.arguments]
        return Program(command, folder, environment, self.out / name, self.options.seconds)

    def native(self, name):
        driver = self.options.driver
        first = [driver.parent] if driver else []
        with tempfile.TemporaryDirectory(prefix="gantry-sample-") as work:
            environment = {**chain.ONE_DEVICE, **os.environ,
                           "LD_LIBRARY_PATH": chain.search_path(*first)}
            with self.program(name, environment, pathlib.Path(work)) as program:
                return {"status": program.status(), "text": program.text(),
                        "seconds": time.monotonic() - program.begin}

    def gantry(self, name, middle=None, phase=0.0):
        """`middle`: how and after which part of `phase`, the seconds that the program was seen to
        spend as a guest, the worker is replaced."""
        with tempfile.TemporaryDirectory(prefix="gantry-sample-") as work:
            work = pathlib.Path(work)
            host = self.host(work)
            try:
                with host:
                    return self.guest(name, host, work, middle, phase)
            finally:
                (self.out / f"{name}.host.log").write_text(host.log())

    def host(self, work):
        region = {"region_mib": self.options.region_mib} if self.options.region_mib else {}
        return chain.Host(self.options.build, work, self.options.driver, **region)

    def guest(self, name, host, work, middle, phase):
        environment = {**host.guest_environment(self.out / f"{name}.report"),
                       "LD_LIBRARY_PATH": chain.search_path(self.options.build / "shim")}
        result = {"middle": middle, "moves": [], "refusals": []}
        with self.program(name, environment, work) as program:
            attached = program.wait_until(host.has_guest) and time.monotonic()
            if attached and middle:
                self.move(program, host, attached + middle[1] * phase, result)
            result["status"] = program.status()
            end = time.monotonic()
            return {**result, "text": program.text(), "seconds": end - program.begin,
                    "phase": end - attached if attached else 0.0}

    def move(self, program, host, when, result):
        """Tries to replace the worker from `when` on, until it worked or the program has ended."""
        is_pausing = result["middle"][0] == "paused"
        program.wait_until(lambda: time.monotonic() >= when)
        while program.is_running() and not result["moves"]:
            if is_pausing:
                program.signal(signal.SIGSTOP)
            begin = time.monotonic()
            refused, reports = None, []
            try:
                reports = host.replace(copy=True, seconds=self.options.seconds)
            except chain.Failure as failure:
                refused = str(failure)
            if reports:
                self.replacements.add(time.monotonic() - begin)
            is_counted = host.has_guest() and program.is_running()
            if is_pausing:
                program.signal(signal.SIGCONT)
            if reports and is_counted:
                result["moves"].append({"at": time.monotonic() - program.begin,
                                        "text": chain.moves_text(reports)})
            elif refused and is_counted:
                result["refusals"].append(refused)
            time.sleep(0.05)
