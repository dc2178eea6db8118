"""cuda.core: programs compiled and linked at run time, buffers, streams, events, graphs. See
cycles.py for what the command line says."""

import cycles
import numpy as np

try:
    import cuda.core as core
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
except ImportError:  # Before 1.0.
    import cuda.core.experimental as core
    from cuda.core.experimental import Device, LaunchConfig, Program, ProgramOptions, launch

PARTS = {}
CODE = r"""template <typename T> __global__ void mix(T* x, const T* y, size_t n) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * T(0.99) + y[(i * 7) % n] * T(0.01);
}"""


def part(make):
    PARTS[make.__name__] = make
    return make


def kernel(device, name):
    arch = "".join(map(str, device.compute_capability))
    program = Program(CODE, code_type="c++",
                      options=ProgramOptions(std="c++17", arch=f"sm_{arch}"))
    return program.compile("cubin", name_expressions=(name,)).get_kernel(name)


def copied(device, stream, values):
    """Device memory with these values, by way of page-locked memory."""
    staging = core.LegacyPinnedMemoryResource().allocate(values.nbytes, stream=stream)
    np.from_dlpack(staging).view(values.dtype)[:] = values
    buffer = device.allocate(values.nbytes, stream=stream)
    buffer.copy_from(staging, stream=stream)
    stream.sync()
    return buffer, staging


def mixed(kind, name):
    device = Device()
    device.set_current()
    stream = device.create_stream()
    mix = kernel(device, f"mix<{name}>")
    make = np.random.default_rng(2)
    x, out = copied(device, stream, make.standard_normal(4000).astype(kind))
    y, _ = copied(device, stream, make.standard_normal(4000).astype(kind))

    def step():
        for _ in range(10):
            launch(stream, LaunchConfig(grid=32, block=128), mix, x, y, np.uint64(4000))
        x.copy_to(out, stream=stream)
        stream.sync()
        return [np.from_dlpack(out).view(kind).copy()]
    return step


@part
def floats():
    return mixed(np.float32, "float")


@part
def doubles():
    return mixed(np.float64, "double")


if __name__ == "__main__":
    cycles.main(PARTS, np.asarray)
