#!/usr/bin/env python3
"""gantry-relay: wants a key, and neither idle, slow, many nor unproven connections stop the others.

    relay.py --build BUILD

Each client has an address of its own of the loopback's network.
"""

import argparse
import contextlib
import pathlib
import re
import resource
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/rig"))
from daemons import PATIENCE, Daemon, running, wait_until

HELLO_PATIENCE_S = 5    # gantry_relay.cc
ASK_PATIENCE_S = 10     # relay_session.cc
OF_ADDRESS_MAX = 64     # admission.h
LINK_MAGIC, LINK_VERSION = 0x4b4e4c47, 2
REGION_MAGIC = 0x52544e47
WIRE_VERSION = int(re.search(r"kWireVersion = (\d+);",
                             (ROOT / "proto/wire/region.h").read_text()).group(1))
HELLO = struct.Struct("<IIQQQIIQ")
PACKET = struct.Struct("<IIQ")
FRAME = struct.Struct("<IIQ")
DATA, ATTACH, ATTACHED = 1, 9, 10
NEW_HELLO = HELLO.pack(LINK_MAGIC, LINK_VERSION, 0, 0, 0, 0, 0, 0)


class Client:
    """A connection that a gantry-guest might make."""

    def __init__(self, port, address="127.0.0.1"):
        self.socket = socket.socket()
        self.socket.bind((address, 0))
        self.socket.settimeout(60 * PATIENCE)
        self.socket.connect(("127.0.0.1", port))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def read(self, size):
        """So many bytes; fewer: the connection has ended."""
        data = b""
        while len(data) < size:
            try:
                piece = self.socket.recv(size - len(data))
            except ConnectionResetError:
                piece = b""
            if not piece:
                break
            data += piece
        return data

    def greet(self):
        """Asks for a new session; its name, None where the connection was ended instead."""
        try:
            self.socket.sendall(NEW_HELLO)
        except (BrokenPipeError, ConnectionResetError):
            return None
        answer = self.read(HELLO.size)
        return HELLO.unpack(answer)[2:4] if len(answer) == HELLO.size else None

    def attach(self):
        """The first frame, of a program of no VM; (accepted, text) of the answer."""
        request = struct.pack("<IIQII", REGION_MAGIC, WIRE_VERSION, 0, 1234, 0) + bytes(48)
        frame = FRAME.pack(ATTACH, len(request), 0) + request
        self.socket.sendall(PACKET.pack(DATA, len(frame), 0) + frame)
        while True:
            kind, size, _ = PACKET.unpack(self.read(PACKET.size))
            if kind == DATA:
                answer = self.read(size)
                break
        if FRAME.unpack_from(answer)[0] != ATTACHED:
            raise AssertionError(f"not the answer: {answer!r}")
        accepted, = struct.unpack_from("<I", answer, FRAME.size + 8)
        text = answer[FRAME.size + 24:FRAME.size + 256].split(b"\0")[0].decode()
        return accepted, text

    def ended_within(self, seconds):
        """Nothing comes but the end."""
        ready, _, _ = select.select([self.socket], [], [], seconds)
        return bool(ready) and self.read(1) == b""


class Relay(unittest.TestCase):
    build = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gantry-relay-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    @contextlib.contextmanager
    def relay(self, *options, descriptors=None, daemon="/nonexistent"):
        """A gantry-relay, by its port; it lives until the end."""
        def limit():
            if descriptors is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, descriptors)
        log = self.folder / "relay.txt"
        with open(log, "wb") as out:
            child = subprocess.Popen(
                [self.build / "bin/gantry-relay", "--listen", "127.0.0.1:0", "--daemon", daemon,
                 *options], stdout=out, stderr=out, preexec_fn=limit)
        self.child = child
        try:
            told = wait_until("gantry-relay", lambda: re.search(r"port (\d+)\n", log.read_text()))
            yield int(told.group(1))
            self.assertIsNone(child.poll(), log.read_text())
        finally:
            child.kill()
            child.wait()

    def assert_serves(self, port, address, within_s=3.0):
        begun = time.monotonic()
        with Client(port, address) as client:
            self.assertIsNotNone(client.greet())
        self.assertLess(time.monotonic() - begun, within_s * PATIENCE)

    def test_a_program_without_a_key_is_refused(self):
        with self.relay() as port, Client(port) as client:
            self.assertIsNotNone(client.greet())
            accepted, text = client.attach()
            self.assertEqual(accepted, 0)
            self.assertIn("[guest.keyless]", text)

    def test_one_tenant_may_do_without_keys(self):
        daemon = Daemon(self.build, self.folder, "a")
        with running(daemon), self.relay("--allow-keyless",
                                         daemon=daemon.guest_socket) as port:
            with Client(port) as client:
                self.assertIsNotNone(client.greet())
                self.assertEqual(client.attach(), (1, ""))

    def test_an_idle_connection_holds_nobody_up(self):
        with self.relay() as port, Client(port, "127.0.0.2"):
            time.sleep(0.2)
            self.assert_serves(port, "127.0.0.3", within_s=1.0)

    def test_a_hello_that_drips_has_one_deadline(self):
        with self.relay() as port, Client(port, "127.0.0.2") as slow:
            begun = time.monotonic()
            ended = False
            for byte in NEW_HELLO:
                try:
                    slow.socket.sendall(bytes([byte]))
                except OSError:
                    ended = True
                if ended or slow.ended_within(1.0):
                    ended = True
                    break
            self.assertTrue(ended)
            self.assertLess(time.monotonic() - begun, (HELLO_PATIENCE_S + 2) * PATIENCE)
            self.assertGreater(time.monotonic() - begun, HELLO_PATIENCE_S - 1)

    def test_one_address_takes_no_more_than_its_share(self):
        with self.relay() as port, contextlib.ExitStack() as stack:
            many = [stack.enter_context(Client(port, "127.0.0.2")) for _ in range(200)]
            names = [client.greet() for client in many]
            served = sum(name is not None for name in names)
            self.assertEqual(served, OF_ADDRESS_MAX)
            self.assert_serves(port, "127.0.0.3")
            # They ask for nothing: their sessions end, and the address is served again.
            first = next(client for client, name in zip(many, names) if name is not None)
            begun = time.monotonic()
            while time.monotonic() - begun < 3 * ASK_PATIENCE_S * PATIENCE:
                with Client(port, "127.0.0.2") as again:
                    if again.greet() is not None:
                        break
                time.sleep(0.2)
            else:
                self.fail("its sessions are kept for ever")
            self.assertGreater(time.monotonic() - begun, ASK_PATIENCE_S / 2)
            first.socket.close()

    def test_without_descriptors_it_pauses_and_goes_on(self):
        # It raises what it has to what it may have, which is little here.
        with self.relay(descriptors=(24, 48)) as port:
            with contextlib.ExitStack() as stack:
                for i in range(96):
                    stack.enter_context(Client(port, f"127.0.1.{1 + i}"))
                wait_until("the shortage", lambda: "accept: Too many open files" in
                           (self.folder / "relay.txt").read_text())
                self.assertIsNone(self.child.poll())
            self.assert_serves(port, "127.0.0.3", within_s=HELLO_PATIENCE_S + 5)

    def test_it_has_as_many_descriptors_as_it_may(self):
        with self.relay(descriptors=(24, 200)):
            limits = pathlib.Path(f"/proc/{self.child.pid}/limits").read_text()
            self.assertRegex(limits, r"Max open files +200 +200 ")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    Relay.build = parser.parse_args().build.resolve()
    unittest.main(argv=sys.argv[:1])
