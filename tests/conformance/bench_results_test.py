#!/usr/bin/env python3
"""tests/bench/RESULTS.md must be what scripts/bench makes of the result files beside it, and these
must match their schema; a page or a file that does not is refused, and it is said what is wrong."""

import contextlib
import copy
import io
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1]).resolve()
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("bench", "rig", "gpu/bench")]
import result_files
import result_page
from table import Table

BENCH = ROOT / "scripts/bench"
problems = []


def expect(condition, what):
    if not condition:
        problems.append(what)
        print(f"FAILED: {what}")


def bench(*words):
    return subprocess.run([sys.executable, "-B", BENCH, *map(str, words)], capture_output=True,
                          text=True, timeout=60, check=False)


def changed(result, change):
    made = copy.deepcopy(result)
    change(made)
    return made


def first_figure(result):
    """A row of the file whose figure keeps or misses a promise."""
    return next(row for topic in result["topics"] for row in topic["rows"]
                if "promise" in row and "median" in row.get("ratio", row.get("figure", {})))


# What is wrong with a file, and a part of what must be said.
FAULTS = (
    ("an older schema", lambda one: one.update(schema=0), "schema 0"),
    ("an unknown field", lambda one: one.update(note="x"), "unknown field note"),
    ("no machine", lambda one: one.pop("machine"), "lacks machine"),
    ("a machine's id that is no file name", lambda one: one["machine"].update(id="../x"), "id"),
    ("an unknown topic", lambda one: one["topics"][0].update(topic="weather"), "no topic weather"),
    ("a topic twice", lambda one: one["topics"].append(one["topics"][0]), "a topic twice"),
    ("a date that is none", lambda one: one["topics"][0].update(date="27 November"), "date"),
    ("a run without a commit", lambda one: one["topics"][0].update(origin="scripts/bench",
                                                                   commit=""), "commit"),
    ("no rows", lambda one: one["topics"][0].update(rows=[]), "has no rows"),
    ("a promise said to be kept otherwise",
     lambda one: first_figure(one).update(kept=not first_figure(one)["kept"]), "but the figures"),
    ("a figure that misses its promise now",
     lambda one: first_figure(one)["promise"].update(
         value=-1, bound="<="), "but the figures"),
    ("a figure that is no number",
     lambda one: first_figure(one).update(figure={"median": "1.6", "over": "rounds"}),
     "median is no number"),
    ("a range with one end",
     lambda one: first_figure(one).update(figure={"least": 1, "over": "rounds"}), "two ends"),
    ("a median out of its range",
     lambda one: first_figure(one).update(figure={"median": 9, "least": 1, "most": 2,
                                                  "over": "rounds"}), "out of the range"),
    ("a row with neither figure nor text", lambda one: [first_figure(one).pop(kind, None)
                                                        for kind in ("figure", "ratio")],
     "needs one of"),
)


def check_tree():
    """The files and the page that are kept."""
    done = bench("--page", "--check")
    expect(done.returncode == 0, f"the page and its files: {done.stdout}{done.stderr}")
    expect(result_files.load_all(), "there are no result files")
    listed = [line.split()[0] for line in bench("--list").stdout.splitlines()]
    expect(listed and set(listed) <= set(result_files.TOPICS),
           f"each section of scripts/bench has a table: {listed}")


def check_faults(results):
    for what, change, said in FAULTS:
        try:
            result_files.check(changed(results[0], change), "x.json")
            expect(False, f"{what} is refused")
        except result_files.Invalid as refusal:
            expect(said in str(refusal), f"{what}: {refusal}")


def check_page(folder):
    """A page that is not its files' is told apart, whichever of the two was changed."""
    files, page = folder / "results", folder / "RESULTS.md"
    shutil.copytree(result_files.FOLDER, files)
    expect(bench("--page", "--check", "--results", files).returncode == 1, "no page is told")
    expect(bench("--page", "--results", files).returncode == 0, "the page is written")
    expect(bench("--page", "--check", "--results", files).returncode == 0, "it is the files'")
    text = page.read_text(encoding="utf-8")
    expect(text == result_page.PAGE.read_text(encoding="utf-8"), "it is the tree's page")
    page.write_text(text.replace("**no**", "yes", 1), encoding="utf-8")
    done = bench("--page", "--check", "--results", files)
    expect(done.returncode == 1 and "**no**" in done.stdout, f"an edited page: {done.stdout}")
    page.write_text(text, encoding="utf-8")
    path = next(files.glob("*.json"))
    result = json.loads(path.read_text(encoding="utf-8"))
    row = first_figure(result)
    row["what"] = "a figure of another name"
    path.write_text(json.dumps(result), encoding="utf-8")
    done = bench("--page", "--check", "--results", files)
    expect(done.returncode == 1 and "a figure of another name" in done.stdout,
           f"a changed file: {done.stdout}")
    path.write_text("{}", encoding="utf-8")
    done = bench("--page", "--results", files)
    expect(done.returncode == 1 and "lacks" in done.stdout, f"a broken file: {done.stdout}")
    path.rename(files / "renamed.json")
    (files / "renamed.json").write_text(json.dumps(result), encoding="utf-8")
    done = bench("--page", "--results", files)
    expect(done.returncode == 1 and "not the machine's id" in done.stdout,
           f"a file of another name: {done.stdout}")


