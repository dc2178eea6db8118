#!/usr/bin/env python3
"""A VM of libvirt's whose Debian has the package gantry-guest and systemd, nothing else of ours: a
tenant without rights runs a CUDA program and nvidia-smi with no variable set, through the memory
that the VM shares with its host.

    guest_vm_test.py BUILD_FOLDER PACKAGES LATER_PACKAGES

The hosts are those of tests/system/two_hosts (soft GPU, no KVM). What happens inside is
tests/packages/guest_steps. As root.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import unittest

from packages_test import REPOSITORY, PackageTest

HERE = pathlib.Path(__file__).resolve().parent


class GuestVm(PackageTest):
    def test_a_tenant_in_a_vm(self):
        root = self.root
        self.fetch_needs("gantry-guest")
        root.fetch("install", "systemd-sysv", "udev", "dbus")
        self.install("gantry-guest")
        smi = REPOSITORY / "build/cache/nvidia-smi/root/usr/lib/nvidia/current/nvidia-smi"
        shutil.copy2(smi, root.packages / "nvidia-smi")
        shutil.copy2(HERE / "guest_steps", root.packages / "vm_steps")
        for package in root.packages.glob("**/*.deb"):
            package.unlink()  # Not needed any more, and the VM's memory is small.
        image = root.folder / "packaged.cpio"
        root.write_image(image)
        rig = self.build / "rig"
        done = subprocess.run([HERE / "run_guest_vm"], stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                              env={**os.environ, "IMAGE": str(image), "RIG_DIR": str(rig),
                                   "GANTRY_BUILD": str(self.build)})
        print(done.stdout, file=sys.stderr)
        console = (rig / "hosta/log/g1-console.log").read_text(errors="replace")
        self.assertEqual(done.returncode, 0, console[-3000:])
        self.assertEqual(self.digests(console), self.native_digests())


if __name__ == "__main__":
    PackageTest.build, PackageTest.packages, PackageTest.later = map(
        lambda word: pathlib.Path(word).resolve(), sys.argv[1:4])
    unittest.main(argv=[sys.argv[0], "-v", "GuestVm"])
