"""The CUDA API table: parser, model and checks.

The format is described in proto/cuda/driver_api/README.md. Parsing fails with file, line and what
to do: a table that loads is complete (every kind known, numbers unique, references resolved).
"""

import dataclasses
import pathlib
import re

CLASSES = ("guest", "async", "sync", "bulk", "refused")
MARSHALLING = ("generated", "shim-hand", "worker-hand", "hand")
MIGRATION = ("replay", "extract", "derived", "none", "blocks")
FLAGS = ("nocontext", "preinit", "blocking", "slow", "query", "tells_time", "ends_memory",
         "ends_code", "records_unseen", "queues_callback", "composed", "windows")
CAPTURE_RULES = ("refused", "refused_context", "refused_after")
WAITS = ("stream", "event", "context")
HANDLE_KINDS = (
    "context", "module", "library", "kernel", "function", "stream", "event", "mem_pool", "array",
    "mipmapped_array", "tex_object", "surf_object", "tex_ref", "surf_ref", "graph", "graph_node",
    "graph_exec", "link", "vmm_allocation", "user_object", "external_memory", "external_semaphore",
    "green_context", "resource_desc", "conditional", "graph_device_node", "async_callback",
    "logs_callback", "graphics_resource", "egl_connection")
# Objects that are not named by a handle: memory by its address, a global by module and name.
EFFECT_KINDS = HANDLE_KINDS + ("memory", "global")
PLAIN_KINDS = ("value", "devptr", "out", "out?", "inout", "in", "in?", "struct", "string", "host",
               "callback", "opaque")
HANDLE_FORMS = ("handle", "handle?", "new", "found", "found?", "named")
# What the guest does around a call that crosses: functions of call_rules.h.
GUEST_RULES = ("check", "answer", "note", "settle")
FIRST_NUMBER = 64  # Numbers below are Gantry's own commands (proto/wire/control_ops.h).


class TableError(Exception):
    """A fault of the table, with file and line."""


@dataclasses.dataclass
class Param:
    kind: str            # "handle", "out", "array_in", ... without its arguments
    args: list           # ["stream"], ["graph_node", "numDependencies"], ...
    ctype: str           # "const CUuuid *"
    name: str

    @property
    def optional(self):
        return self.kind.endswith("?")

    @property
    def pointee(self):
        return self.ctype.replace("const ", "").replace("*", "").strip()

    def declaration(self):
        return self.ctype + ("" if self.ctype.endswith("*") else " ") + self.name


@dataclasses.dataclass
class Row:
    name: str
    version: int
    stream: str          # "", "ptsz" or "ptds"
    symbol: str


@dataclasses.dataclass
class Call:
    number: int
    symbol: str
    rows: list
    same_as: str = ""
    via: str = ""
    cls: str = "guest"
    marshalling: str = "hand"
    effect: str = "none"         # none, writes, launches, syncs, creates, configures, destroys
    effect_kind: str = ""
    effect_param: str = ""
    migration: str = "none"
    flags: tuple = ()
    why: str = ""
    params: list = dataclasses.field(default_factory=list)
    send: list = dataclasses.field(default_factory=list)      # explicit (type, name) pairs
    reply: list = dataclasses.field(default_factory=list)
    hand_call: str = ""                                       # structures of wire_hand.h
    hand_reply: str = ""
    send_trailing: str = ""
    reply_trailing: str = ""
    capture: str = ""            # what a call meets while a stream is captured: CAPTURE_RULES
    waits: str = ""              # what its caller waits for: WAITS
    waits_param: str = ""
    records: str = ""            # parameter: the event that it records in a stream
    awaits: str = ""             # parameter: the event that a stream waits for
    owner: str = ""              # parameter: the object that the new one dies with
    key: str = ""                # parameter: which of an object's settings it sets
    grants_shared: tuple = ()    # parameters: a function's attribute and its value
    context_of: tuple = ()       # parameters whose context it takes where the thread has none
    served: bool = False         # the worker has the call of its own, in place of the driver's
    rules: list = dataclasses.field(default_factory=list)     # (one of GUEST_RULES, call in C++)
    file: str = ""

    @property
    def twin(self):
        return next((row.stream for row in self.rows if row.stream), "")

    @property
    def forwarded(self):
        """Does a command of its own cross to the worker?"""
        return (self.cls in ("async", "sync", "bulk") and not self.via and not self.same_as
                and "composed" not in self.flags)

    @property
    def exported(self):
        return "windows" not in self.flags

    @property
    def derived(self):
        """Do the wire fields follow from the parameters?"""
        return not (self.send or self.send_trailing or self.reply or self.reply_trailing
                    or self.hand_call)

    @property
    def shim_generated(self):
        return self.forwarded and self.marshalling in ("generated", "worker-hand")

    @property
    def worker_generated(self):
        return self.forwarded and self.marshalling in ("generated", "shim-hand")


