#!/usr/bin/env python3
"""What tests/PROMISES.md and tests/LIMITS.md name is there: tests, files, reason ids and errors.

    lists_test.py ROOT BUILD_FOLDER

Tests are looked up in what ctest has in the build folder. Where that folder was configured without
nvcc or the CUDA toolkit, another one is configured as if they were there, so that the names of the
tests that need them are known. Tests of a program that is not built yet are looked up in the
sources.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib
import unittest

TOKEN = re.compile(r"`([^`]*)`")
COMMAND = re.compile(r"(?:by hand|on a GPU): $")
TEST = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", re.MULTILINE)
PLAIN_LIMITS = ("not refused", "a CUDA error")
REASON = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)+")


def rows(page):
    """(line number, cells) of each row of the page's tables."""
    for number, line in enumerate(page.splitlines(), 1):
        if line.startswith("|") and not re.fullmatch(r"[|\- ]+", line):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            if cells[0] not in ("promise", "limit"):
                yield number, cells


def alternatives(name):
    """`a.{b,c}` -> a.b and a.c."""
    match = re.search(r"\{([^{}]*)\}", name)
    if match is None:
        return [name]
    return [each for choice in match[1].split(",")
            for each in alternatives(name[:match.start()] + choice.strip() + name[match.end():])]


def is_known(name, known):
    pattern = re.compile(".*".join(re.escape(part) for part in name.split("*")))
    return any(pattern.fullmatch(each) for each in known)


def promise_problems(page, known, root):
    seen = set()
    for number, cells in rows(page):
        where = f"PROMISES.md:{number}"
        if len(cells) != 2 or not re.fullmatch(r"[A-Za-z].*\.", cells[0]):
            yield f"{where}: a row is a whole sentence and its tests"
            continue
        if cells[0] in seen:
            yield f"{where}: the promise stands there twice"
        seen.add(cells[0])
        if TOKEN.search(cells[1]) is None:
            yield f"{where}: the promise names no test"
        around = re.sub(r"\([^()]*\)|(?:by hand|on a GPU): (?=`)", "", TOKEN.sub("``", cells[1]))
        if re.sub(r"``|,|\s", "", around):
            yield f"{where}: '{around}': only names of tests, with commas between them"
        for token in TOKEN.finditer(cells[1]):
            if COMMAND.search(cells[1][:token.start()]):
                path = token[1].split()[0] if token[1].split() else ""
                if not path or not (root / path).is_file():
                    yield f"{where}: '{token[1]}': there is no {path or 'command'}"
                continue
            for name in alternatives(token[1]):
                if "/" in name and not (root / name).exists():
                    yield f"{where}: there is no file {name}"
                elif "/" not in name and not is_known(name, known):
                    yield f"{where}: there is no test {name}"


def limit_problems(page, reasons, errors):
    for number, cells in rows(page.partition("<!-- begin")[0]):
        where = f"LIMITS.md:{number}"
        if len(cells) != 2 or not re.fullmatch(r"\S.*\.", cells[0]):
            yield f"{where}: a row is a whole sentence and what refuses it"
            continue
        tokens = TOKEN.findall(cells[1])
        if not tokens and cells[1] not in PLAIN_LIMITS:
            yield f"{where}: '{cells[1]}' is no reason, no error and none of {PLAIN_LIMITS}"
        for name in tokens:
            if name not in (reasons if REASON.fullmatch(name) else errors):
                yield f"{where}: there is no reason or error {name}"


def ctest_names(folder):
    done = subprocess.run(["ctest", "--test-dir", folder, "--show-only=json-v1"], check=True,
                          capture_output=True, text=True, timeout=300)
    return {test["name"] for test in json.loads(done.stdout)["tests"]}


def lacks_nvcc(folder):
    cache = pathlib.Path(folder, "CMakeCache.txt").read_text(encoding="utf-8")
    return re.search(r"^GANTRY_(NVCC|CUDA_TOOLKIT_INCLUDE):\w+=.*-NOTFOUND$", cache,
                     re.MULTILINE) is not None


def names_as_with_nvcc(root):
    with tempfile.TemporaryDirectory(prefix="lists") as folder:
        subprocess.run(["cmake", "-S", root, "-B", folder, "-G", "Ninja", "-DGANTRY_NVCC=nvcc",
                        f"-DGANTRY_CUDA_TOOLKIT_INCLUDE={folder}"], check=True,
                       capture_output=True, timeout=300)
        return ctest_names(folder)


def source_names(root):
    """Suite.Test of each test in the sources, also with the prefixes that CMake gives it."""
    names = set()
    for top in ("tests", "migration"):
        for path in (root / top).rglob("*.cc"):
            rules = path.parent / "CMakeLists.txt"
            text = rules.read_text(encoding="utf-8") if rules.exists() else ""
            for suite, test in TEST.findall(path.read_text(encoding="utf-8")):
                names |= {prefix + f"{suite}.{test}"
                          for prefix in ["", *re.findall(r"PREFIX (\S+?\.)", text)]}
    return names


