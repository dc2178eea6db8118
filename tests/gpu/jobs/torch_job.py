"""Work of PyTorch: kernels with variables in images without PTX (fp32 cuBLAS, cuFFT, SDPA, lgamma),
linear algebra, cuDNN, sparse products, random numbers, training eager, compiled, in a CUDA graph
and in half precision. See cycles.py for what the command line says."""

import os
import pathlib
import sys

import cycles

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import torch_parts as shared  # noqa: E402  Before torch.
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

DEVICE = os.environ.get("JOB_DEVICE", "cuda")
PARTS = {}


def part(make):
    def seeded():
        torch.manual_seed(7)
        return make()
    PARTS[make.__name__] = seeded
    return make


def random(*shape, kind=torch.float32):
    return torch.randn(shape, device=DEVICE).to(kind)


@part
def matmul():
    a, b = random(513, 700), random(700, 513)

    def step():
        out = a @ b
        a.add_(torch.tanh(out[:, :1]), alpha=1e-3)
        batch = torch.bmm(a[:512, :512].reshape(8, 64, 512),
                          out[:512].reshape(1, 512, 513).expand(8, 512, 513))
        return [out, batch, torch.addmm(out[:, :1], a, b)]
    return step


@part
def fft():
    held = [random(*shape) for shape in [(3, 1024), (2, 1000), (5, 729), (1, 7 * 11 * 13),
                                         (64, 60, 96)]]

    def step():
        out = []
        for i, each in enumerate(held):
            spectrum = torch.fft.fftn(each)
            out += [spectrum, torch.fft.irfft(torch.fft.rfft(each.double()), n=each.shape[-1])]
            held[i] = torch.fft.ifftn(spectrum).real
        return out
    return step


@part
def sdpa():
    state = [random(2, 4, 256, 64) for _ in range(3)]

    def step():
        out = [functional.scaled_dot_product_attention(*(one.to(kind) for one in state),
                                                       is_causal=True)
               for kind in (torch.float32, torch.bfloat16, torch.float16)]
        state[0] = state[0] + 0.01 * out[0]
        return out
    return step


@part
def special():
    state = [torch.rand(5000, device=DEVICE) * 8 + 0.1]

    def step():
        x = state[0]
        out = [f(x) for f in (torch.lgamma, torch.digamma, torch.special.i0, torch.erfinv,
                              torch.special.bessel_j0)]
        out += [torch.lgamma(x.double()), torch.special.zeta(x + 1, x), torch.igamma(x, x.flip(0))]
        state[0] = (x + 0.001 * out[0].abs()).clamp(max=9)
        return [torch.nan_to_num(one) for one in out]
    return step


@part
def linalg():
    state = [random(96, 96)]

    def step():
        a = state[0]
        spd = a @ a.T / 96 + torch.eye(96, device=DEVICE)
        q, r = torch.linalg.qr(a)
        out = [torch.linalg.cholesky(spd), q, r, torch.linalg.eigvalsh(spd),
               torch.linalg.svdvals(a), torch.linalg.solve(spd, a), torch.linalg.inv(spd),
               torch.linalg.slogdet(spd)[1], torch.linalg.lstsq(spd, a[:, :3]).solution,
               torch.linalg.matrix_exp(a * 0.01)]
        state[0] = 0.5 * a + 0.5 * q
        return out
    return step


@part
def convolutions():
    x, y = random(4, 8, 33, 33), random(2, 4, 9, 17, 17)
    flat = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
                         nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.MaxPool2d(2),
                         nn.Conv2d(8, 8, 5, groups=4, padding=2)).to(DEVICE)
    deep = nn.Conv3d(4, 4, 3, padding=1).to(DEVICE)

    def step():
        out = flat(x)
        solid = deep(y)
        slopes = torch.autograd.grad(out.square().mean() + solid.square().mean(),
                                     [*flat.parameters(), *deep.parameters()])
        return [out, solid, *slopes]
    return step


@part
def recurrent():
    model = nn.LSTM(48, 64, num_layers=2, bidirectional=True).to(DEVICE)
    state = [random(20, 8, 48)]

    def step():
        out, (h, c) = model(state[0])
        out.square().mean().backward()
        slopes = [one.grad.clone() for one in model.parameters()]
        model.zero_grad()
        state[0] = state[0] * 0.9 + out.detach()[:, :, :48] * 0.1
        return [out, h, c, *slopes]
    return step


