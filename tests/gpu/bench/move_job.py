#!/usr/bin/env python3
"""A PyTorch training job to be moved: the GPT of the set (bf16, eager), and memory that lies still.

  python3 tests/gpu/bench/move_job.py RESIDENT_MIB SECONDS [STEPS]

Prints `ready`, then a line `step N END_NS DURATION_US LOSS` each (CLOCK_MONOTONIC; the loss as the
bits of a double), until SECONDS have passed, STEPS are done, or a line comes on standard input;
last `PASS N`, when every byte that lay still is what it was.
"""

import select
import sys
import time

import members
import models
import torch
from torch_parts import bits

PIECE_MIB = 512


def lie_still(mib):
    """Pieces of random bytes, and a sum of each."""
    generator = torch.Generator("cuda").manual_seed(5)
    pieces = [torch.randint(0, 1 << 62, (min(PIECE_MIB, mib - at) << 17,), device="cuda",
                            generator=generator) for at in range(0, mib, PIECE_MIB)]
    return pieces, [piece.sum().item() for piece in pieces]


def main():
    mib, seconds = int(sys.argv[1]), float(sys.argv[2])
    steps_most = int(sys.argv[3]) if len(sys.argv) > 3 else 1 << 40
    models.settle()
    job = members.Training(models.Text(models.FULL), True, False, "cuda:0")
    pieces, sums = lie_still(mib)
    for _ in range(5):
        job.step()
        job.read()
    print("ready", flush=True)
    begin = last = time.monotonic_ns()
    done = 0
    while done < steps_most and last - begin < seconds * 1e9:
        if steps_most == 1 << 40 and select.select([sys.stdin], [], [], 0)[0]:
            break
        job.step()
        loss = bits(job.read())
        now = time.monotonic_ns()
        print("step", done, now, (now - last) / 1000, loss, flush=True)
        last, done = now, done + 1
    if [piece.sum().item() for piece in pieces] != sums:
        sys.exit("memory that lay still has changed")
    print("PASS", done, flush=True)


if __name__ == "__main__":
    main()
