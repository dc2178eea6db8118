#!/usr/bin/env python3
"""Source, proto/base/reasons.toml and migration/REASONS.md have the same reason ids, and
scripts/dev/reasons, which says so, sees each way in which they can differ.

    reasons_test.py SCRIPT ROOT
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = "host-daemon/part/x.cc"
ERROR = 'return Error{Code::kInternal, "disk.full", text};\n'
TABLE = """[group]
disk = "The disk"

[reason."disk.full"]
sentence = "The disk is full."
remedy = "Free space."
"""
COMPOSED = r"""[composed]
"feature.{}.missing" = 'lacks\("([a-z]+)"\)'

[group]
disk = "The disk"
feature = "Features"

[reason."disk.full"]
sentence = "The disk is full."
remedy = "Free space."

[reason."feature.sound.missing"]
sentence = "There is no sound."
remedy = "Add sound."
"""
LACKS = ERROR + 'id = "feature." + what + ".missing";\nlacks("sound");\n'
FILLED = ERROR + 'id = fmt::format("feature.{}.missing", what);\nlacks("sound");\n'
# A source, its table, and a part of what must be said; None: they agree.
CASES = (
    (ERROR, TABLE, None),
    (ERROR + '// "disk.gone"\n/* "disk.gone" */\n#include "disk.gone"\n', TABLE, None),
    (ERROR + 'Error{Code::kInternal, "disk.gone", text};\n', TABLE,
     f"{SOURCE}:2: 'disk.gone' has no entry"),
    (ERROR + 'constexpr char kGone[] = "disk.gone.now";\n', TABLE, "'disk.gone.now' has no entry"),
    (ERROR + 'Error{Code::kInternal, "disk."\n    "gone", text};\n', TABLE,
     "'disk.gone' has no entry"),
    (ERROR + 'Error{Code::kInternal, "disk." // why\n    "gone", text};\n', TABLE,
     "'disk.gone' has no entry"),
    (ERROR + 'print("gone: %s [disk.gone]\\n", why);\n', TABLE, "'disk.gone' has no entry"),
    (ERROR + "c == '\"' ? 1'000 : \"disk.gone\";\n", TABLE, "'disk.gone' has no entry"),
    (ERROR + 'R"ptx(" // )ptx" "\\"" ; id = "disk.gone";\n', TABLE, "'disk.gone' has no entry"),
    ('return "disk.empty";\n', TABLE, "no source makes 'disk.full'"),
    ('if (error.reason == "disk.full") {}\n', TABLE, "no source makes 'disk.full'"),
    (ERROR + 'open(name + ".so");\n', TABLE, "'.so' looks like a part of an id"),
    (ERROR + 'id = "disk." + what;\n', TABLE, "'disk.' looks like a part of an id"),
    (ERROR + 'id = format("disk.%s", what);\n', TABLE, "'disk.%s' looks like a part of an id"),
    (ERROR + 'open(name + ".so");\n', '[[other]]\nwhy = "files"\ntexts = [".so"]\n' + TABLE, None),
    (ERROR, '[[other]]\nwhy = "files"\ntexts = [".so"]\n' + TABLE, "no source has '.so'"),
    (LACKS, COMPOSED, None),
    (FILLED, COMPOSED, None),
    (LACKS + 'lacks("light");\n', COMPOSED, "'feature.light.missing' has no entry"),
    (ERROR + 'id = "feature.";\n', COMPOSED, "no source has 'lacks"),
    (ERROR, TABLE.replace('remedy = "Free space."\n', ""), "needs a sentence and a remedy"),
    (ERROR, TABLE.replace("full.", "full"), "write whole sentences"),
    (ERROR, TABLE.replace('disk = "The disk"\n', ""), "'disk' has no title"),
    (ERROR, TABLE + TABLE.split("\n\n")[1].replace("disk.full", "disk.empty"),
     "disk.empty stands after disk.full"),
)


class Reasons(unittest.TestCase):
    script = root = ""

    def check(self, root):
        return subprocess.run([self.script, "--check", root], capture_output=True, text=True,
                              timeout=60, check=False)

    def expect(self, root, said):
        done = self.check(root)
        self.assertEqual(done.stderr, "")
        self.assertEqual(done.returncode, 0 if said is None else 1, done.stdout)
        if said is not None:
            self.assertIn(said, done.stdout)

    def tree(self, folder, source, table):
        root = pathlib.Path(folder)
        for name, text in ((SOURCE, source), ("proto/base/reasons.toml", table),
                           ("migration/x_test.cc", '"test.only"'),
                           ("proto/codegen/tests/x.cc", '"test.only"')):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        subprocess.run([self.script, folder], check=True, timeout=60)
        return root

    def test_this_tree_agrees(self):
        self.expect(self.root, None)

    def test_a_new_id_in_this_trees_source_is_seen(self):
        with tempfile.TemporaryDirectory(prefix="reasons") as folder:
            for top in ("proto", "guest-shim", "host-daemon", "migration"):
                shutil.copytree(f"{self.root}/{top}", f"{folder}/{top}",
                                ignore=shutil.ignore_patterns("golden"))
            self.expect(folder, None)
            path = next(path for path in sorted(pathlib.Path(folder, "host-daemon").rglob("*.cc"))
                        if "Error{Code::" in path.read_text(encoding="utf-8"))
            path.write_text(path.read_text(encoding="utf-8") + ERROR, encoding="utf-8")
            self.expect(folder, f"{path.relative_to(folder)}:")

    def test_each_difference_is_seen(self):
        for source, table, said in CASES:
            with self.subTest(source=source, said=said), \
                    tempfile.TemporaryDirectory(prefix="reasons") as folder:
                self.expect(self.tree(folder, source, table), said)

    def test_a_page_that_was_edited_is_seen(self):
        with tempfile.TemporaryDirectory(prefix="reasons") as folder:
            page = self.tree(folder, ERROR, TABLE) / "migration/REASONS.md"
            text = page.read_text(encoding="utf-8")
            self.assertIn("| `disk.full` | The disk is full. | Free space. |", text)
            page.write_text(text.replace("Free", "Make"), encoding="utf-8")
            self.expect(folder, "run scripts/dev/reasons")
            page.unlink()
            self.expect(folder, "run scripts/dev/reasons")


if __name__ == "__main__":
    Reasons.script, Reasons.root, sys.argv[1:] = sys.argv[1], sys.argv[2], []
    unittest.main()
