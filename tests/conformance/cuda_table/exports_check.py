#!/usr/bin/env python3
"""Fails when a library exports anything but the CUDA ABI of the table, or less than it.

usage: exports_check.py TABLE_DIRECTORY LIBRARY
"""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "proto" / "codegen"))

import emit_entry
import table


def main(arguments):
    if len(arguments) != 3:
        sys.exit(__doc__)
    expected = set(emit_entry.exported_symbols(table.load(arguments[1])))
    text = subprocess.run(["nm", "-D", "--defined-only", arguments[2]], check=True,
                          capture_output=True, text=True).stdout
    found = {line.split()[-1].split("@")[0] for line in text.splitlines()}
    for symbol in sorted(expected - found):
        print(f"missing: {symbol}")
    for symbol in sorted(found - expected):
        print(f"not of the CUDA ABI: {symbol}")
    print(f"{len(found)} exports, {len(expected)} expected")
    return 0 if found == expected else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
