"""worker_dispatch.h/.cc: decodes commands from a hostile guest and calls one handler per call.

Handlers are weak: those of rows marked generated (or shim-hand) translate handles and call the
driver; the others refuse. The worker's strong definitions take their place.
"""

from emit_common import end_namespace, enum_kind, header, source, wrap
import abi_types
from table import HANDLE_KINDS

ARGUMENTS = ["CallContext& context", "const wire::{s}_call& call",
             "std::span<const std::byte> trailing", "Reply& reply"]


def _signature(prefix, symbol, end):
    return wrap(f"{prefix}{symbol}(", [a.format(s=symbol) for a in ARGUMENTS], end)


def worker_dispatch_h(layouts):
    text = header("One handler per forwarded call, and the dispatch that checks and calls them.",
                  ["<cstddef>", "<cstdint>", "<span>", "proto/cuda/dispatch_interface.h",
                   "proto/cuda/gen/opcodes.h", "proto/cuda/gen/wire_structs.h",
                   "proto/wire/region.h"],
                  "gantry::worker")
    text += """/// The calls' structs, beside the ring's own (gantry::wire).
namespace wire {
using namespace gantry::wire;
using namespace cuda::wire;
}  // namespace wire

/// Executes one command. `args` may lie in shared memory: it is copied once before use. `trailing`
/// must be the caller's own copy, 8-aligned. The result is the answer's status; outputs go to
/// `reply` (ignore them unless the result is CUDA_SUCCESS or the handler says otherwise).
CUresult dispatch(CallContext& context, cuda::Op op, std::span<const std::byte> args,
                  std::span<const std::byte> trailing, Reply& reply);

/// The handlers. Define the hand-written ones with these signatures, in objects of the same link.
"""
    for item in layouts:
        text += _signature("CUresult on_", item.call.symbol, ");")
    text += """
/// Calls that the worker has of its own, in place of the driver's: a handle that is looked up is
/// the worker's value of it, a new one comes in as the guest chose it and goes out as the worker's
/// value, devices are the guest's.
namespace served {

"""
    for item in layouts:
        if item.call.served:
            text += _served_signature(item.call, "", ");")
    text += "\n}  // namespace served\n"
    text += """
/// The generated bodies under names of their own, for hand-written handlers that add to them.
namespace generated {

"""
    for item in layouts:
        if item.call.derived and _generatable(item):
            text += _signature("CUresult on_", item.call.symbol, ");")
    text += "\n}  // namespace generated\n"
    return text + end_namespace("gantry::worker")


def _served_signature(call, prefix, end):
    return wrap(f"{prefix}CUresult {call.symbol}(",
                ["CallContext& context"] + [p.declaration() for p in call.params], end)


def _generatable(item):
    """Can a body be written without knowing what the call means?"""
    call = item.call
    if call.twin == "ptds":
        return False  # Which default stream is meant cannot be said through the plain entry point.
    hidden = ("callback", "opaque", "bulk_in", "bulk_out", "text_out")
    hidden += () if call.served else ("host",)
    return all(p.kind not in hidden for p in call.params)


def _native(param, served):
    """C++ expression of the driver's argument."""
    kind, name = param.kind, param.name
    if not served and (_is_device(param) or _is_location(param)):
        return f"&{name}" if kind == "in" else name
    if kind in ("value", "mask", "among", "below", "devptr", "host"):
        return f"convert<{param.ctype}>(call.{name})"
    if kind == "struct":
        return f"call.{name}"
    if kind in ("handle", "handle?"):
        return f"convert<{param.ctype}>({name}_native)"
    if kind in ("new", "found", "found?", "named", "out", "out?", "inout", "word_in", "word_out"):
        return f"&{name}"
    if kind == "in":
        return f"&{name}" if _copied_in(param) or _is_translated(param) else f"&call.{name}"
    if kind == "in?":
        pointer = f"&{name}" if _copied_in(param) else f"&call.{name}"
        return f"call.has_{name} != 0 ? {pointer} : nullptr"
    if kind in ("array_in", "array_in?"):
        return f"{name}"
    if kind in ("handles_in", "array_out"):
        return f"{name}.data()"
    if kind == "string":
        return f"{name}.c_str()"
    raise ValueError(kind)


