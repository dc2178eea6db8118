"""A link that a test can cut: a TCP proxy on loopback. All of it ends with the process."""

import contextlib
import socket
import threading
import time

CUT_S = 2.0


class Link:
    """A TCP proxy whose two directions can be held back, and whose connections can be reset."""

    def __init__(self, port):
        """port: where the listening end of the real connection is."""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.far_port = self.listener.getsockname()[1], port
        self.passes = {"to_listener": threading.Event(), "to_caller": threading.Event()}
        self.lock, self.open, self.closed = threading.Lock(), [], False
        self.withheld_bytes = 0  # That a silence has kept from its other end.
        for way in self.passes.values():
            way.set()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while not self.closed:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.far_port))
            except OSError:  # its owner is down at the moment
                near.close()
                continue
            with self.lock:
                self.open.append((near, far))
            for source, sink, way in ((near, far, "to_listener"), (far, near, "to_caller")):
                threading.Thread(target=self.copy, args=(source, sink, self.passes[way]),
                                 daemon=True).start()

    def copy(self, source, sink, passes):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not passes.is_set():
                    self.withheld_bytes += len(data)
                passes.wait()
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def reset(self):
        with self.lock:
            victims, self.open = self.open, []
        for pair in victims:
            for one in pair:
                with contextlib.suppress(OSError):
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    one.shutdown(socket.SHUT_RDWR)
                    one.close()

    def cut(self, way, then=lambda: None):
        """Silence in one direction first, then broken connections; new ones are fine. `then` is
        called when the silence has begun."""
        self.passes[way].clear()
        then()
        time.sleep(CUT_S)
        self.reset()
        self.passes[way].set()

    def cut_for_good(self):
        for way in self.passes.values():
            way.clear()

    def mend(self):
        """After cut_for_good: the old connections are broken, new ones are fine."""
        self.reset()
        for way in self.passes.values():
            way.set()

    def close(self):
        self.closed = True
        self.listener.close()
        for way in self.passes.values():
            way.set()
        self.reset()
