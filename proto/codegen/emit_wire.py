"""wire_structs.h: the fixed parts of commands and replies."""

from emit_common import end_namespace, header
import abi_types


def _struct(name, fields, size):
    if not fields:
        return f"using {name} = NoFields;\n"
    text = f"struct {name} {{\n"
    text += "".join(f"    {f.cpp} {f.name}{f.suffix};\n" for f in fields)
    text += "};\n"
    text += f"static_assert(sizeof({name}) == {size});\n"
    for field in fields:
        if not field.name.startswith("pad_"):
            text += f"static_assert(offsetof({name}, {field.name}) == {field.offset});\n"
    text += f"static_assert(std::is_trivially_copyable_v<{name}>);\n"
    return text


def wire_structs(layouts):
    text = header("Fixed parts of commands and replies, little-endian, padding named.",
                  ["<cstddef>", "<cstdint>", "<type_traits>", "proto/cuda/abi.h",
                   "proto/cuda/wire_hand.h"],
                  "gantry::cuda::wire")
    text += """/// For commands without arguments and replies without a fixed part: no bytes cross.
struct NoFields {};

/// Bytes that a fixed part takes on the wire.
template <typename T>
inline constexpr std::size_t kWireBytes = std::is_empty_v<T> ? 0 : sizeof(T);

"""
    for name, (size, align) in sorted(abi_types.STRUCTS.items()):
        if name != "CUtensorMap":
            text += f"static_assert(sizeof({name}) == {size} && alignof({name}) == {align});\n"
    text += "\n"
    for item in layouts:
        call = item.call
        if call.hand_call:
            reply = f"wire_hand::{call.hand_reply}" if call.hand_reply else "NoFields"
            text += (f"// {call.number} {call.symbol} ({call.cls}): see proto/cuda/wire_hand.h\n"
                     f"using {call.symbol}_call = wire_hand::{call.hand_call};\n"
                     f"using {call.symbol}_reply = {reply};\n"
                     f"static_assert(sizeof({call.symbol}_call) % 8 == 0);\n\n")
            continue
        text += f"// {call.number} {call.symbol} ({call.cls})\n"
        for trailing in item.send_items:
            text += (f"// Trails: {trailing.param.name}, {trailing.element_bytes} bytes * "
                     f"{trailing.count or trailing.param.name + '_bytes'}, padded to 8.\n")
        if call.send_trailing:
            text += f"// Trails: {call.send_trailing}.\n"
        text += _struct(f"{call.symbol}_call", item.send, item.send_bytes)
        for trailing in item.reply_items:
            text += (f"// Reply trails: {trailing.param.name}, {trailing.element_bytes} bytes * "
                     f"{trailing.count}.\n")
        if call.reply_trailing:
            text += f"// Reply trails: {call.reply_trailing}.\n"
        text += _struct(f"{call.symbol}_reply", item.reply, item.reply_bytes) + "\n"
    return text + end_namespace("gantry::cuda::wire")
