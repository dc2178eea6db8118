#!/usr/bin/env python3
"""`gantry profile` of a program whose operations are known: a kernel that is waited for, CPU time,
both at once, a worker that stands still, launches that the arbiter holds, and a move each show in
the operation and the part that they hit, and parts sum to wall times exactly. Then names that are
none, a flood, the forms, and that nothing is noted where nothing is asked for.

--screenshots: Chromium shows the page, in light and in dark.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import guard
from daemons import PATIENCE, Daemon, Failure, free_port, make_certificates, running, wait_until
from timeline import PAGES, expect, pixels

PARTS = ("guest_ns", "shim_ns", "transport_ns", "scheduler_ns", "gpu_ns", "overlapped_ns",
         "pause_ns")
MS = 1_000_000
KERNEL_MS = 80


class Program:
    """tests/fault/profile_load.cu"""

    def __init__(self, options, daemon):
        known = {one["session_id"] for one in daemon.sessions()}
        environment = {**os.environ, "LD_LIBRARY_PATH": f"{options.build}/shim",
                       "NVTX_INJECTION64_PATH": f"{options.build}/shim/libgantry-nvtx.so",
                       "GANTRY_TRANSPORT": f"unix:{daemon.guest_socket}"}
        self.child = subprocess.Popen([options.program], env=environment, stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True)
        self.read("ready")
        (self.session,) = {one["session_id"] for one in daemon.sessions()} - known

    def read(self, wanted=None):
        line = self.child.stdout.readline().strip()
        expect(line and (wanted is None or line == wanted), f"the program said {line!r}")
        return line

    def tell(self, line):
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()

    def do(self, line):
        self.tell(line)
        self.read("ok")

    def flush(self):
        """What it did before is told with the next call, 50 ms later."""
        time.sleep(0.1)
        self.do("op flush 0 1 cpu")
        time.sleep(0.1)
        self.do("op flush 0 1 cpu")

    def end(self):
        self.child.stdin.close()
        expect(self.child.wait(timeout=60 * PATIENCE) == 0, f"ended with {self.child.returncode}")


def profile_of(daemon, program, *words):
    done = daemon.gantry("--json", "profile", program.session, *words)
    expect(done.returncode == 0, f"profile: {done}")
    (one,) = json.loads(done.stdout)["programs"]
    return one["profile"]


def operations(profile):
    """By name. The parts of each sum to its wall time: always, and to the nanosecond."""
    out = {}
    for one in profile["operations"]:
        expect(sum(int(one[part]) for part in PARTS) == int(one["wall_ns"]), f"no sum: {one}")
        expect(one["name"] not in out, f"twice: {one['name']}")
        out[one["name"]] = {key: int(value) if key.endswith("_ns") or key in ("count", "pauses")
                            else value for key, value in one.items()}
    return out


def expect_part(operation, part, least_ns, what):
    others = {name: operation[name] // 1000 for name in PARTS}
    expect(operation[part] >= least_ns, f"{what}: {part} is less than {least_ns} ns: {others} us")


def seen(daemon, program):
    program.flush()
    return operations(profile_of(daemon, program))


def rounds_for(program, ms):
    """Of a kernel that takes about so long."""
    rounds = 100_000
    while True:
        program.tell(f"spin {rounds}")
        ns = int(program.read())
        if ns > ms * MS / 2:
            return max(1, int(rounds * ms * MS / ns))
        rounds *= 2


def splits(daemon, program, rounds):
    begun = time.monotonic_ns()
    program.do(f"op infer 0 {rounds} cpu")
    program.do(f"op longer 0 {4 * rounds} cpu")
    program.do(f"op think {KERNEL_MS} 0 cpu")
    for _ in range(8):  # Of a kernel's time more is known with each sample.
        program.do(f"op beside {KERNEL_MS // 2} {rounds} gpu")
    took = time.monotonic_ns() - begun
    one = seen(daemon, program)
    expect_part(one["infer"], "gpu_ns", one["infer"]["wall_ns"] * 7 // 10, "a kernel")
    expect_part(one["longer"], "gpu_ns", 2 * one["infer"]["gpu_ns"], "a planted delay of it")
    expect_part(one["think"], "guest_ns", KERNEL_MS * MS * 9 // 10, "CPU time")
    expect(one["think"]["gpu_ns"] == 0 and one["think"]["count"] == 1, f"{one['think']}")
    both = one["beside"]
    expect_part(both, "overlapped_ns", 8 * KERNEL_MS * MS // 4, "CPU time beside a kernel")
    expect(both["count"] == 8 and both["overlapped_ns"] <= 8 * KERNEL_MS * MS, f"{both}")
    inner = sum(one[name]["wall_ns"] for name in ("infer", "longer", "think", "beside"))
    expect(inner <= took, f"{inner} ns of ranges in {took} ns")
    expect(all(one[name]["own_ns"] <= one[name]["wall_ns"] for name in one), f"{one}")
    print("GPU, program and both are told apart: "
          f"{both['overlapped_ns'] / MS:.0f} of {both['wall_ns'] / MS:.0f} ms beside each other")


def stalled(daemon, program):
    (worker,) = daemon.worker_pids()
    os.kill(worker, signal.SIGSTOP)
    try:
        program.tell("op stalled 0 1 cpu")
        time.sleep(0.5)
    finally:
        os.kill(worker, signal.SIGCONT)
    program.read("ok")
    one = seen(daemon, program)
    expect_part(one["stalled"], "transport_ns", 350 * MS, "a worker that stood still")
    expect(all(one[name]["transport_ns"] < 350 * MS for name in one if name != "stalled"),
           f"{one}")
    print(f"a planted delay: {one['stalled']['transport_ns'] / MS:.0f} ms of transport")


def held(options, daemon, program):
    """A session of a higher priority that always has work: this one gets a window every 100 ms."""
    environment = {**os.environ, "LD_LIBRARY_PATH": f"{options.build}/shim",
                   "GANTRY_TRANSPORT": f"unix:{daemon.guest_socket}"}
    with subprocess.Popen([options.neighbour, "20000", "8", "-1", "4"], env=environment,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        expect(other.stdout.readline() == "ready\n", "the neighbour did not start")
        (session,) = {one["session_id"] for one in daemon.sessions()} - {program.session}
        for name, priority in ((session, 9), (program.session, 1)):
            done = daemon.gantry("sched", "set", name, "--priority", priority)
            expect(done.returncode == 0, f"{done}")
        other.stdin.write("\n")
        other.stdin.flush()
        time.sleep(0.5)
        # Where the neighbour does not get the processor for a while, nothing is held.
        end = time.monotonic() + 2
        while time.monotonic() < end:
            program.do("op held 0 1 cpu")
            time.sleep(0.01)
        other.communicate(timeout=60 * PATIENCE)
        expect(other.returncode == 0, f"the neighbour ended with {other.returncode}")
    one = seen(daemon, program)
    # Beside it a busy machine's: worker and soft GPU wait for a processor, too.
    expect_part(one["held"], "scheduler_ns", one["held"]["wall_ns"] // 4, "held launches")
    expect_part(one["held"], "scheduler_ns", 100 * MS, "held launches")
    expect(all(one[name]["scheduler_ns"] < 50 * MS for name in ("infer", "think", "stalled")),
           f"{one}")
    print(f"a planted hold: {one['held']['scheduler_ns'] / MS:.0f} of "
          f"{one['held']['wall_ns'] / MS:.0f} ms by the scheduler")


def moved(source, target, program, folder):
    before = seen(source, program)
    file = folder / "moved"
    program.tell(f"loop moved {file}")
    time.sleep(0.3)
    done = target.gantry("pull", program.session, "--from", f"127.0.0.1:{source.port}",
                         "--handover", source.handover_socket, timeout=100 * PATIENCE)
    expect(done.returncode == 0, f"{done}")
    time.sleep(0.3)
    file.touch()
    program.read("ok")
    program.do("op after 20 0 cpu")
    one = seen(target, program)
    hit = {name: operation["pauses"] for name, operation in one.items() if operation["pauses"]}
    expect(hit == {"moved": 1}, f"moves hit {hit}")
    timeline = wait_until("the move's record", lambda: downtime_us(target, program))
    pause = one["moved"]["pause_ns"]
    expect(timeline * 1000 // 2 < pause < one["moved"]["wall_ns"],
           f"a pause of {pause} ns, GPU work stood still for {timeline} us")
    for name in before:
        if name not in ("(outside)", "flush"):
            expect(one[name] == before[name], f"{name} was {before[name]}, and is {one[name]}")
    expect_part(one["after"], "guest_ns", 18 * MS, "what came after the move")
    print(f"a move: {pause / MS:.1f} ms of pause in the operation that it hit, "
          f"{timeline / 1e3:.1f} ms by the move's own record")


def downtime_us(daemon, program):
    """The source's: it comes to the target with its record."""
    done = daemon.gantry("--json", "timeline", program.session)
    told = json.loads(done.stdout) if done.returncode == 0 else {}
    return int(told.get("peer", {}).get("last", {}).get("downtime_us", 0))


