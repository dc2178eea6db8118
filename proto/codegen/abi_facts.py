#!/usr/bin/env python3
"""Lists every fact of proto/cuda/abi*.h as macro calls, for comparison with a toolkit's cuda.h.

usage: abi_facts.py ABI_DIRECTORY OUTPUT_FILE

Lines are VALUE(name), SIZE(type) and FIELD(type, member.path). Two translation units include the
list, one behind abi.h and one behind cuda.h; a test compares what they evaluate to.
"""

import pathlib
import re
import sys


def _strip(text):
    return re.sub(r"//[^\n]*", "", text)


def enumerators(text):
    names = []
    for body in re.findall(r"typedef enum \w+ GANTRY_ABI_ENUM \{(.*?)\} \w+;", text, flags=re.S):
        names += re.findall(r"(\w+) =", body)
    return names


def macros(text):
    joined = text.replace("\\\n", " ")
    return re.findall(r"^#define (CU\w+) \S", joined, flags=re.M)


def aggregates(text):
    """(type name, member paths) of every struct and union."""
    found = []
    pattern = r"typedef (?:struct|union) \w+ \{\n(.*?)\n\} (\w+);"
    for body, name in re.findall(pattern, text, flags=re.S):
        found.append((name, members(body.splitlines())))
    return found


def members(lines):
    """Member paths of a struct body; members of anonymous parts belong to the level above."""
    paths, stack = [], [[]]
    for raw in lines:
        line = raw.strip()
        if re.match(r"(struct|union)\b.*\{$", line):
            stack.append([])
        elif line.startswith("}"):
            inner = stack.pop()
            name = line[1:].rstrip(";").strip()
            if name:
                stack[-1] += [name] + [f"{name}.{path}" for path in inner]
            else:
                stack[-1] += inner
        elif line:
            stack[-1] += declarators(line)
    paths += stack[0]
    return paths


def declarators(line):
    """Names declared by `type a, *b, c[3];`."""
    names = []
    for part in line.rstrip(";").split(","):
        match = re.search(r"(\w+)\s*(?:\[[^\]]*\])*$", part.strip())
        if match:
            names.append(match.group(1))
    return names


def facts(directory):
    text = "\n".join(_strip(path.read_text(encoding="utf-8"))
                     for path in sorted(pathlib.Path(directory).glob("abi*.h")))
    lines = [f"VALUE({name})" for name in enumerators(text) + macros(text)]
    for name, paths in aggregates(text):
        lines.append(f"SIZE({name})")
        lines += [f"FIELD({name}, {path})" for path in paths]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    pathlib.Path(sys.argv[2]).write_text(facts(sys.argv[1]), encoding="utf-8")
