#!/usr/bin/env python3
"""One process that measures members of the benchmark's PyTorch set, asked line by line.

  python3 tests/gpu/bench/members.py [--device cuda:0] [--small]

A request is a line, the answer one line of JSON:
  values MEMBER              build it, run its checked steps; values must not depend on what lies
                             between PyTorch and the device
  time MEMBER SECONDS CORE   seconds a step, of blocks of steps for about so long, on that core
  waits MEMBER STEPS         calls that waited for the host in so many steps, by the shim's report
                             (guest-shim/session/base/report.h)
  drop MEMBER                give its memory back
"""

import argparse
import contextlib
import ctypes
import gc
import json
import os
import pathlib
import sys
import time

import models
import torch
from torch_parts import bits, captured

CHECKED_STEPS = 10
BATCHES_ON_HOST = 4


class Training:
    """Steps of a training loop: a batch from page-locked memory, then forward, backward and
    optimiser, as calls or as the replay of one CUDA graph. The loss is read when asked."""

    steps_a_time = 10

    def __init__(self, job, half, graph, device):
        torch.manual_seed(20)
        generator = torch.Generator().manual_seed(21)
        self.job, self.half, self.device = job, half, device
        self.batches = [tuple(part.pin_memory() if device != "cpu" else part
                              for part in job.batch_on_host(generator))
                        for _ in range(BATCHES_ON_HOST)]
        self.net = job.net().to(device)
        self.optimiser = job.optimiser(self.net, graph)
        self.given = tuple(part.to(device) for part in self.batches[0])
        self.graph = self.loss = None
        self.number = 0
        if graph:
            self.graph, self.loss = captured(self.calls)

    def calls(self):
        self.optimiser.zero_grad(set_to_none=True)
        with torch.autocast(self.device.split(":")[0], dtype=torch.bfloat16, enabled=self.half):
            loss = self.job.loss(self.net, *self.given)
        loss.backward()
        self.optimiser.step()
        return loss

    def step(self):
        batch = self.batches[self.number % len(self.batches)]
        self.number += 1
        for on_device, on_host in zip(self.given, batch):
            on_device.copy_(on_host, non_blocking=True)
        if self.graph is not None:
            self.graph.replay()
        else:
            self.loss = self.calls()

    def read(self):
        return self.loss.item()


class Inference:
    """One item at a time: to the device, through the net, the answer's index back."""

    steps_a_time = 1

    def __init__(self, job, graph, device):
        torch.manual_seed(20)
        generator = torch.Generator().manual_seed(21)
        self.device = device
        self.batches = [self.in_half(job.batch_on_host(generator, 1)[0])
                        for _ in range(BATCHES_ON_HOST)]
        if device != "cpu":
            self.batches = [batch.pin_memory() for batch in self.batches]
        self.net = job.net().to(device, torch.bfloat16).eval()
        self.given = self.batches[0].to(device)
        self.number, self.answer, self.graph, self.last = 0, None, None, None
        if graph:
            with torch.inference_mode():
                self.graph, self.answer = captured(self.calls)

    @staticmethod
    def in_half(batch):
        return batch.bfloat16() if batch.is_floating_point() else batch

    def calls(self):
        """The best score and its index, as two floats."""
        scores = self.net(self.given)
        best = (scores if scores.dim() == 2 else scores[:, -1]).float().max(-1)
        return torch.cat((best.values, best.indices.float()))

    def step(self):
        with torch.inference_mode():
            self.given.copy_(self.batches[self.number % len(self.batches)], non_blocking=True)
            self.number += 1
            if self.graph is not None:
                self.graph.replay()
            else:
                self.answer = self.calls()
            self.last = self.answer.tolist()

    def read(self):
        score, index = self.last
        return score * 65536 + index


class TinyKernels:
    """A loop of elementwise operations on one element: nothing but launches."""

    steps_a_time = 5000

    def __init__(self, device):
        self.x = torch.ones(1, device=device)

    def step(self):
        self.x.add_(1.0)

    def read(self):
        return self.x.item()


def members(sizes, device):
    """Every member by name, and how to make it."""
    jobs = {"cnn": models.Images(sizes), "gpt": models.Text(sizes)}
    made = {}
    for name, job in jobs.items():
        for half in (False, True):
            for graph in (False, True):
                made[f"train_{name}_{'bf16' if half else 'fp32'}_{'graph' if graph else 'eager'}"
                     ] = lambda job=job, half=half, graph=graph: Training(job, half, graph, device)
        for graph in (False, True):
            made[f"infer_{name}_{'graph' if graph else 'eager'}"] = (
                lambda job=job, graph=graph: Inference(job, graph, device))
    made["tiny_kernels"] = lambda: TinyKernels(device)
    return made


@contextlib.contextmanager
def on_core(core):
    """Keeps the threads that call the driver, the main one and autograd's, on one core."""
    before = {}
    for task in pathlib.Path("/proc/self/task").iterdir():
        thread = int(task.name)
        if thread == os.getpid() or "pt_autograd" in (task / "comm").read_text(encoding="utf-8"):
            before[thread] = os.sched_getaffinity(thread)
            os.sched_setaffinity(thread, {core})
    try:
        yield
    finally:
        for thread, cores in before.items():
            os.sched_setaffinity(thread, cores)


class Server:
    def __init__(self, sizes, device):
        self.device, self.makers, self.alive = device, members(sizes, device), {}

    def values(self, name):
        made = self.alive[name] = self.makers[name]()
        values = []
        for _ in range(CHECKED_STEPS):
            made.step()
            values.append(bits(made.read()))
        models.synchronise(self.device)
        return {"values": values}

    def time(self, name, seconds, core):
        """Blocks of `steps_a_time` steps, with a synchronise around each."""
        made = self.alive[name]
        count, times = made.steps_a_time, []
        with on_core(int(core)):
            end = time.monotonic() + float(seconds)
            while len(times) < 3 or time.monotonic() < end:
                models.synchronise(self.device)
                begin = time.perf_counter()
                for _ in range(count):
                    made.step()
                models.synchronise(self.device)
                times.append((time.perf_counter() - begin) / count)
        return {"times": times}

    def waits(self, name, steps):
        """Every step reads its result, as the strictest loop would."""
        made = self.alive[name]
        for _ in range(5):
            made.step()
            made.read()
        before = self.report()
        for _ in range(int(steps)):
            made.step()
            made.read()
        after = self.report()
        return {"waits": {call: count - before.get(call, 0) for call, count in after.items()
                          if count != before.get(call, 0)}}

    @staticmethod
    def report():
        """The shim writes its report anew when the profiler is told to stop."""
        ctypes.CDLL("libcuda.so.1").cuProfilerStop()
        path = pathlib.Path(f"{os.environ['GANTRY_REPORT']}.{os.getpid()}")
        lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
        return {words[1]: int(words[2]) for words in lines if words[0] == "round-trip"}

    def drop(self, name):
        self.alive.pop(name, None)
        gc.collect()
        if self.device != "cpu":
            torch.cuda.empty_cache()
        return {}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--small", action="store_true", help="sizes for a machine without a GPU")
    arguments = parser.parse_args()
    models.settle()
    if arguments.device != "cpu":
        torch.cuda.init()
        torch.zeros(1, device=arguments.device)
    server = Server(models.SMALL if arguments.small else models.FULL, arguments.device)
    # What libraries print on stdout must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps({"members": list(server.makers), "torch": torch.__version__}), file=answers)
    for line in sys.stdin:
        try:
            request, *words = line.split()
            answer = getattr(server, request)(*words)
        except Exception as error:  # Whatever it was, the asker prints it as this member's result.
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