def filled_table():
    table = Table()
    table.open("launches")
    table.add("a call", [1.0, 3.0, 2.0], "us", 2.5)
    table.pair("a launch", [1.0, 1.2], [4.0, 4.0], "us", 0.2)
    table.pair("... of two", [3.0], [4.0], "us", 1.0)
    table.mean("all", [0.5, 2.0], 1.02)
    table.check("equal bits", False, "3 of 4")
    table.failed("a pause", "it hung: /some/folder")
    table.skipped("a GPU", "none here")
    return table.rows


def check_record(folder):
    """What a run leaves is a file of the schema, and the next run of a section replaces it."""
    machine = result_files.this_machine(["NVIDIA H100 80GB HBM3, 580.1, 81559 MiB"])
    expect(machine["id"].startswith("nvidia-h100-80gb-hbm3-x1-"), f"an id: {machine}")
    with contextlib.redirect_stdout(io.StringIO()):  # Its rows are no result of this test.
        rows = filled_table()
    path = result_files.record(folder, machine, "launches", rows, "2d264a8f2a", "2026-11-27")
    result_files.record(folder, machine, "copies", rows[:1], "2d264a8f2a", "2026-11-27")
    made = {row["what"]: row for row in result_files.load(path)["topics"][0]["rows"]}
    expect(list(made) == ["a call", "a launch", "a launch, of two", "all", "equal bits",
                          "a pause"], f"the rows: {list(made)}")
    expect([row["kept"] for row in made.values()] == [True, False, True, True, False, False],
           f"what is kept: {made}")
    text = result_page.of_folder(folder)
    for cells in ("| a call | us | 2 |  |  | 1 to 3 | <= 2.5 | yes |",
                  "| a launch | us | 1.1 | native 4 | 0.275 | 0.25 to 0.3 | <= 0.2 | **no** |",
                  "| a pause |  | not measured |  |  | it hung |  | **no** |",
                  "| equal bits |  | 3 of 4 |  |  |  |  | **no** |"):
        expect(cells in text, f"the page has {cells}: {text}")
    result_files.record(folder, machine, "launches", rows[:1], "0123456789-changed", "2026-11-28")
    topics = result_files.load(path)["topics"]
    expect([(one["topic"], len(one["rows"]), one["date"]) for one in topics] ==
           [("launches", 1, "2026-11-28"), ("copies", 1, "2026-11-27")], f"the next run: {topics}")
    expect(result_files.record(folder, machine, "launches", rows[-2:], "2d264a8f2a", "2026-11-29")
           is None and result_files.load(path)["topics"] == topics, "no figure replaces nothing")
    expect(result_page.number(4.2996, 4.3) == "4.2996", "a miss is not rounded away")


def check_run(folder):
    """scripts/bench --record itself, on a section whose program is one of the test's."""
    program = folder / "build/bin/gantry-ptx-bench"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nfor kernel in sgemm reduce nbody; do\n"
                       "    echo $kernel 2.5 G/s per core\ndone\n")
    program.chmod(0o755)
    words = ("--build", folder / "build", "--only", "kernels", "--rounds", "2", "--record",
             "--results", folder / "results", "--machine", "some-machine")
    done = bench(*words, "--commit", "2d264a8f2a")
    expect(done.returncode == 0, f"a run is recorded: {done.stdout}{done.stderr}")
    path = folder / "results/some-machine.json"
    topic = result_files.load(path)["topics"][0] if path.exists() else {"rows": []}
    expect(topic["rows"] and all(row["figure"]["median"] == 2.5 for row in topic["rows"]) and
           topic["commit"] == "2d264a8f2a", f"what was recorded: {topic}")
    program.write_text("#!/bin/sh\nexit 3\n")
    done = bench(*words, "--commit", "0123456789")
    expect(done.returncode == 1 and "nothing to record" in done.stdout and
           result_files.load(path)["topics"] == [topic], f"a run that breaks down: {done.stdout}")
    done = bench(*words, "--commit", "no-commit")
    expect(done.returncode == 2 and "--commit" in done.stderr, f"no commit: {done.stderr}")


def main():
    results = result_files.load_all()
    check_tree()
    check_faults(results)
    with tempfile.TemporaryDirectory(prefix="results") as folder:
        check_page(pathlib.Path(folder))
    with tempfile.TemporaryDirectory(prefix="results") as folder:
        check_record(pathlib.Path(folder))
    with tempfile.TemporaryDirectory(prefix="results") as folder:
        check_run(pathlib.Path(folder))
    print(f"{len(results)} files, {len(FAULTS)} faults, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
