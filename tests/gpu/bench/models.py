"""What the benchmark's PyTorch set trains and asks: a residual CNN of ResNet-50's shape and a GPT.

Synthetic data, drawn on the CPU from fixed seeds. Every algorithm is deterministic, so that two
processes print equal values whatever lies between PyTorch and the device.
"""

import contextlib
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import torch_parts  # noqa: E402  Before torch.
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402


class Bottleneck(nn.Module):
    """(batch, width_in, h, w) to (batch, 4 * width, h / stride, w / stride)."""

    def __init__(self, width_in, width, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width_in, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width),
            nn.ReLU(True), nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width))
        self.side = None
        if stride != 1 or width_in != 4 * width:
            self.side = nn.Sequential(nn.Conv2d(width_in, 4 * width, 1, stride, bias=False),
                                      nn.BatchNorm2d(4 * width))

    def forward(self, x):
        return functional.relu(self.body(x) + (x if self.side is None else self.side(x)))


class ResidualCnn(nn.Module):
    """ResNet-50's stages and widths, 25.6 M parameters; the stem pools by averages, whose gradient
    is deterministic, where ResNet-50 takes the largest."""

    def __init__(self, blocks=(3, 4, 6, 3), width=64, classes=1000):
        super().__init__()
        layers = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(True),
                  nn.AvgPool2d(3, 2, 1)]
        width_in = width
        for stage, count in enumerate(blocks):
            for block in range(count):
                layers.append(Bottleneck(width_in, width << stage,
                                         2 if stage > 0 and block == 0 else 1))
                width_in = 4 * width << stage
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width_in, classes)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class Gpt(nn.Module):
    """A decoder with learnt positions and tied embeddings: 110 M parameters. (batch, tokens) to
    (batch, tokens, words)."""

    def __init__(self, words=32768, tokens=512, width=768, layers=12, heads=12):
        super().__init__()
        self.word = nn.Embedding(words, width)
        self.place = nn.Parameter(torch.zeros(tokens, width))
        self.blocks = nn.Sequential(*[torch_parts.Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.word.weight, std=0.02)

    def forward(self, words):
        x = self.word(words) + self.place[:words.shape[1]]
        return functional.linear(self.norm(self.blocks(x)), self.word.weight)


class Images:
    """The CNN, what it is fed, and how wrong it is."""

    def __init__(self, sizes):
        self.batch, self.edge, self.blocks = sizes["images"], sizes["edge"], sizes["blocks"]

    def net(self):
        return ResidualCnn(self.blocks)

    def optimiser(self, net, capturable):
        del capturable  # Nothing of it is read on the host.
        return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)

    def batch_on_host(self, generator, count=None):
        count = count or self.batch
        return (torch.randn(count, 3, self.edge, self.edge, generator=generator),
                torch.randint(0, 1000, (count,), generator=generator))

    @staticmethod
    def loss(net, given, wanted):
        return functional.cross_entropy(net(given), wanted)


class Text:
    """The GPT, what it is fed, and how wrong it is."""

    def __init__(self, sizes):
        self.batch, self.tokens, self.layers = sizes["texts"], sizes["tokens"], sizes["layers"]
        self.words = sizes["words"]

    def net(self):
        return Gpt(self.words, self.tokens, layers=self.layers)

    def optimiser(self, net, capturable):
        options = {"capturable": True} if capturable else {}
        fused = {"fused": True} if next(net.parameters()).is_cuda else {}
        return torch.optim.AdamW(net.parameters(), lr=1e-4, **options, **fused)

    def batch_on_host(self, generator, count=None):
        words = torch.randint(0, self.words, (count or self.batch, self.tokens + 1),
                              generator=generator)
        return words[:, :-1].contiguous(), words[:, 1:].contiguous()

    @staticmethod
    def loss(net, given, wanted):
        scores = net(given)
        return functional.cross_entropy(scores.flatten(0, 1).float(), wanted.flatten())


FULL = {"images": 32, "edge": 224, "blocks": (3, 4, 6, 3), "texts": 8, "tokens": 512, "layers": 12,
        "words": 32768}
SMALL = {"images": 2, "edge": 32, "blocks": (1, 1, 1, 1), "texts": 1, "tokens": 16, "layers": 1,
         "words": 256}


def settle():
    """Deterministic algorithms, without the filling of fresh memory that PyTorch adds to them."""
    torch_parts.be_deterministic()
    with contextlib.suppress(ImportError):
        from torch.utils import deterministic
        deterministic.fill_uninitialized_memory = False


def synchronise(device):
    if device != "cpu":
        torch.cuda.synchronize()
