"""Places in C++ source where a fault can be planted, and what it would be.

libclang says where an expression begins and ends, so that a fault can stand behind a switch:
`a < b` becomes `(gantry_fault(7) ? a <= b : a < b)`. Left alone is what a compiler evaluates
(constants, static_assert, if constexpr, case labels), what macros write, and log messages."""

import dataclasses
import pathlib
import re

from clang import cindex
from clang.cindex import CursorKind as Kind

RELATIONS = {"<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"),
             "==": ("!=",), "!=": ("==",)}
ARITHMETIC = {"+": ("-",), "-": ("+",), "*": ("+",), "/": ("*",), "%": ("/",), "<<": (">>",),
              ">>": ("<<",), "&": ("|",), "|": ("&",), "^": ("|",)}
LOGIC = {"&&": ("||",), "||": ("&&",)}
ASSIGNMENT = {"+=": ("-=", "="), "-=": ("+=", "="), "|=": ("&=", "="), "&=": ("|=", "="),
              "*=": ("=",), "<<=": (">>=",), ">>=": ("<<=",), "^=": ("=",), "%=": ("=",)}
FUNCTIONS = (Kind.FUNCTION_DECL, Kind.CXX_METHOD, Kind.CONSTRUCTOR, Kind.DESTRUCTOR,
             Kind.FUNCTION_TEMPLATE, Kind.CONVERSION_FUNCTION)
EVALUATED = (Kind.STATIC_ASSERT, Kind.ENUM_DECL, Kind.ENUM_CONSTANT_DECL, Kind.TEMPLATE_REF,
             Kind.TYPE_ALIAS_DECL, Kind.TYPEDEF_DECL)
# Statements without which a program does the same: what it tells, and what it only prepares for.
TELLS = re.compile(r"(spdlog|log|report|trace)::|log_|(logger|std::fputs|std::fprintf|dprintf)\b|"
                   r"[A-Z][A-Z_0-9]*\(|.{0,60}(\.|->)(reserve|shrink_to_fit)\(|"
                   r"static_cast<void>|\(void\)|__builtin_prefetch|assert")
NUMBER = re.compile(r"(0[xX][0-9a-fA-F']+|[0-9][0-9']*)[uUlL]*\Z")
INTEGERS = {cindex.TypeKind.INT, cindex.TypeKind.UINT, cindex.TypeKind.LONG, cindex.TypeKind.ULONG,
            cindex.TypeKind.LONGLONG, cindex.TypeKind.ULONGLONG}
EDGE = 60


@dataclasses.dataclass
class Site:
    file: str
    start: int  # Byte offsets of what is replaced.
    end: int
    line: int
    kind: str
    was: str
    becomes: str
    text: str   # In place of the bytes; @ stands for the number of the fault.


def short(text):
    text = " ".join(text.split())
    return text if len(text) <= EDGE else text[:EDGE - 3] + "..."


