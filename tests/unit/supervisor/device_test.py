#!/usr/bin/env python3
"""worker.device: a real gantryd serves that one of several soft GPUs, and says which it lacks."""

import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/rig"))
from daemons import Daemon, running, wait_until

PROFILES = ROOT / "host-daemon/softgpu/profiles"
BOTH = ["h200-like.toml", "small-86.toml"]


class Device(unittest.TestCase):
    build = None

    def says(self, device, text):
        """Whether gantryd's log has it once it is ready."""
        with tempfile.TemporaryDirectory(prefix="gantry-device-") as folder:
            profile = pathlib.Path(folder) / "both.toml"
            profile.write_text("".join((PROFILES / name).read_text() for name in BOTH))
            daemon = Daemon(self.build, pathlib.Path(folder), "a",
                            driver=self.build / "soft/libcuda.so.1",
                            extra={"worker": f'device = {device}\nprofile = "{profile}"\n'})
            with running(daemon):
                wait_until("the log", lambda: "is ready" in daemon.log_text(10000))
                self.assertIn(text, daemon.log_text(10000))

    def test_each_is_found_by_its_number(self):
        self.says(0, "device: Gantry Soft GPU (H200-like)")
        self.says(1, "device: Gantry Soft GPU (small)")

    def test_one_that_is_not_there_is_named(self):
        self.says(7, "sees no CUDA device: CUDA_VISIBLE_DEVICES is 7 here, which gantryd takes "
                     "from worker.device")


if __name__ == "__main__":
    Device.build = pathlib.Path(sys.argv.pop())
    unittest.main()
