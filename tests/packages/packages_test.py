#!/usr/bin/env python3
"""Gantry's packages in bare Debian 12 systems: each is installed with what it needs, used as its
readers would, replaced by a later version, and purged, which leaves nothing.

    packages_test.py BUILD_FOLDER PACKAGES LATER_PACKAGES [TEST...]

PACKAGES and LATER_PACKAGES: folders made by scripts/package, with the release's version and with a
higher one. As root; scripts/setup --packages makes the bare system.
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import yaml

from bare_root import REPOSITORY, Failure, Root

PATIENCE = float(os.environ.get("GANTRY_PATIENCE", "4"))
STEPS, MIB = "4", "4"
VM_XML = "<domain><metadata><gantry:gpu xmlns:gantry='urn:gantry:vm:1'/></metadata></domain>"
DIGEST = re.compile(r"digest [0-9a-f]{16}")


def eventually(what, condition, seconds=30):
    end = time.monotonic() + seconds * PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(Failure):
            if value := condition():
                return value
        time.sleep(0.1)
    raise Failure(f"waited in vain for {what}")


class PackageTest(unittest.TestCase):
    build = later = packages = pathlib.Path()
    maxDiff = 4000

    def setUp(self):
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        work = pathlib.Path(stack.enter_context(
            tempfile.TemporaryDirectory(prefix="packages.", dir=self.build)))
        (work / "packages/later").mkdir(parents=True)
        for package in self.packages.glob("*.deb"):
            shutil.copy2(package, work / "packages" / package.name)
        for package in self.later.glob("*.deb"):
            shutil.copy2(package, work / "packages/later" / package.name)
        shutil.copy2(self.build / "programs/demo_driver", work / "packages/demo_driver")
        self.root = stack.enter_context(Root(work / "system", work / "packages"))

    def file(self, package, later=False):
        """The package's file, as the system inside sees it."""
        folder = self.later if later else self.packages
        found = list(folder.glob(f"{package}_*.deb"))
        self.assertEqual(len(found), 1, f"{package} in {folder}")
        return ("/packages/later/" if later else "/packages/") + found[0].name

    def field(self, package, name, later=False):
        folder = self.later if later else self.packages
        return subprocess.run(
            ["dpkg-deb", "-f", next(folder.glob(f"{package}_*.deb")), name],
            check=True, capture_output=True, text=True).stdout.strip()

    def fetch_needs(self, *packages):
        """Installs what they depend on, so that all that comes after is theirs."""
        ours = {path.name.split("_")[0] for path in self.packages.glob("*.deb")}
        needs = {need for package in packages
                 for need in self.field(package, "Depends").split(", ")
                 if need and need.split(" ")[0] not in ours}
        self.root.fetch("satisfy", ", ".join(sorted(needs)))

    def install(self, *packages, later=False):
        self.root.apt("install", *(self.file(package, later) for package in packages))
        for package in packages:
            self.assertEqual(self.root.version(package), self.field(package, "Version", later))

    def purge(self, before, *packages):
        self.root.apt("purge", *packages)
        after = self.root.files()
        self.assertEqual({path: is_now for path, is_now in after.items()
                          if before.get(path) != is_now}, {}, "purge left these")
        self.assertEqual(sorted(set(before) - set(after)), [], "purge took these with it")

    def digests(self, output):
        found = DIGEST.findall(output)
        self.assertEqual(len(found), int(STEPS) + 1, output)
        return found

    def native_digests(self):
        """Of the same program on the soft GPU of the build tree, without any package."""
        done = subprocess.run([self.build / "programs/demo_driver", STEPS, MIB], check=True,
                              capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
                              env={"LD_LIBRARY_PATH": str(self.build / "soft")})
        return self.digests(done.stdout)

    def run_program(self):
        """The digests of a CUDA program of a user without rights, with no variable set."""
        return self.digests(self.root.run("/packages/demo_driver", STEPS, MIB, user="tenant"))


