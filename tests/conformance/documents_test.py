#!/usr/bin/env python3
"""scripts/dev/check_documents must find each kind of fault in a small tree, and none in ours.

    documents_test.py CHECKER
"""

import pathlib
import subprocess
import sys
import tempfile

# A tree without a fault. Each case changes one file of it.
TREE = {
    "README.md": "# A\n\n[the guide](migration/README.md#set-up), [all](proto/decisions/)\n"
                 "`scripts/demo --now`, `proto/{a,b}.h`, `tests/*/x.cc`, `build/x.h`, `/etc/y.h`\n"
                 "\n```sh\n./scripts/demo\n```\n\n## Results\n\n| a | b |\n|---|---|\n| 1 | 2 |\n",
    "migration/README.md": "# Guide\n\n## Set `up`\n\n[back](../README.md), `engine/state.h`\n\n"
                           "| step | file | look for |\n|---|---|---|\n"
                           "| 1 | [state](engine/state.h) | `int state` |\n",
    "migration/engine/state.h": "int state;\n",
    "proto/decisions/0001-shape.md": "# 0001\n",
    "proto/a.h": "", "proto/b.h": "", "scripts/demo": "", "tests/unit/x.cc": "",
}
GUIDE = TREE["migration/README.md"]
START = TREE["README.md"]
# File, its text, a part of what must be said; None: it is right.
CASES = (
    ("README.md", START, None),
    ("README.md", START + "[x](nowhere.md)\n", "README.md:15: broken link: nowhere.md"),
    ("README.md", START + "[x](migration/nowhere/)\n", "broken link: migration/nowhere/"),
    ("README.md", START + "[x](migration/README.md#nothing)\n", "names no heading there"),
    ("README.md", START + "[x](#nothing)\n", "names no heading there"),
    ("README.md", START + "[x](#results)\n", None),
    ("README.md", START + "[x](../outside.md)\n", "leads out of the tree"),
    ("README.md", START + "[x](/README.md)\n", "leads out of the tree"),
    ("README.md", START + "[x](https://example.org/y)\n", None),
    ("README.md", START + "`[x](nowhere.md)`\n", None),
    ("README.md", START + "```\n[x](nowhere.md)\n```\n", None),
    ("README.md", START + "![x](nowhere.svg)\n", "broken link: nowhere.svg"),
    ("migration/README.md", GUIDE + "[x](README.md), [y](engine)\n", None),
    ("migration/README.md", GUIDE + "[x](migration/README.md)\n", "broken link"),
    ("proto/decisions/0001-shape.md", "[x](0002-other.md)\n", "broken link: 0002-other.md"),
    ("proto/decisions/0001-shape.md", "`proto/gone.h`\n", None),  # A record is of its time.
    ("README.md", START + "`proto/c.h`\n", "there is no proto/c.h"),
    ("README.md", START + "`proto/{a,c}.h`\n", "there is no proto/{a,c}.h"),
    ("README.md", START + "`scripts/gone --now`\n", "there is no scripts/gone"),
    ("README.md", START + "`tests/*/y.cc`\n", "there is no tests/*/y.cc"),
    ("README.md", START + "`scripts/demo/`\n", "there is no scripts/demo/"),
    ("README.md", START + "```sh\n./scripts/gone x\n```\n", "there is no scripts/gone"),
    ("README.md", START + "`proto/gen/NAME.h`\n", None),
    ("migration/README.md", GUIDE + "`engine/gone.h`\n", "there is no engine/gone.h"),
    ("migration/README.md", GUIDE.replace("`int state`", "`int gone`"),
     "`int gone` is not in the file linked here"),
    ("migration/README.md", GUIDE.replace("| `int state`", "| nothing"),
     "needs a link and code to look for"),
    ("README.md", START + "```xml\n<a><b/></a>\n```\n", None),
    ("README.md", START + "```xml\n<a><b></a>\n```\n", "README.md:15: this xml cannot be parsed"),
    ("README.md", START + "```toml\na = \n```\n", "this toml cannot be parsed"),
    ("README.md", START + "\n" * 166, None),
    ("README.md", START + "\n" * 167, "181 lines, the limit is 180"),
    ("README.md", START + "x" * 10240, "bytes, the limit is 10240"),
    ("README.md", START + "| 1 | 2 |\n" * 9, None),
    ("README.md", START + "| 1 | 2 |\n" * 10, '"Results" has 11 entries'),
    ("README.md", START + "\n## Limits\n\n" + "- x\n" * 11, '"Limits" has 11 entries'),
    ("README.md", START.replace("[all](proto/decisions/)", ""), "0001-shape.md:1: no link leads"),
    ("tests/NEW.md", "# New\n", "tests/NEW.md:1: no link leads here"),
    ("tests/NEW.md", "[x](gone.md)\n", "tests/NEW.md:1: broken link"),
)


def outcome(checker, changed, text):
    with tempfile.TemporaryDirectory(prefix="documents") as folder:
        for name, content in {**TREE, changed: text}.items():
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return subprocess.run([checker, folder], capture_output=True, text=True, timeout=30)


def main():
    checker = sys.argv[1]
    wrong = 0
    for name, text, said in CASES:
        done = outcome(checker, name, text)
        right = done.returncode == (0 if said is None else 1)
        if said is not None:
            right = right and said in done.stdout
        if not right:
            wrong += 1
            print(f"FAILED: {name}: {text[-60:]!r}: {said!r}, got {done}")
    print(f"{len(CASES)} trees, {wrong} judged wrongly")
    ours = subprocess.run([checker], capture_output=True, text=True, timeout=60)
    print(ours.stdout, end="")
    return 1 if wrong or ours.returncode != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
