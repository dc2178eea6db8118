#!/usr/bin/env python3
"""libnvidia-ml.so.1 over the soft GPU's driver: identity as CUDA tells it, memory, fork, errors.

usage: nvml_test.py LIBRARY    with LD_LIBRARY_PATH leading to a CUDA driver
"""

import ctypes
import os
import subprocess
import sys
import time
import unittest
import uuid

NOT_SUPPORTED, INVALID, UNINITIALIZED, TOO_SMALL, NOT_FOUND, TIMEOUT = 3, 2, 1, 7, 6, 10


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong),
                ("used", ctypes.c_ulonglong)]


class Pci(ctypes.Structure):
    _fields_ = [("legacy", ctypes.c_char * 16), ("domain", ctypes.c_uint), ("bus", ctypes.c_uint),
                ("device", ctypes.c_uint), ("ids", ctypes.c_uint * 2),
                ("bus_id", ctypes.c_char * 32)]


class Nvml(unittest.TestCase):
    def setUp(self):
        self.nvml = ctypes.CDLL(LIBRARY)

    def open(self):
        self.assertEqual(self.nvml.nvmlInit_v2(), 0)
        self.addCleanup(self.nvml.nvmlShutdown)
        device = ctypes.c_void_p()
        self.assertEqual(self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)), 0)
        return device

    def text(self, function, device, room=96):
        buffer = ctypes.create_string_buffer(room)
        self.assertEqual(getattr(self.nvml, function)(device, buffer, room), 0)
        return buffer.value.decode()

    def test_1_asks_without_beginning_with_cuda(self):
        self.open()
        cuda = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int()
        self.assertEqual(cuda.cuDeviceGetCount(ctypes.byref(count)), 3)  # NOT_INITIALIZED
        child = os.fork()
        if child == 0:
            os._exit(cuda.cuInit(0))
        self.assertEqual(os.waitpid(child, 0)[1], 0)  # The child can use CUDA.

    def test_2_identity_is_that_of_cuda(self):
        device = self.open()
        cuda = ctypes.CDLL("libcuda.so.1")
        self.assertEqual(cuda.cuInit(0), 0)
        raw = ctypes.create_string_buffer(16)
        self.assertEqual(cuda.cuDeviceGetUuid(raw, 0), 0)
        self.assertEqual(self.text("nvmlDeviceGetUUID", device), f"GPU-{uuid.UUID(bytes=raw.raw)}")
        name = ctypes.create_string_buffer(96)
        self.assertEqual(cuda.cuDeviceGetName(name, 96, 0), 0)
        self.assertEqual(self.text("nvmlDeviceGetName", device), name.value.decode())
        bus = ctypes.create_string_buffer(32)
        self.assertEqual(cuda.cuDeviceGetPCIBusId(bus, 32, 0), 0)
        pci = Pci()
        self.assertEqual(ctypes.sizeof(pci), 68)
        self.assertEqual(self.nvml.nvmlDeviceGetPciInfo_v3(device, ctypes.byref(pci)), 0)
        self.assertEqual(pci.legacy.lower(), bus.value.lower())
        again = ctypes.c_void_p()
        for one in (bus.value, pci.bus_id):
            self.assertEqual(
                self.nvml.nvmlDeviceGetHandleByPciBusId_v2(one, ctypes.byref(again)), 0)
            self.assertEqual(again.value, device.value)
        uuid_text = self.text("nvmlDeviceGetUUID", device).encode()
        self.assertEqual(self.nvml.nvmlDeviceGetHandleByUUID(uuid_text, ctypes.byref(again)), 0)
        self.assertEqual(again.value, device.value)

    def test_3_memory_is_the_tenants(self):
        device = self.open()
        cuda = ctypes.CDLL("libcuda.so.1")
        self.assertEqual(cuda.cuInit(0), 0)
        context, memory, before = ctypes.c_void_p(), Memory(), Memory()
        self.assertEqual(self.nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(before)), 0)
        self.assertEqual(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), 0)
        self.assertEqual(cuda.cuCtxSetCurrent(context), 0)
        self.assertEqual(self.nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(before)), 0)
        address = ctypes.c_ulonglong()
        self.assertEqual(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(64 << 20)), 0)
        self.assertEqual(self.nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)), 0)
        self.assertEqual(memory.total, before.total)
        self.assertEqual(memory.used, before.used + (64 << 20))
        self.assertEqual(memory.free + memory.used, memory.total)
        cuda.cuMemFree_v2(address)

    def test_4_bad_arguments_and_what_is_refused(self):
        device = self.open()
        small = ctypes.create_string_buffer(4)
        value = ctypes.c_uint()
        self.assertEqual(self.nvml.nvmlDeviceGetName(device, small, 4), TOO_SMALL)
        self.assertEqual(self.nvml.nvmlDeviceGetName(None, small, 4), INVALID)
        self.assertEqual(
            self.nvml.nvmlDeviceGetIndex(ctypes.c_void_p(device.value + 2), ctypes.byref(value)),
            INVALID)
        self.assertEqual(self.nvml.nvmlDeviceGetHandleByIndex_v2(99, ctypes.byref(device)), INVALID)
        self.assertEqual(self.nvml.nvmlDeviceGetPowerUsage(device, ctypes.byref(value)),
                         NOT_SUPPORTED)

    def test_no_instances(self):
        device = self.open()
        for function in ("nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceIsMigDeviceHandle"):
            value = ctypes.c_uint(7)
            self.assertEqual(getattr(self.nvml, function)(device, ctypes.byref(value)), 0)
            self.assertEqual(value.value, 0)
            self.assertEqual(getattr(self.nvml, function)(None, ctypes.byref(value)), INVALID)

    def test_names_of_processes(self):
        self.open()
        name = ctypes.create_string_buffer(4096)
        self.assertEqual(self.nvml.nvmlSystemGetProcessName(os.getpid(), name, 4096), 0)
        self.assertEqual(name.value.decode(), os.readlink("/proc/self/exe"))
        self.assertEqual(self.nvml.nvmlSystemGetProcessName(os.getpid(), name, 4), TOO_SMALL)
        self.assertEqual(self.nvml.nvmlSystemGetProcessName(1 << 30, name, 4096), NOT_FOUND)

    def test_events_never_come(self):
        device = self.open()
        events, data, types = ctypes.c_void_p(), ctypes.create_string_buffer(64), ctypes.c_uint64(9)
        self.assertEqual(self.nvml.nvmlEventSetCreate(ctypes.byref(events)), 0)
        self.assertEqual(
            self.nvml.nvmlDeviceGetSupportedEventTypes(device, ctypes.byref(types)), 0)
        self.assertEqual(types.value, 0)
        self.assertEqual(self.nvml.nvmlDeviceRegisterEvents(device, types, events), 0)
        self.assertEqual(self.nvml.nvmlDeviceRegisterEvents(device, types, None), INVALID)
        begin = time.monotonic()
        self.assertEqual(self.nvml.nvmlEventSetWait_v2(events, data, 50), TIMEOUT)
        self.assertGreaterEqual(time.monotonic() - begin, 0.05)
        self.assertEqual(self.nvml.nvmlEventSetFree(events), 0)
        self.assertEqual(self.nvml.nvmlEventSetFree(None), INVALID)

    def test_inner_functions(self):
        """Slots of the table that nvidia-smi fetches by its id; the first word is its size."""
        device = self.open()
        table = ctypes.POINTER(ctypes.c_void_p)()
        one = bytes.fromhex("c4fe3e6cc98f6c4ea327ee696e12f7c4")
        self.assertEqual(self.nvml.nvmlInternalGetExportTable(ctypes.byref(table), one), 0)
        self.assertEqual(self.nvml.nvmlInternalGetExportTable(ctypes.byref(table), bytes(16)),
                         NOT_FOUND)
        slots = table[0] // 8
        self.assertGreater(slots, 250)
        self.assertTrue(all(table[i] for i in range(1, slots)))
        call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        found, count = ctypes.c_void_p(), ctypes.c_uint(250)
        self.assertEqual(call(table[81])(0, ctypes.addressof(found), 0x22), 0)
        self.assertEqual(found.value, device.value)
        room = ctypes.create_string_buffer(250 * 4128)
        for slot in (213, 214, 215):
            count.value = 250
            self.assertEqual(call(table[slot])(device, ctypes.addressof(count), room), 0)
            self.assertEqual(count.value, 0)
        count.value = 1
        self.assertEqual(call(table[213])(device, ctypes.addressof(count), None), INVALID)
        self.assertEqual(call(table[230])(device, ctypes.addressof(count), None), NOT_SUPPORTED)

    def test_5_closed_is_closed(self):
        count = ctypes.c_uint()
        self.assertEqual(self.nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), UNINITIALIZED)

    def test_6_links_libc_only(self):
        out = subprocess.run(["readelf", "-d", LIBRARY], capture_output=True, text=True, check=True)
        needed = [line for line in out.stdout.splitlines() if "(NEEDED)" in line]
        self.assertTrue(all("libc.so.6" in line for line in needed), needed)


if __name__ == "__main__":
    LIBRARY = sys.argv.pop(1)
    unittest.main()
