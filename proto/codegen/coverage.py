#!/usr/bin/env python3
"""Writes the coverage page: every row of the driver API and what Gantry does with it.

usage: coverage.py TABLE_DIRECTORY OUTPUT.md [shim=BUILD_DIRECTORY] [soft=...] [worker=...]

A call counts as implemented where one of the object files (*.o) below the directory has the strong
definition of its function (nm: T, against W for the weak refusal). Object files, because a linked
library's version script makes both look alike. A directory without object files gives no column.
"""

import collections
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import table

PATTERNS = {"shim": r"gantry::cuda_impl::(cu\w+)\(", "soft": r"gantry::cuda_impl::(cu\w+)\(",
            "worker": r"gantry::worker::(on_cu\w+|served::cu\w+)\("}


def strong_symbols(directory, pattern):
    """Symbols with a strong definition below the directory; None when nothing is built there."""
    objects = [str(path) for path in sorted(pathlib.Path(directory).rglob("*.o"))]
    if not objects:
        return None
    text = subprocess.run(["nm", "-C", *objects], check=True, capture_output=True,
                          text=True).stdout
    return {match.group(1) for match in re.finditer(r" T " + pattern, text)}


def worker_has(call, strong):
    """In the worker a generated body counts too: its weak definition is the implementation, unless
    the worker serves the call itself."""
    return (f"on_{call.symbol}" in strong
            or (f"served::{call.symbol}" in strong if call.served else call.worker_generated))


def generated_on_both_sides(calls, strong):
    """Calls without marshalling by hand: neither in the shim, nor a handler of the worker's."""
    return [call for call in calls if call.shim_generated and call.worker_generated
            and f"on_{call.symbol}" not in strong]


def page(calls, objects):
    found = {name: strong_symbols(path, PATTERNS[name]) for name, path in objects.items()}
    found = {name: strong for name, strong in found.items() if strong is not None}
    by_symbol = {call.symbol: call for call in calls}
    rows = sum(len(call.rows) for call in calls)
    classes = collections.Counter()
    for call in calls:
        classes[by_symbol[call.same_as].cls if call.same_as else call.cls] += len(call.rows)
    text = "# Coverage of the CUDA 13.0 driver API\n\nGenerated; do not edit.\n\n"
    text += f"{rows} (name, version, stream) rows are named, {len(calls)} calls.\n\n"
    text += "| class | rows |\n|---|---|\n"
    text += "".join(f"| {name} | {classes[name]} |\n" for name in table.CLASSES)
    for name, strong in found.items():
        offered = [c for c in calls if not c.same_as and c.cls != "refused" and c.exported]
        if name == "worker":
            offered = [c for c in offered if c.forwarded]
        have = [c for c in offered if (worker_has(c, strong) if name == "worker"
                                       else c.symbol in strong)]
        text += (f"\n{name}: {len(have)} of {len(offered)} calls that are not refused by the table "
                 "are implemented.\n")
    if "worker" in found:
        both = generated_on_both_sides(calls, found["worker"])
        around = sum(1 for call in both if call.served or call.rules)
        crossing = sum(1 for call in calls if call.forwarded)
        text += (f"\n{len(both)} of {crossing} calls that cross are generated on both sides, "
                 f"{around} of them around functions of the guest or the worker that the table "
                 "names.\n")
    columns = list(found)
    head = ["call", "rows", "class", "effect", "migration", *columns, "note"]
    text += "\n| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|\n"
    for call in calls:
        target = by_symbol[call.same_as] if call.same_as else call
        versions = ", ".join(f"{row.version}{row.stream and ' ' + row.stream}" for row in call.rows)
        marks = []
        for name in columns:
            if target.cls == "refused" or (name == "worker" and not target.forwarded):
                marks.append("")
            elif name == "worker":
                marks.append("yes" if worker_has(target, found[name]) else "no")
            else:
                marks.append("yes" if target.symbol in found[name] else "no")
        note = f"same as {call.same_as}" if call.same_as else call.why
        effect = (target.effect + " " + target.effect_kind).strip()
        cells = [call.symbol, versions, target.cls, effect, target.migration, *marks, note]
        text += "| " + " | ".join(cells) + " |\n"
    return text


def main(arguments):
    if len(arguments) < 3:
        sys.exit(__doc__)
    objects = dict(item.split("=", 1) for item in arguments[3:])
    unknown = set(objects) - set(PATTERNS)
    if unknown:
        sys.exit(f"unknown object names {sorted(unknown)}; known: {sorted(PATTERNS)}")
    pathlib.Path(arguments[2]).write_text(page(table.load(arguments[1]), objects),
                                          encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
