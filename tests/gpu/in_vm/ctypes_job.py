"""The CUDA driver from a Python without packages: 32 MiB of device memory changed and read back in
each step. Where there is neither PyTorch nor JAX it shows that a program from the VM's disk moves.
"""

import ctypes
import pathlib
import sys
import zlib

sys.path.append(str(pathlib.Path(__file__).resolve().parent))
import job  # noqa: E402

MIB = 32
cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    if status:
        sys.exit(f"job: {name} returned {status}")


device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(MIB << 20))
call("cuMemsetD32_v2", memory, 0, ctypes.c_size_t(MIB << 18))
back = ctypes.create_string_buffer(1 << 20)
steps = 0


def step():
    """Each MiB is written in its turn and stays for 32 steps; the digest is over four of them."""
    global steps
    steps += 1
    call("cuMemsetD32_v2", ctypes.c_uint64(memory.value + (steps % MIB << 20)), steps * 2654435761
         & 0xffffffff, ctypes.c_size_t(1 << 18))
    total = 0
    for ago in (0, 7, 19, MIB - 1):
        call("cuMemcpyDtoH_v2", back, ctypes.c_uint64(memory.value + ((steps - ago) % MIB << 20)),
             ctypes.c_size_t(1 << 20))
        total = total * 31 + zlib.crc32(back.raw)
    return total


job.run(step)
