"""A bare Debian 12 to install packages in: build/cache/debian below, what is changed in a folder of
the test's own above, in mount and process namespaces that end with it. As root."""

import os
import pathlib
import shutil
import signal
import stat
import subprocess
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / "build/cache/debian"

# What dpkg, apt, the C library and systemd-analyze keep of any package, and what only grows: users,
# logs.
OF_NO_PACKAGE = ("proc", "sys", "dev", "run/systemd", "packages", "tmp", "root", "var/lib/dpkg",
                 "var/lib/apt", "var/cache/apt", "var/cache/ldconfig", "var/cache/debconf",
                 "var/cache/man", "var/log/apt", "var/log/dpkg.log", "var/log/alternatives.log",
                 "etc/ld.so.cache", "etc/passwd", "etc/passwd-", "etc/group", "etc/group-",
                 "etc/shadow", "etc/shadow-", "etc/gshadow", "etc/gshadow-", "etc/.pwd.lock")

# What a program needs nothing of to run, and what would lie in a VM's memory.
OF_NO_USE = ("var/lib/apt/*", "var/cache/*", "usr/share/doc/*", "usr/share/man/*",
             "usr/share/locale/*")
UNIT = """[Unit]
Description=Steps of the test
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/packages/vm_steps
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
TimeoutStartSec=infinity
[Install]
WantedBy=graphical.target
"""
# The root becomes an initramfs whose first process is systemd; /packages is part of it.
IMAGE = """
set -e
cd "$1"
find . -xdev $4 | cpio --quiet -o -H newc >"$3"
mkdir -p "$2/extra/packages" "$2/extra/dev"
cp -r packages/. "$2/extra/packages/"
mknod "$2/extra/dev/console" c 5 1
cd "$2/extra"
find . | cpio --quiet -o -H newc >>"$3"
rm -rf "$2/extra"
"""

MOUNTS = """
set -e
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
cd "$2/root"
mount -t proc proc proc
mount -t sysfs -o ro sys sys
mount -t tmpfs -o mode=755 dev dev
for node in null zero full random urandom tty; do
    touch dev/$node && mount --bind /dev/$node dev/$node
done
ln -s /proc/self/fd dev/fd
mkdir dev/shm && mount -t tmpfs -o mode=1777 shm dev/shm
mkdir packages && mount --bind "$3" packages
mount --bind "$4" var/cache/apt/archives
cat /etc/resolv.conf >etc/resolv.conf
printf '#!/bin/sh\\nexit 101\\n' >usr/sbin/policy-rc.d && chmod 755 usr/sbin/policy-rc.d
touch "$2/ready"
exec sleep infinity
"""


class Failure(Exception):
    """What a command in the root said instead of doing it."""


class Root:
    """`packages`: a folder that is /packages inside."""

    def __init__(self, folder, packages):
        self.folder, self.packages = pathlib.Path(folder), pathlib.Path(packages)
        self.path = self.folder / "root"
        self.holder = None

    def __enter__(self):
        if not (CACHE / "root").exists():
            raise Failure(f"there is no bare Debian in {CACHE}: run scripts/setup --packages")
        for name in ("upper", "work", "root"):
            (self.folder / name).mkdir(parents=True)
        self.holder = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private",
             "bash", "-c", MOUNTS, "mounts", CACHE / "root", self.folder, self.packages,
             CACHE / "archives"], start_new_session=True)
        end = time.monotonic() + 60
        while not (self.folder / "ready").exists():
            if self.holder.poll() is not None or time.monotonic() > end:
                raise Failure("the bare root cannot be mounted")
            time.sleep(0.05)
        children = pathlib.Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children")
        self.inside = children.read_text(encoding="ascii").split()[0]
        # This process is in another mount namespace.
        self.seen = pathlib.Path(f"/proc/{self.inside}/root{self.path.resolve()}")
        self.run("useradd", "--create-home", "--shell", "/bin/sh", "tenant")
        return self

    def __exit__(self, *_):
        os.killpg(self.holder.pid, signal.SIGKILL)
        self.holder.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def command(self, *words, user=None, environment=None):
        """The words by which `words` are run inside, with a bare environment."""
        proxies = {name: value for name, value in os.environ.items()
                   if name.lower() in ("http_proxy", "https_proxy", "no_proxy")}
        settings = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                    "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8",
                    **proxies, **(environment or {})}
        change = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups",
                  "--"] if user else []
        return ["nsenter", "-t", self.inside, "-m", "-p", "--", "chroot", str(self.path),
                "env", "-i", *(f"{name}={value}" for name, value in settings.items()),
                *change, *map(str, words)]

    def start(self, *words, user=None, environment=None, **options):
        return subprocess.Popen(self.command(*words, user=user, environment=environment),
                                stdin=subprocess.DEVNULL, **options)

    def run(self, *words, user=None, environment=None, status=0, timeout=300):
        """What it prints, errors too. Failure unless it ends with `status` (None: any)."""
        done = subprocess.run(self.command(*words, user=user, environment=environment),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False, timeout=timeout)
        if status is not None and done.returncode != status:
            raise Failure(f"{' '.join(map(str, words))}: status {done.returncode}, not {status}:\n"
                          f"{done.stdout}")
        return done.stdout

    def apt(self, *words, status=0):
        return self.run("apt-get", "-q", "-y", "-o", "APT::Sandbox::User=root", "-o",
                        "Dpkg::Use-Pty=0", "--no-install-recommends", *words, status=status,
                        timeout=1200)

    def fetch(self, what, *words):
        """apt, for what comes from Debian's mirror: once more if the lists are out of date."""
        try:
            return self.apt(what, *words)
        except Failure:
            self.apt("update")
            return self.apt(what, *words)

    def version(self, package):
        """Of a package that is installed; else its state."""
        told = self.run("dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", package,
                        status=None)
        return told.removeprefix("installed ")

    def files(self):
        """{path: what it is}, of everything that belongs to packages, or to nobody."""
        found = {}
        for folder, folders, files in os.walk(self.seen):
            here = os.path.relpath(folder, self.seen)
            folders[:] = [name for name in folders
                          if os.path.normpath(os.path.join(here, name)) not in OF_NO_PACKAGE]
            for name in folders + files:
                path = os.path.normpath(os.path.join(here, name))
                if path in OF_NO_PACKAGE:
                    continue
                status = os.lstat(os.path.join(folder, name))
                size = status.st_size if stat.S_ISREG(status.st_mode) else 0
                found[path] = (oct(status.st_mode), status.st_uid, size)
        if len(found) < 1000:
            raise Failure(f"a Debian of {len(found)} files cannot be looked through")
        return found

    def write_image(self, path):
        """The system as an initramfs for a VM, which runs /packages/vm_steps as a unit, on the
        serial console, when all else has started. Needs systemd-sysv."""
        self.run("sh", "-c", f"""
            set -e
            printf '%s' '{UNIT}' >/etc/systemd/system/vm-steps.service
            systemctl -q enable vm-steps.service
            systemctl -q set-default graphical.target
            systemctl -q mask getty.target serial-getty@ttyS0.service console-getty.service \\
                apt-daily.timer apt-daily-upgrade.timer
            rm -f /usr/sbin/policy-rc.d
            ln -s lib/systemd/systemd /init""")
        subprocess.run(["nsenter", "-t", self.inside, "-m", "--", "bash", "-f", "-c", IMAGE,
                        "image", self.path, self.folder, path,
                        " ".join(f"-not -path ./{one}" for one in OF_NO_USE)], check=True)