class Tools(PackageTest):
    def test_tools(self):
        root = self.root
        self.fetch_needs("gantry-tools")
        root.fetch("install", "man-db", "bash-completion")
        before = root.files()
        self.install("gantry-tools")

        version = root.run("gantry", "--version", user="tenant").split()
        self.assertEqual(version, ["gantry", self.field("gantry-tools", "Version")])
        page = root.run("man", "--warnings", "gantry", user="tenant",
                        environment={"MANWIDTH": "100"})
        helped = root.run("gantry", "--help")
        commands = re.findall(r"^  (\S+) ", helped.partition("Subcommands:")[2], re.MULTILINE)
        self.assertGreater(len(commands), 9, helped)
        for command in commands:
            self.assertRegex(page, rf"(?m)^   {command}$")
        self.assertNotIn("warning", page)

        self.assertEqual(self.completed("gantry sta"), ["status"])
        self.assertEqual(self.completed("gantry hook "),
                         sorted(["migrate-begin", "released", "--help", "--json", "--socket"]))
        self.assertEqual(self.completed("gantry snapshot --sus"), ["--suspend"])
        self.assertEqual(sorted(self.completed("gantry ")), sorted(
            commands + ["--help", "--json", "--socket", "--version"]))

        told = root.run("gantry", "status", user="tenant", status=3)
        self.assertIn("/run/gantry/operator.sock", told)
        self.assertRegex(root.run("/usr/libexec/gantry/bench/gantry-memcpy-rate"),
                         r"(?m)^warm \d+$")

        self.install("gantry-tools", later=True)
        root.run("gantry", "--version")
        self.purge(before, "gantry-tools")

    def completed(self, line):
        """What bash offers at the end of a line."""
        script = """
            . /usr/share/bash-completion/bash_completion
            _completion_loader gantry
            COMP_LINE=$1 COMP_POINT=${#1}
            read -ra COMP_WORDS <<<"$1"
            [[ $1 != *" " ]] || COMP_WORDS+=("")
            COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
            _gantry
            printf '%s\\n' "${COMPREPLY[@]}" | sort"""
        return self.root.run("bash", "-c", script, "complete", line).split()


class SoftDriver(PackageTest):
    def test_soft_driver(self):
        root = self.root
        self.fetch_needs("libcuda-soft1")
        before = root.files()
        self.install("libcuda-soft1")
        self.assertEqual(self.run_program(), self.native_digests())
        self.assertIn("/lib/x86_64-linux-gnu/libcuda.so.1\n", root.run("ldconfig", "-p"))
        # What links with libcuda.so.1 and asks for NVIDIA's package has it.
        self.assertIn("0 newly installed", root.apt("satisfy", "libcuda1"))
        told = root.run("dpkg", "-i", self.file("gantry-guest"), status=1)
        self.assertIn("conflicting packages", told)
        root.run("dpkg", "--remove", "gantry-guest", status=None)
        self.install("libcuda-soft1", later=True)
        self.assertEqual(self.run_program(), self.native_digests())
        self.purge(before, "libcuda-soft1")
        self.assertIn("libcuda.so.1", root.run("/packages/demo_driver", STEPS, MIB, status=1))


