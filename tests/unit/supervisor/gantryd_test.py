#!/usr/bin/env python3
"""gantryd's own options, which need no GPU and start nothing: what is printed, and the exit status.

    gantryd_test.py GANTRYD
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "rig"))
from daemons import make_certificates

DEFAULT = pathlib.Path("/etc/gantry/gantryd.toml")
SKIPPED = 77  # Exit status: not all could be tried here.

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

    def make_expired(self):
        """old.pem, of the host's key: it was good until yesterday."""
        subprocess.run(["openssl", "x509", "-req", "-in", "host.csr", "-CA", "ca.pem", "-CAkey",
                        "ca.key", "-CAcreateserial", "-days", "-1", "-out", "old.pem"],
                       cwd=self.folder, check=True, capture_output=True)

    def test_what_cannot_be_printed_is_an_error(self):
        config = self.config("")
        for words in (["--config", config, "--print-config"], ["--help"], ["--version"]):
            with open("/dev/full", "w", encoding="ascii") as full:
                done = self.run_with(*words, stdout=full)
            self.assertEqual(done.returncode, 1, done)
            self.assertIn("cannot write standard output: No space left on device", done.stderr)
            self.assertIn("[command.output]", done.stderr)

    def test_the_defaults_are_printed_where_nothing_is_configured(self):
        if DEFAULT.exists():
            self.skipTest(f"{DEFAULT} is there")
        done = self.run_with("--print-config")
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("state_directory = '/var/lib/gantry'", done.stdout)
        for words in (["--print-config", "--config", DEFAULT], ["--check"]):
            done = self.run_with(*words)
            self.assertEqual(done.returncode, 1, done)
            self.assertIn(f"cannot read {DEFAULT}: No such file or directory", done.stderr)
            self.assertIn("[config.unreadable]", done.stderr)

    def test_wrong_usage_is_said_as_the_command_gantry_says_it(self):
        for words, says in ((["--bogus"], "there is no option '--bogus'"),
                            (["--chekc"], "there is no option '--chekc'; did you mean '--check'?"),
                            (["more"], "'more' is one argument too many")):
            done = self.run_with(*words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done)
            self.assertEqual(done.stderr,
                             f"gantryd: {says}; see `gantryd --help` [command.usage]\n")

    def test_a_folder_is_no_configuration(self):
        for word in ("--check", "--print-config"):
            done = self.run_with(word, "--config", self.folder)
            self.assertEqual(done.returncode, 1, done)
            self.assertIn(f"cannot read {self.folder}: Is a directory", done.stderr)

    def test_the_check_finds_what_would_prevent_the_start(self):
        make_certificates(self.folder)
        peer = (f'[peer]\nlisten = "127.0.0.1:0"\nauthority = "{self.folder}/ca.pem"\n'
                f'certificate = "{self.folder}/host.pem"\n')
        worker = '[worker]\nexecutable = "/proc/self/exe"\ndriver = "libcuda.so.1"\nuser = '
        key = f'key = "{self.folder}/host.key"\n'
        done = self.run_with("--check", "--config", self.config(f'{peer}{key}{worker}""\n'))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        (self.folder / "none.pem").write_text("none")
        self.make_expired()
        for config, says in (
                (f'{peer}key = "{self.folder}/ca.key"\n{worker}""\n',
                 "does not belong to the certificate in"),
                (f'{peer.replace("host.pem", "none.pem")}{key}{worker}""\n',
                 "holds no PEM certificate"),
                (f'{peer.replace("host.pem", "old.pem")}{key}{worker}""\n', "has expired"),
                (f'{worker}"no-such-user"\n', "worker.user 'no-such-user' does not exist"),
                (f'[operator]\ngroup = "no-such-group"\n{worker}""\n',
                 "operator.group 'no-such-group' does not exist")):
            done = self.run_with("--check", "--config", self.config(config))
            self.assertEqual(done.returncode, 1, done)
            self.assertIn(says, done.stderr)
            self.assertIn("[config.file]", done.stderr)


if __name__ == "__main__":
    Options.gantryd = sys.argv.pop()
    outcome = unittest.main(exit=False).result
    for _, reason in outcome.skipped:
        print(f"SKIPPED: {reason}")
    sys.exit(1 if not outcome.wasSuccessful() else SKIPPED if outcome.skipped else 0)