def _is_device(param):
    """A device number: the guest's 0 is whichever device the worker has."""
    return param.kind == "value" and param.ctype == "CUdevice"


def _is_location(param):
    """A place of memory, which may name a device by its number."""
    return (param.kind == "struct" and param.ctype in _LOCATIONS
            or param.kind == "in" and param.pointee in _LOCATIONS)


_LOCATIONS = ("CUmemLocation", "CUmemLocation_v1")


def _is_translated(param):
    """A structure that names objects: the driver's handles take the place of the guest's."""
    return param.pointee in ("CUDA_RESOURCE_DESC_v1",)


def _copied_in(param):
    """Scalars, enumerations, over-aligned and non-const arguments need a local."""
    return (param.pointee not in abi_types.STRUCTS or param.pointee == "CUtensorMap"
            or not param.ctype.startswith("const"))


def _locals(item):
    text = ""
    served = item.call.served
    for param in item.call.params:
        kind, name, pointee = param.kind, param.name, param.pointee
        if kind in ("handle", "handle?"):
            resolve = (f"context.resolve({_kind(param.args[0])}, call.{name}, &{name}_native)")
            text += f"    std::uint64_t {name}_native = 0;\n"
            nullable = kind == "handle?" and param.args[0] != "stream"
            condition = f"call.{name} != 0" if nullable else ""
            if condition:
                text += (f"    if ({condition}) {{\n"
                         f"        if (const CUresult status =\n                {resolve};\n"
                         f"            status != CUDA_SUCCESS) {{\n"
                         f"            return status;\n        }}\n    }}\n")
            else:
                text += (f"    if (const CUresult status =\n            {resolve};\n"
                         f"        status != CUDA_SUCCESS) {{\n        return status;\n    }}\n")
        elif not served and _is_device(param):
            text += (f"    CUdevice {name}{{}};\n"
                     f"    if (const CUresult status = context.device(call.{name}, &{name});\n"
                     f"        status != CUDA_SUCCESS) {{\n        return status;\n    }}\n")
        elif not served and _is_location(param):
            structure = param.pointee if kind == "in" else param.ctype
            text += (f"    {structure} {name}{{}};\n"
                     f"    std::memcpy(&{name}, &call.{name}, sizeof {name});\n"
                     f"    if (const CUresult status = map_location(context, &{name});\n"
                     f"        status != CUDA_SUCCESS) {{\n        return status;\n    }}\n")
        elif kind == "among":  # The driver must never see other values: checked here too.
            condition = " && ".join(f"call.{name} != {value}" for value in param.args)
            text += f"    if ({condition}) {{\n        return CUDA_ERROR_INVALID_VALUE;\n    }}\n"
        elif kind == "new":
            text += (f"    if (const CUresult status = context.reserve({_kind(param.args[0])}, "
                     f"call.{name});\n        status != CUDA_SUCCESS) {{\n"
                     f"        return status;\n    }}\n    {pointee} {name}{{}};\n")
            if served:
                text += f"    store(&{name}, call.{name});\n"
        elif kind in ("found", "found?", "named", "out", "out?"):
            text += f"    {pointee} {name}{{}};\n"
        elif kind == "word_in":
            text += f"    std::uint64_t {name} = call.{name};\n"
        elif kind == "word_out":
            text += f"    std::uint64_t {name} = 0;\n"
        elif kind == "in" and _is_translated(param):
            text += (f"    {pointee} {name}{{}};\n" + _copy(f"&{name}", f"call.{name}", param)
                     + f"    if (const CUresult status = to_native(context, &{name});\n"
                     f"        status != CUDA_SUCCESS) {{\n        return status;\n    }}\n")
        elif kind == "below":
            text += (f"    if (call.{name} >= {param.args[0]}) {{\n"
                     "        return CUDA_ERROR_INVALID_VALUE;\n    }\n")
        elif kind == "inout" or (kind in ("in", "in?") and _copied_in(param)):
            text += f"    {pointee} {name}{{}};\n" + _copy(f"&{name}", f"call.{name}", param)
    return text


