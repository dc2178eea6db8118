"""What became of each fault: tests/mutation/faults.tsv, and tests/MUTATION.md made of it.

A line of the table is one fault: area, file:line:column as the tree was then, kind, what it was,
what it became, outcome, and the test that saw it or the reason why none can. The outcomes are
killed, survived, and by hand: equivalent (the last column says why) and mended (a survivor that a
later test sees)."""

import csv
import pathlib

COLUMNS = ("area", "seed", "place", "kind", "was", "becomes", "outcome", "by")
OUTCOMES = ("killed", "mended", "survived", "equivalent")


def table(root):
    return root / "tests/mutation/faults.tsv"


def read(root):
    path = table(root)
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def append(root, row):
    path = table(root)
    begun = path.exists()
    with path.open("a") as file:
        if not begun:
            file.write("\t".join(COLUMNS) + "\n")
        file.write("\t".join(str(row[name]).replace("\t", " ") for name in COLUMNS) + "\n")


def known(rows):
    return {(row["area"], row["place"], row["kind"], row["becomes"]) for row in rows}


def share(counts):
    tried = sum(counts.values()) - counts["equivalent"]
    caught = counts["killed"] + counts["mended"]
    return f"{100 * caught / tried:.0f} %" if tried else "-"


def cell(text):
    return "`" + text.replace("|", "\\|").replace("`", "'") + "`" if text else ""


HEAD = """# Faults planted, and what saw them

`scripts/dev/mutate --report` writes this page from [mutation/faults.tsv](mutation/faults.tsv).
`scripts/dev/mutate` plants faults at random places (by seed), each behind a switch, and runs the
unit tests that come by it. In the areas worker, state and gantryd, what no unit test sees is shown
to a few of `tests/programs` too, moved, restored or replaced on the soft GPU
([mutation/areas.py](mutation/areas.py) names them; `move/every_setting` is one). No VM is run. A
fault that does not compile is none. A fault is *killed* when a test fails, crashes or does not end
with it, and passes without it; *mended* when a test that was written for it afterwards does;
*equivalent* when no test can see it, for the reason given. The share is of those that are not
equivalent.

"""


def report(root):
    rows = read(root)
    names = dict.fromkeys(row["area"] for row in rows)
    lines = ["| area | tried | killed | mended | survived | equivalent | caught |",
             "|---|---|---|---|---|---|---|"]
    total = dict.fromkeys(OUTCOMES, 0)
    for name in names:
        counts = {outcome: sum(row["area"] == name and row["outcome"] == outcome for row in rows)
                  for outcome in OUTCOMES}
        for outcome in OUTCOMES:
            total[outcome] += counts[outcome]
        lines.append(f"| {name} | {sum(counts.values())} | " + " | ".join(
            str(counts[outcome]) for outcome in OUTCOMES) + f" | {share(counts)} |")
    lines.append(f"| all | {sum(total.values())} | " + " | ".join(
        str(total[outcome]) for outcome in OUTCOMES) + f" | {share(total)} |")
    for outcome, title, words in (
            ("equivalent", "Equivalent", "| place | was | becomes | why no test can see it |"),
            ("mended", "Mended", "| place | was | becomes | seen by |"),
            ("survived", "Survived", "| place | was | becomes | |")):
        some = sorted((row for row in rows if row["outcome"] == outcome),
                      key=lambda row: row["place"])
        if some:
            lines += ["", f"## {title}", "", words, "|---|---|---|---|"]
        for row in some:
            left_out = "left out" if row["kind"] == "left out" else ""
            lines.append(f"| {row['place']} | {cell(row['was'])} | "
                         f"{left_out or cell(row['becomes'])} | {row['by']} |")
    path = pathlib.Path(root) / "tests/MUTATION.md"
    path.write_text(HEAD + "\n".join(lines) + "\n")
    return path
