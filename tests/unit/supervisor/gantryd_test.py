#!/usr/bin/env python3
"""gantryd's own options, which need no GPU and start nothing: what is printed, and the exit status.

    gantryd_test.py GANTRYD
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest


class Options(unittest.TestCase):
    gantryd = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gopt")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_with(self, *words, stdout=subprocess.PIPE):
        return subprocess.run([self.gantryd, *words], stdin=subprocess.DEVNULL, stdout=stdout,
                              stderr=subprocess.PIPE, text=True, timeout=60, check=False)

    def config(self, text):
        path = self.folder / "gantryd.toml"
        path.write_text(text)
        return path

    def test_what_cannot_be_printed_is_an_error(self):
        config = self.config("")
        for words in (["--config", config, "--print-config"], ["--help"], ["--version"]):
            with open("/dev/full", "w", encoding="ascii") as full:
                done = self.run_with(*words, stdout=full)
            self.assertEqual(done.returncode, 1, done)
            self.assertIn("cannot write standard output: No space left on device", done.stderr)
            self.assertIn("[command.output]", done.stderr)


if __name__ == "__main__":
    Options.gantryd = sys.argv.pop()
    unittest.main()
