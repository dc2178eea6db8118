#!/usr/bin/env python3
"""A GPU whose kernels reach all memory of a worker (HMM, ATS) is refused by name.

    pageable.py --build BUILD

The soft GPU plays it: a profile says what its attributes are.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/rig"))
from daemons import Daemon, running, wait_until

SMALL = (ROOT / "host-daemon/softgpu/profiles/small-86.toml").read_text()
HMM, ATS = 88, 100  # CUdevice_attribute


class Pageable(unittest.TestCase):
    build = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gantry-pageable-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def daemon(self, attributes, worker=""):
        profile = self.folder / "gpu.toml"
        profile.write_text(SMALL + "\n[device.attributes]\n" +
                           "".join(f"{number} = 1\n" for number in attributes))
        return Daemon(self.build, self.folder, "a", driver=self.build / "soft/libcuda.so.1",
                      extra={"worker": f'profile = "{profile}"\n{worker}'})

    def check(self, daemon):
        return subprocess.run(
            [self.build / "bin/gantryd", "--check", "--config", daemon.folder / "gantryd.toml"],
            capture_output=True, text=True, timeout=120, check=False)

    def starts(self, daemon, text):
        with running(daemon):
            wait_until("the log", lambda: "is ready" in daemon.log_text(10000))
            self.assertIn(text, daemon.log_text(10000))

    def assert_refused(self, daemon, *words):
        done = self.check(daemon)
        self.assertEqual((done.returncode, done.stdout), (1, ""), done)
        self.assertIn("[gpu.pageable_access]", done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.starts(daemon, "gpu.pageable_access")

    def test_hmm_is_refused_with_what_to_do(self):
        self.assert_refused(self.daemon([HMM]), "options nvidia_uvm uvm_disable_hmm=1",
                            "worker.pageable_access = true")

    def test_ats_is_refused_for_good(self):
        self.assert_refused(self.daemon([HMM, ATS]), "ATS", "use another GPU")

    def test_whoever_knows_may_serve_it(self):
        daemon = self.daemon([HMM], "pageable_access = true\n")
        self.starts(daemon, "device: Gantry Soft GPU (small)")

    def test_another_is_served(self):
        daemon = self.daemon([])
        self.assertEqual(self.check(daemon).returncode, 0)
        self.starts(daemon, "device: Gantry Soft GPU (small)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    Pageable.build = parser.parse_args().build.resolve()
    unittest.main(argv=sys.argv[:1])
