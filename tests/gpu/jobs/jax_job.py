"""Scripts of JAX as it is installed, with its own flags: transformations, control flow, linear
algebra, random numbers, convolutions, training. See cycles.py for what the command line says."""

import cycles
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax


def data(*shape, seed=0, kind=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(kind)


def pure(function, *arguments, compiled=True):
    """A part that carries its first argument on: the function's first result, if of that shape."""
    state = [jnp.asarray(one) for one in arguments]
    run = jax.jit(function) if compiled else function

    def step():
        found = run(*state)
        found = list(found) if isinstance(found, (tuple, list)) else [found]
        if found[0].shape == state[0].shape and found[0].dtype == state[0].dtype:
            state[0] = found[0]
        return found
    return step


@cycles.part
def elementwise():
    return pure(lambda x: jnp.tanh(x) * 1.01 + jnp.sin(x) ** 2 - jnp.exp(-x * x), data(700, 333))


@cycles.part
def reductions():
    return pure(lambda x: (x.sum(0), x.max(1), x.mean(), x.std(), jnp.argmin(x, 1),
                           jnp.cumsum(x, 1)), data(257, 511))


@cycles.part
def vmap_of_grad():
    loss = lambda w, x: jnp.sum(jnp.tanh(x @ w) ** 2)
    return pure(lambda w, x: (w - 0.01 * jax.vmap(jax.grad(loss), (None, 0))(w, x).mean(0),),
                data(64, 32), data(16, 8, 64, seed=1))


@cycles.part
def scan_of_a_cell():
    def run(h, w, xs):
        return lax.scan(lambda h, x: ((h := jnp.tanh(h @ w + x)), h.sum()), h, xs)
    return pure(run, data(8, 96), data(96, 96, seed=1) * 0.1, data(50, 8, 96, seed=2))


@cycles.part
def while_loop():
    def run(x):
        done = lambda s: (s[1] < 60) & (jnp.abs(s[0] * s[0] - x).max() > 1e-6)
        return lax.while_loop(done, lambda s: (0.5 * (s[0] + x / s[0]), s[1] + 1),
                              (jnp.ones_like(x), 0))
    return pure(run, np.abs(data(1000)) + 0.5)


@cycles.part
def cond_and_switch():
    def run(x, k):
        y = lax.cond(x.sum() > 0, lambda v: v * 0.9 - 1, lambda v: v * 1.1 + 1, x)
        return lax.switch(k % 3, [jnp.sin, jnp.cos, jnp.tanh], y), k + 1
    return pure(run, data(500), np.int32(1))


@cycles.part
def fori_loop():
    return pure(lambda x: lax.fori_loop(0, 37, lambda i, v: v * 0.99 + jnp.roll(v, i) * 0.01, x),
                data(4096))


@cycles.part
def sorts():
    return pure(lambda x: (jnp.sort(x, axis=-1), jnp.argsort(x[0]), lax.top_k(x, 7)[1],
                           jnp.median(x, axis=1)), data(33, 2000))


@cycles.part
def searches():
    return pure(lambda x: (jnp.searchsorted(jnp.sort(x), x), jnp.unique(jnp.round(x), size=20),
                           jnp.bincount((jnp.abs(x) * 10).astype(jnp.int32), length=50)),
                data(5000))


@cycles.part
def convolution_1d():
    return pure(lambda x, k: lax.conv_general_dilated(x, k, (1,), "SAME"),
                data(4, 16, 512), data(16, 16, 5, seed=1) * 0.1)


@cycles.part
def convolution_2d():
    def run(x, k):
        y = lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO",
                                                                              "NHWC"))
        return jnp.tanh(y), lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1),
                                              "VALID")
    return pure(run, data(8, 32, 32, 16), data(3, 3, 16, 16, seed=1) * 0.1)


