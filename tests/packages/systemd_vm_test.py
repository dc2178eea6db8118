#!/usr/bin/env python3
"""gantryd under systemd as the first process of a VM, from packages: programs of a user without
rights run on while gantryd is restarted, reloaded, killed, and replaced by a later version, under
the hardened unit as it is shipped.

    systemd_vm_test.py BUILD_FOLDER PACKAGES LATER_PACKAGES

The VM is QEMU's, without KVM, with the stock kernel of build/cache; its system lies in memory. What
happens inside is tests/packages/vm_steps. As root.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import threading
import unittest

from packages_test import PATIENCE, PackageTest

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]


class SystemdVm(PackageTest):
    def test_gantryd_under_systemd(self):
        root = self.root
        self.fetch_needs("gantry-host", "gantry-tools", "gantry-guest")
        root.fetch("install", "systemd-sysv", "udev", "dbus", "procps", "kmod")
        self.install("gantry-host", "gantry-tools", "gantry-guest")
        root.run("sed", "-i", "-e", 's,^socket = "",socket = "/run/gantry/guest.sock",',
                 "-e", 's,^# group = "gantry",any_user = true,',
                 "/etc/gantry/gantryd.toml")
        shutil.copy2(HERE / "vm_steps", root.packages / "vm_steps")
        image = root.folder / "image.cpio"
        root.write_image(image)
        told = self.boot(image)
        self.assertNotIn("vm: FAILED", told)
        self.assertRegex(told, r"(?m)^vm: all \d+ steps are done")

    def boot(self, image):
        """What the VM prints until it has switched itself off."""
        kernel = next((REPOSITORY / "build/cache/kernel/root/boot").glob("vmlinuz-*"))
        machine = subprocess.Popen(
            ["qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "3072",
             "-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio",
             "-kernel", kernel, "-initrd", image, "-append",
             "console=ttyS0 panic=-1 quiet systemd.show_status=false systemd.log_target=kmsg"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace")
        timer = threading.Timer(400 * PATIENCE, machine.kill)
        timer.start()
        lines = []
        with machine:
            for line in machine.stdout:
                lines.append(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line.rstrip()))
                print(lines[-1], file=sys.stderr, flush=True)
        timer.cancel()
        return "\n".join(lines)


if __name__ == "__main__":
    PackageTest.build, PackageTest.packages, PackageTest.later = map(
        lambda word: pathlib.Path(word).resolve(), sys.argv[1:4])
    unittest.main(argv=[sys.argv[0], "-v", "SystemdVm"])
