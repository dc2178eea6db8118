"""shim_marshal.h/.cc: the guest's side of calls whose wire form follows from their parameters.

Every such call gets gantry::marshal::SYMBOL; rows marked generated (or worker-hand) also get the
cuda_impl function, hand-written code of the others may call the marshal function for its wire part.
"""

from emit_common import declarations, end_namespace, enum_kind, header, names, source, wrap
from table import GUEST_RULES


def marshalled(layouts):
    return [item for item in layouts if item.call.derived]


def _minted_by_caller(call, param):
    """Hand-written code has its own table of handles: it passes the new one in."""
    return param.kind == "new" and not call.shim_generated


def _signature(call):
    params = [f"std::uint64_t {p.name}" if _minted_by_caller(call, p) else p.declaration()
              for p in call.params]
    if call.twin == "ptds":
        params = ["std::uint64_t stream"] + params
    return params


def shim_marshal_h(layouts):
    text = header("Wire marshalling in the guest: fills a command, sends it, stores outputs.",
                  ["<cstdint>", "proto/cuda/abi.h"], "gantry::marshal")
    text += ("// Calls with hand-written shim code take the new object's handle where the ABI has\n"
             "// an output pointer. A leading `stream` is the default stream (0 or 2) of calls\n"
             "// without a stream parameter.\n\n")
    for item in marshalled(layouts):
        text += wrap(f"CUresult {item.call.symbol}(", _signature(item.call), ") noexcept;")
    return text + end_namespace("gantry::marshal")


def _reject(condition, result):
    return f"    if ({condition}) {{\n        return {result};\n    }}\n"


def _checks(call, kinds):
    text = ""
    for param in call.params:
        kind, name = param.kind, param.name
        pointer = kind in ("out", "inout", "in", "string", "new", "found", "found?", "named",
                           "array_out", "word_in", "word_out")
        if _minted_by_caller(call, param):
            continue
        if pointer:
            text += _reject(f"{name} == nullptr", "CUDA_ERROR_INVALID_VALUE")
        elif kind in ("array_in", "handles_in"):
            count = _count(param)
            text += _reject(f"{name} == nullptr && {count} != 0", "CUDA_ERROR_INVALID_VALUE")
        elif kind in ("handle", "handle?"):
            text += _check_handle(param, kinds)
        elif kind == "among":
            condition = " && ".join(f"{name} != {value}" for value in param.args)
            text += _reject(condition, "CUDA_ERROR_INVALID_VALUE")
        elif kind == "below":
            text += _reject(f"static_cast<std::uint64_t>({name}) >= {param.args[0]}",
                            "CUDA_ERROR_INVALID_VALUE")
        elif kind == "mask":
            mask = param.args[0]
            text += _reject(f"({name} & ~static_cast<{param.ctype}>({mask})) != 0",
                            "CUDA_ERROR_INVALID_VALUE")
    return text


def _check_handle(param, kinds):
    """A bad handle of a kind that the guest knows is found here, at its own call."""
    of, word = param.args[0], f"convert<std::uint64_t>({param.name})"
    kind = kinds[of]
    bad = kind.bad
    if kind.in_guest:
        unknown = f"!is_known(cuda::{enum_kind(of)}, {word})"
        nullable = param.optional and of != "stream"  # Stream 0 is known.
        return _reject(f"{word} != 0 && {unknown}" if nullable else unknown, bad)
    return "" if param.optional else _reject(f"{word} == 0", bad)


def _count(param):
    """Length of an array as 64-bit C++; expressions are `name` or `name-constant`."""
    expression = param.args[-1]
    base, _, minus = expression.partition("-")
    if minus:
        return f"marshal_count({base}, {minus})"
    return f"static_cast<std::uint64_t>({base})"


