"""Probes of PyTorch on a GPU, one function each: what it prints must not depend on what lies
between PyTorch and the device.

  python3 tests/gpu/probes.py NAME

A probe prints `value NAME HEX` lines (digests of tensors computed by deterministic algorithms) and
ends with `PROBE OK`. tests/gpu/ladder runs each natively and through Gantry and compares the lines.
"""

import hashlib
import os
import sys
import tempfile

import torch_parts  # Before torch.
import torch

DEVICE = "cuda:0"


def show(name, value):
    """One line per result; a tensor's bytes are hashed, so equal lines mean equal bits."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().contiguous().cpu()
        data = flat.reshape(-1).view(torch.uint8).numpy().tobytes()
        value = hashlib.sha256(data).hexdigest()[:24]
    print(f"value {name} {value}", flush=True)


def seeded(deterministic=True):
    torch.manual_seed(20)
    torch_parts.be_deterministic(deterministic)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def random(*shape, dtype=torch.float32, grad=False):
    """Drawn on the CPU, so that only the probed operation depends on the device."""
    return torch.randn(*shape).to(DEVICE, dtype).requires_grad_(grad)


def probe_import():
    show("torch", torch.__version__)
    show("cuda", torch.version.cuda)


def probe_available():
    show("available", torch.cuda.is_available())
    show("devices", torch.cuda.device_count())


def probe_properties():
    properties = torch.cuda.get_device_properties(0)
    for name in ("name", "major", "minor", "total_memory", "multi_processor_count", "L2_cache_size",
                 "warp_size", "regs_per_multiprocessor", "max_threads_per_multi_processor",
                 "shared_memory_per_block_optin", "uuid"):
        show(name, str(getattr(properties, name)).replace(" ", "_"))
    show("bf16", torch.cuda.is_bf16_supported())
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total


def probe_tensor():
    seeded()
    x = torch.arange(1 << 20, device=DEVICE, dtype=torch.float32)
    show("sum", x.sum())
    show("sine", torch.sin(x))
    show("cumsum", x.double().cumsum(0))
    show("sorted", torch.sort((x * 7919) % 65537)[0])
    show("indexed", x[torch.arange(0, 1 << 20, 4097, device=DEVICE)])
    show("random", torch.randn(100000, device=DEVICE))
    show("half", x.half())
    show("softmax", torch.softmax(random(64, 1000), -1))
    show("topk", torch.topk(random(100000), 50)[0])
    show("unique", torch.unique(torch.randint(0, 500, (10000,)).to(DEVICE)))


def probe_copies():
    seeded()
    host = torch.randn(3 << 20)
    show("pageable", host.to(DEVICE))
    pinned = host.pin_memory()
    assert pinned.is_pinned()
    moved = pinned.to(DEVICE, non_blocking=True)
    show("pinned", moved)
    back = torch.empty_like(host).pin_memory()
    back.copy_(moved, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(back, host)
    show("strided", moved.view(1024, -1).t())
    small = [torch.full((n,), float(n)).to(DEVICE) for n in range(1, 60)]
    show("small", torch.cat(small))


def probe_matmul():
    seeded()
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for size in (33, 256, 1024):
            a, b = random(size, size, dtype=dtype), random(size, size, dtype=dtype)
            show(f"{dtype}_{size}".removeprefix("torch."), a @ b)
    show("batched", torch.bmm(random(16, 64, 48), random(16, 48, 96)))
    show("linear", torch.nn.functional.linear(random(128, 256), random(512, 256), random(512)))
    torch.backends.cuda.matmul.allow_tf32 = True
    show("tf32", random(512, 512) @ random(512, 512))
    show("int8", torch._int_mm(torch.randint(-9, 9, (64, 64), dtype=torch.int8).to(DEVICE),
                               torch.randint(-9, 9, (64, 64), dtype=torch.int8).to(DEVICE)))


def probe_conv():
    seeded()
    for dtype in (torch.float32, torch.bfloat16):
        net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, padding=1, stride=2), torch.nn.BatchNorm2d(16),
            torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3, groups=4), torch.nn.MaxPool2d(2),
            torch.nn.Flatten(), torch.nn.LazyLinear(10))
        net(torch.randn(2, 3, 32, 32))
        net = net.to(DEVICE, dtype)
        net(random(8, 3, 32, 32, dtype=dtype)).float().square().mean().backward()
        for name, parameter in net.named_parameters():
            show(f"{dtype}_{name}".removeprefix("torch."), parameter.grad)


def probe_sdpa():
    seeded()
    from torch.nn.attention import SDPBackend, sdpa_kernel
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        q, k, v = (random(2, 4, 128, 64, dtype=torch.bfloat16, grad=True) for _ in range(3))
        with sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        show(f"{backend.name}_out", out)
        if backend != SDPBackend.EFFICIENT_ATTENTION:  # Its backward is not deterministic.
            out.float().square().sum().backward()
            show(f"{backend.name}_grad", q.grad)


def probe_adamw():
    seeded()
    for options in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(),
                                  torch.nn.LayerNorm(128), torch.nn.Linear(128, 4)).to(DEVICE)
        optimiser = torch.optim.AdamW(net.parameters(), lr=1e-3, **options)
        for _ in range(20):
            optimiser.zero_grad()
            loss = net(random(32, 64)).square().mean()
            loss.backward()
            optimiser.step()
        show(f"loss_{next(iter(options))}_{options[next(iter(options))]}", loss)


def probe_graph():
    seeded()
    net = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(),
                              torch.nn.Linear(256, 8)).to(DEVICE)
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-3, capturable=True)
    given = torch.zeros(64, 128, device=DEVICE)

    def step():
        optimiser.zero_grad(set_to_none=True)
        loss = net(given).square().mean()
        loss.backward()
        optimiser.step()
        return loss

    graph, loss = torch_parts.captured(step)
    for number in range(50):
        given.copy_(random(64, 128))
        graph.replay()
        if number % 10 == 9:
            show(f"loss_{number}", loss)
    show("weights", net[0].weight)


def probe_streams():
    seeded()
    streams = [torch.cuda.Stream(priority=-(n % 2)) for n in range(4)]
    x = random(512, 512)
    results = []
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            y = x
            for _ in range(20):
                y = torch.tanh(y @ x)
            results.append(y)
    for stream in streams:
        torch.cuda.current_stream().wait_stream(stream)
    end.record()
    end.synchronize()
    assert begin.elapsed_time(end) > 0
    for number, result in enumerate(results):
        show(f"stream_{number}", result)


def probe_compile():
    seeded()
    torch_parts.compile_deterministically()
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.LayerNorm(256),
                              torch.nn.Linear(256, 8)).to(DEVICE)
    compiled = torch.compile(net)
    for number in range(5):
        loss = compiled(random(32, 64)).square().mean()
        loss.backward()
        show(f"loss_{number}", loss)
    show("grad", net[0].weight.grad)


def probe_triton():
    import triton
    import triton.language as tl
    source = '''
import triton
import triton.language as tl
@triton.jit
def add(x, y, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < count
    tl.store(out + at, tl.load(x + at, mask=keep) + tl.load(y + at, mask=keep), mask=keep)
'''
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(source)
    import importlib.util
    spec = importlib.util.spec_from_file_location("kernel", file.name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    seeded()
    x, y = random(100000), random(100000)
    out = torch.empty_like(x)
    module.add[(triton.cdiv(100000, 1024),)](x, y, out, 100000, BLOCK=1024)
    show("sum", out)
    os.unlink(file.name)


class Numbers(torch.utils.data.Dataset):
    """Items that depend on their index alone, whatever process makes them."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 32, 32, generator=generator), index % 10


