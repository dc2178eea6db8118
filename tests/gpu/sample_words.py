"""What a sample says about itself, and whether two runs of it said the same.

A sample's own verdict is its exit status and its words. Beyond that, every line that two native
runs both print is expected of each other run, bit for bit, but for what is measured: times, rates
and addresses are masked.
"""

import collections
import re

TOLERANCE = 0.001  # Of a number that another device computed, relative to it.
WAIVED = 2  # EXIT_WAIVED of NVIDIA's samples: this machine lacks what the sample shows.

FAILED = re.compile(r"\bFAIL|\b[Tt]est(s)? failed\b|verification failed|CUDA error at|"
                    r"error while loading|Segmentation fault|terminate called", re.MULTILINE)
UNITS = (r"(?:[num]?s|[um]?sec|seconds?|microseconds|milliseconds|[KMG]i?B(?:ytes)?/s|"
         r"[KMGT]?Flops?(?:/s)?|[KMGT]FLOPS?(?:/s)?|fps|[MG]?Hz|%|[KMG]?[A-Za-z]+/s(?:ec)?)")
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
MEASURED = re.compile(rf"{NUMBER}\s*\(?{UNITS}(?![A-Za-z])")
QUANTITY = re.compile(r"time|bandwidth|throughput|elapsed|clock|speed|perf|rate\b|latency|cycles|"
                      r"overhead|free|pid", re.IGNORECASE)
ADDRESS = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{9,16}\b")

# By the program's name, lines of NVIDIA's samples that differ from run to run and may be equal in
# two of them by chance: no word beside their numbers says that they were measured.
DIFFERING = {
    "cdpSimplePrint": ["BLOCK"],  # Whose turn it was.
    "dmmaTensorCoreGemm": ["FP"],
    "p2pBandwidthLatencyTest": [r"^\d+( \d+\.\d\d)+$"],  # Rows of GB/s and of us.
    "simpleStreams": [r"^(memcopy|kernel|non-streamed|[0-9#]+ streams):"],
}


def masked(line):
    line = " ".join(ADDRESS.sub("@", line).split())
    if QUANTITY.search(line):
        return re.sub(NUMBER, "#", line)
    return MEASURED.sub("#", line)


def lines_of(text, ignore=()):
    """The masked lines with how often each comes; the order of a kernel's lines is free."""
    lines = (masked(line) for line in text.splitlines())
    return collections.Counter(line for line in lines
                               if line and not any(re.search(one, line) for one in ignore))


def stable_lines(texts, ignore=()):
    """What all of several native runs print."""
    counted = [lines_of(text, ignore) for text in texts]
    stable = counted[0]
    for other in counted[1:]:
        stable = stable & other
    return stable


def own_verdict(status, text):
    """`ok`, `waived`, or why the sample itself did not pass."""
    if status == WAIVED:
        return "waived"
    if status != 0:
        return f"exit {status}" if isinstance(status, int) else str(status)
    found = FAILED.search(text)
    return f"says {found.group(0)!r}" if found else "ok"


def missing_lines(stable, text, ignore=()):
    """Lines that every native run prints and this one does not."""
    return list((stable - lines_of(text, ignore)).elements())


def readings(text, ignore=()):
    """The masked lines, each as (words, numbers): what is compared where arithmetic may round in
    another way."""
    return [(re.sub(NUMBER, "N", line), tuple(map(float, re.findall(NUMBER, line))))
            for line in lines_of(text, ignore).elements()]


def are_near(expected, found):
    return all(abs(one - other) <= TOLERANCE * abs(one) for one, other in zip(expected, found))


def lines_far_apart(expected, text, ignore=()):
    """Those of the expected readings that no line of the text matches, each line used once."""
    left = collections.defaultdict(list)
    for words, numbers in readings(text, ignore):
        left[words].append(numbers)
    missing = []
    for words, numbers in expected:
        near = next((one for one in left[words] if are_near(numbers, one)), None)
        if near is None:
            missing.append(f"{words} {numbers}")
        else:
            left[words].remove(near)
    return missing
