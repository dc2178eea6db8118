#!/usr/bin/env python3
"""`gantry replace-worker` through a real gantryd, under a running program.

Twice in a row, then with a gantry-worker of another version installed (refused before the program
is stopped for a moment), then after gantryd was killed and started again. The program goes on, and
its digests must be those of an undisturbed run.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
from daemons import PATIENCE, Daemon, Failure, replacements, running, wait_until
from programs import Program, Undisturbed

MIB, PAUSE_MS = 16, 50
DEADLINE_S = 100 * PATIENCE

# Answers Start as a worker of a later protocol does.
OTHER_VERSION = '''#!/usr/bin/env python3
import socket
connection = socket.socket(fileno=3).accept()[0]
connection.recv(131072)
started = b"\\x08\\x63\\x12\\x0499.0"  # StartReply: protocol 99, version "99.0"
connection.send(b"\\x08\\x01\\x1a\\x00\\x22" + bytes([len(started)]) + started)
connection.recv(131072)
'''


def demand(truth, text):
    if not truth:
        raise Failure(text)


def installation(build, folder):
    """A build folder of links, whose worker can be exchanged as an upgrade does."""
    for part in ("bin", "lib", "shim", "soft"):
        (folder / part).mkdir(parents=True)
        for path in (build / part).iterdir():
            (folder / part / path.name).symlink_to(path)
    return folder


def has_ended(pid):
    """A zombie has: whoever inherited it from a gantryd that was killed may not have looked yet."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return stat.rsplit(")", 1)[1].split()[0] == "Z"


def replace(daemon, session):
    done = daemon.gantry("--json", "replace-worker", session, timeout=DEADLINE_S)
    demand(done.returncode == 0, f"replace-worker failed: {done.stdout}{done.stderr}")
    workers = replacements(done)
    demand(len(workers) == 1, f"one worker was to be replaced: {workers}")
    report = workers[0]
    demand(report["bytes_handed_over"] >= MIB << 20 and report["bytes_copied"] <= 1 << 20,
           f"memory was copied: {report}")
    demand(daemon.worker_pids() == [report["pid"]] and report["pid"] != report["old_pid"],
           f"another worker serves: {daemon.worker_pids()}, {report}")
    wait_until("the old worker's end", lambda: has_ended(report["old_pid"]))
    return report


def run(arguments, work):
    build = arguments.build
    folder = installation(build, work / "install")
    daemon = Daemon(folder, work, "a", driver=folder / "soft/libcuda.so.1")
    with running(daemon):
        program = Program([arguments.program, MIB, 0, PAUSE_MS], work / "out",
                          {"LD_LIBRARY_PATH": f"{folder}/shim",
                           "GANTRY_TRANSPORT": f"unix:{daemon.guest_socket}"})
        try:
            program.await_steps(2)
            session = daemon.sessions()[0]["session_id"]
            reports = []
            for _ in range(2):
                reports.append(replace(daemon, session))
                program.goes_on()
            worker = daemon.sessions()[0]["workers"][0]
            demand(worker["replacements"] == 2 and worker["state"] == "serving",
                   f"status does not show it: {worker}")
            installed = folder / "bin/gantry-worker"
            installed.unlink()
            installed.write_text(OTHER_VERSION)
            installed.chmod(0o755)
            done = daemon.gantry("replace-worker", session)
            demand(done.returncode == 1 and "version.worker" in done.stderr,
                   f"a worker of another version: {done.returncode} {done.stderr}")
            demand(daemon.worker_pids() == [worker["pid"]], "the refusal changed the worker")
            installed.unlink()
            installed.symlink_to(build / "bin/gantry-worker")
            done = daemon.gantry("replace-worker", "no-such-session")
            demand(done.returncode == 4, f"an unknown session: {done.returncode} {done.stderr}")
            daemon.kill()
            daemon.start()
            reports.append(replace(daemon, session))
            program.goes_on()
            status = program.end()
        finally:
            program.kill()
    Undisturbed(build, arguments.program, MIB).check(program, status)
    print("pauses " + ", ".join(f"{report['pause_us'] / 1000:.1f}" for report in reports) +
          " ms; the version refused; digests equal")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    arguments.build, arguments.program = arguments.build.resolve(), arguments.program.resolve()
    with tempfile.TemporaryDirectory(prefix="gantry-") as folder:
        work = pathlib.Path(folder)
        try:
            run(arguments, work)
        except (Failure, subprocess.TimeoutExpired) as failure:
            print(f"FAIL: {failure}", file=sys.stderr)
            for log in sorted(work.glob("a/log.*")):
                sys.stderr.write(log.read_text()[-4000:])
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