@cycles.part
def convolution_backward():
    def loss(k, x):
        return jnp.sum(lax.conv_transpose(x, k, (2, 2), "SAME") ** 2)
    return pure(lambda k, x: k - 1e-6 * jax.grad(loss)(k, x), data(4, 4, 8, 8) * 0.1,
                data(4, 16, 16, 8, seed=1))


@cycles.part
def fourier():
    def run(x):
        spectrum = jnp.fft.fft(x)
        return (jnp.fft.ifft(spectrum * 0.999).real, spectrum, jnp.fft.rfft2(x),
                jnp.fft.irfft(jnp.fft.rfft(x, axis=0), n=x.shape[0], axis=0))
    return pure(run, data(64, 729))


@cycles.part
def cholesky():
    def run(a, b):
        spd = a @ a.T / 128 + jnp.eye(128)
        low = jnp.linalg.cholesky(spd)
        return low, jax.scipy.linalg.cho_solve((low, True), b), jnp.linalg.slogdet(spd)[1]
    return pure(run, data(128, 128), data(128, 5, seed=1))


@cycles.part
def qr_and_lu():
    def run(a, b):
        q, r = jnp.linalg.qr(a)
        return q @ r, jnp.linalg.solve(a + 20 * jnp.eye(96), b), jnp.linalg.inv(a[:24, :24])
    return pure(run, data(96, 96), data(96, 7, seed=1))


@cycles.part
def eigenvalues():
    return pure(lambda a: (jnp.linalg.eigh(a + a.T)[0], jnp.linalg.svd(a, compute_uv=False),
                           jnp.linalg.norm(a, 2)), data(64, 64))


@cycles.part
def triangular():
    return pure(lambda b, a: jax.scipy.linalg.solve_triangular(jnp.tril(a) + 10 * jnp.eye(200), b,
                                                               lower=True) * 10,
                data(200, 31), data(200, 200, seed=1))


@cycles.part
def products():
    return pure(lambda a, b: (a @ b * 0.05, jnp.dot(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)),
                              jnp.einsum("ij,kj->ik", a, b), a.astype(jnp.float16) @
                              b.astype(jnp.float16)), data(384, 384), data(384, 384, seed=1))


@cycles.part
def batched_products():
    return pure(lambda a, b: (jnp.einsum("bhqd,bhkd->bhqk", a, b),
                              jnp.matmul(a.astype(jnp.bfloat16), jnp.swapaxes(b, -1, -2)
                                         .astype(jnp.bfloat16))),
                data(2, 4, 65, 32), data(2, 4, 33, 32, seed=1))


@cycles.part
def int_products():
    return pure(lambda a: lax.dot(a, a, preferred_element_type=jnp.int32),
                (data(256, 256) * 20).astype(np.int8))


@cycles.part
def segments():
    ids = np.random.default_rng(3).integers(0, 40, 3000)
    return pure(lambda x: (jax.ops.segment_max(x, ids, 40), x[ids], x.at[ids[:40]].set(0.5)),
                data(3000))


@cycles.part
def random_numbers():
    def run(key):
        key, a, b, c, d = jax.random.split(key, 5)
        return (key, jax.random.normal(a, (1000,)), jax.random.categorical(b, jnp.ones((50, 9))),
                jax.random.permutation(c, 777), jax.random.gamma(d, 2.0, (300,)))
    return pure(run, jax.random.PRNGKey(7))


@cycles.part
def pmap_on_one_device():
    run = jax.pmap(lambda x: lax.psum(jnp.tanh(x), "i") * 0.99, axis_name="i")
    return pure(run, data(jax.local_device_count(), 64, 64), compiled=False)


@cycles.part
def associative_scan():
    return pure(lambda x: (lax.associative_scan(jnp.maximum, x, axis=1),
                           lax.cumprod(1 + x * 1e-3, axis=0)), data(40, 1000))


@cycles.part
def own_derivative():
    @jax.custom_vjp
    def clipped(x):
        return x * x
    clipped.defvjp(lambda x: (x * x, x), lambda x, g: (jnp.clip(2 * x * g, -1, 1),))
    return pure(lambda x: x - 0.1 * jax.grad(lambda v: clipped(v).sum())(x), data(999))


