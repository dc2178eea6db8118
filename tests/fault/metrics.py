#!/usr/bin/env python3
"""What gantryd gives to Prometheus: read by the Python client's own parser, held to the rules of
`promtool check metrics` (which is asked, too, where it is installed), and right. The dashboard and
the alert rules of migration/monitoring name metrics that are there, and no others.

Two gantryds on loopback; a program runs, a move of it is refused, another one goes through.
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "rig"))
import guard
from daemons import Daemon, Failure, free_port, make_certificates, running, wait_until
from programs import Program

MONITORING = pathlib.Path(__file__).resolve().parents[2] / "migration" / "monitoring"
WRITER = pathlib.Path(__file__).resolve().parent / "not_converging.py"
WRITER_BYTES = 64 << 20
UNITS = ("bytes", "seconds", "ratio", "info", "total")
TYPES = ("counter", "gauge", "histogram", "summary")


def expect(condition, text):
    if not condition:
        raise Failure(text)


class Scrape:
    """The families of one gantryd, by name, without those of the library's own server."""

    seen = set()  # Names of all samples of all scrapes.

    def __init__(self, daemon):
        url = f"http://127.0.0.1:{daemon.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            self.text = answer.read().decode("utf-8", errors="strict")
        self.families = {family.name: family
                         for family in text_string_to_metric_families(self.text)}
        self.ours = {name: family for name, family in self.families.items()
                     if name.startswith("gantry_")}
        Scrape.seen |= {sample.name for family in self.ours.values() for sample in family.samples}

    def samples(self, name, **labels):
        return [sample for family in self.ours.values() for sample in family.samples
                if sample.name == name and labels.items() <= sample.labels.items()]

    def value(self, name, **labels):
        found = self.samples(name, **labels)
        expect(len(found) == 1, f"{name} {labels}: {found}\n{self.text}")
        return found[0].value

    def check_form(self):
        lines = [line for line in self.text.splitlines() if line.startswith("gantry_")]
        expect(len(lines) == len({line.rsplit(" ", 1)[0] for line in lines}),
               "a series is there twice")
        for name, family in self.ours.items():
            expect(family.documentation.endswith("."), f"{name} has no help")
            expect(family.type in TYPES, f"{name} has no type")
            expect(family.samples, f"{name} is empty")
            words = name.split("_")
            expect(not {"percent", "ms", "us", "mib", "kib", "count", *TYPES} & set(words),
                   f"{name}: no base unit, or a type in the name")
            for sample in family.samples:
                is_total = sample.name.endswith("_total")
                expect(is_total == (family.type == "counter"), f"{sample.name}: a {family.type}")
                expect(sample.value == sample.value, f"{sample} is no number")
            if family.type == "histogram":
                self.check_histogram(name, family)

    def check_histogram(self, name, family):
        buckets = [sample for sample in family.samples if sample.name == f"{name}_bucket"]
        counts = [sample for sample in family.samples if sample.name == f"{name}_count"]
        for count in counts:
            of_it = [one for one in buckets if count.labels.items() <= one.labels.items()]
            values = [one.value for one in of_it]
            expect(values == sorted(values) and of_it[-1].labels["le"] == "+Inf"
                   and values[-1] == count.value, f"{name} is no histogram: {family.samples}")


def check_with_promtool(scrape):
    """The library's own families are none of ours."""
    promtool = shutil.which("promtool")
    if promtool is None:
        print("promtool is not installed: its rules were held by this test alone")
        return
    ours, keep = [], False
    for line in scrape.text.splitlines():
        if line.startswith("# HELP "):
            keep = line.split()[2].startswith("gantry_")
        if keep:
            ours.append(line)
    done = subprocess.run([promtool, "check", "metrics"], input="\n".join(ours) + "\n",
                          text=True, capture_output=True, timeout=60)
    expect((done.returncode, done.stdout, done.stderr) == (0, "", ""), f"promtool: {done}")
    print("promtool finds nothing")


