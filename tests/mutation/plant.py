"""The tree and the build that faults are planted in: build/mutation/tree and build/mutation/build.

Both are a copy: no fault is ever written into the tree that is worked on. Faults of all areas stand
in the copy together, each behind its own number (fault.h). One that does not compile is taken out
and is none."""

import json
import pathlib
import random
import re
import shlex
import subprocess

import areas
import sites

PER_AREA = 8000  # Numbers of one area: its place in areas.AREAS times this, and up.
MENTION = re.compile(r"^(?:In file included from |\s+from )?(/[^:\n]+):(\d+)[:,]", re.M)
ERROR = re.compile(r"^(/[^:\n]+):(\d+):\d+: (?:fatal )?error:", re.M)


class Ground:
    def __init__(self, root):
        self.root = root
        self.folder = root / "build/mutation"
        self.tree, self.build = self.folder / "tree", self.folder / "build"
        self.folder.mkdir(parents=True, exist_ok=True)

    def refresh(self, planted):
        """Copies what differs, but not what faults are planted in and has not changed."""
        listed = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"],
                                cwd=self.root, check=True, capture_output=True).stdout
        names = [name for name in listed.decode().split("\0") if name]
        for name in names:
            source, copy = self.root / name, self.tree / name
            if not source.is_file():
                continue
            text = source.read_bytes()
            if name in planted:
                text = planted[name]
            if not copy.exists() or copy.read_bytes() != text:
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(text)
                copy.chmod(source.stat().st_mode)

    def configure(self):
        if (self.build / "build.ninja").exists():
            return
        header = self.tree / "tests/mutation/fault.h"
        flags = f"-O1 -w -include {header}"
        subprocess.run(["cmake", "-S", self.tree, "-B", self.build, "-G", "Ninja",
                        "-DCMAKE_BUILD_TYPE=Debug", "-DGANTRY_GROUP=ON", "-DGANTRY_WERROR=OFF",
                        "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", f"-DCMAKE_CXX_FLAGS={flags}",
                        "-DCMAKE_CXX_FLAGS_DEBUG=", "-DCMAKE_C_FLAGS_DEBUG=-O1"],
                       check=True, stdout=subprocess.DEVNULL)

    def ninja(self, targets, jobs):
        done = subprocess.run(["ninja", "-C", self.build, "-k", "0", f"-j{jobs}", *targets],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout

    def make_headers(self, jobs):
        """What is generated, which the sources include."""
        listed = subprocess.run(["ninja", "-C", self.build, "-t", "targets", "all"], check=True,
                                capture_output=True, text=True).stdout
        headers = [line.split(": ")[0] for line in listed.splitlines()
                   if re.match(r"[^:]+\.(h|inc): (?!phony)", line)]
        self.ninja(headers, jobs)

    def flags(self):
        """{file: flags to parse it with}, of the build's files and what groups of them include."""
        found = {}
        for entry in json.loads((self.build / "compile_commands.json").read_text()):
            words = shlex.split(entry["command"])
            kept, take = ["-x", "c++", "-std=c++20"], False
            for word in words:
                if take or re.match(r"-[ID].|-isystem$", word):
                    kept.append(word)
                    take = word == "-isystem"
            files = [entry["file"]]
            if "/Unity/" in entry["file"]:
                text = pathlib.Path(entry["file"]).read_text()
                files = re.findall(r'#include "([^"]+)"', text)
            for file in files:
                found.setdefault(file, kept)
        return found


def find_sites(ground, area, say):
    """All sites of the area, kept in the folder until a file of the area changes."""
    names = areas.files(area, ground.root)
    kept = ground.folder / f"sites-{area.name}.json"
    newest = max((ground.root / name).stat().st_mtime for name in names)
    newest = max(newest, pathlib.Path(sites.__file__).stat().st_mtime)
    if kept.exists() and kept.stat().st_mtime > newest:
        return [sites.Site(**one) for one in json.loads(kept.read_text())]
    # Of the tree that is worked on: the copy may have faults in it.
    finder = sites.Finder(ground.root, names)
    flags = ground.flags()
    sources = [name for name in names if name.endswith(".cc")]
    if len(sources) < len(names):  # Headers are seen by way of what includes them.
        sources += [name for name in ("tests/unit/wire/ring_test.cc", "proto/wire/mirror/mirror.cc")
                    if name not in sources]
    for count, name in enumerate(sources, 1):
        one = [flag.replace(f"{ground.tree}", f"{ground.root}")
               for flag in flags.get(str(ground.tree / name), [])]
        if not one:
            continue
        say(f"\r{area.name}: reading {count} of {len(sources)} files")
        finder.parse(ground.root / name, one + ["-resource-dir", resource_folder()])
    say("\n")
    found = sorted(finder.found, key=lambda one: (one.file, one.start, one.kind, one.becomes))
    kept.write_text(json.dumps([vars(one) for one in found]))
    return found


def resource_folder():
    """Of the compiler's own headers, which the wheel of libclang lacks."""
    return subprocess.run(["clang", "-print-resource-dir"], check=True, capture_output=True,
                          text=True).stdout.strip()


def choose(found, seed, count):
    """`count` sites of different places, no two of which overlap."""
    order = list(found)
    random.Random(seed).shuffle(order)
    chosen, taken = [], {}
    for one in order:
        spans = taken.setdefault(one.file, [])
        if len(chosen) < count and all(one.end <= a or b <= one.start for a, b in spans):
            spans.append((one.start, one.end))
            chosen.append(one)
    return chosen


def planted_text(text, faults):
    """The text with the faults in it, and {number: its lines in that text}."""
    pieces, at, line, lines = [], 0, 1, {}
    for fault in sorted(faults, key=lambda one: one["start"]):
        before = text[at:fault["start"]]
        inside = fault["text"].replace("@", str(fault["number"])).encode()
        line += before.count(b"\n")
        lines[fault["number"]] = (line, line + inside.count(b"\n"))
        line += inside.count(b"\n")
        pieces += [before, inside]
        at = fault["end"]
    return b"".join(pieces + [text[at:]]), lines


def plant(ground, area, faults, jobs, say):
    """Builds the area's tests with the faults in them. Returns those that compile."""
    others = {}
    for path in sorted(ground.folder.glob("planted-*.json")):
        if path.stem != f"planted-{area.name}":
            for fault in json.loads(path.read_text()):
                others.setdefault(fault["file"], []).append(fault)
    while True:
        planted, lines = {}, {}
        for name in {fault["file"] for fault in faults} | set(others):
            here = [fault for fault in faults if fault["file"] == name] + others.get(name, [])
            planted[name], lines[str(ground.tree / name)] = planted_text(
                (ground.root / name).read_bytes(), here)
        ground.refresh(planted)
        programs = areas.PROGRAM_TARGETS if area.programs else ()
        status, output = ground.ninja((*area.tests, *programs), jobs)
        if status == 0:
            (ground.folder / f"planted-{area.name}.json").write_text(json.dumps(faults))
            return faults
        (ground.folder / f"build-{area.name}.log").write_text(output)
        bad = culprits(ERROR.findall(output), lines) or culprits(MENTION.findall(output), lines)
        bad = bad or {number for file, _ in ERROR.findall(output) for number in lines.get(file, ())}
        left = [fault for fault in faults if fault["number"] not in bad]
        if len(left) == len(faults):
            raise SystemExit(f"{area.name}: the build fails, and not for a fault:\n"
                             f"{output[-4000:]}")
        say(f"{area.name}: {len(faults) - len(left)} faults do not compile\n")
        faults = left


def culprits(places, lines):
    return {number for file, line in places for number, (first, last) in
            lines.get(file, {}).items() if first <= int(line) <= last}
