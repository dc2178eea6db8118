"""What the jobs of tests/gpu/suites share: the same rounds again and again until told to end.

  JOB PART,... [--rounds N] [--cycles N | --until FILE]

Every cycle makes its parts anew from the same seeds, so a round's result is the same in each. A
result is printed as `value PART ROUND DIGEST`, an ended cycle as `cycle N`. With --until the last
cycle is the one in which FILE appears.
"""

import argparse
import hashlib
import pathlib

PARTS = {}  # Name to a function that makes a part.


def part(make):
    PARTS[make.__name__] = make
    return make


def digest(results):
    """Of the bits of arrays: anything that numpy() or memory views can reach, in order."""
    seen = hashlib.sha256()
    for one in results:
        seen.update(str((one.dtype, one.shape)).encode())
        seen.update(one.tobytes())
    return seen.hexdigest()[:24]


def main(parts, to_host):
    """`parts`: name to a function that makes a part; a part is a function that does one round and
    gives its results, which `to_host` turns into a numpy array each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parts")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--cycles", type=int, default=1)
    parser.add_argument("--until", type=pathlib.Path)
    options = parser.parse_args()
    names = list(parts) if options.parts == "all" else options.parts.split(",")
    done = 0
    while True:
        steps = {name: parts[name]() for name in names}
        for number in range(options.rounds):
            for name, step in steps.items():
                print(f"value {name} {number} {digest([to_host(one) for one in step()])}",
                      flush=True)
        done += 1
        print(f"cycle {done}", flush=True)
        if options.until.exists() if options.until else done >= options.cycles:
            return
