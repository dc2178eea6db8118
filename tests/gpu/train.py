"""A training job of the kinds that tenants run; prints each step's loss as the bits of a double.

  python3 tests/gpu/train.py [--steps N] [--workers N] [--eager] [--no-graph] [--mark FILE]

One step trains, in this order: a CNN (conv, batch norm, AdamW) on images from a DataLoader with
forked workers; a transformer block (bf16 matmul, SDPA) by torch.compile; and a small network whose
whole step is one CUDA graph. Every algorithm is deterministic: two runs with equal
arguments print equal lines, whatever lies between PyTorch and the device.
"""

import argparse
import time

import torch_parts  # Before torch.
import torch
from torch import nn

DEVICE = "cuda:0"


class Images(torch.utils.data.Dataset):
    """Items that depend on their index alone, whatever process makes them."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 64, 64, generator=generator), index % 10


class ImageJob:
    def __init__(self, steps, workers):
        self.net = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Conv2d(64, 128, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(128), nn.ReLU(),
            nn.AvgPool2d(4), nn.Flatten(), nn.Linear(2048, 10)).to(DEVICE)
        self.optimiser = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        loader = torch.utils.data.DataLoader(Images(32 * steps), batch_size=32,
                                             num_workers=workers, pin_memory=True)
        self.batches = iter(loader)

    def step(self):
        images, labels = next(self.batches)
        images = images.to(DEVICE, non_blocking=True)
        labels = labels.to(DEVICE, non_blocking=True)
        self.optimiser.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(self.net(images), labels)
        loss.backward()
        self.optimiser.step()
        return loss


class TextJob:
    def __init__(self, compiled):
        self.net = nn.Sequential(*[torch_parts.Block(256, 4) for _ in range(2)])
        self.net.to(DEVICE, torch.bfloat16)
        self.run = torch.compile(self.net) if compiled else self.net
        self.optimiser = torch.optim.AdamW(self.net.parameters(), lr=1e-4, fused=True)
        self.x = torch.randn(8, 256, 256).to(DEVICE, torch.bfloat16)

    def step(self):
        self.optimiser.zero_grad(set_to_none=True)
        loss = (self.run(self.x).float() - self.x.float().roll(1, 1)).square().mean()
        loss.backward()
        self.optimiser.step()
        return loss


class GraphJob:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 8)).to(DEVICE)
        self.optimiser = torch.optim.AdamW(self.net.parameters(), lr=1e-3, capturable=True)
        self.x = torch.randn(64, 128).to(DEVICE)
        self.graph, self.loss = torch_parts.captured(self.one)

    def one(self):
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.net(self.x).square().mean()
        loss.backward()
        self.optimiser.step()
        return loss

    def step(self):
        self.graph.replay()
        return self.loss


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--no-graph", action="store_true", help="leave the CUDA graph out")
    parser.add_argument("--every", type=int, default=1, help="print every Nth step")
    parser.add_argument("--mark", help="file that is made after step --mark-step")
    parser.add_argument("--mark-step", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(20)
    torch_parts.be_deterministic()
    if not arguments.eager:
        torch_parts.compile_deterministically()
    jobs = [ImageJob(arguments.steps, arguments.workers), TextJob(not arguments.eager)]
    if not arguments.no_graph:
        jobs.append(GraphJob())
    for job in jobs[1:]:
        job.step()
    torch.cuda.synchronize()
    begin = None
    for step in range(arguments.steps):
        if step == min(10, arguments.steps // 4):
            torch.cuda.synchronize()
            begin, first = time.monotonic(), step
        losses = [job.step() for job in jobs]
        if step % arguments.every == arguments.every - 1:
            print("step", step, *[torch_parts.bits(loss) for loss in losses], flush=True)
        if arguments.mark and step == arguments.mark_step:
            open(arguments.mark, "w", encoding="ascii").close()
    torch.cuda.synchronize()
    seconds = time.monotonic() - begin
    print(f"rate {(arguments.steps - first) / seconds:.3f} steps/s", flush=True)
    print("PASS", flush=True)


if __name__ == "__main__":
    main()