class Guest(PackageTest):
    def test_refused_beside_nvidias_driver(self):
        root = self.root
        self.fetch_needs("gantry-guest")
        root.run("mknod", "/dev/nvidiactl", "c", "195", "255")
        told = root.run("dpkg", "-i", self.file("gantry-guest"), status=1)
        self.assertIn("NVIDIA's kernel module serves /dev/nvidiactl", told)
        root.run("rm", "/dev/nvidiactl")

        # What NVIDIA's installer leaves belongs to no package.
        library = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
        root.run("touch", library)
        told = root.run("dpkg", "-i", self.file("gantry-guest"), status=1)
        self.assertIn(f"{library} belongs to no package", told)
        self.assertEqual(root.version("gantry-guest"), "not-installed ")
        root.run("rm", library)
        root.run("dpkg", "-i", self.file("gantry-guest"))

    def test_guest(self):
        root = self.root
        self.fetch_needs("gantry-guest")
        before = root.files()
        self.install("gantry-guest")
        known = root.run("ldconfig", "-p", user="tenant")
        for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
            first = re.search(rf"{re.escape(library)} .* => (\S+)", known)
            self.assertEqual(first and first[1], f"/usr/lib/x86_64-linux-gnu/gantry/{library}")
        # It is Gantry's that a program gets: there is no host here.
        told = root.run("/packages/demo_driver", STEPS, MIB, user="tenant", status=1)
        self.assertIn("CUDA_ERROR_NO_DEVICE", told)
        self.assertEqual(root.run("readlink", "/dev/nvidiactl").strip(), "null")
        self.assertIn("usage: gantry-guest", root.run("gantry-guest", "--help"))
        self.check_units("gantry-guest.service", "gantry-cdi.service", most=30)
        self.check_cdi()

        self.install("gantry-guest", later=True)
        self.assertIn("CUDA_ERROR_NO_DEVICE",
                      root.run("/packages/demo_driver", STEPS, MIB, status=1))
        self.purge(before, "gantry-guest")
        root.run("test", "!", "-e", "/dev/nvidiactl", "-a", "!", "-L", "/dev/nvidiactl")

    def check_units(self, *units, most):
        for unit in units:
            check_unit(self, unit, most)

    def check_cdi(self):
        root = self.root
        self.assertIn("neither the PCI device", root.run("/usr/libexec/gantry/gantry-cdi"))
        root.run("sh", "-c", """
            for device in 0000:00:02.0=0x1af4,0x1041 0000:00:03.0=0x1af4,0x1110; do
                folder=/tmp/sys/bus/pci/devices/${device%=*} ids=${device#*=}
                mkdir -p $folder
                echo ${ids%,*} >$folder/vendor
                echo ${ids#*,} >$folder/device
                touch $folder/resource2
            done""")
        write = ("/usr/libexec/gantry/gantry-cdi",)
        where = {"CDI_SYSFS": "/tmp/sys"}
        root.run(*write, environment=where)
        kinds = {}
        for name in ("gantry", "gantry-nvidia"):
            text = root.run("cat", f"/run/cdi/{name}.yaml")
            described = yaml.safe_load(text)
            kinds[described["kind"]] = described
            self.assertEqual(described["cdiVersion"], "0.5.0")
            self.assertEqual([device["name"] for device in described["devices"]], ["0", "all"])
            for device in described["devices"]:
                edits = device["containerEdits"]
                self.assertEqual(edits["env"], ["GANTRY_TRANSPORT=ivshmem:/run/gantry/region"])
                self.assertEqual(edits["deviceNodes"],
                                 [{"path": "/dev/nvidiactl", "hostPath": "/dev/null"}])
                sources = {mount["containerPath"]: mount["hostPath"] for mount in edits["mounts"]}
                self.assertEqual(len(sources), len(edits["mounts"]))
                self.assertEqual(sources.pop("/run/gantry/region"),
                                 "/tmp/sys/bus/pci/devices/0000:00:03.0/resource2")
                self.assertEqual(len(sources), 4)
                for path in sources.values():
                    root.run("test", "-e", path)
        self.assertEqual(set(kinds), {"gantry.dev/gpu", "nvidia.com/gpu"})
        # Somebody else's description of NVIDIA's kind stands.
        root.run("sh", "-c", "mkdir -p /etc/cdi && echo 'kind: nvidia.com/gpu' >/etc/cdi/x.yaml")
        root.run(*write, environment=where)
        root.run("test", "!", "-e", "/run/cdi/gantry-nvidia.yaml")
        root.run("rm", "-r", "/etc/cdi")
        root.run(*write)  # The device has gone.
        root.run("test", "!", "-e", "/run/cdi/gantry.yaml")
        root.run("rm", "-r", "/run/cdi", "/tmp/sys")


