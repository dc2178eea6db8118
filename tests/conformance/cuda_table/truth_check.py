#!/usr/bin/env python3
"""Fails when the API table says otherwise than what is built does.

usage: truth_check.py TABLE_DIRECTORY BUILD_DIRECTORY

The shim: a row that the table calls refused has no definition of its own, so that the weak one
refuses and counts it by name; every other row has one, and one that does more than refuse. The
worker: every call that crosses has a handler, or is never sent. The soft driver: as the shim, but
for what only the host's own driver has.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "proto" / "codegen"))

import coverage
import table

# Their one answer on Linux is CUDA_ERROR_NOT_SUPPORTED, NVIDIA's too.
ALWAYS_NOT_SUPPORTED = {"cuDeviceGetLuid", "cuProfilerInitialize"}
# They have a form on the wire, and the shim answers them itself or by other calls.
NEVER_SENT = {"cuMemAllocManaged", "cuMemAdvise", "cuMemAdvise_v2", "cuMemPrefetchAsync",
              "cuMemPrefetchAsync_v2", "cuMemRangeGetAttribute", "cuStreamAttachMemAsync",
              "cuDeviceGetMemPool", "cuMemGetDefaultMemPool", "cuMemGetMemPool",
              "cuMemSetMemPool", "cuGraphNodeSetParams",
              "cuGraphExecNodeSetParams"}
# The soft GPU has neither a tensor memory accelerator nor multiprocessors to share out.
SOFT_LACKS = {"cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col", "cuTensorMapEncodeIm2colWide",
              "cuTensorMapReplaceAddress", "cuDeviceGetDevResource", "cuCtxGetDevResource"}
# It has more than the shim lets through: for programs that run on it directly.
SOFT_HAS_MORE = {"cuGraphAddBatchMemOpNode", "cuGraphBatchMemOpNodeGetParams",
                 "cuGraphBatchMemOpNodeSetParams",
                 "cuGraphExecBatchMemOpNodeSetParams", "cuMemExportToShareableHandle",
                 "cuMemImportFromShareableHandle", "cuMemPrefetchBatchAsync",
                 "cuMemcpy3DBatchAsync", "cuMemcpy3DBatchAsync_v2"}


def bare_refusals(directory):
    """cuda_impl functions that do nothing but return CUDA_ERROR_NOT_SUPPORTED (801)."""
    objects = [str(path) for path in sorted(pathlib.Path(directory).rglob("*.o"))]
    text = subprocess.run(["objdump", "-d", "-C", "--no-show-raw-insn", *objects], check=True,
                          capture_output=True, text=True).stdout
    found = set()
    for block in text.split("\n\n"):
        name = re.search(r"<gantry::cuda_impl::(cu\w+)\(.*>:$", block, re.M)
        if name is None:
            continue
        code = [line.split("\t")[1].strip() for line in block.splitlines() if line.count("\t") >= 1]
        work = [line for line in code if not re.match(r"(nop|xchg|cs nop|data16|endbr64|push|pop|"
                                                      r"leave|mov +%rsp,%rbp|int3)", line)]
        if work and all(re.match(r"(mov +\$0x321,%eax|ret)", line) for line in work):
            found.add(name.group(1))
    return found


def sent_by_name():
    """Calls that hand-written code of the shim sends to the worker, or lets generated code send."""
    found = set()
    for path in sorted((ROOT / "guest-shim/driver").rglob("*.cc")):
        found |= set(re.findall(r"\b(?:Op|marshal)::(cu\w+)", path.read_text(encoding="utf-8")))
    return found


def differences(what, calls, strong, lacks, has_more):
    for call in calls:
        if call.same_as or not call.exported:
            continue
        symbol = call.symbol
        if call.cls == "refused" and (symbol in strong) != (symbol in has_more):
            yield (f"{what}: {symbol} is refused by the table, and has "
                   + ("a definition" if symbol in strong else "none, against this test's list"))
        if call.cls != "refused" and (symbol in strong) != (symbol not in lacks):
            yield (f"{what}: {symbol} is {call.cls} in the table, and has "
                   + ("a definition, against this test's list" if symbol in strong else "none"))


def main(arguments):
    if len(arguments) != 3:
        sys.exit(__doc__)
    calls = table.load(arguments[1])
    build = pathlib.Path(arguments[2])
    folders = {"shim": build / "guest-shim", "soft": build / "host-daemon/softgpu",
               "worker": build / "host-daemon/execution"}
    strong = {name: coverage.strong_symbols(path, coverage.PATTERNS[name])
              for name, path in folders.items()}
    missing = sorted(name for name, symbols in strong.items() if not symbols)
    if missing:
        sys.exit(f"not built below {build}: {', '.join(missing)}")
    wrong = list(differences("shim", calls, strong["shim"], set(), set()))
    wrong += differences("soft driver", calls, strong["soft"], SOFT_LACKS, SOFT_HAS_MORE)
    bare = bare_refusals(folders["shim"])
    stubs = {call.symbol for call in calls if call.cls != "refused" and not call.same_as} & bare
    wrong += [f"shim: {symbol} does nothing but refuse, and is not refused by the table"
              for symbol in sorted(stubs - ALWAYS_NOT_SUPPORTED)]
    wrong += [f"shim: {symbol} is named here as always refusing, and does not"
              for symbol in sorted(ALWAYS_NOT_SUPPORTED - stubs)]
    unserved = {call.symbol for call in calls
                if call.forwarded and not coverage.worker_has(call, strong["worker"])}
    wrong += [f"worker: {symbol} crosses, and has no handler"
              for symbol in sorted(unserved - NEVER_SENT)]
    wrong += [f"worker: {symbol} has no handler, and the shim sends it"
              for symbol in sorted(unserved & sent_by_name())]
    print("\n".join(wrong) or f"{len(calls)} calls are what the table says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
