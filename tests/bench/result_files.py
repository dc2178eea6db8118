"""The benchmark's result files: tests/bench/results/MACHINE.json, the last run of each machine.

A file holds `schema` (SCHEMA), `machine` and `topics`. A topic is what one section of scripts/bench
measured in one run, with the date and the commit of that run; the next run of the section on that
machine replaces it. A file is refused when it has a field that is missing here, or lacks one:

  machine  id (the file's name), what (in words), and what the machine said of itself: cores, gpus
  topic    topic, date (YYYY-MM-DD), commit (7 to 40 hex digits, -changed behind them when the tree
           had other changes), origin (who wrote it), rows. Date and commit are empty where the
           origin is another page that does not state them.
  row      what, unit, kept (true, false, or null without a promise), and one of
             failed   the reason why there is no figure
             text     something that holds or does not
             figure   in `unit`: median, least, most, samples, over (rounds or runs)
           A figure may stand beside another one: `beside` is that one's name and median, and
           `ratio` the figure divided by it, pair by pair, in the same fields as `figure`.
           `promise` is a bound of the ratio, or of the figure when there is no ratio. A figure over
           rounds keeps it by its median (by its range when it has no median); one over runs, of
           which each is a median, by all of them.
"""

import datetime
import json
import os
import pathlib
import re
import subprocess

SCHEMA = 1
FOLDER = pathlib.Path(__file__).resolve().parent / "results"
TOPICS = {
    "launches": "Launches and round trips",
    "copies": "Copies between host and device",
    "memory": "Fingerprints and staged copies",
    "replace": "A worker replaced on its device",
    "tcp": "Guests over TCP",
    "kernels": "The soft GPU's speed",
    "snapshots": "Snapshots of the soft GPU's memory",
    "pytorch": "PyTorch, training and inference",
    "training": "PyTorch, training jobs",
    "checkpoint": "Checkpoints and restores of a GPU's memory",
    "move": "Moves to another GPU of the host",
    "programs": "Programs that pass on a GPU",
}
COMMIT = re.compile(r"[0-9a-f]{7,40}(-changed)?")
MACHINE_ID = re.compile(r"[a-z0-9][a-z0-9.-]*")
ORIGIN = "scripts/bench"
STATISTICS = {"median", "least", "most", "samples", "over"}
KINDS = ("failed", "text", "figure", "ratio")


class Invalid(ValueError):
    """A result file that does not match the schema; the text says where and why."""


def require(condition, where, why):
    if not condition:
        raise Invalid(f"{where}: {why}")


def require_fields(value, where, needed, optional=()):
    require(isinstance(value, dict), where, "is no object")
    missing, unknown = set(needed) - set(value), set(value) - set(needed) - set(optional)
    require(not missing, where, f"lacks {', '.join(sorted(missing))}")
    require(not unknown, where, f"has the unknown field {', '.join(sorted(unknown))}")


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_statistics(value, where):
    require_fields(value, where, {"over"}, STATISTICS)
    require(value["over"] in ("rounds", "runs"), where, "over is neither rounds nor runs")
    for name in STATISTICS - {"over"}:
        require(name not in value or is_number(value[name]), where, f"{name} is no number")
    require(("least" in value) == ("most" in value), where, "a range has two ends")
    require("median" in value or "least" in value, where, "has neither median nor range")
    if "least" in value:
        middle = value.get("median", value["least"])
        require(value["least"] <= middle <= value["most"], where, "the median is out of the range")


def is_kept(row):
    """Whether the row keeps its promise; None without one."""
    if "promise" not in row:
        return None
    measured, promise = row.get("ratio", row.get("figure")), row["promise"]
    bound, limit = promise["bound"], promise["value"]
    worst = {"<=": "most", ">=": "least"}[bound]
    by_worst = worst in measured and (measured["over"] == "runs" or "median" not in measured)
    value = measured[worst if by_worst else "median"]
    return value <= limit if bound == "<=" else value >= limit


def check_row(row, where):
    require_fields(row, where, {"what", "unit", "kept"}, {*KINDS, "beside", "promise"})
    where = f"{where} ({row['what']})"
    require(isinstance(row["what"], str) and row["what"], where, "has no name")
    require(row["kept"] in (True, False, None), where, "kept is neither true, false nor null")
    kinds = [kind for kind in KINDS if kind in row]
    require(kinds in (["failed"], ["text"], ["figure"], ["ratio"], ["figure", "ratio"]), where,
            "needs one of failed, text, and figure or ratio")
    for kind in kinds:
        if kind in ("failed", "text"):
            require(isinstance(row[kind], str) and row[kind], where, f"{kind} is no text")
            require("promise" not in row, where, f"{kind} has no bound to keep")
        else:
            check_statistics(row[kind], f"{where}, {kind}")
    if "failed" in row:
        require(row["kept"] is False, where, "what failed keeps nothing")
    if "beside" in row:
        require_fields(row["beside"], f"{where}, beside", {"name"}, {"median"})
        require("median" not in row["beside"] or is_number(row["beside"]["median"]), where,
                "the figure beside it is no number")
    if "promise" in row:
        require_fields(row["promise"], f"{where}, promise", {"bound", "value"})
        require(row["promise"]["bound"] in ("<=", ">="), where, "the bound is neither <= nor >=")
        require(is_number(row["promise"]["value"]), where, "the bound has no value")
    if "text" not in row and "failed" not in row:
        require(row["kept"] == is_kept(row), where,
                f"kept is {row['kept']}, but the figures say {is_kept(row)}")