class Host(PackageTest):
    def test_host(self):
        root = self.root
        self.fetch_needs("gantry-host", "gantry-tools", "gantry-guest")
        root.fetch("install", "procps", "logrotate")
        before = root.files()
        self.install("gantry-host", "gantry-tools")
        self.assertEqual(root.run("gantryd", "--check"),
                         "/etc/gantry/gantryd.toml: no mistake found\n")
        for user in ("gantry-worker", "gantry-relay"):
            self.assertIn("nologin", root.run("getent", "passwd", user))
        check_unit(self, "gantryd.service", 60)
        check_unit(self, "gantry-relay@.service", 30)
        told = root.run("logrotate", "--debug", "/etc/logrotate.d/gantry-host")
        self.assertNotIn("error", told)
        told = root.run("sh", "-c", 'echo "$1" | /etc/libvirt/hooks/qemu.d/50-gantry g1 migrate '
                        "begin -", "hook", VM_XML, status=1)
        self.assertIn("/run/gantry/operator.sock", told)

        with self.gantryd():
            self.assertIn("Soft GPU", root.run("gantry", "status"))
            told = root.run("/packages/demo_driver", STEPS, MIB, user="tenant", status=1)
            self.assertIn("libcuda.so.1", told)  # The host's own programs have no driver yet.
        # Its own programs, too: what the comment in the file says.
        root.run("sed", "-i", "-e", 's,^socket = "",socket = "/run/gantry/guest.sock",',
                 "-e", 's,^# group = "gantry",any_user = true,',
                 "/etc/gantry/gantryd.toml")
        self.install("gantry-guest")
        with self.gantryd():
            self.assertEqual(self.run_program(), self.native_digests())
            self.check_smi()
            with self.long_program() as lines:
                self.upgrade(lines)
        self.purge(before, "gantry-host", "gantry-tools", "gantry-guest")

    @contextlib.contextmanager
    def gantryd(self):
        """What the unit starts."""
        unit = self.root.run("cat", "/lib/systemd/system/gantryd.service")
        command = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)[1].split()
        with open(self.root.folder / "gantryd.log", "ab") as log:
            process = self.root.start(*command, stdout=log, stderr=log)
        try:
            eventually("gantryd", lambda: self.root.run("gantry", "status"))
            yield process
        finally:
            self.root.run("pkill", "-x", "gantryd", status=None)
            process.wait(timeout=60 * PATIENCE)

    @contextlib.contextmanager
    def long_program(self):
        """A program that runs on; yields what waits for its next step and returns its number."""
        path = self.root.folder / "program.log"
        with open(path, "wb") as log:
            process = self.root.start("stdbuf", "-oL", "/packages/demo_driver", "1000000", MIB,
                                      "50", user="tenant", stdout=log, stderr=log)

        def steps():
            return len(re.findall(r"^step \d+ digest", path.read_text(), re.MULTILINE))

        def goes_on():
            self.assertIsNone(process.poll(), path.read_text())
            known = steps()
            eventually("a step of the program", lambda: steps() > known + 2)
            return steps()
        try:
            goes_on()
            yield goes_on
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def upgrade(self, goes_on):
        """The files are replaced and gantryd is started again; the program runs on."""
        workers = self.root.run("pgrep", "-x", "gantry-worker").split()
        self.install("gantry-host", "gantry-tools", "gantry-guest", later=True)
        goes_on()
        kept = self.root.run("cat", "/etc/gantry/gantryd.toml")
        self.assertIn("/run/gantry/guest.sock", kept)
        self.root.run("pkill", "-x", "gantryd")
        eventually("gantryd's end", lambda: not self.root.run("pgrep", "-x", "gantryd",
                                                              status=None))
        goes_on()
        with self.gantryd():
            self.assertIn("local-", self.root.run("gantry", "status"))
            goes_on()
            still = self.root.run("pgrep", "-x", "gantry-worker").split()
            self.assertLessEqual(set(workers), set(still))

    def check_smi(self):
        """NVIDIA's own program finds Gantry's NVML."""
        program = REPOSITORY / "build/cache/nvidia-smi/root/usr/lib/nvidia/current/nvidia-smi"
        shutil.copy2(program, self.root.seen / "tmp/nvidia-smi")
        self.assertIn("Soft GPU", self.root.run("/tmp/nvidia-smi", "-L", user="tenant"))


def check_unit(test, unit, most):
    """systemd finds no fault with it, and its exposure is at most `most` tenths."""
    path = f"/lib/systemd/system/{unit}"
    told = test.root.run("systemd-analyze", "verify", "--man=no", path)
    test.assertNotIn(unit, told)
    test.root.run("systemd-analyze", "security", "--offline=true", f"--threshold={most}", path)


if __name__ == "__main__":
    PackageTest.build, PackageTest.packages, PackageTest.later = map(
        lambda word: pathlib.Path(word).resolve(), sys.argv[1:4])
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[4:]])
