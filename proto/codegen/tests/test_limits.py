#!/usr/bin/env python3
"""The API part of tests/LIMITS.md is what the table says, shown on the small table, too."""

import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import limits
import table

ROOT = HERE.parents[2]
SAMPLE = """1 of 18 calls are refused by the table: each returns `CUDA_ERROR_NOT_SUPPORTED` and is
counted (`GANTRY_REPORT` names it).

| area | calls | why |
|---|---|---|
| sample | `cuIpcGetMemHandle` | IPC handles name objects of one host |
"""


def sample():
    return table.load(HERE / "sample")


class Page(unittest.TestCase):
    maxDiff = None

    def test_the_committed_page_is_what_the_table_says(self):
        text = (ROOT / "tests/LIMITS.md").read_text(encoding="utf-8")
        calls = table.load(ROOT / "proto/cuda/driver_api")
        self.assertEqual(text, limits.page_with(text, calls),
                         "run python3 proto/codegen/limits.py proto/cuda/driver_api "
                         "tests/LIMITS.md")

    def test_each_refused_call_stands_there_once(self):
        calls = table.load(ROOT / "proto/cuda/driver_api")
        by_symbol = {call.symbol: call for call in calls}
        names = sorted(name for _, _, names in limits.refused(calls) for name in names)
        self.assertEqual(names, sorted(
            call.symbol for call in calls if "windows" not in call.flags and
            (by_symbol[call.same_as] if call.same_as else call).cls == "refused"))
        self.assertGreater(len(names), 100)

    def test_each_file_of_the_table_is_an_area(self):
        files = {path.stem for path in (ROOT / "proto/cuda/driver_api").glob("*.api")}
        self.assertEqual(files - {"kinds"}, set(limits.AREAS))

    def test_the_part_of_a_small_table(self):
        self.assertEqual(limits.part(sample()), SAMPLE)

    def test_calls_of_one_reason_and_calls_that_hold_a_move_up(self):
        calls = sample()
        first, second = calls[1], calls[3]
        first.cls, first.why = "refused", "IPC handles name objects of one host"
        second.same_as, second.cls = "cuStreamCreate", "guest"
        calls[0].migration, calls[0].why = "blocks", "it has begun"
        text = limits.part(calls)
        self.assertIn("3 of 18 calls", text)
        self.assertIn("| sample | `cuStreamCreate`, `cuStreamDestroy`, `cuIpcGetMemHandle` | IPC",
                      text)
        self.assertIn("| `cuInit` | it has begun |", text)

    def test_only_the_part_between_the_marks_is_written(self):
        page = f"before\n{limits.BEGIN}old\n{limits.END}after\n"
        new = limits.page_with(page, sample())
        self.assertTrue(new.startswith(f"before\n{limits.BEGIN}\n1 of 18"))
        self.assertTrue(new.endswith(f"|\n\n{limits.END}after\n"))
        self.assertEqual(limits.page_with(new, sample()), new)

    def test_a_page_without_marks_is_refused(self):
        for page in ("nothing\n", limits.BEGIN, limits.END):
            with self.assertRaises(ValueError):
                limits.page_with(page, sample())


if __name__ == "__main__":
    unittest.main()