def check_topic(topic, where):
    require_fields(topic, where, {"topic", "date", "commit", "origin", "rows"})
    require(topic["topic"] in TOPICS, where, f"there is no topic {topic['topic']}")
    require(isinstance(topic["origin"], str) and topic["origin"], where, "has no origin")
    may_lack = topic["origin"] != ORIGIN
    for name, is_right in (("date", is_date), ("commit", is_commit)):
        value = topic[name]
        require(isinstance(value, str) and (is_right(value) or (may_lack and not value)), where,
                f"{name} {value!r} is wrong")
    require(isinstance(topic["rows"], list) and topic["rows"], where, "has no rows")
    for number, row in enumerate(topic["rows"]):
        check_row(row, f"{where}, {topic['topic']}, row {number}")


def is_date(text):
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def is_commit(text):
    return COMMIT.fullmatch(text) is not None


def check(result, where):
    """Raises Invalid unless `result` is what a file of this schema holds."""
    require_fields(result, where, {"schema", "machine", "topics"})
    require(result["schema"] == SCHEMA, where, f"schema {result['schema']!r}, known is {SCHEMA}")
    machine = result["machine"]
    require_fields(machine, f"{where}, machine", {"id", "what"}, {"cores", "gpus"})
    require(isinstance(machine["id"], str) and MACHINE_ID.fullmatch(machine["id"]), where,
            "the machine's id is not of a-z, 0-9, dots and dashes")
    require(isinstance(machine["what"], str) and machine["what"], where, "the machine has no text")
    require(isinstance(result["topics"], list) and result["topics"], where, "has no topics")
    for topic in result["topics"]:
        check_topic(topic, where)
    names = [topic["topic"] for topic in result["topics"]]
    require(len(set(names)) == len(names), where, "has a topic twice")


def load(path):
    path = pathlib.Path(path)
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Invalid(f"{path.name}: {error}") from error
    check(result, path.name)
    require(path.stem == result["machine"]["id"], path.name, "the name is not the machine's id")
    return result


def load_all(folder=FOLDER):
    return [load(path) for path in sorted(pathlib.Path(folder).glob("*.json"))]


def store(result, folder):
    check(result, result["machine"]["id"])
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['machine']['id']}.json"
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


# ---- from a run to its file

def statistics_of(row, value, prefix=""):
    samples = {"median": value, "over": "rounds", "samples": row["samples"]}
    if row["samples"] > 1 and f"{prefix}least" in row:
        samples.update(least=row[f"{prefix}least"], most=row[f"{prefix}most"])
    return samples


def row_of(row):
    """A row of tests/gpu/bench/table.py in the schema; None when it was left out."""
    if "skipped" in row:
        return None
    made = {"what": row["name"], "unit": row.get("unit", ""), "kept": None}
    if "failed" in row or "text" in row:
        kind = "failed" if "failed" in row else "text"
        text = row[kind] if kind == "text" else row[kind].split(":")[0]  # The rest names folders.
        return {**made, kind: text or "no reason was given", "kept": row["kept"]}
    if "value" in row:
        made["figure"] = statistics_of(row, row["value"])
    if "native" in row:
        made["beside"] = {"name": row["beside"], "median": row["native"]}
    if "ratio" in row:
        made["ratio"] = statistics_of(row, row["ratio"], "ratio_")
    if row["promise"]:
        bound, limit = row["promise"].split()
        made["promise"] = {"bound": bound, "value": float(limit)}
    made["kept"] = is_kept(made)
    return made


def commit_of(root):
    """The commit of the tree, -changed behind it when product or tests differ; empty without git.
    Result files do not count: a run writes them itself."""
    def git(*words):
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True,
                              check=False)
        return done.stdout.strip() if done.returncode == 0 else ""
    head = git("rev-parse", "--short=10", "HEAD")
    changed = git("status", "--porcelain", "--", ".", ":!tests/bench/results",
                  ":!tests/bench/RESULTS.md")
    return f"{head}-changed" if head and changed else head


def this_machine(gpus, name=None):
    """`gpus`: a line of nvidia-smi for each, name first; `name`: an id of the operator's choice."""
    cores = os.cpu_count()
    flags = pathlib.Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    vectors = "AVX-512" if " avx512vl" in flags else "AVX2" if " avx2" in flags else "no AVX2"
    if gpus:
        card = gpus[0].split(",")[0].strip()
        what, own = f"{len(gpus)} x {card}, {cores} cores", f"{card}-x{len(gpus)}-{cores}-cores"
    else:
        what, own = f"{cores} cores, {vectors}, no GPU", f"cpu-{cores}-cores-{vectors}"
    return {"id": name or re.sub(r"[^a-z0-9.]+", "-", own.lower()).strip("-"), "what": what,
            "cores": cores, "gpus": gpus}


def spelled_out(rows):
    """The rows with whole names: one that begins with "..." continues the last that does not."""
    made, base = [], ""
    for row in rows:
        base = base if row["name"].startswith("...") else row["name"]
        made.append({**row, "name": row["name"].replace("...", f"{base},", 1)
                     if row["name"].startswith("...") else row["name"]})
    return made


def record(folder, machine, topic, rows, commit, date):
    """Replaces the machine's rows of `topic`; the path, or None when nothing was measured, which
    replaces nothing."""
    made = [one for one in map(row_of, spelled_out(rows)) if one]
    if all("failed" in one for one in made):
        return None
    path = pathlib.Path(folder) / f"{machine['id']}.json"
    kept = load(path)["topics"] if path.exists() else []
    fresh = {"topic": topic, "date": date, "commit": commit, "origin": ORIGIN, "rows": made}
    topics = [one for one in kept if one["topic"] != topic] + [fresh]
    topics.sort(key=lambda one: list(TOPICS).index(one["topic"]))
    return store({"schema": SCHEMA, "machine": machine, "topics": topics}, folder)
