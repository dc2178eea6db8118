#!/usr/bin/env python3
"""Writes the API part of tests/LIMITS.md: the calls that the table refuses, and those that hold a
move up while what they made is in use.

usage: limits.py TABLE_DIRECTORY PAGE

The part lies between two marks of the page; the rest of the page is left as it is.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import table

BEGIN = "<!-- begin: written by proto/codegen/limits.py, do not edit -->\n"
END = "<!-- end: written by proto/codegen/limits.py -->\n"
AREAS = {"abi32": "32-bit addresses", "context": "contexts", "device": "devices", "graph": "graphs",
         "graphics": "graphics", "green": "green contexts", "interop": "other processes",
         "launch": "launches", "memcpy": "copies", "memory": "memory", "mempool": "memory pools",
         "memset": "fills", "module": "code", "stream": "streams", "texture": "textures",
         "textureref": "texture references", "tools": "tools", "vmm": "address ranges"}


def refused(calls):
    """(area, why, names of the calls), in the order of the areas and of the table."""
    by_symbol = {call.symbol: call for call in calls}
    rows = {}
    for call in calls:
        target = by_symbol[call.same_as] if call.same_as else call
        if target.cls == "refused" and call.exported:
            rows.setdefault((AREAS.get(call.file, call.file), target.why), []).append(call.symbol)
    return [(area, why, names) for (area, why), names in
            sorted(rows.items(), key=lambda item: item[0][0])]


def holding(calls):
    """(why, names) of the calls that are served and hold a move up."""
    rows = {}
    for call in calls:
        served = call.cls != "refused" and not call.same_as and call.exported
        if served and call.migration == "blocks" and call.effect != "destroys":
            rows.setdefault(call.why, []).append(call.symbol)
    return list(rows.items())


def _lines(head, rows):
    return ("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|\n"
            + "".join("| " + " | ".join(cells) + " |\n" for cells in rows))


def part(calls):
    rows = refused(calls)
    count = sum(len(names) for _, _, names in rows)
    offered = sum(1 for call in calls if call.exported)
    text = (f"{count} of {offered} calls are refused by the table: each returns "
            "`CUDA_ERROR_NOT_SUPPORTED` and is\ncounted (`GANTRY_REPORT` names it).\n\n")
    text += _lines(("area", "calls", "why"),
                   [(area, ", ".join(f"`{name}`" for name in names), why)
                    for area, why, names in rows])
    held = holding(calls)
    if held:
        text += "\nThese calls are served, and hold a move up while what they made is in use:\n\n"
        text += _lines(("calls", "why"), [(", ".join(f"`{name}`" for name in names), why)
                                          for why, names in held])
    return text


def page_with(page, calls):
    """The page with its part written anew."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the line '{(END if begin else BEGIN).strip()}'")
    return before + BEGIN + "\n" + part(calls) + "\n" + END + after


def main(arguments):
    if len(arguments) != 3:
        sys.exit(__doc__)
    path = pathlib.Path(arguments[2])
    path.write_text(page_with(path.read_text(encoding="utf-8"), table.load(arguments[1])),
                    encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