def known_tests(root, build):
    known = ctest_names(build)
    if lacks_nvcc(build):
        known |= names_as_with_nvcc(root)
    if any(name.endswith("_NOT_BUILT") for name in known):
        known |= source_names(root)
    return known


def known_errors(root):
    text = "".join(path.read_text(encoding="utf-8") for folder in ("proto/cuda", "guest-shim/nvml")
                   for path in (root / folder).glob("*.*"))
    return set(re.findall(r"\b(?:CUDA|NVML)_ERROR_[A-Z_]+\b", text))


class Lists(unittest.TestCase):
    root = build = None

    @classmethod
    def setUpClass(cls):
        cls.promises = (cls.root / "tests/PROMISES.md").read_text(encoding="utf-8")
        cls.limits = (cls.root / "tests/LIMITS.md").read_text(encoding="utf-8")
        cls.known = known_tests(cls.root, cls.build)
        with open(cls.root / "proto/base/reasons.toml", "rb") as file:
            cls.reasons = set(tomllib.load(file)["reason"])
        cls.errors = known_errors(cls.root)

    def test_what_promises_name_is_there(self):
        self.assertGreater(len(list(rows(self.promises))), 80)
        self.assertEqual(list(promise_problems(self.promises, self.known, self.root)), [])

    def test_what_limits_name_is_there(self):
        self.assertGreater(len(list(rows(self.limits))), 60)
        self.assertEqual(list(limit_problems(self.limits, self.reasons, self.errors)), [])

    def test_every_name_of_the_promises_is_looked_up(self):
        tables = self.promises.index("\n## ")
        for token in TOKEN.finditer(self.promises, tables):
            first, space, rest = token[1].partition(" ")
            page = (self.promises[:token.start()] + f"`{first}_gone{space}{rest}`"
                    + self.promises[token.end():])
            found = list(promise_problems(page, self.known, self.root))
            self.assertTrue(found and "_gone" in " ".join(found), token[0])

    def test_every_name_of_the_limits_is_looked_up(self):
        end = self.limits.index("<!-- begin")
        for token in TOKEN.finditer(self.limits, self.limits.index("\n## "), end):
            if self.limits[token.end():self.limits.index("\n", token.end())].count(" | ") == 0:
                page = self.limits[:token.end() - 1] + "_gone" + self.limits[token.end() - 1:]
                found = list(limit_problems(page, self.reasons, self.errors))
                self.assertTrue(found and "_gone" in found[0], token[0])

    def test_wrong_rows_are_refused(self):
        known, root = {"a.one", "a.two", "Suite.Test"}, self.root
        for cell, said in (("`a.one`", None), ("`a.{one,two}`", None), ("`a.*`, `Suite.*`", None),
                           ("`README.md`", "no test README.md"), ("`tests/CMakeLists.txt`", None),
                           ("on a GPU: `scripts/test --gpu`", None),
                           ("`a.one` (`scripts/test`, some words)", None),
                           ("`a.{one,three}`", "no test a.three"), ("`b.*`", "no test b.*"),
                           ("`Suite.Tests`", "no test Suite.Tests"), ("`a`", "no test a"),
                           ("`tests/none.py`", "no file tests/none.py"),
                           ("by hand: `scripts/none --x`", "there is no scripts/none"),
                           ("`a.one` and more", "only names of tests"), ("none", "names no test")):
            found = list(promise_problems(f"| It works. | {cell} |\n", known, root))
            self.assertEqual(bool(found), said is not None, (cell, found))
            self.assertIn(said or "", " ".join(found))
        for line in ("| It works | `a.one` |", "| ... and here. | `a.one` |", "| It works. |"):
            self.assertTrue(list(promise_problems(line, known, root)), line)
        self.assertTrue(list(promise_problems("| It is. | `a.one` |\n" * 2, known, root)))
        for line, is_right in (("| It fails. | not refused |", True), ("| It fails. | hm |", False),
                               ("| It fails. | `disk.full` |", True),
                               ("| It fails. | `disk.none` |", False),
                               ("| It fails. | `CUDA_ERROR_X`, `disk.full` |", True),
                               ("| It fails. | `CUDA_ERROR_Y` |", False)):
            found = list(limit_problems(line, {"disk.full"}, {"CUDA_ERROR_X"}))
            self.assertEqual(not found, is_right, (line, found))

    def test_names_of_tests_that_are_not_built_come_from_the_sources(self):
        names = source_names(self.root)
        self.assertTrue(is_known("Ring.*", names))
        self.assertTrue(is_known("softgpu_driver.ImageTest.*", names))
        self.assertFalse(is_known("Rings.*", names))


if __name__ == "__main__":
    Lists.root, Lists.build, sys.argv[1:] = pathlib.Path(sys.argv[1]), sys.argv[2], []
    unittest.main()
