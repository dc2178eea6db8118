#!/usr/bin/env python3
"""Fails when an installed toolkit knows an API row or an enumerator that Gantry does not name.

usage: toolkit_names.py TABLE_DIRECTORY ABI_DIRECTORY TOOLKIT_INCLUDE_DIRECTORY
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import abi_facts
import table

TYPEDEF_HEADERS = ("cudaTypedefs.h", "cudaGLTypedefs.h", "cudaEGLTypedefs.h",
                   "cudaVDPAUTypedefs.h", "cudaProfilerTypedefs.h")
ENUM_HEADERS = ("cuda.h", "cudaEGL.h", "cudaGL.h", "cudaProfiler.h")


def toolkit_rows(include):
    rows = set()
    for name in TYPEDEF_HEADERS:
        text = (include / name).read_text(encoding="utf-8", errors="replace")
        rows |= set(re.findall(r"\bPFN_(cu\w+?)_v(\d+)(?:_(ptsz|ptds))?\)", text))
    return {(name, int(version), stream) for name, version, stream in rows}


def toolkit_enumerators(include):
    found = set()
    for name in ENUM_HEADERS:
        text = (include / name).read_text(encoding="utf-8", errors="replace")
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        text = re.sub(r"//[^\n]*", "", text)
        for body in re.findall(r"typedef enum\s*\w*\s*\{(.*?)\}\s*\w+\s*;", text, flags=re.S):
            body = re.sub(r"^\s*#.*$", "", body, flags=re.M)
            found |= {match.group(1) for item in body.split(",")
                      if (match := re.match(r"\s*(\w+)", item))}
    return found


def toolkit_version(include):
    text = (include / "cuda.h").read_text(encoding="utf-8", errors="replace")
    return int(re.search(r"#define CUDA_VERSION (\d+)", text).group(1))


def main(arguments):
    if len(arguments) != 4:
        sys.exit(__doc__)
    include = pathlib.Path(arguments[3])
    ours = {(row.name, row.version, row.stream)
            for call in table.load(arguments[1]) for row in call.rows}
    theirs = toolkit_rows(include)
    abi = "\n".join(path.read_text(encoding="utf-8")
                    for path in pathlib.Path(arguments[2]).glob("abi*.h"))
    missing_values = toolkit_enumerators(include) - set(abi_facts.enumerators(abi))
    faults = [f"row {row} is not in the table" for row in sorted(theirs - ours)]
    faults += [f"enumerator {name} is not in abi*.h" for name in sorted(missing_values)]
    if toolkit_version(include) == 13000:
        faults += [f"row {row} is not in the toolkit" for row in sorted(ours - theirs)]
    for fault in faults:
        print(fault)
    print(f"{len(theirs)} rows of the toolkit, {len(ours)} of the table, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
