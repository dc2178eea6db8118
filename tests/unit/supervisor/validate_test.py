#!/usr/bin/env python3
"""What is wrong with a host is found by `gantryd --validate`, each by a reason id of its own, with
the place and a remedy; `gantry validate` is the same, and `gantryd --check` finds the same of what
the configuration names. Each case is a host that is fit but for one thing.

    validate_test.py BUILD
"""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/rig"))
from daemons import free_port, make_certificates

# Who is not root is root in a user namespace of its own.
MAP_ROOT = [] if os.geteuid() == 0 else ["--map-root-user"]
HMM, ATS = 88, 100  # Of the driver's attributes: kernels reach memory that was not given to them.


class Host:
    """A fit one, and its parts, which a case may spoil."""

    def __init__(self, build, folder):
        self.build, self.folder, self.root = build, folder, folder / "root"
        self.tls = folder / "tls"
        self.tls.mkdir()
        make_certificates(self.tls)
        self.issue("90")
        (self.tls / "host.key").chmod(0o600)
        self.port = free_port()
        hook = self.root / "etc/libvirt/hooks/qemu.d/50-gantry"
        for path, text in ((hook, "#!/bin/sh\n"),
                           (self.root / "proc/sys/kernel/yama/ptrace_scope", "1\n"),
                           (self.root / "sys/kernel/mm/transparent_hugepage/enabled",
                            "always [madvise] never\n")):
            path.parent.mkdir(parents=True)
            path.write_text(text)
        hook.chmod(0o755)
        self.hook = hook
        self.config = {
            "daemon": {"run_directory": f"{folder}/run", "state_directory": f"{folder}/state"},
            "operator": {"socket": f"{folder}/operator.sock"},
            "vm": {"libvirt_uri": "", "region_directory": str(folder)},
            "worker": {"executable": f"{build}/bin/gantry-worker",
                       "driver": f"{build}/lib/libcuda-soft.so.1", "user": "",
                       "private_tmp": False},
            "peer": {"listen": f"127.0.0.1:{self.port}", "authority": f"{self.tls}/ca.pem",
                     "certificate": f"{self.tls}/host.pem", "key": f"{self.tls}/host.key"}}
        self.text = None
        self.mounted = None  # Path and size of a file system that only the check sees.

    def set(self, section, key, value):
        self.config.setdefault(section, {})[key] = value

    def path(self):
        path = self.folder / "gantryd.toml"
        text = self.text or "".join(
            f"[{section}]\n" + "".join(f"{key} = {json.dumps(value)}\n"
                                       for key, value in keys.items())
            for section, keys in self.config.items())
        path.write_text(text)
        return path

    def run(self, *words):
        command = [self.build / "bin/gantryd", *words, "--root", self.root, "--config", self.path()]
        if self.mounted:
            path, size = self.mounted
            command = ["unshare", *MAP_ROOT, "--mount", "sh", "-ec",
                       f'mount -t tmpfs -o size={size} tmpfs "$0" && exec "$@"', path, *command]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False,
                              stdin=subprocess.DEVNULL)

    def validate(self):
        done = self.run("--validate", "--json")
        if not done.stdout:
            raise AssertionError(done)
        return done.returncode, json.loads(done.stdout)

    def define(self, *domains):
        """VMs of libvirt's test driver."""
        path = self.folder / "node.xml"
        path.write_text("<node>" + "".join(domains) + "</node>")
        self.set("vm", "libvirt_uri", f"test://{path}")

    def issue(self, days):
        subprocess.run(["openssl", "x509", "-req", "-in", "host.csr", "-CA", "ca.pem", "-CAkey",
                        "ca.key", "-CAcreateserial", "-days", days, "-extfile", "ext", "-out",
                        "host.pem"], cwd=self.tls, check=True, capture_output=True)

    def listen_on(self, port):
        taken = socket.create_server(("127.0.0.1", port))
        return taken


def with_worker(text):
    def spoil(host):
        path = host.folder / "worker"
        path.write_text(text)
        path.chmod(0o755)
        host.set("worker", "executable", str(path))
    return spoil


def text_file(host):
    (host.folder / "libcuda.so.1").write_text("no library\n")
    host.set("worker", "driver", str(host.folder / "libcuda.so.1"))


def without(name):
    return lambda host: (host.tls / name).unlink()


def other_key(host):
    shutil.copy(host.tls / "ca.key", host.tls / "host.key")
    (host.tls / "host.key").chmod(0o600)


def no_pem(host):
    (host.tls / "host.pem").write_text("none\n")


