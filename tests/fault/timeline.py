#!/usr/bin/env python3
"""What is seen of a move: `gantry top` while a program runs, and `gantry timeline` afterwards.

Two gantryds on loopback, the second with a monotonic clock that is 1000 s ahead, so that stamps of
both fit together only where they are laid beside each other by the messages of the move. A program
that writes all its memory is moved. Each host then has both records, also after a restart, and
writes them as text, JSON, SVG, HTML and Chrome's trace. --screenshots: Chromium shows the page, in
light and in dark.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
import guard
from daemons import PATIENCE, Daemon, Failure, free_port, make_certificates, running, wait_until
from programs import Program

WRITER = pathlib.Path(__file__).resolve().parent / "not_converging.py"
MIGRATION = 'downtime_max_ms = 0\nbandwidth_mib_s = 200\ncompression = "off"\n'
AHEAD_S = 1000
LANES = ("libvirt job", "GPU rounds", "guest paused", "GPU frozen", "grant", "GPU rounds applied",
         "final state", "first answer")
COLOURS = {"GPU round": "#3b82c4", "GPU frozen": "#d1603d", "grant": "#7a5cc0",
           "taken into service": "#4f9a3c"}
PAGES = {"light": (0xFF, 0xFF, 0xFF), "dark": (0x14, 0x18, 0x1F)}


def expect(condition, text):
    if not condition:
        raise Failure(text)


class AheadDaemon(Daemon):
    """Its clock, and that of its workers, is ahead."""

    def spawn(self):
        self.starts += 1
        self.log = self.folder / f"log.{self.starts}"
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen(
                ["unshare", "--time", "--monotonic", str(AHEAD_S), "--fork",
                 "--kill-child=SIGTERM", self.build / "bin" / "gantryd", "--config",
                 self.folder / "gantryd.toml"],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.environment)

    def kill(self, how=signal.SIGKILL):
        if self.child is not None:  # unshare itself takes no signals while it waits.
            pid = self.child.pid
            for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                os.kill(int(child), how)
            self.child.wait(timeout=20 * PATIENCE)
            self.child = None


def records_of(daemon, session):
    done = daemon.gantry("--json", "timeline", session)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def whole_records(daemon, session):
    told = records_of(daemon, session)
    is_whole = told.get("peer", {}).get("events") and told["own"].get("last", {}).get("outcome")
    return told if is_whole else None


def check_top(source, session):
    done = source.gantry("--json", "top", "--once")
    expect(done.returncode == 0, f"{done}")
    shown = json.loads(done.stdout)
    program = shown["programs"][0]
    expect(program["session_id"] == session and program["calls_per_second"] > 0
           and program["device_memory_bytes"] > 0 and not shown["moves"], f"{shown}")
    text = source.gantry("top", "--once").stdout
    expect("GPU memory  [" in text and "launch/s" in text and session[:14] in text, text)
    print("gantry top shows the program and its calls a second")


def check_records(told, is_source):
    own, peer = told["own"], told["peer"]
    for record in (own, peer):
        expect(len(record["events"]) <= 400 and len(record["samples"]) <= 240, "not bounded")
        expect(record["migration_id"] == own["migration_id"], f"{own} {peer}")
    whats = {event["what"] for event in own["events"]}
    wanted = ({"asked", "round_begun", "round_sent", "freeze", "frozen", "grant_asked", "granted"}
              if is_source else
              {"offered", "reserved", "round_applied", "apply", "complete", "grant_came",
               "activate", "activated", "first_call"})
    expect(wanted <= whats, f"missing: {wanted - whats}")
    true_us = (-1 if is_source else 1) * AHEAD_S * 1_000_000
    least, most = (own["clock"][f"own_minus_peer_us_{end}"] for end in ("min", "max"))
    expect(own["clock"]["is_known"] and least <= true_us <= most,
           f"the clocks differ by {true_us} us, and not by {least} to {most}")
    source = own if is_source else peer
    left = [sample["bytes_remaining"] for sample in source["samples"]]
    expect(max(left) > 0 and any(sample["bytes_per_second"] > 0 for sample in source["samples"])
           and any(sample["dirty_bytes_per_second"] > 0 for sample in source["samples"]),
           "no curves")
    print(f"{own['host']}: the clocks are known to {(most - least) / 2000:.2f} ms")


def check_picture(text):
    root = xml.etree.ElementTree.fromstring(text)
    words = {element.text for element in root.iter() if element.text}
    missing = [lane for lane in LANES if lane not in words]
    expect(not missing, f"no lanes {missing}")
    expect({"a (source)", "b (target)", "The pause"} <= words, f"{words}")
    titles = [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]
    for wanted in (r"round 1: [\d.]+ MiB in ", "GPU frozen: ", "grant, on disk: ",
                   "taken into service: ", "first GPU call"):
        expect(any(re.match(wanted, title) for title in titles), f"nothing shows {wanted}")
    expect("prefers-color-scheme:dark" in text, "it knows no dark")


def check_page(text):
    outside = re.findall(r"(?:src|href)=|url\(|@import|<script|<link", text)
    expect(not outside, f"the page wants more than itself: {outside}")
    expect(text.replace("http://www.w3.org/2000/svg", "").count("://") == 0, "an address")
    for wanted in ("memory digests of both hosts", "equal", "clocks of both hosts", "round sent"):
        expect(wanted in text, f"the page lacks {wanted}")
    check_picture(text[text.index("<svg"):text.index("</svg>") + len("</svg>")])


def check_trace(trace, bound_us):
    events = trace["traceEvents"]
    processes = {event["pid"]: event["args"]["name"] for event in events
                 if event["name"] == "process_name"}
    expect(sorted(processes.values()) == ["a (source)", "b (target)"], f"{processes}")

    def span(host, word):
        found = [event for event in events if event["ph"] == "X"
                 and processes[event["pid"]].startswith(host) and event["name"].startswith(word)]
        expect(found, f"{host} has no span {word}")
        return found[-1]["ts"], found[-1]["ts"] + found[-1]["dur"]
    frozen, granted = span("a", "GPU frozen"), span("a", "grant, on disk")
    applied, served = span("b", "final state applied"), span("b", "taken into service")
    first = [event["ts"] for event in events if event["name"] == "first GPU call of the guest"]
    # Cause before effect on one axis, whichever host's clock each is by.
    order = [frozen[0], applied[0], applied[1], granted[0], granted[1], served[0], first[0]]
    for before, after in zip(order, order[1:]):
        expect(before <= after + 2 * bound_us, f"out of order: {order}, bound {bound_us} us")
    expect(any(event["ph"] == "C" and event["name"] == "bytes left" for event in events),
           "no counters")


def write_forms(daemon, session, folder):
    files = {form: folder / f"{daemon.name}.{form}" for form in ("svg", "html", "chrome")}
    words = [word for form, path in files.items() for word in (f"--{form}", path)]
    done = daemon.gantry("timeline", session, *words)
    expect((done.returncode, done.stdout, done.stderr) == (0, "", ""), f"{done}")
    return {form: path.read_text() for form, path in files.items()}


def check_forms(daemon, session, folder, told):
    clock = told["own"]["clock"]
    forms = write_forms(daemon, session, folder)
    check_picture(forms["svg"])
    check_page(forms["html"])
    check_trace(json.loads(forms["chrome"]),
                (clock["own_minus_peer_us_max"] - clock["own_minus_peer_us_min"]) / 2)
    text = daemon.gantry("timeline", session).stdout
    for wanted in ("a (source)", "b (target)", "GPU frozen", "first answer", "equal"):
        expect(wanted in text, f"{wanted}: {text}")
    done = daemon.gantry("timeline", session, "--svg", folder / "no" / "such.svg")
    expect(done.returncode == 1 and "[command.output]" in done.stderr, f"{done}")
    done = daemon.gantry("timeline", session, "--migration", "0" * 32)
    expect(done.returncode == 4 and "[migration.unrecorded]" in done.stderr, f"{done}")
    print(f"{daemon.name}: text, SVG, page and trace show the move")


def pixels(path):
    """How often each colour is in a PNG of 8 bits, red, green and blue."""
    data, at, packed = path.read_bytes(), 8, b""
    width = height = channels = 0
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", data[at + 8:at + 18])
            expect(depth == 8 and colour in (2, 6), f"a PNG of kind {colour}, {depth} bits")
            channels = 3 if colour == 2 else 4
        elif kind == b"IDAT":
            packed += data[at + 8:at + 8 + length]
        at += 12 + length
    raw, stride, counts = zlib.decompress(packed), width * channels, {}
    above = bytearray(stride)
    for row in range(height):
        begin = row * (stride + 1)
        how, line = raw[begin], bytearray(raw[begin + 1:begin + 1 + stride])
        if how == 2:
            line = bytearray((a + b) & 255 for a, b in zip(line, above))
        elif how:
            for i in range(stride):
                left = line[i - channels] if i >= channels else 0
                up, corner = above[i], above[i - channels] if i >= channels else 0
                if how == 1:
                    guess = left
                elif how == 3:
                    guess = (left + up) // 2
                else:
                    guess = min((left, up, corner), key=lambda one: abs(left + up - corner - one))
                line[i] = (line[i] + guess) & 255
        for i in range(0, stride, channels):
            colour = bytes(line[i:i + 3])
            counts[colour] = counts.get(colour, 0) + 1
        above = line
    return counts


def check_screenshots(page, folder):
    for name, background in PAGES.items():
        shot = folder / f"{name}.png"
        done = subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--window-size=1100,1700", f"--user-data-dir={folder}/chromium",
             "--blink-settings=preferredColorScheme=" + ("0" if name == "dark" else "1"),
             f"--screenshot={shot}", f"file://{page}"],
            capture_output=True, text=True, timeout=60 * PATIENCE)
        expect(shot.exists(), f"{done}")
        seen = pixels(shot)
        expect(seen.get(bytes(background), 0) > 300_000,
               f"{name}: the page is not on {background}: {sorted(seen.values())[-5:]}")
        for what, colour in COLOURS.items():
            count = seen.get(bytes.fromhex(colour[1:]), 0)
            expect(count > 100, f"{name}: {what} is on {count} points of the picture")
        print(f"{name}: Chromium shows the lanes")


def try_all(build, folder, screenshots, keep):
    make_certificates(folder)
    source = Daemon(build, folder, "a", free_port(), extra={"migration": MIGRATION})
    target = AheadDaemon(build, folder, "b", free_port(), extra={"migration": MIGRATION})
    with running(source, target):
        program = Program([sys.executable, WRITER, "--write"], folder / "out",
                          {"LD_LIBRARY_PATH": f"{build}/shim",
                           "GANTRY_TRANSPORT": f"unix:{source.guest_socket}"})
        try:
            program.await_steps(3)
            session = wait_until("a session", source.sessions)[0]["session_id"]
            check_top(source, session)
            done = target.gantry("pull", session, "--from", f"127.0.0.1:{source.port}",
                                 "--handover", source.handover_socket, timeout=100 * PATIENCE)
            expect(done.returncode == 0, f"{done}")
            program.goes_on(2)
            for daemon in (source, target):
                told = wait_until(f"both records at {daemon.name}",
                                  lambda one=daemon: whole_records(one, session))
                check_records(told, daemon is source)
                check_forms(daemon, session, folder, told)
            before = source.gantry("timeline", session).stdout
            source.kill(15)
            source.start()
            expect(source.gantry("timeline", session).stdout == before, "a restart forgets")
            print("a restarted gantryd knows the move")
            if screenshots:
                check_screenshots(folder / "a.html", folder)
            if keep:
                for form in ("svg", "html", "chrome"):
                    shutil.copy(folder / f"a.{form}", keep)
        except Failure as failure:
            raise Failure(f"{failure}\n{source.log_text()}{target.log_text()}") from failure
        finally:
            program.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--screenshots", action="store_true")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the files")
    arguments = parser.parse_args()
    if arguments.screenshots and shutil.which("chromium") is None:
        print("SKIPPED: Chromium is not installed (scripts/setup --packages)")
        return 77
    with tempfile.TemporaryDirectory(prefix="gtime") as folder:
        try:
            try_all(arguments.build.resolve(), pathlib.Path(folder), arguments.screenshots,
                    arguments.keep)
        except (Failure, subprocess.TimeoutExpired) as failure:
            print(f"FAILED: {failure}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    guard.run(main)
