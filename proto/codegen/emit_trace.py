"""fuzz_grammar.h and trace.h/.cc: what the fields of each command are, for people and fuzzers."""

from emit_common import end_namespace, enum_kind, header, source
from hand_structs import Structs

FORMS = {"std::uint8_t": "kUnsigned", "std::uint16_t": "kUnsigned", "std::uint32_t": "kUnsigned",
         "std::int32_t": "kSigned", "std::uint64_t": "kUnsigned", "float": "kFloat"}


def _role(item, name):
    """(role, handle kind) of a field."""
    for param in item.call.params:
        if param.name == name and param.kind in ("handle", "handle?"):
            return "kHandle", enum_kind(param.args[0])
        if param.name == name and param.kind == "new":
            return "kNewHandle", enum_kind(param.args[0])
        if f"new_{param.name}" == name and param.kind == "named":
            return "kNewHandle", enum_kind(param.args[0])
        if param.name == name and param.kind == "devptr":
            return "kAddress", "HandleKind::kInvalid"
        if param.kind.startswith(("array_in", "handles_in")) and name == param.args[-1]:
            return "kLength", "HandleKind::kInvalid"
    if name == "stream":
        return "kHandle", "HandleKind::kStream"
    if name.endswith(("_bytes", "_count", "count", "capacity")):
        return "kLength", "HandleKind::kInvalid"
    return "kValue", "HandleKind::kInvalid"


def _fields(item, structs):
    """(name, form, offset, size, role, kind) of one command's fixed part."""
    if item.call.hand_call:
        return [(path, FORMS[ctype], offset, size) + _role(item, path)
                for path, ctype, offset, size in structs.fields(item.call.hand_call)]
    out = []
    for field in item.send:
        if field.name.startswith("pad_"):
            continue
        form = FORMS.get(field.cpp, "kBytes") if not field.suffix else "kBytes"
        out.append((field.name, form, field.offset, field.size) + _role(item, field.name))
    return out


def fuzz_grammar(layouts, hand_text):
    structs = Structs(hand_text)
    text = header("Fields of every command: for the trace printer and as the fuzzers' grammar.",
                  ["<cstddef>", "<cstdint>", "proto/cuda/gen/wire_structs.h",
                   "proto/cuda/gen/opcodes.h", "proto/cuda/handle_kinds.h"], "gantry::cuda")
    text += """enum class FieldForm : std::uint8_t { kUnsigned, kSigned, kFloat, kBytes };
enum class FieldRole : std::uint8_t { kValue, kHandle, kNewHandle, kAddress, kLength };

struct CommandField {
    const char* name;
    std::uint16_t offset;
    std::uint16_t bytes;
    FieldForm form;
    FieldRole role;
    HandleKind kind;   ///< Of a handle.
};

struct CommandGrammar {
    Op op;
    std::uint16_t call_bytes;
    std::uint16_t field_count;
    bool has_trailing;
    bool wants_reply;
    const CommandField* fields;
};

"""
    rows = ""
    for item in layouts:
        call, fields = item.call, _fields(item, structs)
        if call.hand_call:
            name = f"wire::{call.symbol}_call"
            text += f"static_assert(sizeof({name}) == {structs.bytes(call.hand_call)});\n"
        if fields:
            text += f"inline constexpr CommandField k_{call.symbol}_fields[] = {{\n"
            for name, form, offset, size, role, kind in fields:
                text += (f'    {{"{name}", {offset}, {size}, FieldForm::{form},\n'
                         f"     FieldRole::{role}, {kind}}},\n")
            text += "};\n"
        trailing = bool(item.send_items or call.send_trailing or call.hand_call)
        wants = call.cls != "async"
        rows += (f"    {{Op::{call.symbol},\n     wire::kWireBytes<wire::{call.symbol}_call>, "
                 f"{len(fields)}, {str(trailing).lower()}, {str(wants).lower()},\n     "
                 f"{f'k_{call.symbol}_fields' if fields else 'nullptr'}}},\n")
    text += ("\n/// Every command that crosses, ordered by number.\n"
             "inline constexpr CommandGrammar kCommands[] = {\n" + rows + "};\n")
    return text + end_namespace("gantry::cuda")


