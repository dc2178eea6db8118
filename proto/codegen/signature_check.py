#!/usr/bin/env python3
"""Writes static assertions that hold every row's signature against a toolkit's PFN_ typedefs.

usage: signature_check.py TABLE_DIRECTORY OUTPUT_FILE
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import table


def assertions(calls):
    lines = []
    for call in calls:
        if not call.exported:
            continue
        types = ", ".join(p.ctype for p in call.params)
        for row in call.rows:
            suffix = f"_{row.stream}" if row.stream else ""
            lines.append(f"static_assert(std::is_same_v<PFN_{row.name}_v{row.version}{suffix},\n"
                         f"    CUresult (*)({types})>);")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    pathlib.Path(sys.argv[2]).write_text(assertions(table.load(sys.argv[1])), encoding="utf-8")
