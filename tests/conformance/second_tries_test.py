#!/usr/bin/env python3
"""What was skipped, refused or done a second time is counted and told, and is no pass: in the last
lines of scripts/test (scripts/dev/junit_counts), and for tests/gpu/samples."""

import collections
import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop()).resolve()
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tests/gpu"))

# As ctest 3.25 writes it.
REPORT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="(empty)" tests="8" failures="1" disabled="1" skipped="4">
<testcase name="passes" status="run"><system-out>fine</system-out></testcase>
<testcase name="moves" status="run"><system-out>much
REPEATED: 2 moves: libvirt failed without a cause
run_it: 7 checks, 0 failed, 2 moves repeated</system-out></testcase>
<testcase name="fails" status="fail"><failure message=""/><system-out/></testcase>
<testcase name="not_there" status="notrun"><skipped message="Unable to find executable"/>
<system-out/></testcase>
<testcase name="off" status="disabled"><system-out/></testcase>
<testcase name="ours" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>
<system-out>SKIPPED tests/gpu/moves: no GPU is here</system-out></testcase>
<testcase name="missing" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
<system-out>SKIPPED: no nvcc was found: install one</system-out></testcase>
<testcase name="google" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
<system-out>on_tmpfs.h:27: Skipped
no tmpfs can be mounted here

[  SKIPPED ] A.B (0 ms)</system-out></testcase>
</testsuite>
"""


class JunitCounts(unittest.TestCase):
    def counts(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write(text)
            file.flush()
            return subprocess.run([ROOT / "scripts/dev/junit_counts", file.name], check=True,
                                  capture_output=True, text=True, timeout=60)

    def test_each_outcome_is_counted_once_and_told_with_its_reason(self):
        done = self.counts(REPORT)
        self.assertEqual(done.stdout, "2 passed, 3 failed, 3 skipped\n")
        self.assertEqual(done.stderr.splitlines(), [
            "REPEATED: moves: 2 moves: libvirt failed without a cause",
            "FAILED: fails", "FAILED: not_there", "FAILED: off",
            "SKIPPED: ours: no GPU is here",
            "SKIPPED: missing: no nvcc was found: install one",
            "SKIPPED: google: no tmpfs can be mounted here"])

    def test_no_tests_are_a_failure(self):
        for text in ("<testsuite/>", "damaged"):
            self.assertEqual(self.counts(text).stdout, "0 passed, 1 failed, 0 skipped\n")


def load_samples():
    path = ROOT / "tests/gpu/samples"
    loader = importlib.machinery.SourceFileLoader("samples", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("samples", loader))
    sys.modules["samples"] = module
    loader.exec_module(module)
    return module


class FakeRuns:
    """Runs whose outcomes are given: (moved, refusals, printed) each."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)

    def middles(self, _):
        return [("live", 0.5), ("paused", 0.5), ("paused", 0.2)][:len(self.outcomes)]

    def gantry(self, _name, middle, _phase):
        moved, refusals, printed = self.outcomes.pop(0)
        return {"status": 0, "text": printed, "middle": middle, "seconds": 1.0,
                "moves": [{"at": 1.0}] if moved else [], "refusals": refusals}


class Samples(unittest.TestCase):
    def verdict(self, *outcomes):
        samples = load_samples()
        runs = FakeRuns(*outcomes)
        verdict, why, _, ran = samples.run_moved(runs, samples.Sample("s"),
                                             collections.Counter(["sum 42"]), 1.0)
        return verdict, why, ran

    def test_a_program_that_was_moved_at_once_passes(self):
        self.assertEqual(self.verdict((True, [], "sum 42\n")), ("pass", "", 1))

    def test_one_that_was_over_too_soon_runs_again(self):
        self.assertEqual(self.verdict((False, [], "sum 42\n"), (True, [], "sum 42\n")),
                         ("pass", "", 2))
        self.assertEqual(self.verdict((False, [], "sum 42\n"))[0], "too short")

    def test_a_refused_move_is_no_pass_though_it_was_done_later(self):
        verdict, why, ran = self.verdict((True, ["busy [x]", "busy [x]"], "sum 42\n"),
                                         (True, [], "sum 42\n"))
        self.assertEqual((verdict, ran), ("refused", 1))
        self.assertEqual(why, "2 times, then moved: busy [x]; busy [x]")
        self.assertEqual(self.verdict((False, ["no [y]"], "sum 42\n"))[:2],
                         ("refused", "1 times: no [y]"))

    def test_a_program_that_did_not_survive_the_attempt_fails(self):
        self.assertEqual(self.verdict((False, ["no [y]"], "sum 41\n"))[0], "FAIL")
        self.assertEqual(self.verdict((True, [], "sum 41\n"))[0], "FAIL")


if __name__ == "__main__":
    unittest.main()
