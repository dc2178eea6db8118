"""Small helpers that the emitters share."""

BANNER = ("// Generated from proto/cuda/driver_api by proto/codegen; do not edit.\n"
          "// {what}\n")


def header(what, includes, namespace=""):
    text = BANNER.format(what=what) + "#pragma once\n\n" + _includes(includes)
    return text + (f"namespace {namespace} {{\n\n" if namespace else "")


def source(what, includes):
    return BANNER.format(what=what) + "\n" + _includes(includes)


def _includes(includes):
    system = sorted(i for i in includes if i.startswith("<"))
    own = sorted(i for i in includes if not i.startswith("<"))
    text = "".join(f"#include {i}\n" for i in system)
    if system and own:
        text += "\n"
    text += "".join(f'#include "{i}"\n' for i in own)
    return text + "\n"


def end_namespace(namespace):
    return f"\n}}  // namespace {namespace}\n"


def wrap(prefix, items, suffix, width=100, indent=4):
    """prefix + comma-separated items + suffix, broken at the width."""
    one_line = prefix + ", ".join(items) + suffix
    if len(one_line) <= width:
        return one_line + "\n"
    text, line = "", prefix
    pad = " " * (len(prefix) - len(prefix.lstrip()) + indent)
    for index, item in enumerate(items):
        piece = item + (", " if index + 1 < len(items) else suffix)
        if len(line) + len(piece.rstrip()) > width and line.strip():
            text += line.rstrip() + "\n"
            line = pad
        line += piece
    return text + line + "\n"


def enum_kind(kind):
    """handle kind of the table -> enumerator of gantry::cuda::HandleKind."""
    special = {"link": "LinkState", "green_context": "GreenContext", "tex_ref": "TexRef"}
    return "HandleKind::k" + special.get(kind, "".join(w.capitalize() for w in kind.split("_")))


def declarations(call, leading=()):
    return list(leading) + [p.declaration() for p in call.params]


def names(call):
    return [p.name for p in call.params]