def other_authority(host):
    other = host.folder / "other"
    other.mkdir()
    make_certificates(other)
    shutil.copy(other / "ca.pem", host.tls / "ca.pem")


def small(key, size):
    """A folder of the host on a file system of its own, of so many bytes."""
    def spoil(host):
        path = host.folder / "small"
        path.mkdir()
        host.set(*key, str(path))
        if key[0] == "vm":
            host.set("vm", "libvirt_uri", LIBVIRT)
        host.mounted = (path, size)
    return spoil


def with_attribute(number):
    def spoil(host):
        profile = host.folder / "gpu.toml"
        profile.write_text(SMALL + f"\n[device.attributes]\n{number} = 1\n")
        host.set("worker", "profile", str(profile))
    return spoil


def crowded(host):
    host.set("guest", "socket", str(host.folder / "guest.sock"))
    for path, text in (("proc/self/cgroup", "0::/gantryd.service\n"),
                       ("sys/fs/cgroup/gantryd.service/pids.max", "90\n")):
        (host.root / path).parent.mkdir(parents=True, exist_ok=True)
        (host.root / path).write_text(text)


def vm(name="g1", number=1, needs="memory_mib='1024'", shmem="gantry-g1", role="master", size=64,
       model="ivshmem-plain"):
    return (f"<domain type='test'><name>{name}</name>"
            f"<uuid>11111111-0000-4000-8000-00000000000{number}</uuid><metadata>"
            f"<gantry:gpu xmlns:gantry='urn:gantry:vm:1'><gantry:needs {needs}/></gantry:gpu>"
            "</metadata><memory unit='MiB'>256</memory><vcpu>1</vcpu><os><type>hvm</type></os>"
            f"<devices><shmem name='{shmem}' role='{role}'><model type='{model}'/>"
            f"<size unit='M'>{size}</size></shmem></devices></domain>")


def with_vms(*domains):
    return lambda host: host.define(*domains)


def a_file_for_a_folder(host):
    (host.folder / "state").write_text("")


def write(path, text):
    return lambda host: (host.root / path).write_text(text)


