#!/usr/bin/env python3
"""Golden tests of the generator: a small table's outputs, and that faults in a table are named.

usage: test_generator.py [--update]    --update writes the golden files anew: review the difference.
"""

import pathlib
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import generate
import layout
import table


def sample_outputs():
    calls = table.load(HERE / "sample")
    hand = (HERE / "sample" / "wire_hand.h").read_text(encoding="utf-8")
    return generate.outputs(calls, hand)


class Golden(unittest.TestCase):
    maxDiff = None

    def test_outputs_equal_the_golden_files(self):
        outputs = sample_outputs()
        golden = {path.stem: path for path in (HERE / "golden").iterdir()}
        self.assertEqual(sorted(outputs), sorted(golden))
        for name, text in outputs.items():
            with self.subTest(file=name):
                self.assertEqual(text, golden[name].read_text(encoding="utf-8"))


class Faults(unittest.TestCase):
    def load(self, text):
        with tempfile.TemporaryDirectory() as directory:
            (pathlib.Path(directory) / "bad.api").write_text(text, encoding="utf-8")
            calls = table.load(directory)
            for call in calls:
                if call.forwarded:
                    layout.layout_of(call)
            return calls

    def fault(self, text, expected):
        with self.assertRaises(table.TableError) as caught:
            self.load(text)
        self.assertIn(expected, str(caught.exception))

    HEAD = "call 64 cuX : @2000 : sync : generated : none : none\n"

    def test_a_good_call_loads(self):
        self.assertEqual(len(self.load(self.HEAD + "    value int x\n")), 1)

    def test_a_line_may_go_on_in_the_next(self):
        broken = self.HEAD.replace(" : generated", " \\\n        : generated")
        one, = self.load(broken + "    value \\\n        int x\n")
        whole, = self.load(self.HEAD + "    value int x\n")
        self.assertEqual(one, whole)
        self.fault(broken + "    valeu int x\n", "bad.api:3: unknown parameter kind 'valeu'")

    def test_unknown_parameter_kind(self):
        self.fault(self.HEAD + "    valeu int x\n", "bad.api:2: unknown parameter kind 'valeu'")

    def test_unknown_handle_kind(self):
        self.fault(self.HEAD + "    handle(steram) CUstream s\n", "bad.api:2: 'handle' needs")

    def test_unknown_class(self):
        self.fault(self.HEAD.replace("sync", "later"), "bad.api:1: 'later' is none of")

    def test_reserved_number(self):
        self.fault(self.HEAD.replace("64", "63"), "63 is reserved")

    def test_number_twice(self):
        self.fault(self.HEAD + self.HEAD.replace("cuX", "cuY"), "64 is already cuX's")

    def test_row_twice(self):
        again = self.HEAD.replace("64 cuX", "65 cuX_v2")
        self.fault(self.HEAD + again, "already cuX's")

    def test_row_without_version(self):
        self.fault(self.HEAD.replace("@2000", "2000"), "lacks its version")

    def test_refused_without_reason(self):
        self.fault(self.HEAD.replace("sync", "refused"), "must say why")

    def test_same_as_unknown(self):
        self.fault("call 64 cuX : @2000 : same_as cuY\n", "unknown call cuY")

    def test_async_call_with_output(self):
        self.fault(self.HEAD.replace("sync", "async") + "    out int *x\n", "has no reply")

    def test_opaque_parameter_needs_wire_fields(self):
        self.fault(self.HEAD + "    opaque void *x\n", "give the wire fields")

    def test_unknown_capture_rule(self):
        self.fault(self.HEAD + "    capture never\n", "bad.api:2: 'never' is none of refused")

    def test_a_fact_names_a_parameter(self):
        self.fault(self.HEAD + "    value int x\n    key y\n", "'y' is no parameter that crosses")
        self.fault(self.HEAD + "    waits_for stream\n", "waits_for stream needs a parameter")
        self.fault(self.HEAD + "    value int x\n    grants_shared x\n", "needs an attribute and")

    def test_a_context_comes_from_what_has_one(self):
        names = "context_of names streams, events and addresses"
        self.fault(self.HEAD + "    value int x\n    context_of x\n", names)
        self.fault(self.HEAD + "    devptr CUdeviceptr x\n    context_of y\n", names)
        without = self.HEAD.replace("none\n", "none : nocontext\n")
        self.fault(without + "    devptr CUdeviceptr x\n    context_of x\n", "takes none")

    def test_kinds_are_described_once(self):
        self.fault(self.HEAD + "    handle(stream) CUstream s\n", "no 'kind' line describes")
        line = "kind 6 stream : guest : CUDA_ERROR_INVALID_HANDLE\n"
        self.fault(line + line + self.HEAD, "bad.api:2: 'stream' is no kind of handle, or is")
        self.fault("kind 6 stream : guest\n" + self.HEAD, "bad.api:1: expected 'kind NUMBER")

    def test_rules_and_served_calls_go_with_generated_code(self):
        shim = self.HEAD.replace("generated", "shim-hand") + "    value int x\n"
        self.fault(shim + "    check fine(x)\n", "rules of the guest go with marshalling that is")
        worker = self.HEAD.replace("generated", "worker-hand") + "    value int x\n"
        self.fault(worker + "    served\n", "is handed over by generated code")

    def test_unknown_set_of_values(self):
        self.fault(self.HEAD + "    among(colours) int x\n", "unknown set of values 'colours'")
        self.fault("set colours : red\n" + self.HEAD, "bad.api:1: expected 'set NAME")

    def test_no_table(self):
        with tempfile.TemporaryDirectory() as directory:
            with self.assertRaises(table.TableError):
                table.load(directory)


class Layout(unittest.TestCase):
    def test_padding_is_named_and_sizes_are_multiples_of_eight(self):
        calls = table.load(HERE / "sample")
        for call in calls:
            if not call.forwarded:
                continue
            item = layout.layout_of(call)
            for fields, size in ((item.send, item.send_bytes), (item.reply, item.reply_bytes)):
                self.assertEqual(size % 8, 0)
                position = 0
                for field in fields:
                    self.assertEqual(field.offset, position, f"{call.symbol} {field.name}")
                    self.assertEqual(field.offset % field.align, 0)
                    position += field.size
                self.assertEqual(position, size)

    def test_hash_changes_with_the_layout(self):
        calls = table.load(HERE / "sample")
        before = layout.dump([layout.layout_of(c) for c in calls if c.forwarded])
        calls[1].params[1].ctype = "size_t"
        after = layout.dump([layout.layout_of(c) for c in calls if c.forwarded])
        self.assertNotEqual(layout.fnv1a(before), layout.fnv1a(after))


if __name__ == "__main__":
    if "--update" in sys.argv:
        (HERE / "golden").mkdir(exist_ok=True)
        for path in (HERE / "golden").iterdir():
            path.unlink()
        for name, text in sample_outputs().items():
            (HERE / "golden" / f"{name}.golden").write_text(text, encoding="utf-8")
    else:
        unittest.main()
