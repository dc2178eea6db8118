"""Kernels written in Python: numba's and Triton's. See cycles.py for what the command line says."""

import math

import cycles
import numpy as np

if not hasattr(np, "row_stack"):  # Gone from numpy 2.5; numba-cuda names it.
    np.row_stack = np.vstack
import numba.cuda as nc  # noqa: E402
import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from numba import float32  # noqa: E402
from numba.cuda.random import (  # noqa: E402
    create_xoroshiro128p_states, xoroshiro128p_normal_float32)


def data(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@cycles.part
def numba_tiles():
    @nc.jit
    def multiply(a, b, c):
        left, right = nc.shared.array((16, 16), float32), nc.shared.array((16, 16), float32)
        x, y = nc.grid(2)
        i, j = nc.threadIdx.x, nc.threadIdx.y
        total = float32(0)
        for k in range(a.shape[1] // 16):
            left[i, j] = a[x, k * 16 + j]
            right[i, j] = b[k * 16 + i, y]
            nc.syncthreads()
            for m in range(16):
                total += left[i, m] * right[m, j]
            nc.syncthreads()
        c[x, y] = math.tanh(total)
    a, b = nc.to_device(data(128, 128)), nc.to_device(data(128, 128, seed=1))

    c = nc.device_array((128, 128), np.float32)
    state = [a, c]

    def step():
        old, new = state
        multiply[(8, 8), (16, 16)](old, b, new)
        state.reverse()
        return [new.copy_to_host()]
    return step


@cycles.part
def numba_atomics():
    @nc.jit
    def count(values, bins, top):
        i = nc.grid(1)
        if i < values.size:
            nc.atomic.add(bins, int(abs(values[i]) * 10) % bins.size, 1)
            nc.atomic.max(top, 0, values[i])
    values = nc.to_device(data(5000))
    bins, top = nc.to_device(np.zeros(32, np.int32)), nc.to_device(np.zeros(1, np.float32))

    def step():
        count[40, 128](values, bins, top)
        return [bins.copy_to_host(), top.copy_to_host()]
    return step


@cycles.part
def numba_random():
    @nc.jit
    def draw(states, out):
        i = nc.grid(1)
        out[i] = xoroshiro128p_normal_float32(states, i)
    states = create_xoroshiro128p_states(512, seed=4)
    out = nc.device_array(512, np.float32)

    def step():
        draw[4, 128](states, out)
        return [out.copy_to_host()]
    return step


@cycles.part
def numba_reduction():
    total = nc.reduce(lambda a, b: a + b)
    x = nc.to_device((data(4096) * 100).astype(np.int64))
    return lambda: [np.asarray(total(x))]


@triton.jit
def softmax_rows(out, x, columns, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, WIDTH)
    value = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
    value = tl.exp(value - tl.max(value, 0))
    tl.store(out + row * columns + at, value / tl.sum(value, 0), mask=at < columns)


@triton.jit
def product(a, b, c, n, TILE: tl.constexpr):
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    j = tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), tl.float32)
    for k in range(0, n, TILE):
        at = k + tl.arange(0, TILE)
        total += tl.dot(tl.load(a + i[:, None] * n + at[None, :]),
                        tl.load(b + at[:, None] * n + j[None, :]))
    tl.store(c + i[:, None] * n + j[None, :], total.to(c.dtype.element_ty))


@cycles.part
def triton_softmax():
    x = torch.from_numpy(data(200, 781)).cuda()
    out = torch.empty_like(x)

    def step():
        softmax_rows[(200,)](out, x, 781, WIDTH=1024)
        x.copy_(torch.log(out + 1e-3))
        return [out, x]
    return step


@cycles.part
def triton_products():
    def one(kind, tile):
        a, b = (torch.from_numpy(data(256, 256, seed=s)).cuda().to(kind) for s in (1, 2))
        c = torch.empty_like(a)

        def step():
            product[(256 // tile, 256 // tile)](a, b, c, 256, TILE=tile)
            a.copy_(torch.tanh(c.float() * 0.1))
            return c.float()
        return step
    steps = [one(kind, tile) for kind in (torch.float32, torch.float16, torch.bfloat16)
             for tile in (32, 64)]
    return lambda: [step() for step in steps]


def to_host(one):
    return one.cpu().numpy() if isinstance(one, torch.Tensor) else one


if __name__ == "__main__":
    cycles.main(cycles.PARTS, to_host)
