"""A small network trained by JAX, for a VM whose processor is emulated."""

import os
import pathlib
import sys
import time

begun = time.monotonic()
sys.path.append(str(pathlib.Path(__file__).resolve().parent))
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
# The same choice of algorithms in each run: what is timed chooses differently.
os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true"
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

import job  # noqa: E402

print(f"job: jax {jax.__version__} imported in {time.monotonic() - begun:.1f} s", flush=True)
WIDTH, BATCH = 512, 256


@jax.jit
def made(seed):
    keys = jax.random.split(jax.random.key(seed), 4)
    sizes = [(64, WIDTH), (WIDTH, WIDTH), (WIDTH, 8)]
    weights = [jax.random.normal(key, size) * size[0] ** -0.5 for key, size in zip(keys, sizes)]
    return weights, [0 * weight for weight in weights], jax.random.normal(keys[3], (BATCH, 64))


def loss_of(weights, x):
    hidden = x
    for weight in weights[:-1]:
        hidden = jax.nn.gelu(hidden @ weight)
    return jnp.mean((hidden @ weights[-1] - jnp.sin(x[:, :8])) ** 2)


@jax.jit
def trained(weights, speeds, x):
    loss, slopes = jax.value_and_grad(loss_of)(weights, x)
    speeds = [0.9 * speed - 0.01 * slope for speed, slope in zip(speeds, slopes)]
    return [w + speed for w, speed in zip(weights, speeds)], speeds, loss


device = jax.devices()[0]
if device.platform != "gpu":
    sys.exit(f"job: JAX found no GPU but {device}")
state = None


def step():
    global state
    if state is None:
        state = made(20)
    weights, speeds, x = state
    weights, speeds, loss = trained(weights, speeds, x)
    state = weights, speeds, x
    return loss


print(f"job: {device.device_kind} after {time.monotonic() - begun:.1f} s", flush=True)
job.run(step)
