#!/usr/bin/env python3
"""Generates everything that follows from the CUDA API table.

usage: generate.py TABLE_DIRECTORY OUTPUT_DIRECTORY

Files whose text did not change are left alone, so that nothing is rebuilt without need.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import emit_driver
import emit_entry
import emit_ops
import emit_proc
import emit_shim
import emit_trace
import emit_wire
import emit_worker
import layout
import table


def outputs(calls, hand_text="", bits_text=""):
    """File name -> text. The table hash covers wire_hand.h and handle_bits.h, which are given."""
    layouts = [layout.layout_of(call) for call in calls if call.forwarded]
    return {
        "opcodes.h": emit_ops.opcodes(calls, layouts, hand_text + bits_text),
        "op_flags.h": emit_ops.op_flags(calls),
        "op_table.h": emit_ops.op_table_h(calls),
        "op_table.cc": emit_ops.op_table_cc(calls, layouts),
        "impl.h": emit_entry.impl_h(calls),
        "exports.h": emit_entry.exports_h(calls),
        "exports.cc": emit_entry.exports_cc(calls),
        "exports.map": emit_entry.exports_map(calls),
        "refused_weak.cc": emit_entry.refused_weak(calls),
        "proc_table.h": emit_proc.proc_table_h(),
        "proc_table.cc": emit_proc.proc_table_cc(calls),
        "driver_api_table.h": emit_driver.driver_api_h(calls),
        "driver_api_table.cc": emit_driver.driver_api_cc(calls),
        "wire_structs.h": emit_wire.wire_structs(layouts),
        "shim_marshal.h": emit_shim.shim_marshal_h(layouts),
        "shim_marshal.cc": emit_shim.shim_marshal_cc(calls, layouts),
        "shim_rules.cc": emit_shim.shim_rules_cc(layouts),
        "worker_dispatch.h": emit_worker.worker_dispatch_h(layouts),
        "worker_dispatch.cc": emit_worker.worker_dispatch_cc(calls, layouts),
        "fuzz_grammar.h": emit_trace.fuzz_grammar(layouts, hand_text),
        "trace.h": emit_trace.trace_h(),
        "trace.cc": emit_trace.trace_cc(),
        "wire_layout.txt": layout.dump(layouts),
    }


def main(arguments):
    if len(arguments) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    directory = pathlib.Path(arguments[2])
    directory.mkdir(parents=True, exist_ok=True)
    try:
        cuda = pathlib.Path(arguments[1]).parent
        texts = [path.read_text(encoding="utf-8") if path.exists() else ""
                 for path in (cuda / "wire_hand.h", cuda / "handle_bits.h")]
        files = outputs(table.load(arguments[1]), *texts)
    except table.TableError as error:
        print(f"API table: {error}", file=sys.stderr)
        return 1
    for name, text in files.items():
        path = directory / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