SCOPE, HUGE = "proc/sys/kernel/yama/ptrace_scope", "sys/kernel/mm/transparent_hugepage/enabled"
LIBVIRT = "test:///default"
SMALL = (ROOT / "host-daemon/softgpu/profiles/small-86.toml").read_text()
# What is wrong, how the host is spoilt, the check that finds it, reason id, is it a failure.
CASES = (
    ("an unknown key", lambda h: h.set("peer", "lisen", "x"), "configuration", "config.invalid", 1),
    ("a wrong type", lambda h: h.set("peer", "streams", "4"), "configuration", "config.invalid", 1),
    ("out of range", lambda h: h.set("peer", "streams", 0), "configuration", "config.invalid", 1),
    ("no TOML", lambda h: setattr(h, "text", "[peer\n"), "configuration", "config.invalid", 1),
    ("a relative path", lambda h: h.set("peer", "key", "host.key"), "configuration",
     "config.invalid", 1),
    ("no worker", lambda h: h.set("worker", "executable", "/nonexistent"), "worker program",
     "config.file", 1),
    ("a worker that cannot be run", lambda h: h.set("worker", "executable", str(h.tls / "ca.pem")),
     "worker program", "config.file", 1),
    ("a worker that ends at once", with_worker("#!/bin/sh\nexit 3\n"), "GPU", None, 1),
    ("no such user", lambda h: h.set("worker", "user", "no-such-user"), "worker user", None, 1),
    ("no such group", lambda h: h.set("operator", "group", "no-such-group"), "operator group", None,
     1),
    ("no authority", without("ca.pem"), "certificates", "config.file", 1),
    ("no certificate", without("host.pem"), "certificates", "config.file", 1),
    ("no key", without("host.key"), "certificates", "config.file", 1),
    ("another key", other_key, "certificates", "certificate.invalid", 1),
    ("no PEM", no_pem, "certificates", "certificate.invalid", 1),
    ("an expired certificate", lambda h: h.issue("-1"), "certificates", "certificate.invalid", 1),
    ("a certificate that ends soon", lambda h: h.issue("9"), "certificate's end",
     "certificate.ends_soon", 0),
    ("a key that others may read", lambda h: (h.tls / "host.key").chmod(0o644), "private key",
     "certificate.key_mode", 1),
    ("another host's certificate", lambda h: h.set("peer", "advertise", "hosta.example.org:7700"),
     "advertised address", "certificate.name", 1),
    ("an address that nobody can dial", lambda h: h.set("peer", "listen", "0.0.0.0:0"),
     "advertised address", "peer.not_advertised", 1),
    ("a busy port", lambda h: h.listen_on(h.port), "peer address", "host.address", 1),
    ("another host's address", lambda h: h.set("peer", "listen", "192.0.2.1:7700"), "peer address",
     "host.address", 1),
    ("a busy metrics port", lambda h: (h.set("metrics", "listen", f"127.0.0.1:{h.port}"),
                                       h.listen_on(h.port))[1], "metrics address", "host.address",
     1),
    ("no driver", lambda h: h.set("worker", "driver", "libcuda-none.so.1"), "GPU", "driver.absent",
     1),
    ("a driver that is none", text_file, "GPU", "driver.absent", 1),
    ("no such GPU", lambda h: h.set("worker", "device", 7), "GPU", "driver.device", 1),
    ("no such profile", lambda h: h.set("worker", "profile", "no-such-profile"), "GPU", None, 1),
    ("no libvirt", lambda h: h.set("vm", "libvirt_uri", "qemu+unix:///system?socket=/nonexistent"),
     "libvirt", "libvirt.unavailable", 1),
    ("no hook", lambda h: (h.set("vm", "libvirt_uri", LIBVIRT), h.hook.unlink()), "libvirt's hook",
     "hook.absent", 1),
    ("a hook that cannot be run", lambda h: (h.set("vm", "libvirt_uri", LIBVIRT),
                                             h.hook.chmod(0o644)), "libvirt's hook", "hook.mode",
     1),
    ("a file where a folder should be", a_file_for_a_folder, "state folder", "host.folder", 1),
    ("records in memory", lambda h: h.set("daemon", "state_directory", "/dev/shm/gantry-state"),
     "state folder lasts", "host.state_lost", 1),
    ("open tracing", write(SCOPE, "0\n"), "ptrace", "host.ptrace", 1),
    ("a kernel without Yama", lambda h: (h.root / SCOPE).unlink(), "ptrace", "host.ptrace", 0),
    ("no driver file", lambda h: h.set("worker", "driver", "/nonexistent/libcuda.so.1"), "driver",
     "config.file", 1),
    ("an old driver", lambda h: h.set("worker", "driver", f"{h.build}/lib/libold_cuda_driver.so"),
     "GPU", "driver.too_old", 1),
    ("a driver of a major that nobody tried",
     lambda h: h.set("worker", "driver", f"{h.build}/lib/libnext_cuda_driver.so"),
     "driver's release", "driver.untried", 0),
    ("a GPU that reaches all memory by HMM", with_attribute(HMM), "GPU", "gpu.pageable_access", 1),
    ("a GPU that reaches all memory by ATS", with_attribute(ATS), "GPU", "gpu.pageable_access", 1),
    ("no profile file", lambda h: h.set("worker", "profile", "/nonexistent/gpu.toml"),
     "soft GPU's profile", "config.file", 1),
    ("a GPU twice", lambda h: h.set("worker", "devices", [0, 0]), "configuration",
     "config.invalid", 1),
    ("no such group of guests", lambda h: h.set("guest", "group", "no-such-group"), "guest group",
     None, 1),
    ("a configuration that others may write", lambda h: h.path().chmod(0o666), "file modes",
     "config.mode", 1),
    ("a certificate that others may write", lambda h: (h.tls / "host.pem").chmod(0o666),
     "file modes", "config.mode", 1),
    ("records that others may write",
     lambda h: (lambda state: (state.mkdir(), state.chmod(0o777)))(h.folder / "state"),
     "file modes", "config.mode", 1),
    ("too few tasks", crowded, "tasks", "guest.tasks", 1),
    ("a full disk", small(("daemon", "state_directory"), "1m"), "room for records",
     "host.disk_full", 1),
    ("no shared memory", small(("vm", "region_directory"), "1m"), "shared memory",
     "host.shared_memory", 1),
    ("little shared memory", small(("vm", "region_directory"), "100m"), "shared memory",
     "host.shared_memory", 0),
    ("another authority", other_authority, "certificates", "certificate.invalid", 1),
    ("a VM's misspelt limit", with_vms(vm(needs="memory_mb='1024'")), "VMs", "vm.metadata", 1),
    ("a VM's region that cannot move", with_vms(vm(role="peer")), "VMs", "vm.region", 1),
    ("a VM's region of an odd size", with_vms(vm(size=96)), "VMs", "vm.region", 1),
    ("two VMs with one region", with_vms(vm(), vm(name="g2", number=2)), "VMs",
     "vm.region_shared", 1),
    ("no huge pages", write(HUGE, "always madvise [never]\n"), "huge pages", "host.huge_pages", 0),
)


