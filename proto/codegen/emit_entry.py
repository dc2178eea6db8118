"""exports.*, impl.h, refused_weak.cc, exports.map: the exported ABI of shim and soft driver."""

from emit_common import declarations, end_namespace, header, names, source, wrap

PER_THREAD = "CU_STREAM_PER_THREAD"


def targets(calls):
    """Calls that have an implementation function of their own."""
    return [call for call in calls if not call.same_as and call.exported]


def _leading(call):
    return ["DefaultStream default_stream"] if call.twin == "ptds" else []


def impl_h(calls):
    text = header("What an implementation of the CUDA driver API (shim or soft driver) defines.",
                  ["proto/cuda/abi.h", "proto/cuda/gen/opcodes.h"], "gantry::cuda_impl")
    text += """/// Which default stream a call without a stream parameter means.
enum class DefaultStream { kLegacy, kPerThread };

/// The default stream as a handle: null (legacy) or CU_STREAM_PER_THREAD.
inline CUstream default_stream_handle(DefaultStream which) noexcept {
    return which == DefaultStream::kPerThread ? CU_STREAM_PER_THREAD : nullptr;
}

/// Counts the refusal and returns CUDA_ERROR_NOT_SUPPORTED. Defined by the implementation.
CUresult refused(cuda::Op op) noexcept;

"""
    for call in targets(calls):
        text += wrap(f"CUresult {call.symbol}(", declarations(call, _leading(call)),
                     ") noexcept;")
    return text + end_namespace("gantry::cuda_impl")


def refused_weak(calls):
    text = source("Weak definitions: what an implementation does not define is refused by name.",
                  ["proto/cuda/gen/impl.h"])
    text += "namespace gantry::cuda_impl {\n\n"
    for call in targets(calls):
        types = (["DefaultStream"] if call.twin == "ptds" else []) + [p.ctype for p in call.params]
        text += wrap(f"[[gnu::weak]] CUresult {call.symbol}(", types, ") noexcept {")
        text += f"    return refused(cuda::Op::{call.symbol});\n}}\n"
    return text + end_namespace("gantry::cuda_impl")


def _per_thread_prologue(call):
    """Code that turns null streams into the per-thread stream, and what it must undo."""
    before, after = "", ""
    for param in call.params:
        if param.ctype == "CUstream":
            before += (f"    if ({param.name} == nullptr) {{\n"
                       f"        {param.name} = {PER_THREAD};\n    }}\n")
        elif param.ctype == "const CUlaunchConfig *":
            before += (f"    CUlaunchConfig on_thread_stream;\n"
                       f"    if ({param.name} != nullptr && {param.name}->hStream == nullptr) {{\n"
                       f"        on_thread_stream = *{param.name};\n"
                       f"        on_thread_stream.hStream = {PER_THREAD};\n"
                       f"        {param.name} = &on_thread_stream;\n    }}\n")
        elif param.ctype == "CUDA_GRAPH_INSTANTIATE_PARAMS *":
            before += (f"    const bool stream_is_null =\n"
                       f"        {param.name} != nullptr && "
                       f"{param.name}->hUploadStream == nullptr;\n"
                       f"    if (stream_is_null) {{\n"
                       f"        {param.name}->hUploadStream = {PER_THREAD};\n    }}\n")
            after += (f"    if (stream_is_null) {{\n"
                      f"        {param.name}->hUploadStream = nullptr;\n    }}\n")
    if not before:
        raise ValueError(f"{call.symbol}: a ptsz twin needs a stream parameter")
    return before, after


def _lenders(call, target):
    """What a call may take its context of, by the names of `call`."""
    place = {param.name: number for number, param in enumerate(target.params)}
    return [call.params[place[name]].name for name in target.context_of]


def _entry(symbol, call, target, stream):
    """One exported function. `call` names it, `target` implements it."""
    text = wrap(f"GANTRY_CUDA_EXPORT CUresult {symbol}(", declarations(call), ") noexcept {")
    if target.context_of:
        text += f"    const LentContext lent({', '.join(_lenders(call, target))});\n"
    text += (f"    if (const CUresult status = enter(Op::{call.symbol}); "
             f"status != CUDA_SUCCESS) {{\n"
             f"        return leave(Op::{call.symbol}, status);\n    }}\n")
    args = names(call)
    if target.twin == "ptds":
        which = "kPerThread" if stream == "ptds" else "kLegacy"
        args = [f"DefaultStream::{which}"] + args
    before, after = _per_thread_prologue(call) if stream == "ptsz" else ("", "")
    text += before
    invoke = f"gantry::cuda_impl::{target.symbol}("
    if after:
        text += wrap(f"    const CUresult result = {invoke}", args, ");")
        text += after + f"    return leave(Op::{call.symbol}, result);\n}}\n"
    else:
        text += wrap(f"    return leave(Op::{call.symbol}, {invoke}", args, "));") + "}\n"
    return text


def exported_symbols(calls):
    return [row.symbol for call in calls if call.exported for row in call.rows]


def exports_h(calls):
    text = header("The exported CUDA ABI, as declared symbols.", ["proto/cuda/abi.h"])
    text += "extern \"C\" {\n\n"
    for call in calls:
        if call.exported:
            for row in call.rows:
                text += wrap(f"CUresult {row.symbol}(", declarations(call), ") noexcept;")
    return text + "\n}  // extern \"C\"\n"


def exports_cc(calls):
    by_symbol = {call.symbol: call for call in calls}
    text = source("The exported CUDA ABI: checks that the library is usable, then calls cuda_impl.",
                  ["proto/cuda/gen/exports.h", "proto/cuda/gen/impl.h", "cuda_impl_hooks.h"])
    text += """// cuda_impl_hooks.h comes from the library being built and defines, inline,
// `CUresult gantry::cuda_impl::enter(cuda::Op)`, the check made before every call, and
// `CUresult gantry::cuda_impl::leave(cuda::Op, CUresult)`, which sees every result. Its
// `LentContext` makes the context of a stream, an event or memory the thread's for one call, where
// the thread has none.
#define GANTRY_CUDA_EXPORT __attribute__((visibility("default")))

using gantry::cuda::Op;
using gantry::cuda_impl::DefaultStream;
using gantry::cuda_impl::enter;
using gantry::cuda_impl::leave;
using gantry::cuda_impl::LentContext;

extern "C" {

"""
    for call in calls:
        if not call.exported:
            continue
        target = by_symbol[call.same_as] if call.same_as else call
        for row in call.rows:
            text += _entry(row.symbol, call, target, row.stream) + "\n"
    return text + "}  // extern \"C\"\n"


def exports_map(calls):
    text = "/* Generated from proto/cuda/driver_api by proto/codegen; do not edit. */\n{\nglobal:\n"
    text += "".join(f"    {symbol};\n" for symbol in sorted(exported_symbols(calls)))
    return text + "local:\n    *;\n};\n"
