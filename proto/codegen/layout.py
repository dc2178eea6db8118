"""Wire layout of a call: fields with explicit padding, trailing items, sizes.

Rules: little-endian; fields in table order, each at its natural alignment with named padding; a
struct's size is a multiple of 8, so that what trails it is 8-aligned; trailing items follow in
table order, each padded to 8 bytes.
"""

import dataclasses

import abi_types
from table import Call, TableError


@dataclasses.dataclass
class Field:
    name: str
    cpp: str
    size: int
    align: int
    offset: int = 0
    suffix: str = ""     # "[16]" for arrays


@dataclasses.dataclass
class Trailing:
    """One run of bytes behind the fixed part, described by its parameter."""
    param: object
    element_bytes: int
    count: str           # expression over parameter names, or "" for a string


@dataclasses.dataclass
class Layout:
    call: Call
    send: list
    reply: list
    send_items: list
    reply_items: list
    send_bytes: int
    reply_bytes: int


def _field(wire_or_type, name):
    if wire_or_type in abi_types.WIRE:
        cpp, size = abi_types.WIRE[wire_or_type]
        return Field(name, cpp, size, size)
    if wire_or_type == "CUtensorMap":
        return Field(name, "std::uint64_t", 128, 8, suffix="[16]")
    if wire_or_type in abi_types.STRUCTS:
        size, align = abi_types.STRUCTS[wire_or_type]
        return Field(name, wire_or_type, size, align)
    return _field(abi_types.wire_type(wire_or_type), name)


def _place(fields):
    """Adds named padding; returns the fields and the size in bytes."""
    placed, offset, pads = [], 0, 0

    def pad_to(alignment):
        nonlocal offset, pads
        missing = -offset % alignment
        while missing:
            piece = 4 if missing >= 4 and offset % 4 == 0 else 1
            kind = {4: "u32", 1: "u8"}[piece]
            pad = _field(kind, f"pad_{pads}")
            pad.offset = offset
            placed.append(pad)
            offset += piece
            missing -= piece
            pads += 1

    for field in fields:
        pad_to(field.align)
        field.offset = offset
        placed.append(field)
        offset += field.size
    pad_to(8)
    return placed, offset


def _derive(call):
    send, reply, send_items, reply_items = [], [], [], []
    for param in call.params:
        kind, name = param.kind, param.name
        if kind in ("value", "mask", "among", "below", "struct", "devptr"):
            send.append(_field("u64" if kind == "devptr" else param.ctype, name))
        elif kind in ("handle", "handle?", "new", "host", "callback", "bulk_in", "bulk_out"):
            send.append(_field("u64", name))
        elif kind in ("found", "found?"):
            reply.append(_field("u64", name))
        elif kind == "named":
            send.append(_field("u64", f"new_{name}"))
            reply.append(_field("u64", name))
        elif kind == "word_in":
            send.append(_field("u64", name))
        elif kind == "word_out":
            reply.append(_field("u64", name))
        elif kind in ("out", "out?"):
            reply.append(_field(param.pointee, name))
        elif kind == "inout":
            send.append(_field(param.pointee, name))
            reply.append(_field(param.pointee, name))
        elif kind in ("in", "in?"):
            if param.optional:
                send.append(_field("u32", f"has_{name}"))
            send.append(_field(param.pointee, name))
        elif kind in ("array_in", "array_in?"):
            if param.optional:
                send.append(_field("u32", f"has_{name}"))
            size = abi_types.element_bytes(param.pointee)
            send_items.append(Trailing(param, size, param.args[0]))
        elif kind == "handles_in":
            send_items.append(Trailing(param, 8, param.args[1]))
        elif kind == "array_out":
            reply_items.append(Trailing(param, abi_types.element_bytes(param.pointee),
                                        param.args[0]))
        elif kind == "string":
            send.append(_field("u32", f"{name}_bytes"))
            send_items.append(Trailing(param, 1, ""))
        elif kind == "opaque":
            raise TableError(f"{call.symbol}: parameter '{name}' is opaque; give the wire fields "
                             "with send and reply lines")
        else:
            raise TableError(f"{call.symbol}: kind '{kind}' cannot cross the wire by itself")
    if call.twin == "ptds":
        send.append(_field("u64", "stream"))
    return send, reply, send_items, reply_items


def layout_of(call):
    """Layout of a forwarded call."""
    if call.hand_call:
        return Layout(call, [], [], [], [], 0, 0)
    if not call.derived:
        send = [_field(kind, name) for kind, name in call.send]
        reply = [_field(kind, name) for kind, name in call.reply]
        send_items, reply_items = [], []
    else:
        send, reply, send_items, reply_items = _derive(call)
    if call.cls == "async" and (reply or reply_items):
        raise TableError(f"{call.symbol}: an async call has no reply, yet it has outputs")
    send, send_bytes = _place(send)
    reply, reply_bytes = _place(reply)
    return Layout(call, send, reply, send_items, reply_items, send_bytes, reply_bytes)


def dump(layouts):
    """The layouts as text: compared in a golden test, hashed into the table hash."""
    lines = []
    for item in layouts:
        if item.call.hand_call:
            lines.append(f"{item.call.number} {item.call.symbol} {item.call.cls} "
                         f"call={item.call.hand_call} reply={item.call.hand_reply or 'none'}")
            continue
        lines.append(f"{item.call.number} {item.call.symbol} {item.call.cls} "
                     f"call={item.send_bytes} reply={item.reply_bytes}")
        for label, fields in (("call", item.send), ("reply", item.reply)):
            lines += [f"  {label} +{f.offset} {f.cpp}{f.suffix} {f.name}" for f in fields]
        for label, items in (("trailing", item.send_items), ("reply_trailing", item.reply_items)):
            lines += [f"  {label} {t.param.name} {t.element_bytes} * {t.count or 'bytes'}"
                      for t in items]
        for label, text in (("trailing", item.call.send_trailing),
                            ("reply_trailing", item.call.reply_trailing)):
            if text:
                lines.append(f"  {label} {text}")
    return "\n".join(lines) + "\n"


def strip_comments(text):
    """C++ text without line comments and spacing: what a hash of a hand-written header covers."""
    return " ".join(" ".join(line.split("//")[0].split()) for line in text.splitlines()).strip()


def fnv1a(text):
    value = 0xcbf29ce484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return value