def probe_loader():
    seeded()
    torch.zeros(1, device=DEVICE)  # The workers fork from a process that uses the GPU.
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=32, num_workers=2, pin_memory=True)
    for number, (images, labels) in enumerate(loader):
        assert images.is_pinned()
        show(f"batch_{number}", images.to(DEVICE, non_blocking=True) + labels.to(DEVICE)[0])


def probe_fft():
    seeded()
    show("fft", torch.view_as_real(torch.fft.fft(random(64, 1000))))
    show("rfft2", torch.view_as_real(torch.fft.rfft2(random(4, 256, 256))))
    show("inverse", torch.fft.irfft(torch.fft.rfft(random(30, 4096))))


def probe_linalg():
    seeded()
    a = random(64, 64, dtype=torch.float64)
    spd = a @ a.T + 64 * torch.eye(64, device=DEVICE, dtype=torch.float64)
    show("cholesky", torch.linalg.cholesky(spd))
    show("solve", torch.linalg.solve(spd, a))
    show("qr", torch.linalg.qr(a)[1])
    show("eigh", torch.linalg.eigvalsh(spd))
    show("svd", torch.linalg.svdvals(a))


def probe_sparse():
    seeded(False)
    dense = random(256, 256)
    dense = dense * (dense > 1)
    sparse = dense.to_sparse_csr()
    product = sparse @ random(256, 64)  # Its additions have no fixed order.
    assert torch.isfinite(product).all()
    show("back", sparse.to_dense())


def probe_autocast():
    seeded()
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(),
                              torch.nn.Linear(256, 1)).to(DEVICE)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for number in range(10):
        optimiser.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = net(random(64, 64)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
    show("loss", loss)


def probe_memory():
    seeded()
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device=DEVICE)
        raise AssertionError("a petabyte was given")
    except torch.OutOfMemoryError:
        pass
    show("goes_on", torch.ones(1000, device=DEVICE).sum())
    big = torch.empty(4 << 30, dtype=torch.uint8, device=DEVICE).fill_(7)
    show("big", big[::1 << 20].sum())
    del big
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def probe_expandable():
    seeded()
    pieces = [torch.full((n << 18,), float(n), device=DEVICE) for n in range(1, 40)]
    del pieces[::2]
    more = [torch.full((3 << 20,), 2.0, device=DEVICE) for _ in range(10)]
    show("sum", sum(p.double().sum() for p in pieces + more))
    # Two segments of each stream, each as large as the device's memory and an eighth.
    streams = [torch.cuda.Stream() for _ in range(20)]
    for number, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            pieces += [torch.full((size,), float(number), device=DEVICE) for size in (5, 1 << 20)]
    torch.cuda.synchronize()
    show("streams", sum(p.double().sum() for p in pieces))
    torch.cuda.empty_cache()


def probe_async_pool():
    probe_tensor()


def probe_jiterator():
    seeded()
    function = torch.cuda.jiterator._create_jit_fn(
        "template <typename T> T f(T x, T y) { return x * y + x - y; }")
    show("out", function(random(1000), random(1000)))


def probe_nccl():
    import torch.distributed as dist
    seeded()
    with tempfile.NamedTemporaryFile() as file:
        dist.init_process_group("nccl", init_method=f"file://{file.name}.rendezvous", rank=0,
                                world_size=1, device_id=torch.device(DEVICE))
        x = random(100000)
        dist.all_reduce(x)
        show("sum", x)
        dist.barrier()
        dist.destroy_process_group()


NAMES = [name.removeprefix("probe_") for name in list(globals()) if name.startswith("probe_")]


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in NAMES:
        sys.exit(f"{__doc__}\nprobes: {', '.join(NAMES)}")
    globals()[f"probe_{sys.argv[1]}"]()
    print("PROBE OK", flush=True)