def _parse_param(text, where):
    match = re.match(r"([a-z_]+\??)(?:\(([^)]*)\))?\s+(.*?)(\w+)$", text)
    if not match:
        raise TableError(f"{where}: cannot read parameter '{text}'; expected: kind type name")
    kind, args, ctype, name = match.groups()
    args = [a.strip() for a in args.split(",")] if args else []
    known = (kind in PLAIN_KINDS or kind in HANDLE_FORMS or kind in
             ("mask", "among", "below", "word_in", "word_out", "array_in", "array_in?",
              "array_out", "handles_in", "text_out", "bulk_in", "bulk_out"))
    if not known:
        raise TableError(f"{where}: unknown parameter kind '{kind}'; see the table's README")
    if kind in HANDLE_FORMS + ("handles_in",) and (not args or args[0] not in HANDLE_KINDS):
        raise TableError(f"{where}: '{kind}' needs a handle kind, not {args}")
    return Param(kind, args, ctype.strip(), name)


def _parse_rows(text, symbol, where):
    base = re.sub(r"_v\d+$", "", symbol)
    rows = []
    for item in text.split():
        stream, _, version = item.partition("@")
        if not version.isdigit():
            raise TableError(f"{where}: row '{item}' lacks its version; expected @version")
        if stream not in ("", "ptsz", "ptds"):
            raise TableError(f"{where}: row '{item}' is none of @version, ptsz@..., ptds@...")
        rows.append(Row(base, int(version), stream, f"{symbol}_{stream}" if stream else symbol))
    return rows


def _parse_effect(call, text, where):
    words = text.split()
    call.effect = words[0]
    if call.effect in ("creates", "configures", "destroys"):
        call.effect_kind, _, call.effect_param = words[1].partition(":")
        if call.effect_kind not in EFFECT_KINDS:
            raise TableError(f"{where}: unknown object kind '{call.effect_kind}'")
    elif call.effect not in ("none", "writes", "launches", "syncs"):
        raise TableError(f"{where}: unknown effect '{text}'")


def _parse_head(line, where):
    fields = [f.strip() for f in line.split(" : ")]
    words = fields[0].split()
    if len(words) != 3 or not words[1].isdigit():
        raise TableError(f"{where}: expected 'call NUMBER SYMBOL : ...', got '{line}'")
    call = Call(int(words[1]), words[2], _parse_rows(fields[1], words[2], where))
    if fields[2].startswith("same_as "):
        call.same_as = fields[2].split()[1]
        return call
    if len(fields) < 6:
        raise TableError(f"{where}: expected rows : class : marshalling : effect : migration")
    call.cls, call.marshalling = fields[2], fields[3]
    if call.marshalling.startswith("via:"):
        call.via = call.marshalling[4:]
        call.marshalling = "generated"
    _parse_effect(call, fields[4], where)
    call.migration = fields[5]
    if len(fields) > 6:
        call.flags = tuple(f.strip() for f in fields[6].split(","))
    for value, allowed in ((call.cls, CLASSES), (call.marshalling, MARSHALLING),
                           (call.migration, MIGRATION)):
        if value not in allowed:
            raise TableError(f"{where}: '{value}' is none of {', '.join(allowed)}")
    for flag in call.flags:
        if flag not in FLAGS:
            raise TableError(f"{where}: unknown flag '{flag}'")
    return call


