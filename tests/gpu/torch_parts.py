"""What the PyTorch programs here and in bench/ share. Import it before torch: cuBLAS reads its
variable when PyTorch makes its handle."""

import os
import struct

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402


class Block(nn.Module):
    """A transformer block: (batch, tokens, width) to the same shape."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.after = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.Linear(4 * width, width))

    def forward(self, x):
        batch, tokens, width = x.shape
        split = (batch, tokens, self.heads, width // self.heads)
        q, k, v = (part.view(split).transpose(1, 2)
                   for part in self.qkv(self.before(x)).chunk(3, -1))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(self.after(x))


def bits(value):
    """A number as the bits of a double, in hex."""
    return struct.pack(">d", float(value)).hex()


def be_deterministic(wanted=True):
    torch.use_deterministic_algorithms(wanted)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def compile_deterministically():
    """For torch.compile, where this version of PyTorch can."""
    import torch._inductor.config as inductor
    if hasattr(inductor, "deterministic"):
        inductor.deterministic = True


def captured(step):
    """`step` as a CUDA graph, after the runs on a side stream that PyTorch asks for; returns the
    graph and what the captured run returned."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    return graph, result
