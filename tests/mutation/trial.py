"""Runs tests with a fault on, away from the machine: in namespaces of their own, with the disk
read-only but for /tmp and /dev/shm, so that a wrong pid or path harms nothing outside.

A test is one of a GoogleTest program, or a program of tests/programs in one way: "way/program"."""

import os
import re
import signal
import subprocess
import tempfile
import time

QUICK_SECONDS = 0.5
SLOW_TIMES, SLOW_SECONDS = 8, 15  # What a test gets: so many times what it took, and these.
ALONE = """
mount --bind "$1" "$1"
mount -o remount,ro,bind /
for folder in /tmp /dev/shm; do mount -t tmpfs none "$folder"; done
echo "${PLANTED_FAULT:-0}" >/dev/shm/planted_fault
if [ -n "$PLANTED_FAULTS_REACHED" ]; then
    ln -s "$PLANTED_FAULTS_REACHED" /dev/shm/planted_faults_reached
fi
shift
exec "$@"
"""


def apart(folder, command):
    """The command in namespaces of its own; `folder` is what it can write to."""
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *user, "--pid", "--mount", "--ipc", "--fork", "--kill-child",
            "--mount-proc", "bash", "-c", ALONE, "bash", str(folder), *command]


def run(folder, command, seconds, **environment):
    """(how it ended: 0, a status, or "no end"; what it printed; seconds)."""
    began = time.monotonic()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GANTRY_")}
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(apart(folder, command), stdout=out, stderr=subprocess.STDOUT,
                                 stdin=subprocess.DEVNULL, start_new_session=True,
                                 env=kept | environment, cwd=folder)
        try:
            status = child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            status = "no end"
        out.seek(0)
        return status, out.read(4 << 20).decode("utf-8", "replace"), time.monotonic() - began


def names_of(program):
    listed = subprocess.run([program, "--gtest_list_tests"], check=True, capture_output=True,
                            text=True).stdout
    found, suite = [], ""
    for line in listed.splitlines():
        word = line.split("#")[0].rstrip()
        if re.match(r"\S+\.$", word):
            suite = word
        elif re.match(r"  \S", word):
            found.append(suite + word.strip())
    return [name for name in found if ".DISABLED_" not in name and not name.startswith("DISABLED_")]


def locate(ground, target):
    return ground.build / "bin" / target


def command(program, names):
    """That runs these tests of the program (Baseline.tests); one of tests/programs is alone."""
    if len(program) > 1:
        way, name = names[0].split("/")
        return [*program, "--way", way, f"{program[-1]}/programs/{name}"]
    return [*program, f"--gtest_filter={':'.join(names)}", "--gtest_fail_fast"]


class Baseline:
    """What each test of an area takes, and which faults it comes by."""

    def __init__(self, ground, area, say):
        self.folder = ground.folder / "runs"
        self.folder.mkdir(exist_ok=True)
        self.reached = self.folder / f"reached-{area.name}"
        self.tests = []  # (program and its first arguments, test, seconds, numbers reached)
        self.unfit = []
        run_program = (str(ground.tree / "tests/programs/run_program"), "--build",
                       str(ground.build))
        lists = [(target, (str(locate(ground, target)),)) for target in area.tests]
        for target, program in lists + ([("programs", run_program)] if area.programs else []):
            names = area.programs if target == "programs" else names_of(program[0])
            for count, name in enumerate(names, 1):
                say(f"\r{area.name}: {target}, test {count} of {len(names)} without faults ")
                self.reached.write_bytes(bytes(65536))
                status, printed, seconds = run(self.folder, command(program, [name]), 180,
                                               PLANTED_FAULTS_REACHED=str(self.reached))
                if status != 0 or "[  SKIPPED ]" in printed:
                    self.unfit.append(f"{target}: {name}")
                    continue
                flags = self.reached.read_bytes()
                numbers = [number for number, flag in enumerate(flags) if flag]
                self.tests.append((program, name, seconds, numbers))
        say("\n")
        if not any(one[3] for one in self.tests):
            raise SystemExit(f"{area.name}: no test comes by any fault: the switches do not work")

    def of(self, number):
        """The tests that come by the fault, the quickest first."""
        return sorted((one for one in self.tests if number in one[3]), key=lambda one: one[2])


FAILED = re.compile(r"^\[  FAILED  \] (\S+?)(?:,| \(|$)", re.M)
BEGUN = re.compile(r"^\[ RUN      \] (\S+)", re.M)


def batches(tests):
    """Tests that run in one process: the quick ones of a program together, then the others, and
    last each of tests/programs."""
    for quick in (True, False):
        for program in dict.fromkeys(one[0] for one in tests if len(one[0]) == 1):
            some = [one for one in tests
                    if one[0] == program and (one[2] < QUICK_SECONDS) == quick]
            if some:
                yield program, some
    for one in tests:
        if len(one[0]) > 1:
            yield one[0], [one]


def attempt(folder, number, tests):
    """("killed", by whom and how), ("survived", "") or ("unsteady", the test)."""
    for program, some in batches(tests):
        limit = SLOW_SECONDS + SLOW_TIMES * sum(one[2] for one in some)
        status, printed, _ = run(folder, command(program, [one[1] for one in some]),
                                 min(limit, 240), PLANTED_FAULT=str(number))
        if status == 0:
            continue
        names = FAILED.findall(printed) or BEGUN.findall(printed)[-1:]
        name = names[0] if names else some[0][1]
        failed = FAILED.search(printed) or len(program) > 1
        how = "no end" if status == "no end" else "failed" if failed else "crashed"
        again, _, _ = run(folder, command(program, [name]), 120)
        if again != 0:
            return "unsteady", name
        return "killed", name if how == "failed" else f"{name} ({how})"
    return "survived", ""
