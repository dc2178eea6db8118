// Generated from proto/cuda/driver_api by proto/codegen; do not edit.
// Prints a command as one line.

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "proto/cuda/gen/fuzz_grammar.h"
#include "proto/cuda/gen/op_table.h"
#include "proto/cuda/gen/trace.h"

namespace gantry::cuda {
namespace {

/// Appends to a bounded buffer and keeps count of what the whole text needs.
class Line {
public:
    Line(char* out, std::size_t capacity) noexcept : out_(out), capacity_(capacity) {}

    [[gnu::format(printf, 2, 3)]] void add(const char* format, ...) noexcept {
        va_list arguments;
        va_start(arguments, format);
        const std::size_t room = used_ < capacity_ ? capacity_ - used_ : 0;
        const int length = std::vsnprintf(room != 0 ? out_ + used_ : nullptr, room, format, arguments);
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