def _fields(text, where):
    pairs = []
    for item in text.split(","):
        words = item.split()
        if len(words) != 2:
            raise TableError(f"{where}: wire field '{item.strip()}' is not 'type name'")
        pairs.append((words[0], words[1]))
    return pairs


def _one_of(word, allowed, where):
    if word not in allowed:
        raise TableError(f"{where}: '{word}' is none of {', '.join(allowed)}")
    return word


def _parse_body(call, text, where):
    word, _, rest = text.partition(" ")
    rest = rest.strip()
    if word == "why":
        call.why = rest
    elif word == "send":
        call.send += _fields(rest, where)
    elif word == "reply":
        call.reply += _fields(rest, where)
    elif word in ("hand_call", "hand_reply"):
        setattr(call, word, rest)
    elif word in ("send_trailing", "reply_trailing", "records", "awaits", "owner", "key"):
        setattr(call, word, rest)
    elif word == "served":
        call.served = True
    elif word in GUEST_RULES:
        call.rules.append((word, rest))
    elif word == "capture":
        call.capture = _one_of(rest, CAPTURE_RULES, where)
    elif word == "waits_for":
        what, _, call.waits_param = rest.partition(" ")
        call.waits = _one_of(what, WAITS, where)
    elif word in ("grants_shared", "context_of"):
        setattr(call, word, tuple(rest.split()))
    else:
        call.params.append(_parse_param(text, where))


def logical_lines(text):
    """Yields (number of its first line, line): one that ends in a backslash goes on in the next."""
    start, held = 0, ""
    for number, raw in enumerate(text.splitlines(), 1):
        start = start if held else number
        line = held + (" " + raw.strip() if held else raw.rstrip())
        if line.endswith("\\"):
            held = line[:-1].rstrip()
            continue
        held = ""
        yield start, line
    if held:
        yield start, held


@dataclasses.dataclass
class Kind:
    """What is common to all handles of a kind: a `kind` line."""
    name: str
    number: int
    in_guest: bool       # the guest knows the live ones: a bad one is found at its own call
    bad: str             # what native answers for a handle that is none


class Calls(list):
    """The calls, ordered by number, with the table's kinds of handle and named sets of values."""

    def __init__(self, calls=(), kinds=None, sets=None):
        super().__init__(calls)
        self.kinds = kinds if kinds is not None else {}
        self.sets = sets if sets is not None else {}


def _parse_kind(line, table, where):
    match = re.fullmatch(r"kind (\d+) (\w+) : (guest|host) : (CUDA_\w+)", line)
    if not match:
        raise TableError(f"{where}: expected 'kind NUMBER NAME : guest|host : CUDA_ERROR_...'")
    number, name, side, bad = match.groups()
    if name not in HANDLE_KINDS or name in table.kinds:
        raise TableError(f"{where}: '{name}' is no kind of handle, or is described twice")
    table.kinds[name] = Kind(name, int(number), side == "guest", bad)


def _parse_set(line, table, where):
    match = re.fullmatch(r"set (\w+) : ([\d, ]+)", line)
    if not match or match.group(1) in table.sets:
        raise TableError(f"{where}: expected 'set NAME : VALUE, VALUE, ...', each name once")
    table.sets[match.group(1)] = [value.strip() for value in match.group(2).split(",")]


def parse_file(path, table):
    calls = []
    for number, line in logical_lines(path.read_text(encoding="utf-8")):
        where = f"{path.name}:{number}"
        if not line or line.startswith("#"):
            continue
        if line.startswith("call "):
            calls.append(_parse_head(line, where))
            calls[-1].file = path.stem
        elif line.startswith("kind "):
            _parse_kind(line, table, where)
        elif line.startswith("set "):
            _parse_set(line, table, where)
        elif line.startswith("    ") and calls:
            _parse_body(calls[-1], line.strip(), where)
        else:
            raise TableError(f"{where}: expected 'call ...', 'kind ...', 'set ...' or an indented "
                             "line")
    return calls