def hostile(daemon, program):
    program.do("strange")
    one = seen(daemon, program)
    names = set(one)
    for wanted in ("<script>alert(1)</script>??[2J?", "x" * 63, "", "library: a registered name",
                   "library: wide ?", "within"):
        expect(wanted in names, f"no {wanted!r}: {names}")
    profile = profile_of(daemon, program)
    expect(int(profile["unmatched"]) == 3, f"ends without a range: {profile['unmatched']}")
    # A flood takes all the rows that are left. The totals are right, and the count says so.
    program.do("flood 100000")
    many = seen(daemon, program)
    profile = profile_of(daemon, program)
    expect(len(many) == 512 and int(profile["operations_lost"]) > 90_000
           and int(profile["refused"]) == 0, f"{len(many)} rows, {profile['operations_lost']} lost")
    expect(len(profile["ranges"]) <= 4096 and int(profile["ranges_lost"]) > 90_000,
           f"{len(profile['ranges'])} ranges, {profile['ranges_lost']} lost")
    print(f"a flood: {len(many)} operations are kept, {profile['operations_lost']} counted")


def check_forms(daemon, program, folder):
    files = {form: folder / f"profile.{form}" for form in ("html", "chrome")}
    words = [word for form, path in files.items() for word in (f"--{form}", path)]
    done = daemon.gantry("profile", program.session, *words)
    expect((done.returncode, done.stdout, done.stderr) == (0, "", ""), f"{done}")
    text = files["html"].read_text()
    outside = re.findall(r"(?:src|href)=|url\(|@import|<script|<link", text)
    expect(not outside, f"the page wants more than itself: {outside}")
    expect(text.replace("http://www.w3.org/2000/svg", "").count("://") == 0, "an address")
    expect("&lt;script&gt;alert(1)" in text and "\x1b" not in text, "a name is not escaped")
    root = xml.etree.ElementTree.fromstring(
        text[text.index("<svg"):text.index("</svg>") + len("</svg>")])
    titles = [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]
    for wanted in ("moved, move: ", "infer, GPU: ", "beside, both: ", "held, scheduler: ",
                   "think, program: ", "stalled, transport: "):
        expect(any(title.startswith(wanted) for title in titles), f"no {wanted}")
    trace = json.loads(files["chrome"].read_text())["traceEvents"]
    expect(any(event["ph"] == "X" and event["dur"] >= 0 for event in trace), "an empty trace")
    text = daemon.gantry("profile", program.session).stdout
    for wanted in ("infer", "moved [1 moves]", "had no room", "ends of ranges", "without it"):
        expect(wanted in text, f"{wanted}: {text[:3000]}")
    expect("\x1b" not in text, "a name reaches the terminal")
    done = daemon.gantry("profile", program.session, "--level", "3")
    expect(done.returncode == 2, f"{done}")
    print("text, page and trace show it")
    return files["html"]


