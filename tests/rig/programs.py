"""Programs of tests that make steps until they are told to end, and the steps they should make.

Such a program (tests/programs/told_to_end.h) prints a line `step N ...` for each step. It ends with
status 0 after its standard input has ended, and for no other reason than an error: however slow the
machine is, it runs when a test comes to stop, kill or move it. A test that wants to see a program
go on waits for more steps, and then tells it to end.
"""

import contextlib
import os
import re
import subprocess
import threading

from daemons import PATIENCE, Failure, wait_until

STEP = re.compile(r"^step \d+ .*\n", re.M)


class Program:
    """A running one. What it prints grows in the file `out`."""

    def __init__(self, command, out, environment=None):
        """environment: variables added to those of this process."""
        self.out = out
        with open(out, "wb") as log:
            self.child = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.PIPE, stdout=log,
                stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})})

    @property
    def pid(self):
        return self.child.pid

    def text(self):
        return self.out.read_text(errors="replace")

    def step_lines(self):
        return STEP.findall(self.text())

    def steps(self):
        return len(self.step_lines())

    def has_ended(self):
        return self.child.poll() is not None

    def await_steps(self, count, seconds=20.0):
        """Waits until it has made `count` steps in all. Failure when it ends before."""
        def made():
            if self.has_ended():
                raise Failure(f"the program ended with {self.child.returncode}, and before its "
                              f"step {count}:\n{self.text()}")
            return self.steps() >= count
        wait_until(f"{count} steps of the program", made, seconds)

    def goes_on(self, steps=2, seconds=20.0):
        """Waits until it has made that many steps more than now."""
        self.await_steps(self.steps() + steps, seconds)

    def tell_to_end(self):
        with contextlib.suppress(BrokenPipeError):
            self.child.stdin.close()

    def wait(self, seconds=60.0):
        """Its exit status, negative for a signal; Failure when it does not end."""
        try:
            return self.child.wait(timeout=seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failure(f"the program hangs; its output:\n{self.text()}") from None

    def end(self, seconds=60.0):
        """Tells it to end; its exit status."""
        self.tell_to_end()
        return self.wait(seconds)

    def kill(self):
        """Of one that has ended, too: nothing of it is left."""
        self.child.kill()
        self.child.wait()
        self.tell_to_end()


class Undisturbed:
    """The steps of a run without Gantry, on the soft GPU's driver. It is made again, and longer,
    when more steps are asked for than are known."""

    def __init__(self, build, program, mib, idle_mib=0):
        self.environment = {**os.environ, "LD_LIBRARY_PATH": f"{build}/soft"}
        self.program, self.mib, self.idle_mib = program, mib, idle_mib
        self.lines, self.lock = [], threading.Lock()

    def steps(self, count):
        """The first `count` lines."""
        with self.lock:
            if count > len(self.lines):
                more = max(count, 2 * len(self.lines))
                done = subprocess.run(
                    [self.program, str(self.mib), str(more), "0", str(self.idle_mib)],
                    capture_output=True, text=True, env=self.environment, check=True,
                    stdin=subprocess.DEVNULL, timeout=300 * PATIENCE)
                self.lines = STEP.findall(done.stdout)
                if len(self.lines) != more or "".join(self.lines) != done.stdout:
                    raise Failure(f"the undisturbed run of {more} steps printed {done.stdout}")
            return self.lines[:count]

    def check(self, program, status):
        """`program` ended as it was told, and made these steps and no others."""
        if status != 0 or program.text() != "".join(self.steps(program.steps())):
            raise Failure(f"status {status}, or wrong digests:\n{program.text()}")
