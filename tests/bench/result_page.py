"""tests/bench/RESULTS.md from the result files: a table for each topic, a line for each figure."""

import pathlib

import result_files

PAGE = result_files.FOLDER.parent / "RESULTS.md"
HEAD = """# Results

Written by `scripts/bench --page` from `results/*.json`, the last run of each machine. Do not edit.
The range and the promise are the ratio's where a figure has one.
"""
COLUMNS = ("what", "unit", "median", "beside it", "ratio", "range", "promise", "kept", "machine",
           "date", "commit")
NOT_STATED = "not stated"


def side_of(value, limit):
    return (value > limit) - (value < limit)


def number(value, limit=None):
    """Four digits, or as many as keep a value on its side of `limit`."""
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    for decimals in range(max(0, 4 - whole), 12):
        text = f"{value:.{decimals}f}"
        if float(text) == 0 and value != 0:
            continue
        if limit is None or side_of(float(text), limit) == side_of(value, limit):
            return text.rstrip("0").rstrip(".") if "." in text else text
    return repr(value)


def median(statistics, limit=None):
    return number(statistics["median"], limit) if statistics and "median" in statistics else ""


def spread(statistics, limit=None):
    if "least" not in statistics:
        return ""
    text = " to ".join(number(statistics[end], limit) for end in ("least", "most"))
    if statistics["over"] == "runs":
        text += f" in {statistics['samples']} runs" if "samples" in statistics else " in all runs"
    return text


def cells(row):
    """The first eight columns of a row."""
    kept = {True: "yes", False: "**no**", None: ""}[row["kept"]]
    if "failed" in row:
        return (row["what"], row["unit"], "not measured", "", "", row["failed"], "", kept)
    if "text" in row:
        return (row["what"], row["unit"], row["text"], "", "", "", "", kept)
    promise = row.get("promise")
    limit = promise["value"] if promise else None
    figure, ratio = row.get("figure"), row.get("ratio")
    beside = row.get("beside", {"name": ""})
    other = f"{beside['name']} {number(beside['median'])}" if "median" in beside else beside["name"]
    return (row["what"], row["unit"], median(figure, None if ratio else limit), other,
            median(ratio, limit), spread(ratio or figure, limit),
            f"{promise['bound']} {number(limit)}" if promise else "", kept)


def line(words):
    return "| " + " | ".join(str(word).replace("|", "\\|") for word in words) + " |"


def table(columns, rows):
    return [line(columns), "|" + "---|" * len(columns), *map(line, rows)]


def topic_rows(name, results):
    """A topic's lines: what was measured under one name stands together, machine by machine."""
    lines = {}
    for result in results:
        for topic in result["topics"]:
            if topic["topic"] != name:
                continue
            commit = topic["commit"] or (NOT_STATED if topic["origin"] == result_files.ORIGIN
                                         else f"{NOT_STATED}: {topic['origin']}")
            for row in topic["rows"]:
                lines.setdefault(row["what"], []).append(
                    (*cells(row), result["machine"]["id"], topic["date"] or NOT_STATED, commit))
    return [one for group in lines.values() for one in group]


def page(results):
    """The whole page's text."""
    lines = [HEAD, "## Machines", ""]
    lines += table(("machine", "what"),
                   [(one["machine"]["id"], one["machine"]["what"]) for one in results])
    for name, title in result_files.TOPICS.items():
        rows = topic_rows(name, results)
        if rows:
            lines += ["", f"## {title}", "", *table(COLUMNS, rows)]
    return "\n".join(lines) + "\n"


def of_folder(folder):
    return page(result_files.load_all(folder))


def path_of(folder):
    """The page lies beside the folder of its files."""
    return pathlib.Path(folder).resolve().parent / PAGE.name