def demonstration(options, source, target, folder):
    """The demo's program is moved in the middle of its steps: the picture of the documents."""
    environment = {**os.environ, "LD_LIBRARY_PATH": f"{options.build}/shim",
                   "NVTX_INJECTION64_PATH": f"{options.build}/shim/libgantry-nvtx.so",
                   "GANTRY_TRANSPORT": f"unix:{source.guest_socket}"}
    known = {one["session_id"] for one in source.sessions()}
    with subprocess.Popen([options.demo, "1000", "4", "20"], env=environment,
                          stdout=subprocess.PIPE, text=True) as child:
        try:
            def read_to(step):
                for line in child.stdout:
                    if line.startswith(f"step {step} "):
                        return
                raise Failure(f"the demo's program ended before step {step}")
            read_to(6)
            (session,) = {one["session_id"] for one in source.sessions()} - known
            done = target.gantry("pull", session, "--from", f"127.0.0.1:{source.port}",
                                 "--handover", source.handover_socket, timeout=100 * PATIENCE)
            expect(done.returncode == 0, f"{done}")
            read_to(16)
            picture, text = folder / "demo.svg", folder / "demo.html"
            done = target.gantry("profile", session, "--svg", picture, "--html", text)
            expect(done.returncode == 0, f"{done}")
            told = json.loads(target.gantry("--json", "profile", session).stdout)
            print(target.gantry("profile", session).stdout)
        finally:
            child.kill()
    one = operations(told["programs"][0]["profile"])
    expect({"fill memory", "step", "queue", "wait", "report"} <= set(one), f"{set(one)}")
    expect(one["fill memory"]["count"] == 1 and one["wait"]["count"] >= 14, f"{one}")
    # On a busy machine the worker, too, waits for a processor: that is transport.
    expect_part(one["wait"], "gpu_ns", one["wait"]["wall_ns"] // 4, "kernels of a step")
    expect(one["wait"]["gpu_ns"] > one["wait"]["guest_ns"] + one["wait"]["shim_ns"],
           f"{one['wait']}")
    hit = {name: operation["pauses"] for name, operation in one.items() if operation["pauses"]}
    expect(sum(hit.values()) == 1, f"the move hit {hit}")
    root = xml.etree.ElementTree.parse(picture).getroot()
    titles = [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]
    (name,) = hit
    for wanted in (f"{name}, move: ", f"move, in {name}: ", "wait, GPU: ", "step: "):
        expect(any(title.startswith(wanted) for title in titles), f"no {wanted}: {titles[:50]}")
    print(f"the demo's program: its move hit {name!r}")
    return picture, text


def check_screenshots(page, colours_of, folder):
    for name, background in PAGES.items():
        shot = folder / f"{page.stem}.{name}.png"
        done = subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--window-size=1100,1700", f"--user-data-dir={folder}/chromium",
             "--blink-settings=preferredColorScheme=" + ("0" if name == "dark" else "1"),
             f"--screenshot={shot}", f"file://{page}"],
            capture_output=True, text=True, timeout=60 * PATIENCE)
        expect(shot.exists(), f"{done}")
        colours = pixels(shot)
        expect(colours.get(bytes(background), 0) > 300_000,
               f"{name}: the page is not on {background}")
        for what, colour in colours_of.items():
            count = colours.get(bytes.fromhex(colour), 0)
            expect(count > 100, f"{page.name}, {name}: {what} is on {count} points of the picture")
        print(f"{name}: Chromium shows {page.name}")


