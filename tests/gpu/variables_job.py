"""Work of PyTorch whose kernels have variables in images without PTX, for tests/gpu/variables.

  variables_job.py PART ROUNDS PAUSE_MS

PART: matmul (fp32 cuBLAS), fft (cuFFT), sdpa, special (lgamma and others), or all. Each round
prints a digest of its results' bits, and carries some of them on into the next.
"""

import hashlib
import sys
import time

import torch_parts as parts
import torch
from torch.nn import functional


class Matmul:
    def __init__(self):
        self.a = torch.randn(513, 700, device="cuda")
        self.b = torch.randn(700, 513, device="cuda")

    def step(self):
        out = self.a @ self.b
        self.a = self.a + 1e-3 * torch.tanh(out[:, :1])
        batch = torch.bmm(self.a[:512, :512].reshape(8, 64, 512), out[:512].reshape(1, 512, 513)
                          .expand(8, 512, 513))
        return [out, batch, torch.addmm(out[:, :1], self.a, self.b)]


class Fft:
    SHAPES = [(3, 1024), (2, 1000), (5, 729), (1, 7 * 11 * 13), (64, 60, 96)]

    def __init__(self):
        self.data = [torch.randn(shape, device="cuda") for shape in self.SHAPES]

    def step(self):
        out = []
        for i, data in enumerate(self.data):
            spectrum = torch.fft.fftn(data)
            out += [spectrum, torch.fft.irfft(torch.fft.rfft(data.double()), n=data.shape[-1])]
            self.data[i] = torch.fft.ifftn(spectrum).real
        return [torch.view_as_real(one) if one.is_complex() else one for one in out]


class Sdpa:
    def __init__(self):
        self.q, self.k, self.v = (torch.randn(2, 4, 256, 64, device="cuda") for _ in range(3))

    def step(self):
        out = []
        for kind in (torch.float32, torch.bfloat16):
            each = functional.scaled_dot_product_attention(
                self.q.to(kind), self.k.to(kind), self.v.to(kind), is_causal=True)
            out.append(each.float())
        self.q = self.q + 0.01 * out[0]
        return out


class Special:
    def __init__(self):
        self.x = torch.rand(5000, device="cuda") * 8 + 0.1

    def step(self):
        out = [f(self.x) for f in (torch.lgamma, torch.digamma, torch.special.i0, torch.erfinv,
                                   torch.special.bessel_j0)]
        out += [torch.lgamma(self.x.double()), torch.special.zeta(self.x + 1, self.x),
                torch.igamma(self.x, self.x.flip(0))]
        self.x = (self.x + 0.001 * out[0].abs()).clamp(max=9)
        return [torch.nan_to_num(one) for one in out]


KINDS = {"matmul": Matmul, "fft": Fft, "sdpa": Sdpa, "special": Special}


def main():
    part, rounds, pause_ms = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    parts.be_deterministic()
    torch.manual_seed(7)
    jobs = [kind() for name, kind in KINDS.items() if part in (name, "all")]
    print("ready", flush=True)
    for number in range(rounds):
        seen = hashlib.sha256()
        for job in jobs:
            for one in job.step():
                seen.update(one.contiguous().cpu().numpy().tobytes())
        print(f"value {number} {seen.hexdigest()[:24]}", flush=True)
        time.sleep(pause_ms / 1000)


main()