def _fill(item):
    text = ""
    fields = {f.name: f for f in item.send}
    for param in item.call.params:
        kind, name = param.kind, param.name
        if _minted_by_caller(item.call, param):
            text += f"    call.{name} = {name};\n"
        elif kind == "new":
            text += (f"    const std::uint64_t new_handle = session::mint(cuda::"
                     f"{enum_kind(param.args[0])});\n    call.{name} = new_handle;\n")
        elif kind == "named":
            text += f"    call.new_{name} = session::mint(cuda::{enum_kind(param.args[0])});\n"
        elif kind == "word_in":
            text += f"    std::memcpy(&call.{name}, {name}, {param.args[0]});\n"
        elif kind in ("value", "mask", "among", "below", "devptr", "handle", "handle?", "host",
                      "callback", "bulk_in", "bulk_out"):
            text += f"    call.{name} = convert<{fields[name].cpp}>({name});\n"
        elif kind == "struct":
            text += f"    call.{name} = {name};\n"
        elif kind in ("in", "inout"):
            text += _copy_in(fields[name], name)
        elif kind == "in?":
            text += f"    if ({name} != nullptr) {{\n        call.has_{name} = 1;\n    "
            text += _copy_in(fields[name], name) + "    }\n"
        elif kind == "array_in?":
            text += f"    call.has_{name} = {name} != nullptr ? 1 : 0;\n"
        elif kind == "string":
            text += (f"    const std::size_t {name}_length = std::strlen({name});\n"
                     f"    if ({name}_length > kMostStringBytes) {{\n"
                     f"        return CUDA_ERROR_INVALID_VALUE;\n    }}\n"
                     f"    call.{name}_bytes = static_cast<std::uint32_t>({name}_length);\n")
    if item.call.twin == "ptds":
        text += "    call.stream = stream;\n"
    return text


def _copy_in(field, name):
    if field.suffix:
        return f"    std::memcpy(call.{name}, {name}, sizeof call.{name});\n"
    if field.cpp.startswith("std::") or field.cpp == "float":
        return f"    call.{name} = convert<{field.cpp}>(*{name});\n"
    return f"    call.{name} = *{name};\n"


def _trailing(item):
    """Code that gathers trailing bytes, and the expressions (pointer, size) of the result."""
    items = item.send_items
    if not items:
        return "", "nullptr", "0"
    text = "    TrailingBuffer trailing;\n"
    for part in items:
        name = part.param.name
        if part.count:
            size = f"{_count(part.param)} * {part.element_bytes}"
            if part.param.kind == "array_in?":
                size = f"({name} != nullptr ? {size} : 0)"
            text += (f"    if ({_count(part.param)} > kMostElements) {{\n"
                     f"        return CUDA_ERROR_INVALID_VALUE;\n    }}\n")
        else:
            size = f"{name}_length"
        text += f"    trailing.append({name}, {size});\n"
    text += _reject("trailing.failed()", "CUDA_ERROR_OUT_OF_MEMORY")
    return text, "trailing.bytes()", "trailing.size()"


def _store(item):
    text = ""
    fields = {f.name: f for f in item.reply}
    for param in item.call.params:
        kind, name = param.kind, param.name
        if _minted_by_caller(item.call, param):
            continue
        if kind == "new":
            text += f"    store({name}, new_handle);\n"
        elif kind == "word_out":
            text += f"    std::memcpy({name}, &reply.{name}, {param.args[0]});\n"
        elif kind in ("out", "inout", "found", "found?", "named"):
            text += _copy_out(fields[name], name, "    ")
        elif kind == "out?":
            text += f"    if ({name} != nullptr) {{\n"
            text += _copy_out(fields[name], name, "        ") + "    }\n"
    return text


def _copy_out(field, name, indent):
    if field.suffix:
        return f"{indent}std::memcpy({name}, reply.{name}, sizeof reply.{name});\n"
    if field.cpp.startswith("std::") or field.cpp == "float":
        return f"{indent}store({name}, reply.{name});\n"
    return f"{indent}*{name} = reply.{name};\n"


def _send(item, trailing, size):
    call = item.call
    args = ("&call, sizeof call" if item.send else "nullptr, 0")
    if call.cls == "async" or (call.cls == "bulk" and not item.reply):
        return (f"    const CUresult status =\n        session::post(Op::{call.symbol}, {args},\n"
                f"                      {trailing}, {size});\n")
    reply = "&reply, sizeof reply" if item.reply else "nullptr, 0"
    tail = "nullptr, 0, nullptr"
    if item.reply_items:
        part = item.reply_items[0]
        tail = (f"{part.param.name}, static_cast<std::uint32_t>({_count(part.param)} * "
                f"{part.element_bytes}), &reply_trailing_bytes")
    return (f"    const CUresult status =\n        session::call(Op::{call.symbol}, {args},\n"
            f"                      {trailing}, {size},\n"
            f"                      {reply}, {tail});\n")


