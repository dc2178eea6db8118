#!/usr/bin/env python3
"""scripts/dev/check_includes must refuse each way around its rules that we know, and say why."""

import pathlib
import subprocess
import sys
import tempfile

SHIM, ENGINE = "guest-shim/session/x.cc", "migration/engine/x.cc"
SUPERVISOR, NO_ASSERTION = "host-daemon/supervisor/x.cc", "no assertion in a file"
SPELL_OUT = "write the path from the root"
# File, its line, a part of what must be said; None: it is right.
CASES = (
    (SHIM, '#include "proto/wire/ring.h"', None),
    (SHIM, "#include <sys/mman.h>", None),
    (SHIM, "#include <cstring>  // memcpy", None),
    ("guest-shim/bridge/x.cc", "#include <string>", None),
    (ENGINE, "#include <vector>", None),
    ("host-daemon/worker/x.cc", "#include <fmt/format.h>", None),
    ("tests/unit/x.cc", '#include "fixture.h"', None),
    (SHIM, '#include "host-daemon/execution/base/log.h"',
     'guest-shim may not include "host-daemon/execution/base/log.h"'),
    (ENGINE, '#include "proto/wire/ring.h"', "migration/engine may not include"),
    (SHIM, '#include "../../host-daemon/execution/base/log.h"', SPELL_OUT),
    (SHIM, '#include "guest-shim/../host-daemon/execution/base/log.h"', SPELL_OUT),
    (SHIM, '#include "./log.h"', SPELL_OUT),
    (SHIM, '#include "log.h"', SPELL_OUT),
    (SHIM, '#include "/usr/include/fmt/format.h"', SPELL_OUT),
    ("tests/unit/x.cc", '#include "no_such_fixture.h"', SPELL_OUT),
    (SHIM, '#include "fmt/format.h"', "names no folder of this tree"),
    (SHIM, "#include <host-daemon/execution/base/log.h>", "is a header of this tree"),
    (SHIM, "#include <guest-shim/session/session.h>", "is a header of this tree"),
    (SHIM, "#include <../../host-daemon/execution/base/log.h>", "leads elsewhere by its path"),
    (SHIM, "#include </usr/include/fmt/format.h>", "leads elsewhere by its path"),
    (SHIM, "#include <string>", "<string> may not be used in guest-shim"),
    (SHIM, "#include <optional>", "<optional> may not be used in guest-shim"),
    (SHIM, "#include <fmt/format.h>", "may not be used in guest-shim"),
    (SHIM, "#include <zstd.h>", "may not be used in guest-shim"),
    ("guest-shim/bridge/x.cc", "#include <grpcpp/server.h>", "may not be used"),
    (ENGINE, "#include <thread>", "may not be used in migration/engine"),
    (ENGINE, "#include <sys/mman.h>", "may not be used in migration/engine"),
    ("proto/wire/x.h", "#include <google/protobuf/message.h>", "may not be used in proto/wire"),
    (SHIM, "  #  include<string>", "may not be used"),
    (SHIM, "/* why */ #include <string>", "may not be used"),
    (SHIM, "%:include <string>", "may not be used"),
    (SHIM, "#include /* why */ <string>", "with one name"),
    (SHIM, "#define H <string>\n#include H", "with one name"),
    (SHIM, "#include_next <string>", "with one name"),
    (SHIM, "#import <string>", "with one name"),
    (SHIM, "#include \\\n<string>", "with one name"),
    (SHIM, "#\\\ninclude <string>", "in one line"),
    (SHIM, "import <string>;", "in one line"),
    ("guest-shim/session/x.hh", "#include <string>", "may not be used"),
    ("guest-shim/session/x.inc", "#include <string>", "may not be used"),
    (SUPERVISOR, "void f(const control::Event&) { GANTRY_ASSERT(true); }", NO_ASSERTION),
    (SUPERVISOR, "WorkerReply f();\nvoid g() { assert(f().descriptors.empty()); }", NO_ASSERTION),
    ("migration/transport/x.cc", "bool f = m.ParseFromString(s);\nGANTRY_ASSERT(f);", NO_ASSERTION),
    (SUPERVISOR, "void f() { GANTRY_ASSERT(true); }", None),
    (SUPERVISOR, "void f(const control::Event&);  // GANTRY_ASSERT would end gantryd", None),
    ("migration/unknown/x.cc", '#include "proto/base/result.h"', "may not include"),
)


def outcome(checker, name, line):
    with tempfile.TemporaryDirectory(prefix="includes") as folder:
        path = pathlib.Path(folder) / name
        path.parent.mkdir(parents=True)
        (path.parent / "fixture.h").write_text("")
        path.write_text(f"// what it is\n{line}\n")
        return subprocess.run([checker, folder], capture_output=True, text=True, timeout=30)


# Trees of several files: what is in them, a part of what must be said; None: it is right.
A, B, C = "proto/base/a", "proto/wire/b", "proto/wire/c"
CROWD = {f"proto/base/f{i}.h": "" for i in range(30)}
TREES = (
    ({A + ".h": "", B + ".h": f'#include "{A}.h"'}, None),
    ({A + ".h": "", A + ".cc": f'#include "{A}.h"'}, None),
    ({A + ".h": "", A + ".cc": f'#include <string>\n#include "{A}.h"'}, f'include "{A}.h" first'),
    ({A + ".h": "", A + ".cc": "#include <string>"}, f'include "{A}.h" first'),
    ({B + ".h": f'#include "{C}.h"', C + ".cc": f'#include "{B}.h"', C + ".h": ""},
     f"include circle of files: {B}, {C}"),
    ({"host-daemon/softgpu/x/a.h": '#include "host-daemon/softgpu/y/b.h"',
      "host-daemon/softgpu/y/b.h": "",
      "host-daemon/softgpu/y/c.cc": '#include "host-daemon/softgpu/x/d.h"',
      "host-daemon/softgpu/x/d.h": ""},
     "include circle of folders: host-daemon/softgpu/x, host-daemon/softgpu/y"),
    ({"tests/unit/b.h": '#include "c.h"', "tests/unit/c.h": ""}, None),
    (CROWD, None),
    ({**CROWD, A + ".h": ""}, "proto/base: 31 source files, at most 30"),
)


def outcome_of_tree(checker, files):
    with tempfile.TemporaryDirectory(prefix="includes") as folder:
        for name, text in files.items():
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        return subprocess.run([checker, folder], capture_output=True, text=True, timeout=30)


def main():
    checker = sys.argv[1]
    wrong = 0
    for files, said in TREES:
        done = outcome_of_tree(checker, files)
        if done.returncode != (0 if said is None else 1) or (said or "") not in done.stdout:
            wrong += 1
            print(f"FAILED: {sorted(files)}: {said!r}, got {done}")
    for name, line, said in CASES:
        done = outcome(checker, name, line)
        right = done.returncode == (0 if said is None else 1)
        if said is not None:
            right = right and said in done.stdout and f"{name}:" in done.stdout
        if not right:
            wrong += 1
            print(f"FAILED: {name}: {line!r}: {said!r}, got {done}")
    print(f"{len(CASES) + len(TREES)} trees, {wrong} judged wrongly")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
