"""Scripts of CuPy: element-wise and own kernels, cuBLAS, cuFFT, cuSOLVER, cuSPARSE, cuRAND,
streams, graphs and the memory pool. See cycles.py for what the command line says."""

import cupy as cp
import cupyx
import cupyx.scipy.sparse
import cycles
import numpy as np


def data(*shape, seed=0, kind=np.float32):
    return cp.asarray(np.random.default_rng(seed).standard_normal(shape).astype(kind))


@cycles.part
def elementwise():
    x = data(3000)

    def step():
        x[:] = cp.tanh(x) * 1.01 + cp.sin(x) * 0.1
        return [x, x.sum(keepdims=True), cp.sort(x), cp.argsort(x), cp.unique((x * 10).astype(int)),
                cp.cumsum(x), cp.histogram(x, 20)[0]]
    return step


@cycles.part
def own_kernels():
    raw = cp.RawKernel(r"""extern "C" __global__ void mix(float* x, const float* y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] = fmaf(x[i], 0.99f, y[(i * 7) % n] * 0.01f); }""", "mix")
    square = cp.ElementwiseKernel("float32 a, float32 b", "float32 c", "c = a * a - b", "square")
    total = cp.ReductionKernel("float32 a", "float32 b", "a * a", "a + b", "b = sqrt(a)", "0", "n2")
    x, y = data(5000), data(5000, seed=1)

    def step():
        raw((20,), (256,), (x, y, np.int32(5000)))
        return [x, square(x, y), total(x.reshape(50, 100), axis=1)]
    return step


@cycles.part
def modules():
    def step():
        module = cp.RawModule(code=r"""__constant__ float scale[4]; __device__ int seen;
            extern "C" __global__ void run(float* x) { atomicAdd(&seen, 1);
                x[threadIdx.x] = x[threadIdx.x] * scale[threadIdx.x % 4] + seen * 0; }""")
        scale = cp.ndarray(4, cp.float32, module.get_global("scale"))
        seen = cp.ndarray(1, cp.int32, module.get_global("seen"))
        scale[:], seen[:] = cp.arange(4), 0
        x = data(128)
        module.get_function("run")((1,), (128,), (x,))
        return [x, seen]
    return step


@cycles.part
def products():
    a, b = data(300, 200), data(200, 300, seed=1)

    def step():
        out = a @ b
        a[:] = cp.tanh(out[:, :200])
        return [out, cp.einsum("ij,kj->ik", a, a), cp.tensordot(a, b, 1)]
    return step


@cycles.part
def linalg():
    a = data(80, 80, kind=np.float64)

    def step():
        spd = a @ a.T + cp.eye(80)
        q, r = cp.linalg.qr(a)
        out = [cp.linalg.cholesky(spd), q, r, cp.linalg.eigvalsh(spd), cp.linalg.svd(a)[1],
               cp.linalg.solve(spd, a), cp.linalg.inv(spd)]
        a[:] = 0.5 * a + 0.5 * q
        return out
    return step


@cycles.part
def fft():
    x = data(60, 128, kind=np.float64)

    def step():
        spectrum = cp.fft.fft2(x)
        x[:] = cp.fft.ifft2(spectrum).real
        return [spectrum, cp.fft.rfft(x), cp.fft.fft(x.astype(cp.complex64), axis=0)]
    return step


@cycles.part
def sparse():
    chosen = np.random.default_rng(3)
    rows = cupyx.scipy.sparse.csr_matrix(
        (data(3000), (cp.asarray(chosen.integers(0, 300, 3000)),
                      cp.asarray(chosen.integers(0, 300, 3000)))), shape=(300, 300))
    x = data(300, 8)

    def step():
        x[:] = cp.tanh(rows @ x)
        return [x, rows.toarray(), (rows + rows.T).toarray()]
    return step


@cycles.part
def random_numbers():
    generator = cp.random.default_rng(5)
    cp.random.seed(9)

    def step():
        return [generator.standard_normal(1000), generator.integers(0, 99, 500),
                cp.random.rand(300), cp.random.permutation(200)]
    return step


@cycles.part
def streams_and_graphs():
    side = cp.cuda.Stream(non_blocking=True)
    x = data(4000)
    with side:
        x * 1.0  # Compiled before the capture.
        side.begin_capture()
        x *= cp.float32(0.999)
        graph = side.end_capture()

    def step():
        cp.cuda.get_current_stream().synchronize()
        for _ in range(5):
            graph.launch(stream=side)
        side.synchronize()
        pinned = cupyx.empty_pinned(4000, np.float32)
        x.get(out=pinned)
        return [x, pinned]
    return step


if __name__ == "__main__":
    cycles.main(cycles.PARTS,
                lambda one: one.get() if isinstance(one, cp.ndarray) else np.asarray(one))
