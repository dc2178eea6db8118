#!/usr/bin/env python3
"""What the CUDA driver itself can do here, by its C interface; lines `name value`.

  driver.py pcie [LIBRARY]          page-locked copies of 1 GiB, GB/s: pcie_out, pcie_in
  driver.py checkpoint PID          cuCheckpointProcess* on another process: seconds of each call
"""

import ctypes
import statistics
import sys
import time

GIB = 1 << 30
ROUNDS = 5

Handle = ctypes.c_void_p
Address = ctypes.c_uint64


class CallFailed(Exception):
    """A call's name and its CUresult."""


class Driver:
    def __init__(self, library="libcuda.so.1"):
        self.library = ctypes.CDLL(library)
        self.call("cuInit", ctypes.c_uint(0))

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            raise CallFailed(f"{name}: CUDA error {result}")

    def context(self):
        device, context = ctypes.c_int(), Handle()
        self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)


def pcie(library):
    driver = Driver(library)
    driver.context()
    device, host = Address(), Handle()
    size = ctypes.c_size_t(GIB)
    driver.call("cuMemAlloc_v2", ctypes.byref(device), size)
    driver.call("cuMemHostAlloc", ctypes.byref(host), size, ctypes.c_uint(0))
    ctypes.memset(host, 1, GIB)
    for name, copy, arguments in (("pcie_in", "cuMemcpyHtoDAsync_v2", (device, host)),
                                  ("pcie_out", "cuMemcpyDtoHAsync_v2", (host, device))):
        rates = []
        for _ in range(ROUNDS + 1):
            begin = time.perf_counter()
            driver.call(copy, *arguments, size, Handle(None))
            driver.call("cuStreamSynchronize", Handle(None))
            rates.append(GIB / (time.perf_counter() - begin) / 1e9)
        print(name, f"{statistics.median(rates[1:]):.3f}")


def checkpoint(pid):
    """Every argument zero: no time limit, the same device again."""
    driver, zero = Driver(), ctypes.create_string_buffer(128)
    for name in ("Lock", "Checkpoint", "Restore", "Unlock"):
        begin = time.perf_counter()
        driver.call(f"cuCheckpointProcess{name}", ctypes.c_int(pid), zero)
        print(name.lower(), f"{time.perf_counter() - begin:.6f}", flush=True)


def main():
    if len(sys.argv) >= 2 and sys.argv[1] == "pcie":
        pcie(*sys.argv[2:3] or ["libcuda.so.1"])
    elif len(sys.argv) == 3 and sys.argv[1] == "checkpoint":
        checkpoint(int(sys.argv[2]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    try:
        main()
    except (CallFailed, AttributeError, OSError) as failure:
        sys.exit(str(failure))