def _copy(target, source_text, param):
    if param.pointee in abi_types.STRUCTS:
        return f"    std::memcpy({target}, &{source_text}, sizeof {target[1:]});\n"
    return f"    store({target}, {source_text});\n"


def _kind(kind):
    return "cuda::" + enum_kind(kind)


def _count(part):
    base, _, minus = part.count.partition("-")
    if minus:
        return f"(call.{base} > {minus} ? call.{base} - {minus} : 0)"
    return f"call.{base}"


def _trailing(item):
    """Takes the trailing items apart, in order; refuses lengths that do not add up."""
    if not item.send_items and not item.reply_items:
        return ""
    text = ""
    if item.send_items:
        text += "    TrailingReader reader(trailing);\n"
    for part in item.send_items:
        param, name = part.param, part.param.name
        count = f"call.{name}_bytes" if not part.count else _count(part)
        if param.kind == "array_in?":
            count = f"(call.has_{name} != 0 ? {count} : 0)"
        text += (f"    const std::byte* const {name}_bytes = reader.take({count}, "
                 f"{part.element_bytes});\n"
                 f"    if ({name}_bytes == nullptr) {{\n"
                 f'        return context.malformed(Op::{item.call.symbol}, "{name}: length");\n'
                 f"    }}\n")
        if param.kind == "string":
            text += (f"    const std::string {name}(reinterpret_cast<const char*>({name}_bytes),\n"
                     f"                           call.{name}_bytes);\n")
        elif param.kind == "handles_in":
            text += (f"    std::vector<{param.pointee}> {name};\n"
                     f"    if (const CUresult status = resolve_all(context, "
                     f"{_kind(param.args[0])},\n            {name}_bytes, {count}, &{name});\n"
                     f"        status != CUDA_SUCCESS) {{\n        return status;\n    }}\n")
        else:
            const = "const " if param.ctype.startswith("const") else ""
            expression = f"reinterpret_cast<const {param.pointee}*>({name}_bytes)"
            if not const:
                expression = f"const_cast<{param.pointee}*>({expression})"
            if param.kind == "array_in?":
                expression = f"call.has_{name} != 0 ? {expression} : nullptr"
            text += f"    {const}{param.pointee}* const {name} = {expression};\n"
    if item.send_items:
        text += ("    if (!reader.empty()) {\n"
                 f"        return context.malformed(Op::{item.call.symbol},\n"
                 '                                 "bytes behind the arguments");\n    }\n')
    for part in item.reply_items:
        count = _count(part)
        text += (f"    if ({count} > kMostReplyElements) {{\n"
                 f"        return context.malformed(Op::{item.call.symbol},\n"
                 f'                                 "{part.param.name}: length");\n'
                 f"    }}\n    std::vector<{part.param.pointee}> {part.param.name}({count});\n")
    return text


def _effects(item):
    """Bookkeeping after the driver said yes."""
    call = item.call
    text = ""
    recipe = f"Recipe{{Op::{call.symbol}, args_of(call), trailing}}"
    if call.effect == "creates":
        made = [p for p in call.params if p.kind == "new" and p.args[0] == call.effect_kind]
        if made:
            name = made[0].name
            text += (f"    if (const CUresult status = context.bind({_kind(call.effect_kind)}, "
                     f"call.{name},\n            convert<std::uint64_t>({name}), {recipe});\n"
                     f"        status != CUDA_SUCCESS) {{\n        return status;\n    }}\n")
    elif call.effect in ("destroys", "configures") and call.effect_kind in HANDLE_KINDS:
        of_kind = [p for p in call.params
                   if p.kind in ("handle", "handle?") and p.args[0] == call.effect_kind]
        named = [p for p in of_kind if not call.effect_param or p.name == call.effect_param]
        handle = f"call.{named[0].name}" if named else "0"
        if call.effect == "destroys":
            text += f"    context.unbind({_kind(call.effect_kind)}, {handle});\n"
        elif call.migration == "replay":
            text += f"    context.configured({_kind(call.effect_kind)}, {handle}, {recipe});\n"
    return text