def _function(item, kinds):
    call = item.call
    text = wrap(f"CUresult {call.symbol}(", _signature(call), ") noexcept {")
    text += _checks(call, kinds)
    if item.send:
        text += f"    wire::{call.symbol}_call call{{}};\n"
    if item.reply:
        text += f"    wire::{call.symbol}_reply reply{{}};\n"
    text += _fill(item)
    gather, trailing, size = _trailing(item)
    text += gather
    for part in item.reply_items:
        text += (f"    if ({_count(part.param)} > kMostReplyElements) {{\n"
                 f"        return CUDA_ERROR_INVALID_VALUE;\n    }}\n")
    if item.reply_items:
        text += "    std::uint32_t reply_trailing_bytes = 0;\n"
    text += _send(item, trailing, size)
    stores = _store(item)
    if stores:
        text += _reject("status != CUDA_SUCCESS", "status") + stores
        text += "    return CUDA_SUCCESS;\n}\n"
    else:
        text += "    return status;\n}\n"
    return text


def _impl(call):
    leading = ["DefaultStream default_stream"] if call.twin == "ptds" else []
    text = wrap(f"CUresult {call.symbol}(", declarations(call, leading), ") noexcept {")
    args = names(call)
    if call.twin == "ptds":
        args = ["convert<std::uint64_t>(default_stream_handle(default_stream))"] + args
    rules = {kind: [rule for which, rule in call.rules if which == kind] for kind in GUEST_RULES}
    for rule in rules["check"]:
        text += (f"    if (const CUresult refused = rules::{rule}; refused != CUDA_SUCCESS) {{\n"
                 "        return refused;\n    }\n")
    for rule in rules["answer"]:
        text += (f"    if (const auto known = rules::{rule}; known) {{\n"
                 "        return *known;\n    }\n")
    if not rules["note"] and not rules["settle"]:
        return text + wrap(f"    return marshal::{call.symbol}(", args, ");") + "}\n"
    text += wrap(f"    const CUresult status = marshal::{call.symbol}(", args, ");")
    if rules["note"]:
        text += "    if (status == CUDA_SUCCESS) {\n"
        text += "".join(f"        rules::{rule};\n" for rule in rules["note"]) + "    }\n"
    last = "status"
    for rule in rules["settle"]:
        last = f"rules::{rule}".replace("(", f"({last}, ", 1)
    return text + f"    return {last};\n}}\n"


def _via(call):
    text = wrap(f"CUresult {call.symbol}(",
                declarations(call, ["DefaultStream default_stream"]), ") noexcept {")
    args = names(call) + ["default_stream_handle(default_stream)"]
    return text + wrap(f"    return cuda_impl::{call.via}(", args, ");") + "}\n"


def shim_marshal_cc(calls, layouts):
    text = source("Wire marshalling in the guest. Libc only.",
                  ["<cstring>", "guest-shim/session/session.h", "proto/cuda/convert.h",
                   "proto/cuda/gen/impl.h", "proto/cuda/gen/shim_marshal.h",
                   "proto/cuda/gen/wire_structs.h", "proto/cuda/marshal_support.h"])
    text += """namespace gantry::marshal {

using cuda::convert;
using cuda::Op;
using cuda::store;
namespace wire = cuda::wire;

namespace {

[[maybe_unused]] constexpr std::size_t kMostStringBytes = 1u << 16;
constexpr std::uint64_t kMostElements = 1u << 20;
constexpr std::uint64_t kMostReplyElements = 4096;

/// base - minus, or 0 where that would be negative.
[[maybe_unused]] constexpr std::uint64_t marshal_count(std::uint64_t base,
                                                       std::uint64_t minus) noexcept {
    return base > minus ? base - minus : 0;
}

}  // namespace

"""
    for item in marshalled(layouts):
        text += _function(item, calls.kinds) + "\n"
    text += "}  // namespace gantry::marshal\n\nnamespace gantry::cuda_impl {\n\n"
    text += "using cuda::convert;\n\n"
    for item in marshalled(layouts):
        if item.call.shim_generated and not item.call.rules:
            text += _impl(item.call) + "\n"
    for call in calls:
        if call.via:
            text += _via(call) + "\n"
    return text + "}  // namespace gantry::cuda_impl\n"


def shim_rules_cc(layouts):
    """The calls around which the guest has rules of its own."""
    text = source("Calls that the guest checks, answers or takes note of around their marshalling.",
                  ["guest-shim/driver/core/call_rules.h", "proto/cuda/convert.h",
                   "proto/cuda/gen/impl.h", "proto/cuda/gen/shim_marshal.h"])
    text += "namespace gantry::cuda_impl {\n\nusing cuda::convert;\n"
    text += "namespace rules = shim::rules;\n\n"
    for item in marshalled(layouts):
        if item.call.shim_generated and item.call.rules:
            text += _impl(item.call) + "\n"
    return text + "}  // namespace gantry::cuda_impl\n"
