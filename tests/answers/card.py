"""Runs kernels through a CUDA driver, whichever it is."""

import ctypes
import re

import images
import kernel as kernels
import operands

LOG_BYTES = 1 << 18
INFO_LOG, INFO_LOG_BYTES, ERROR_LOG, ERROR_LOG_BYTES = 3, 4, 5, 6
BAD_LINE = re.compile(r"line (\d+); error")


class CudaError(Exception):
    def __init__(self, call, status, log=""):
        super().__init__(f"{call} says {status}: {log}")
        self.status, self.log = status, log


class Card:
    def __init__(self, driver):
        self.library = ctypes.CDLL(driver)
        self.call("cuInit", 0)
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self.call("cuCtxSetCurrent", self.context)
        name, version = ctypes.create_string_buffer(256), ctypes.c_int()
        self.call("cuDeviceGetName", name, 256, device)
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.name, self.version = name.value.decode(), version.value
        self.inputs = {}

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            raise CudaError(name, status)

    def allocate(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size, 16)))
        return address.value

    def free(self, address):
        self.call("cuMemFree_v2", ctypes.c_uint64(address))

    def upload(self, data):
        address = self.allocate(len(data))
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))
        return address

    def download(self, address, size):
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return data.raw

    def fill(self, address, size, byte=0):
        self.call("cuMemsetD8_v2", ctypes.c_uint64(address), ctypes.c_ubyte(byte),
                  ctypes.c_size_t(size))

    def load(self, text):
        module, log = ctypes.c_void_p(), ctypes.create_string_buffer(LOG_BYTES)
        options = (ctypes.c_int * 2)(ERROR_LOG, ERROR_LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), LOG_BYTES)
        status = self.library.cuModuleLoadDataEx(ctypes.byref(module), text.encode(), 2, options,
                                                 values)
        if status != 0:
            raise CudaError("cuModuleLoadDataEx", status, log.value.decode(errors="replace"))
        return module

    def unload(self, module):
        self.call("cuModuleUnload", module)

    def function(self, module, name):
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    def launch(self, function, count, arguments, block):
        held = [ctypes.c_uint64(value) for value in arguments]
        pointers = (ctypes.c_void_p * len(held))(*[ctypes.addressof(each) for each in held])
        self.call("cuLaunchKernel", function, max(count // block, 1), 1, 1, block, 1, 1, 0, None,
                  pointers, None)
        self.call("cuCtxSynchronize")

    def input(self, kind, place):
        if (kind, place) not in self.inputs:
            self.inputs[kind, place] = self.upload(operands.pool(kind, place))
        return self.inputs[kind, place]

    def load_what_it_takes(self, wanted):
        """(module, {i: why the driver's compiler refuses it}): wanted is [(i, kernel)]."""
        refused = {}
        while len(refused) < len(wanted):
            text, first_lines = kernels.HEADER, []
            for i, kernel in wanted:
                if i not in refused:
                    first_lines.append((text.count("\n") + 1, i))
                    text += kernels.text_of(kernel, i)
            try:
                return self.load(text), refused
            except CudaError as error:
                lines = [int(line) for line in BAD_LINE.findall(error.log)]
                if not lines and len(first_lines) == 1:
                    refused[first_lines[0][1]] = str(error)
                    continue
                if not lines:
                    return None, self.refused_one_by_one(wanted)
                for line in lines:
                    refused[[i for first, i in first_lines if first <= line][-1]] = error.log
        return None, refused

    def refused_one_by_one(self, wanted):
        """Where the log names no lines."""
        refused = {}
        for i, kernel in wanted:
            try:
                self.unload(self.load(kernels.HEADER + kernels.text_of(kernel, i)))
            except CudaError as error:
                refused[i] = str(error)
        return refused

    def run(self, module, index, kernel):
        """The bytes that the kernel writes."""
        size = kernel.count * kernel.stride
        out, memory = self.allocate(size), self.allocate(kernel.memory_bytes)
        self.fill(out, size)
        self.fill(memory, max(kernel.memory_bytes, 16))
        image = images.Image(self, kernel.setup) if kernel.setup else None
        inputs = [self.input(kind, place) for place, kind in enumerate(kernel.operands)]
        self.launch(self.function(module, f"k{index}"), kernel.count,
                    [out, memory, image.handle if image else 0] + inputs, kernel.block)
        data = image.download() if kernel.writes_array else self.download(out, size)
        self.free(out)
        self.free(memory)
        if image:
            image.close()
        return data