def off_and_on(options, daemon):
    program = Program(options, daemon)
    program.do("op early 5 1 cpu")
    program.flush()
    profile = profile_of(daemon, program)
    expect(profile["level"] == 0 and not profile["operations"] and not profile["ranges"]
           and int(profile["refused"]) == 0, f"off, and there are records: {profile}")
    expect(profile_of(daemon, program, "--level", "1")["level"] == 1, "the level is not set")
    program.do("op late 5 1 cpu")
    one = seen(daemon, program)
    profile = profile_of(daemon, program)
    expect("late" in one and "early" not in one and not profile["ranges"]
           and not profile["knows_overlap"], f"{profile}")
    profile_of(daemon, program, "--level", "0")
    program.do("op never 5 1 cpu")
    expect("never" not in seen(daemon, program), "it is off again, and noted something")
    program.end()
    print("off there is no record; on and off again while the program runs")


def try_all(options, folder):
    make_certificates(folder)
    extra = {"worker": "profile_level = 2\narbitrate = true\n"}
    source = Daemon(options.build, folder, "a", free_port(), driver=options.driver, extra=extra)
    target = Daemon(options.build, folder, "b", free_port(), driver=options.driver)
    quiet = Daemon(options.build, folder, "c", driver=options.driver)
    with running(source, target, quiet):
        try:
            off_and_on(options, quiet)
            program = Program(options, source)
            rounds = rounds_for(program, KERNEL_MS)
            splits(source, program, rounds)
            stalled(source, program)
            held(options, source, program)
            moved(source, target, program, folder)
            hostile(target, program)
            page = check_forms(target, program, folder)
            program.end()
            files = [page, *demonstration(options, source, target, folder)]
            if options.screenshots:
                check_screenshots(page, {"GPU": "4f9a3c", "both": "2f9e8f", "scheduler": "7a5cc0"},
                                  folder)
                check_screenshots(files[-1], {"GPU": "4f9a3c", "program": "8a93a6",
                                              "ranges": "5d7fa8"}, folder)
            if options.keep:
                for file in (*files, *folder.glob("*.png")):
                    shutil.copy(file, options.keep)
        except Failure as failure:
            raise Failure(f"{failure}\n{source.log_text()}{target.log_text()}") from failure


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--neighbour", type=pathlib.Path, required=True,
                        help="tests/fault/share_load.cu, built")
    parser.add_argument("--demo", type=pathlib.Path, required=True,
                        help="tests/system/demo_walk.cu, built")
    parser.add_argument("--driver", help="CUDA driver library; left out: the soft GPU")
    parser.add_argument("--screenshots", action="store_true")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for pages and pictures")
    options = parser.parse_args()
    options.build = options.build.resolve()
    if options.screenshots and shutil.which("chromium") is None:
        print("SKIPPED: Chromium is not installed (scripts/setup --packages)")
        return 77
    with tempfile.TemporaryDirectory(prefix="gprof") as folder:
        try:
            try_all(options, pathlib.Path(folder))
        except (Failure, subprocess.TimeoutExpired) as failure:
            print(f"FAILED: {failure}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    guard.run(main)
