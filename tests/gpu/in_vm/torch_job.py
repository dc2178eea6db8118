"""Two transformer blocks trained by PyTorch, for a VM whose processor is emulated."""

import os
import pathlib
import sys
import time

begun = time.monotonic()
sys.path.append(str(pathlib.Path(__file__).resolve().parent))
os.environ["ATEN_CPU_CAPABILITY"] = "default"  # One way of computing on the CPU, whatever it is.
import torch_parts  # noqa: E402  Before torch.
import torch  # noqa: E402
from torch import nn  # noqa: E402

import job  # noqa: E402

print(f"job: torch {torch.__version__} imported in {time.monotonic() - begun:.1f} s", flush=True)
TOKENS, BATCH, WIDTH = 128, 4, 256


class Trained:
    """As TextJob of tests/gpu/train.py, but its optimiser is written out: torch.optim imports
    TorchDynamo, which takes a minute on an emulated processor."""

    def __init__(self):
        # Not use_deterministic_algorithms(): it imports TorchInductor.
        torch._C._set_deterministic_algorithms(True)
        torch.manual_seed(20)
        with torch.device("cuda"):
            self.net = nn.Sequential(*[torch_parts.Block(WIDTH, 4) for _ in range(2)])
            self.x = torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.bfloat16)
        self.net.to(torch.bfloat16)
        self.weights = list(self.net.parameters())
        self.speeds = [torch.zeros_like(weight) for weight in self.weights]

    def step(self):
        loss = (self.net(self.x).float() - self.x.float().roll(1, 1)).square().mean()
        slopes = torch.autograd.grad(loss, self.weights)
        with torch.no_grad():
            torch._foreach_mul_(self.speeds, 0.9)
            torch._foreach_add_(self.speeds, slopes)
            torch._foreach_add_(self.weights, self.speeds, alpha=-0.01)
        return loss.item()


trained = Trained()
print(f"job: {torch.cuda.get_device_name()}, {torch.cuda.memory_reserved() >> 20} MiB after "
      f"{time.monotonic() - begun:.1f} s", flush=True)
job.run(trained.step)