def trace_h():
    text = header("Prints a command as one line, for logs and tools. Libc only.",
                  ["<cstddef>", "<cstdint>", "proto/cuda/gen/opcodes.h"], "gantry::cuda")
    text += """\
/// Writes `cuMemAlloc_v2(bytesize=4096)` and a NUL, cut to the capacity. Returns the length
/// of the whole line, as snprintf does. Wrong sizes and unknown numbers are printed as such.
int trace_format(char* out, std::size_t capacity, Op op, const void* args,
                 std::size_t bytes) noexcept;
"""
    return text + end_namespace("gantry::cuda")


def trace_cc():
    text = source("Prints a command as one line.",
                  ["<cstdarg>", "<cstdio>", "<cstring>", "proto/cuda/gen/fuzz_grammar.h",
                   "proto/cuda/gen/op_table.h", "proto/cuda/gen/trace.h"])
    return text + """namespace gantry::cuda {
namespace {

/// Appends to a bounded buffer and keeps count of what the whole text needs.
class Line {
public:
    Line(char* out, std::size_t capacity) noexcept : out_(out), capacity_(capacity) {}

    [[gnu::format(printf, 2, 3)]] void add(const char* format, ...) noexcept {
        va_list arguments;
        va_start(arguments, format);
        const std::size_t room = used_ < capacity_ ? capacity_ - used_ : 0;
        char* const at = room != 0 ? out_ + used_ : nullptr;
        const int length = std::vsnprintf(at, room, format, arguments);
        va_end(arguments);
        used_ += length > 0 ? static_cast<std::size_t>(length) : 0;
    }

    [[nodiscard]] int length() const noexcept { return static_cast<int>(used_); }

private:
    char* out_;
    std::size_t capacity_;
    std::size_t used_ = 0;
};

const CommandGrammar* grammar_of(Op op) noexcept {
    std::size_t low = 0;
    std::size_t high = sizeof kCommands / sizeof kCommands[0];
    while (low < high) {
        const std::size_t middle = low + (high - low) / 2;
        if (kCommands[middle].op < op) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const bool found = low < sizeof kCommands / sizeof kCommands[0] && kCommands[low].op == op;
    return found ? &kCommands[low] : nullptr;
}

std::uint64_t read_unsigned(const std::byte* at, std::size_t bytes) noexcept {
    std::uint64_t value = 0;
    std::memcpy(&value, at, bytes);  // Little-endian on both ends.
    return value;
}

void add_field(Line& line, const CommandField& field, const std::byte* args) noexcept {
    const std::byte* const at = args + field.offset;
    line.add("%s=", field.name);
    if (field.form == FieldForm::kBytes) {
        line.add("<%u bytes>", field.bytes);
    } else if (field.form == FieldForm::kFloat) {
        float value = 0;
        std::memcpy(&value, at, sizeof value);
        line.add("%g", static_cast<double>(value));
    } else if (field.form == FieldForm::kSigned) {
        std::int32_t value = 0;
        std::memcpy(&value, at, sizeof value);
        line.add("%d", value);
    } else if (field.role == FieldRole::kValue || field.role == FieldRole::kLength) {
        const std::uint64_t value = read_unsigned(at, field.bytes);
        line.add(value > 0xffffffff ? "%#llx" : "%llu", static_cast<unsigned long long>(value));
    } else {
        line.add("%#llx", static_cast<unsigned long long>(read_unsigned(at, field.bytes)));
    }
}

}  // namespace

int trace_format(char* out, std::size_t capacity, Op op, const void* args,
                 std::size_t bytes) noexcept {
    Line line(out, capacity);
    const char* const name = op_name(op);
    if (name == nullptr) {
        line.add("op %u (%zu bytes)", static_cast<unsigned>(op), bytes);
        return line.length();
    }
    line.add("%s(", name);
    const CommandGrammar* const grammar = grammar_of(op);
    if (grammar == nullptr || grammar->call_bytes != bytes) {
        line.add("%zu bytes, %u expected", bytes, grammar != nullptr ? grammar->call_bytes : 0u);
    } else {
        for (std::size_t i = 0; i < grammar->field_count; ++i) {
            line.add("%s", i != 0 ? ", " : "");
            add_field(line, grammar->fields[i], static_cast<const std::byte*>(args));
        }
    }
    line.add(")");
    return line.length();
}

}  // namespace gantry::cuda
"""