def _answer(item):
    text = ""
    recipe = f"Recipe{{Op::{item.call.symbol}, args_of(call), trailing}}"
    if item.reply:
        text += f"    wire::{item.call.symbol}_reply answer{{}};\n"
        for param in item.call.params:
            kind, name = param.kind, param.name
            if kind in ("found", "found?"):
                find = (f"context.guest_handle({_kind(param.args[0])},\n"
                        f"            convert<std::uint64_t>({name}), &answer.{name})")
                if kind == "found?":
                    find = f"{name} == nullptr ? CUDA_SUCCESS : {find}"
                text += (f"    if (const CUresult status = {find};\n"
                         f"        status != CUDA_SUCCESS) {{\n        return status;\n    }}\n")
            elif kind == "named":
                text += (f"    if (const CUresult status = context.name({_kind(param.args[0])}, "
                         f"call.new_{name},\n            convert<std::uint64_t>({name}), {recipe}, "
                         f"&answer.{name});\n        status != CUDA_SUCCESS) {{\n"
                         f"        return status;\n    }}\n")
            elif kind == "word_out":
                text += f"    answer.{name} = {name};\n"
            elif kind in ("out", "out?", "inout"):
                if _is_translated(param):
                    text += f"    to_guest(context, &{name});\n"
                if param.pointee in abi_types.STRUCTS:
                    text += (f"    std::memcpy(&answer.{name}, &{name}, sizeof answer.{name});\n")
                else:
                    text += f"    store(&answer.{name}, {name});\n"
        text += "    reply.put(answer);\n"
    for part in item.reply_items:
        text += f"    reply.trailing(std::as_bytes(std::span({part.param.name})));\n"
    return text


def _body(item):
    call = item.call
    uses_call = bool(item.send)
    text = wrap(f"CUresult on_{call.symbol}(",
                ["CallContext& context",
                 f"[[maybe_unused]] const wire::{call.symbol}_call& call",
                 "[[maybe_unused]] std::span<const std::byte> trailing",
                 "[[maybe_unused]] Reply& reply"], ") {")
    if not call.served:
        text += (f"    auto* const entry_point = context.driver().{call.symbol};\n"
                 f"    if (entry_point == nullptr) {{\n"
                 f"        return context.unsupported(Op::{call.symbol});\n    }}\n")
    text += _trailing(item) + _locals(item)
    entry = [f"served::{call.symbol}(", "context"] if call.served else ["entry_point("]
    text += wrap(f"    const CUresult driver_status = {entry[0]}",
                 entry[1:] + [_native(p, call.served) for p in call.params], ");")
    after = _effects(item) + _answer(item)
    if after:
        text += ("    if (driver_status != CUDA_SUCCESS) {\n        return driver_status;\n    }\n"
                 + after)
    assert uses_call or not item.send_items
    return text + "    return driver_status;\n}\n"


def _weak(item, generated):
    call = item.call
    if generated:
        text = _signature("[[gnu::weak]] CUresult on_", call.symbol, ") {")
        return (text + f"    return generated::on_{call.symbol}(context, call, trailing, reply);\n"
                + "}\n")
    arguments = ["CallContext& context", f"const wire::{call.symbol}_call&",
                 "std::span<const std::byte>", "Reply&"]
    text = wrap(f"[[gnu::weak]] CUresult on_{call.symbol}(", arguments, ") {")
    return text + f"    return context.unsupported(Op::{call.symbol});\n}}\n"


def _weak_served(call):
    arguments = ["CallContext& context"] + [p.ctype for p in call.params]
    return (wrap(f"[[gnu::weak]] CUresult {call.symbol}(", arguments, ") {")
            + f"    return context.unsupported(Op::{call.symbol});\n}}\n")