def check_monitoring():
    """After everything else: what any gantryd has told meanwhile is what may be named."""
    board = json.loads((MONITORING / "grafana.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [one["query"] for one in board["templating"]["list"]]
    for name, text in (("grafana.json", "\n".join(asked)),
                       ("alerts.yml", (MONITORING / "alerts.yml").read_text())):
        named = set(re.findall(r"\bgantry_[a-z_]+\b", text))
        expect(len(named) > 5, f"{name} names {named}")
        expect(named <= Scrape.seen, f"{name} names what no gantryd tells: {named - Scrape.seen}")
    ids = [panel["id"] for panel in board["panels"]]
    expect(len(ids) == len(set(ids)) > 8, f"panels {ids}")
    if shutil.which("promtool") is not None:
        done = subprocess.run(["promtool", "check", "rules", MONITORING / "alerts.yml"], text=True,
                              capture_output=True, timeout=60)
        expect(done.returncode == 0 and "8 rules found" in done.stdout, f"promtool: {done}")
    print("dashboard and alert rules name metrics that are there")


def pull(source, target, session):
    return target.gantry("pull", session, "--from", f"127.0.0.1:{source.port}", "--handover",
                         source.handover_socket)


def try_all(build, folder):
    make_certificates(folder)
    daemons = []
    for name in "ab":
        port = free_port()
        migration = ('downtime_max_ms = 700\nbandwidth_mib_s = 40\ncompression = "off"\n')
        daemon = Daemon(build, folder, name, free_port(),
                        extra={"metrics": f'listen = "127.0.0.1:{port}"\n', "migration": migration})
        daemon.metrics_port = port
        if name == "b":  # libvirt's own test driver; its VM is none of ours
            config = daemon.folder / "gantryd.toml"
            config.write_text(config.read_text().replace('libvirt_uri = ""',
                                                         'libvirt_uri = "test:///default"'))
        daemons.append(daemon)
    source, target = daemons
    with running(source, target):
        program = Program([sys.executable, WRITER, "--write"], folder / "out",
                          {"LD_LIBRARY_PATH": f"{build}/shim",
                           "GANTRY_TRANSPORT": f"unix:{source.guest_socket}"})
        try:
            program.await_steps(3)
            session = wait_until("a session", source.sessions)[0]["session_id"]
            check_running(source, session)
            check_moves(source, target, session, program)
            wait_until("libvirt", lambda: Scrape(target).value("gantry_libvirt_connected") == 1)
            check_monitoring()
        except Failure as failure:
            raise Failure(f"{failure}\n{source.log_text()}{target.log_text()}") from failure
        finally:
            program.kill()


def check_running(source, session):
    scrape = Scrape(source)
    scrape.check_form()
    labels = {"session": session, "domain": "", "vm_uuid": ""}
    expect(scrape.value("gantry_sessions") == 1, scrape.text)
    expect(scrape.value("gantry_worker_device_memory_bytes", **labels) >= WRITER_BYTES, scrape.text)
    expect(scrape.value("gantry_device_memory_used_bytes") >= WRITER_BYTES, scrape.text)
    expect(scrape.value("gantry_device_usable") == 1, scrape.text)
    expect(scrape.samples("gantry_build_info")[0].labels["version"], scrape.text)
    ends = scrape.value("gantry_tls_certificate_expiry_timestamp_seconds", certificate="host")
    expect(0 < ends - time.time() < 2 * 86400, f"the certificate ends at {ends}")
    before = scrape.value("gantry_worker_commands_total", **labels)
    wait_until("more commands", lambda: Scrape(source).value("gantry_worker_commands_total",
                                                             **labels) > before)
    expect(not scrape.samples("gantry_move_progress_ratio"), "a move under way, and there is none")
    check_with_promtool(scrape)


def check_moves(source, target, session, program):
    expect(pull(source, target, session).returncode == 1, "the move was not refused")
    refused = Scrape(source)
    refused.check_form()
    expect(refused.value("gantry_moves_total", direction="outgoing", outcome="refused",
                         reason="migration.not_converging") == 1, refused.text)
    expect(refused.value("gantry_move_downtime_seconds_count", direction="outgoing") == 0,
           refused.text)
    expect(source.gantry("force-complete", session).returncode == 0, "not forced")
    pulling = subprocess.Popen(
        [target.build / "bin/gantry", "--socket", target.operator_socket, "pull", session, "--from",
         f"127.0.0.1:{source.port}", "--handover", source.handover_socket],
        env=target.environment)
    seen = wait_until("a move under way",
                      lambda: Scrape(source).samples("gantry_move_progress_ratio"))
    expect(seen[0].labels["direction"] == "outgoing" and 0 <= seen[0].value <= 1, f"{seen}")
    expect(pulling.wait(timeout=200) == 0, "not moved")
    program.goes_on(2)
    wait_until("the source to let go", lambda: not source.sessions())
    for daemon, direction in ((source, "outgoing"), (target, "incoming")):
        def has_ended(one=daemon, way=direction):
            return Scrape(one).samples("gantry_moves_total", direction=way, outcome="moved")
        wait_until(f"the end of the move at {daemon.name}", has_ended)
        scrape = Scrape(daemon)
        scrape.check_form()
        expect(scrape.value("gantry_moves_total", direction=direction, outcome="moved",
                            reason="") == 1, scrape.text)
        expect(scrape.value("gantry_move_duration_seconds_count", direction=direction) == 1,
               scrape.text)
        expect(scrape.value("gantry_moves_sent_bytes_total", direction=direction) > WRITER_BYTES,
               scrape.text)
        expect(not scrape.samples("gantry_move_progress_ratio"), "the move has ended")
        check_with_promtool(scrape)
    scrape = Scrape(source)
    expect(scrape.value("gantry_move_downtime_seconds_count", direction="outgoing") == 1,
           scrape.text)
    expect(0 < scrape.value("gantry_move_downtime_seconds_sum", direction="outgoing") < 600,
           scrape.text)
    print("moves, refusals by reason, pauses and certificates are counted")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gmetr") as folder:
        try:
            try_all(arguments.build.resolve(), pathlib.Path(folder))
        except (Failure, subprocess.TimeoutExpired) as failure:
            print(f"FAILED: {failure}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    guard.run(main)