class Finder:
    def __init__(self, root, wanted):
        self.root, self.wanted = pathlib.Path(root), set(wanted)
        self.texts, self.found, self.seen = {}, [], set()
        self.names = {}

    def name(self, file):
        if file is None:
            return None
        said = file.name
        if said not in self.names:
            path = pathlib.Path(said)
            inside = path.is_relative_to(self.root)
            name = path.relative_to(self.root).as_posix() if inside else None
            self.names[said] = name if name in self.wanted else None
        return self.names[said]

    def bytes(self, name):
        if name not in self.texts:
            self.texts[name] = (self.root / name).read_bytes()
        return self.texts[name]

    def parse(self, source, flags):
        unit = cindex.Index.create().parse(str(source), args=flags)
        for cursor in unit.cursor.get_children():
            self.declaration(cursor)

    def declaration(self, cursor):
        name = self.name(cursor.location.file)
        if name is None:
            return
        if cursor.kind in FUNCTIONS:
            if cursor.is_definition():
                result = cursor.result_type.get_canonical().kind
                for child in cursor.get_children():
                    if child.kind == Kind.COMPOUND_STMT:
                        self.walk(name, child, None, result)
        elif cursor.kind in (Kind.NAMESPACE, Kind.CLASS_DECL, Kind.STRUCT_DECL, Kind.CLASS_TEMPLATE,
                             Kind.LINKAGE_SPEC, Kind.UNEXPOSED_DECL,
                             Kind.CLASS_TEMPLATE_PARTIAL_SPECIALIZATION):
            for child in cursor.get_children():
                self.declaration(child)

    def extent(self, name, cursor):
        """(start, end) of what the cursor says in the file, or None: a macro, or another file."""
        extent = cursor.extent
        if self.name(extent.start.file) != name or self.name(extent.end.file) != name:
            return None
        return (extent.start.offset, extent.end.offset) if (
            extent.start.offset < extent.end.offset) else None

    def said(self, name, extent):
        return self.bytes(name)[extent[0]:extent[1]].decode("utf-8", "replace")

    def add(self, name, cursor, extent, kind, was, becomes, text):
        key = (name, extent, kind, becomes)
        if key in self.seen or "#" in text.split('"')[0][:1]:
            return
        self.seen.add(key)
        self.found.append(Site(name, *extent, cursor.extent.start.line, kind, short(was),
                               short(becomes), text))

    def walk(self, name, cursor, parent, result):
        kind = cursor.kind
        if kind in EVALUATED:
            return
        extent = self.extent(name, cursor)
        said = self.said(name, extent) if extent else ""
        children = list(cursor.get_children())
        if kind == Kind.DECL_STMT and re.match(r"(static )?(inline )?constexpr\b", said):
            return
        if kind == Kind.CASE_STMT:
            children = children[1:]
        if kind == Kind.IF_STMT and re.match(r"if constexpr", said):
            children = children[1:]
        if kind == Kind.LAMBDA_EXPR:
            result = None
        if extent and said.count("(") == said.count(")"):
            self.here(name, cursor, children, extent, said, parent, result)
        for child in children:
            self.walk(name, child, cursor, result)

    def here(self, name, cursor, children, extent, said, parent, result):
        kind = cursor.kind
        if kind in (Kind.BINARY_OPERATOR, Kind.COMPOUND_ASSIGNMENT_OPERATOR) and len(children) == 2:
            self.operator(name, cursor, children, extent)
        elif kind in (Kind.IF_STMT, Kind.WHILE_STMT) and children:
            self.condition(name, cursor, children[0], said)
        elif kind == Kind.RETURN_STMT and children:
            self.returned(name, cursor, children[0], result)
        elif kind == Kind.INTEGER_LITERAL and NUMBER.match(said):
            for becomes in (f"({said} + 1)",) + ((f"({said} - 1)",) if said[0] != "0" else ()):
                self.add(name, cursor, extent, "number", said, becomes,
                         f"(gantry_fault(@) ? {becomes} : {said})")
        elif kind == Kind.CXX_BOOL_LITERAL_EXPR and said in ("true", "false"):
            other = "false" if said == "true" else "true"
            self.add(name, cursor, extent, "bool", said, other, f"({said} != gantry_fault(@))")
        elif kind == Kind.UNARY_OPERATOR and said[:1] == "!" and said[:2] != "!=":
            self.add(name, cursor, extent, "not", said, said[1:],
                     f"(gantry_fault(@) ? !!({said[1:]}) : {said})")
        elif kind == Kind.CALL_EXPR and re.match(r"std::(min|max)\b", said):
            other = said.replace(said[:8], "std::max" if said[5:8] == "min" else "std::min", 1)
            self.add(name, cursor, extent, "least", said, other,
                     f"(gantry_fault(@) ? {other} : {said})")
        if parent is not None and parent.kind == Kind.COMPOUND_STMT and not TELLS.match(said) and (
                kind in (Kind.CALL_EXPR, Kind.COMPOUND_ASSIGNMENT_OPERATOR) or
                kind == Kind.UNARY_OPERATOR and said[:2] in ("++", "--") or
                kind == Kind.BINARY_OPERATOR and re.match(r"[\w.>\[\]()*-]+ = ", said)):
            self.add(name, cursor, (extent[0], extent[0] + 1), "left out", said, "",
                     f"if (!gantry_fault(@)) {said[0]}")

    def operator(self, name, cursor, children, extent):
        sides = [self.extent(name, child) for child in children]
        if None in sides or sides[0][0] != extent[0] or sides[1][1] != extent[1]:
            return
        between = self.said(name, (sides[0][1], sides[1][0]))
        sign = between.strip()
        left, right = (self.said(name, side) for side in sides)
        for table, kind in ((RELATIONS, "relation"), (ARITHMETIC, "arithmetic"), (LOGIC, "logic"),
                            (ASSIGNMENT, "assignment")):
            for other in table.get(sign, ()):
                was, becomes = f"{left} {sign} {right}", f"{left} {other} {right}"
                whole = self.said(name, extent)
                changed = whole[:len(left)] + between.replace(sign, other) + right
                self.add(name, cursor, extent, kind, was, becomes,
                         f"(gantry_fault(@) ? ({changed}) : ({whole}))")

    def condition(self, name, cursor, child, said):
        extent = self.extent(name, child)
        if extent is None or not child.kind.is_expression() or re.match(r"if constexpr", said):
            return
        text = self.said(name, extent)
        head = self.bytes(name)[:extent[0]].rstrip()
        if not head.endswith((b"(", b";")) or self.bytes(name)[extent[1]:].lstrip()[:1] != b")":
            return
        loop = cursor.kind == Kind.WHILE_STMT
        for becomes, text_with in (("false", f"!gantry_fault(@) && ({text})"),
                                   ("true", f"gantry_fault(@) || ({text})"),
                                   ("not", f"gantry_fault(@) != !!({text})")):
            if not (loop and becomes == "true"):
                self.add(name, cursor, extent, "condition", text,
                         f"!({text})" if becomes == "not" else becomes, text_with)

    def returned(self, name, cursor, child, result):
        extent = self.extent(name, child)
        if extent is None or not child.kind.is_expression():
            return
        text = self.said(name, extent)
        if text.startswith("{"):
            return
        if result == cindex.TypeKind.BOOL:
            self.add(name, cursor, extent, "returned", text, f"!({text})",
                     f"(gantry_fault(@) != !!({text}))")
        elif result in INTEGERS:
            self.add(name, cursor, extent, "returned", text, f"{text} + 1",
                     f"(gantry_fault(@) ? ({text}) + 1 : ({text}))")