@cycles.part
def hessian():
    f = lambda x: jnp.sum(jnp.sin(x) * x ** 3)
    return pure(lambda x: (x - 0.001 * jax.grad(f)(x), jax.hessian(f)(x),
                           jax.jvp(f, (x,), (jnp.ones_like(x),))[1]), data(48))


@cycles.part
def rematerialised():
    def loss(w, x):
        layer = jax.checkpoint(lambda v: jnp.tanh(v @ w))
        return jnp.sum(layer(layer(layer(x))) ** 2)
    return pure(lambda w, x: w - 1e-3 * jax.grad(loss)(w, x), data(80, 80) * 0.1,
                data(32, 80, seed=1))


@cycles.part
def donated():
    run = jax.jit(lambda x: x * 0.5 + 1, donate_argnums=0)
    state = [jnp.asarray(data(512, 512))]

    def step():
        state[0] = run(state[0])
        return [state[0] + 0]
    return step


@cycles.part
def call_to_the_host():
    def run(x):
        back = jax.pure_callback(lambda v: np.sort(np.asarray(v)), jax.ShapeDtypeStruct(
            x.shape, x.dtype), x)
        return back * 0.9 + x * 0.1
    return pure(run, data(300))


@cycles.part
def many_small():
    state = [jnp.asarray(data(17))]

    def step():
        for _ in range(60):
            state[0] = state[0] * 1.001 + 0.01
        return [state[0]]
    return step


@cycles.part
def attention():
    def run(q, k, v):
        out = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        return q + 0.1 * out, jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return pure(run, *(data(2, 128, 4, 64, seed=s) for s in range(3)))


@cycles.part
def attention_bf16():
    def run(q, k, v):
        return q + jax.nn.dot_product_attention(q, k, v).astype(q.dtype)
    return pure(run, *(data(2, 128, 4, 64, seed=s).astype(jnp.bfloat16) for s in range(3)))


def trained(model, optimizer, loss_of, images):
    parameters = model.init(jax.random.PRNGKey(1), images)
    state = [parameters, optimizer.init(parameters)]

    @jax.jit
    def update(parameters, kept):
        loss, slope = jax.value_and_grad(lambda p: loss_of(model.apply(p, images)))(parameters)
        change, kept = optimizer.update(slope, kept, parameters)
        return optax.apply_updates(parameters, change), kept, loss

    def step():
        for _ in range(5):
            state[0], state[1], loss = update(*state)
        return [loss, *jax.tree_util.tree_leaves(state[0])]
    return step


class Perceptron(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(nn.relu(nn.Dense(128)(nn.LayerNorm()(x))))


class Convolutions(nn.Module):
    @nn.compact
    def __call__(self, x):
        for width in (16, 32):
            x = nn.max_pool(nn.relu(nn.Conv(width, (3, 3))(x)), (2, 2), (2, 2))
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


class Recurrent(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(nn.RNN(nn.GRUCell(48))(x)[:, -1])


LABELS = np.random.default_rng(5).integers(0, 10, 32)
cross_entropy = lambda out: optax.softmax_cross_entropy_with_integer_labels(out, LABELS).mean()


@cycles.part
def flax_perceptron_adam():
    return trained(Perceptron(), optax.adam(1e-3), cross_entropy, data(32, 60))


@cycles.part
def flax_convolutions_adamw():
    return trained(Convolutions(), optax.adamw(1e-3), cross_entropy, data(32, 16, 16, 3))


@cycles.part
def flax_recurrent_sgd():
    schedule = optax.cosine_decay_schedule(0.05, 200)
    return trained(Recurrent(), optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(
        schedule, momentum=0.9)), cross_entropy, data(32, 12, 24))


if __name__ == "__main__":
    cycles.main(cycles.PARTS, np.asarray)
