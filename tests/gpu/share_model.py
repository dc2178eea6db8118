"""Loads of PyTorch for tests/gpu/sharing: share_model.py gpt|cnn LOAD_PERCENT SECONDS.

gpt: a GPT of 110 million parameters decodes token by token, batch 1, and pauses so long that it
works LOAD_PERCENT of the time; cnn: training. Says "ready", waits for a line, and prints the steps
done and the 50th and 99th percentile of a step in microseconds.
"""

import sys
import time

import torch_parts  # Before torch.
import torch
from torch import nn
from torch.nn import functional


def decoder():
    """One token through twelve layers of 768, with keys and values of up to 512 before it."""
    torch.manual_seed(1)
    width, heads, layers, longest = 768, 12, 12, 512
    words = nn.Embedding(32000, width).cuda().half()
    blocks = nn.ModuleList(torch_parts.Block(width, heads) for _ in range(layers)).cuda().half()
    kept = torch.zeros(layers, 2, 1, heads, longest, width // heads, device="cuda").half()
    token = torch.zeros(1, 1, dtype=torch.long, device="cuda")
    places = torch.arange(longest, device="cuda")
    at = 0

    @torch.no_grad()
    def step():
        nonlocal token, at
        x = words(token)
        for i, block in enumerate(blocks):
            q, k, v = (part.view(1, 1, heads, -1).transpose(1, 2)
                       for part in block.qkv(block.before(x)).chunk(3, -1))
            kept[i, 0, :, :, at], kept[i, 1, :, :, at] = k[:, :, 0], v[:, :, 0]
            seen = functional.scaled_dot_product_attention(
                q, kept[i, 0], kept[i, 1], attn_mask=(places <= at).view(1, 1, 1, -1))
            x = x + block.out(seen.transpose(1, 2).reshape(1, 1, width))
            x = x + block.mlp(block.after(x))
        token = functional.linear(x, words.weight).argmax(-1)
        at = (at + 1) % longest
        return token.item()
    return step


def trainer():
    torch.manual_seed(2)
    layers = []
    for before, after in ((3, 64), (64, 128), (128, 256), (256, 256)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(),
                   nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 16, 100)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(128, 3, 64, 64, device="cuda")
    labels = torch.randint(0, 100, (128,), device="cuda")

    def step():
        loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()
    return step


def main():
    kind, load, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    step = {"gpt": decoder, "cnn": trainer}[kind]()
    for _ in range(10):
        step()
    print("ready", flush=True)
    sys.stdin.readline()
    took = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.monotonic()
        step()
        took.append(time.monotonic() - begun)
        if load:
            time.sleep(sorted(took)[len(took) // 2] * (100 / load - 1))
    took.sort()
    print(len(took), round(took[len(took) // 2] * 1e6), round(took[len(took) * 99 // 100] * 1e6), 0)


main()
