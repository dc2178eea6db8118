#!/usr/bin/env python3
"""Holds libcuda.so.1 against what it promises: it exports exactly the CUDA ABI, links libc only.

usage: check_library.py LIBRARY EXPORTS_MAP
"""

import re
import subprocess
import sys


def lines(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def main(library, exports_map):
    faults = []
    wanted = set(re.findall(r"^    (cu\w+);", open(exports_map, encoding="utf-8").read(), re.M))
    exported = {line.split()[-1] for line in lines("nm", "-D", "--defined-only", library)}
    if len(wanted) < 600:
        faults.append(f"the table names only {len(wanted)} symbols; is {exports_map} right?")
    faults += [f"not exported: {name}" for name in sorted(wanted - exported)]
    faults += [f"exported, but not in the table: {name}" for name in sorted(exported - wanted)]
    needed = [re.search(r"\[(.*)\]", line).group(1) for line in lines("readelf", "-d", library)
              if "(NEEDED)" in line]
    faults += [f"links {name}; only libc may be linked" for name in needed
               if name not in ("libc.so.6", "ld-linux-x86-64.so.2")]
    undefined = [line.split()[-1] for line in lines("nm", "-D", "--undefined-only", library)]
    faults += [f"needs a C++ run-time symbol: {name}" for name in undefined
               if re.match(r"_Z|__cxa_(throw|begin|end|allocate|guard|pure|thread)|__gxx", name)]
    soname = [line for line in lines("readelf", "-d", library) if "SONAME" in line]
    if not soname or "[libcuda.so.1]" not in soname[0]:
        faults.append(f"soname is not libcuda.so.1: {soname}")
    for fault in faults:
        print(fault)
    print(f"{len(exported)} symbols exported, {len(wanted)} in the table, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
