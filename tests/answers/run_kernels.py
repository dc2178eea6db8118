"""The results of all kernels on one driver, by a few processes side by side."""

import collections
import multiprocessing
import os
import queue

import arithmetic
import card
import conversions
import matrices
import textures
import warps

MODULE_KERNELS = 48
CARD, ENDED = "card", "ended"  # No kernel has such a name.


def all_kernels():
    made = [kernel for part in (arithmetic, conversions, warps, matrices, textures)
            for kernel in part.kernels()]
    double = [name for name, count in collections.Counter(kernel.name for kernel in made).items()
              if count > 1]
    if double:
        raise ValueError(f"two kernels of one name: {double}")
    return made


def run_module(opened, wanted, results):
    """Puts (name, bytes or text of a refusal). What a fault in a kernel leaves to be done."""
    module, refused = opened.load_what_it_takes(wanted)
    if module is None and len(refused) < len(wanted):
        module, _ = opened.load_what_it_takes([w for w in wanted if w[0] not in refused])
    for at, (i, kernel) in enumerate(wanted):
        try:
            outcome = refused[i] if i in refused else opened.run(module, i, kernel)
            results.put((kernel.name, outcome))
        except card.CudaError as error:
            results.put((kernel.name, str(error)))
            return wanted[at + 1:]
    if module is not None:
        opened.unload(module)
    return None


def work(driver, modules, next_one, first, results):
    opened = card.Card(driver)
    results.put((CARD, (opened.name, opened.version)))
    left = run_module(opened, first, results) if first else None
    while left is None:
        with next_one.get_lock():
            at = next_one.value
            next_one.value += 1
        if at >= len(modules):
            break
        left = run_module(opened, modules[at], results)
    # A fault is the end of a context; only a new process is sure to have a sound one.
    results.put((ENDED, left))
    results.close()
    results.join_thread()


def run(driver, wanted, jobs=None):
    """Yields (name of the kernel, bytes or refusal); the first is (CARD, (name, version))."""
    jobs = jobs or os.cpu_count()
    listed = list(enumerate(wanted))
    modules = [listed[i:i + MODULE_KERNELS] for i in range(0, len(listed), MODULE_KERNELS)]
    context = multiprocessing.get_context("fork")
    results, next_one = context.Queue(), context.Value("i", 0)

    def start(first):
        process = context.Process(target=work, args=(driver, modules, next_one, first, results))
        process.start()
        return process
    started = [start(None) for _ in range(jobs)]
    running, told = jobs, False
    while running:
        try:
            name, outcome = results.get(timeout=5)
        except queue.Empty:
            if any(each.exitcode not in (None, 0) for each in started):
                raise RuntimeError("a process of the runner died") from None
            continue
        if name == ENDED and outcome:
            started.append(start(outcome))
        elif name == ENDED:
            running -= 1
        elif name != CARD or not told:
            told = told or name == CARD
            yield name, outcome
    for each in started:
        each.join()