@part
def sparse():
    index = torch.randint(0, 400, (2, 4000), device=DEVICE)
    a = torch.sparse_coo_tensor(index, random(4000), (400, 400)).coalesce()
    rows = a.to_sparse_csr()
    state = [random(400, 30)]

    def step():
        out = rows @ state[0]
        state[0] = torch.tanh(out)
        return [out, torch.sparse.mm(a, state[0]), a.to_dense()]
    return step


@part
def indexing():
    state = [random(5000)]

    def step():
        x = state[0]
        order = torch.argsort(x, stable=True)
        out = [order, torch.topk(x, 17)[0], torch.unique((x * 10).long()), torch.cumsum(
            x.double(), 0), x.median(), torch.nonzero(x > 1), torch.bincount((x.abs() * 9).long()),
            torch.searchsorted(x[order], x), x.view(50, 100).kthvalue(5, 1)[0]]
        state[0] = x[order].roll(7) * 0.999
        return out
    return step


@part
def random_numbers():
    generator = torch.Generator(DEVICE)
    generator.manual_seed(11)

    def step():
        return [torch.randn(1000, device=DEVICE, generator=generator),
                torch.randperm(3000, device=DEVICE, generator=generator),
                torch.multinomial(torch.rand(9, 40, device=DEVICE), 5, generator=generator),
                functional.dropout(torch.ones(2000, device=DEVICE), 0.3),
                torch.bernoulli(torch.full((500,), 0.2, device=DEVICE), generator=generator)]
    return step


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(100, 64)
        self.blocks = nn.Sequential(*(shared.Block(64, 4) for _ in range(2)))
        self.out = nn.Linear(64, 100)

    def forward(self, tokens):
        return self.out(self.blocks(self.words(tokens)))


def training(half=None, compiled=False):
    model = Network().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(DEVICE, enabled=half is torch.float16)
    tokens = torch.randint(0, 100, (8, 33), device=DEVICE)
    forward = torch.compile(model) if compiled else model

    def update():
        with torch.autocast(DEVICE, dtype=half or torch.bfloat16, enabled=half is not None):
            loss = functional.cross_entropy(forward(tokens[:, :-1]).flatten(0, 1).float(),
                                            tokens[:, 1:].flatten())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    def step():
        losses = torch.stack([update() for _ in range(5)])
        return [losses, *(one.detach() for one in model.parameters())]
    return step


@part
def train_eager():
    return training()


@part
def train_bf16():
    return training(half=torch.bfloat16)


@part
def train_fp16():
    return training(half=torch.float16)


@part
def train_graph():
    model = shared.Block(64, 4).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    data, wanted = random(4, 32, 64), random(4, 32, 64)

    def update():
        loss = functional.mse_loss(model(data), wanted)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        return loss.detach()
    graph, loss = shared.captured(update)

    def step():
        losses = []
        for _ in range(5):
            graph.replay()
            losses.append(loss.clone())
        return [torch.stack(losses), *(one.detach() for one in model.parameters())]
    return step


@part
def train_compiled():
    return training(compiled=True)


@part
def streams():
    others = [torch.cuda.Stream() for _ in range(3)]
    state = [random(300, 300) for _ in others]

    def step():
        here = torch.cuda.current_stream()
        for i, other in enumerate(others):
            other.wait_stream(here)
            with torch.cuda.stream(other):
                state[i] = torch.tanh(state[i] @ state[i]) + 0.01
        for other in others:
            here.wait_stream(other)
        pinned = torch.empty(300, 300, pin_memory=True)
        pinned.copy_(state[0], non_blocking=True)
        torch.cuda.synchronize()
        return [*state, pinned]
    return step


def to_host(one):
    one = one.detach().contiguous().cpu()
    return (torch.view_as_real(one) if one.is_complex() else
            one.view(torch.int16) if one.dtype == torch.bfloat16 else one).numpy()


if __name__ == "__main__":
    shared.be_deterministic()
    torch.use_deterministic_algorithms(True, warn_only=True)  # Sums that have no other way: told.
    shared.compile_deterministically()
    cycles.main(PARTS, to_host)
