#!/usr/bin/env python3
"""Whatever an operator starts has --help, and an argument that it does not know is an error.

    usage_test.py PROGRAM...
"""

import subprocess
import sys
import unittest


class Usage(unittest.TestCase):
    programs = ()

    @staticmethod
    def run_with(*words):
        return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=60, check=False)

    def test_help_is_printed(self):
        for program in self.programs:
            for word in ("--help", "-h"):
                done = self.run_with(program, word)
                self.assertEqual((done.returncode, done.stderr), (0, ""), (program, done))
                self.assertIn(program.split("/")[-1].split("-")[0], done.stdout.lower())
                self.assertGreater(len(done.stdout.splitlines()), 3, done)

    def test_what_is_unknown_is_refused(self):
        for program in self.programs:
            done = self.run_with(program, "--nonsense")
            self.assertEqual((done.returncode, done.stdout), (2, ""), (program, done))
            self.assertIn("--help", done.stderr)


if __name__ == "__main__":
    Usage.programs, sys.argv[1:] = sys.argv[1:], []
    unittest.main()