# What `gantryd --check` finds, too, in the same words. (A GPU it asks for without a context, so its
# words are others.)
CHECKED = {"worker program", "driver", "soft GPU's profile", "worker user", "operator group",
           "guest group", "file modes", "private key", "tasks", "certificates",
           "advertised address"}


class Validate(unittest.TestCase):
    build = None

    def host(self):
        holder = tempfile.TemporaryDirectory(prefix="gval", dir=self.disk())
        self.addCleanup(holder.cleanup)
        return Host(self.build, pathlib.Path(holder.name))

    @staticmethod
    def disk():
        """Records in memory are a mistake: a folder that is not."""
        return os.environ.get("TMPDIR", "/var/tmp")

    def test_a_fit_host_is_fit(self):
        host = self.host()
        host.define(vm(), vm(name="g2", number=2, shmem="gantry-g2"))
        status, found = host.validate()
        failed = [one for one in found["checks"] if one["verdict"] == "failed"]
        self.assertEqual((status, found["fit"], failed), (0, True, []))
        bad = {one["reason"] for one in found["checks"] if one["verdict"] == "warning"}
        self.assertLessEqual(bad, {"host.clock"})  # That is this machine's.
        texts = "".join(one["text"] for one in found["checks"])
        self.assertIn("2 of 2 have a GPU", texts)
        self.assertRegex(texts, r"libvirt \d+\.\d+\.\d+, TEST \d+")
        done = host.run("--check")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        self.assertRegex(done.stdout, r"no mistake found\nGPU 0: .*, UUID [0-9a-f]{32}, ")
        names = {one["name"] for one in found["checks"] if one["verdict"] == "ok"}
        self.assertLessEqual({"GPU", "libvirt", "libvirt's hook", "certificates", "private key",
                              "advertised address", "peer address", "ptrace", "huge pages"}, names)

    def test_each_mistake_is_found_with_reason_and_remedy(self):
        self.assertGreaterEqual(len(CASES), 25)
        for what, spoil, name, reason, is_failure in CASES:
            with self.subTest(what):
                host = self.host()
                kept = spoil(host)
                status, found = host.validate()
                one = next((check for check in found["checks"] if check["name"] == name and
                            check["verdict"] != "ok"), None)
                self.assertIsNotNone(one, found)
                self.assertEqual(one["verdict"], "failed" if is_failure else "warning", one)
                self.assertEqual(status, is_failure, found)
                self.assertRegex(one["reason"], r"^[a-z_]+(\.[a-z_]+)+$")
                if reason is not None:
                    self.assertEqual(one["reason"], reason, one)
                self.assertTrue(one["text"] and one["where"] and one["remedy"], one)
                if name in CHECKED and is_failure:
                    done = host.run("--check")
                    self.assertEqual((done.returncode, done.stdout), (1, ""), done)
                    self.assertIn(f"{one['text']} [{one['reason']}]", done.stderr)
                if isinstance(kept, socket.socket):
                    kept.close()

    def test_a_driver_that_is_not_there_is_found_without_a_context(self):
        for driver, profile, reason in (("libcuda-none.so.1", "", "driver.absent"),
                                        (None, "no-such-profile", "driver.")):
            with self.subTest(driver or profile):
                host = self.host()
                host.set("worker", "profile", profile)
                if driver:
                    host.set("worker", "driver", driver)
                done = host.run("--check")
                self.assertEqual((done.returncode, done.stdout), (1, ""), done)
                self.assertIn(f"[{reason}", done.stderr)

    def test_the_command_is_the_same(self):
        host = self.host()
        host.set("worker", "user", "no-such-user")
        for words in ([], ["--json"]):
            done = subprocess.run([self.build / "bin/gantry", *words, "validate", "--config",
                                   host.path()], capture_output=True, text=True, timeout=240,
                                  check=False)
            self.assertEqual(done.returncode, 1, done)
            self.assertIn("no-such-user", done.stdout)
            if words:
                self.assertFalse(json.loads(done.stdout)["fit"])
            else:
                self.assertIn("This host is not fit.", done.stdout)


if __name__ == "__main__":
    Validate.build = pathlib.Path(sys.argv.pop()).resolve()
    unittest.main()