def _name_values(calls, sets):
    """among(NAME) of a set: its values."""
    for call in calls:
        for param in call.params:
            if param.kind == "among" and not param.args[0].isdigit():
                if param.args[0] not in sets:
                    raise TableError(f"{call.symbol}: unknown set of values '{param.args[0]}'")
                param.args = list(sets[param.args[0]])


def _check_facts(call):
    """Facts that name a parameter name one that crosses."""
    names = {param.name for param in call.params} | {name for _, name in call.send}
    for fact in ("records", "awaits", "owner", "key", "waits_param"):
        name = getattr(call, fact)
        if name and (name not in names or call.hand_call):
            raise TableError(f"{call.symbol}: '{name}' is no parameter that crosses as it is")
    if call.grants_shared and (len(call.grants_shared) != 2
                               or not names.issuperset(call.grants_shared)):
        raise TableError(f"{call.symbol}: grants_shared needs an attribute and a value")
    named = [param for param in call.params if param.name in call.context_of]
    if len(named) != len(call.context_of) or any(
            not (param.kind in ("devptr", "host") or param.args[:1] in (["stream"], ["event"]))
            for param in named):
        raise TableError(f"{call.symbol}: context_of names streams, events and addresses")
    if call.context_of and "nocontext" in call.flags:
        raise TableError(f"{call.symbol}: a call that needs no context takes none")
    if call.rules and not call.shim_generated:
        raise TableError(f"{call.symbol}: rules of the guest go with marshalling that is generated")
    if call.served and not call.worker_generated:
        raise TableError(f"{call.symbol}: what the worker serves is handed over by generated code")
    if call.waits and call.waits != "context" and not call.waits_param:
        raise TableError(f"{call.symbol}: waits_for {call.waits} needs a parameter")


def _check_kinds(calls):
    for call in calls:
        for param in call.params:
            if param.kind in HANDLE_FORMS + ("handles_in",) and param.args[0] not in calls.kinds:
                raise TableError(f"{call.symbol}: no 'kind' line describes '{param.args[0]}'")


def check(calls):
    """Cross-checks of the whole table."""
    numbers, symbols, rows = {}, {}, {}
    for call in calls:
        if call.number < FIRST_NUMBER:
            raise TableError(f"{call.symbol}: number {call.number} is reserved for Gantry")
        for store, key in ((numbers, call.number), (symbols, call.symbol)):
            if key in store:
                raise TableError(f"{call.symbol}: {key} is already {store[key]}'s")
            store[key] = call.symbol
        for row in call.rows:
            key = (row.name, row.version, row.stream)
            if key in rows:
                raise TableError(f"{call.symbol}: row {key} is already {rows[key]}'s")
            rows[key] = call.symbol
        if call.cls == "refused" and not call.same_as and not call.why:
            raise TableError(f"{call.symbol}: a refused call must say why")
        _check_facts(call)
    by_symbol = {call.symbol: call for call in calls}
    for call in calls:
        for target in filter(None, (call.same_as, call.via)):
            if target not in by_symbol:
                raise TableError(f"{call.symbol}: refers to unknown call {target}")
        if call.same_as and by_symbol[call.same_as].same_as:
            raise TableError(f"{call.symbol}: same_as must name a call of its own")
    return by_symbol


def load(directory):
    """All calls of a table directory, ordered by number."""
    calls = Calls()
    for path in sorted(pathlib.Path(directory).glob("*.api")):
        calls += parse_file(path, calls)
    if not calls:
        raise TableError(f"{directory}: no *.api file found")
    calls.sort(key=lambda call: call.number)
    check(calls)
    _check_kinds(calls)
    _name_values(calls, calls.sets)
    return calls