def _decoder(item):
    """Checks sizes, copies the arguments, calls the handler."""
    call = item.call
    text = (f"CUresult decode_{call.symbol}(CallContext& context,\n"
            f"    std::span<const std::byte> args, std::span<const std::byte> trailing,\n"
            f"    Reply& reply) {{\n"
            f"    wire::{call.symbol}_call call;\n"
            f"    if (!copy_args(args, &call)) {{\n"
            f"        return context.malformed(Op::{call.symbol},\n"
            '                                 "size of the arguments");\n    }\n')
    expression = call.send_trailing.partition(":")[0].strip() if ":" in call.send_trailing else ""
    if expression:
        for _, name in call.send:
            expression = _qualify(expression, name)
        text += (f"    if (trailing.size() != {expression}) {{\n"
                 f"        return context.malformed(Op::{call.symbol},\n"
                 '                                 "size of what trails");\n    }\n')
    elif not item.send_items and not call.send_trailing and not call.hand_call:
        text += (f"    if (!trailing.empty()) {{\n"
                 f"        return context.malformed(Op::{call.symbol},\n"
                 '                                 "bytes behind the arguments");\n    }\n')
    return text + f"    return on_{call.symbol}(context, call, trailing, reply);\n}}\n"


def _qualify(expression, name):
    words = []
    for word in expression.replace("(", " ( ").replace(")", " ) ").split():
        words.append(f"std::uint64_t{{call.{name}}}" if word == name else word)
    return " ".join(words).replace("( ", "(").replace(" )", ")")


def worker_dispatch_cc(calls, layouts):
    text = source("Decodes commands and calls the driver. Every byte of input is hostile.",
                  ["<cstring>", "<string>", "<vector>", "proto/cuda/convert.h",
                   "proto/cuda/dispatch_support.h", "proto/cuda/gen/driver_api_table.h",
                   "proto/cuda/gen/worker_dispatch.h"])
    text += "namespace gantry::worker {\n\n"
    text += "using cuda::convert;\nusing cuda::Op;\nusing cuda::store;\n\n"
    text += "namespace served {\n\n"
    for item in layouts:
        if item.call.served:
            text += _weak_served(item.call) + "\n"
    text += "}  // namespace served\n\nnamespace generated {\n\n"
    for item in layouts:
        if item.call.derived and _generatable(item):
            text += _body(item) + "\n"
    text += "}  // namespace generated\n\n"
    for item in layouts:
        body = item.call.worker_generated and item.call.derived and _generatable(item)
        if item.call.worker_generated and not body:
            raise ValueError(f"{item.call.symbol}: cannot be generated in the worker")
        text += _weak(item, body) + "\n"
    text += "namespace {\n\n"
    for item in layouts:
        text += _decoder(item) + "\n"
    text += ("using Decoder = CUresult (*)(CallContext&, std::span<const std::byte>,\n"
             "                             std::span<const std::byte>, Reply&);\n\n"
             "constexpr Decoder kDecoders[cuda::kOpEnd - cuda::kFirstOp] = {\n")
    forwarded = {item.call.number: item.call.symbol for item in layouts}
    for number in range(calls[0].number, calls[-1].number + 1):
        text += f"    decode_{forwarded[number]},\n" if number in forwarded else "    nullptr,\n"
    text += """};

}  // namespace

CUresult dispatch(CallContext& context, Op op, std::span<const std::byte> args,
                  std::span<const std::byte> trailing, Reply& reply) {
    const auto number = static_cast<std::uint16_t>(op);
    if (number < cuda::kFirstOp || number >= cuda::kOpEnd ||
        kDecoders[number - cuda::kFirstOp] == nullptr) {
        return context.malformed(op, "a number that never crosses");
    }
    return kDecoders[number - cuda::kFirstOp](context, args, trailing, reply);
}
"""
    return text + end_namespace("gantry::worker")
