"""opcodes.h, op_table.h/.cc: the numbers of the calls and what is constant about each."""

from emit_common import BANNER, end_namespace, enum_kind, header, source, wrap
import layout as layouts_module

CLASS_NAMES = {"guest": "kGuest", "async": "kAsync", "sync": "kSync", "bulk": "kBulk",
               "refused": "kRefused"}


def opcodes(calls, layouts, hand_text):
    table_hash = layouts_module.fnv1a(layouts_module.dump(layouts)
                                      + layouts_module.strip_comments(hand_text))
    text = header("Numbers of the CUDA driver calls on the wire. Append-only; see numbers.lock.",
                  ["<cstdint>"], "gantry::cuda")
    text += "/// Numbers below kFirstOp are Gantry's own commands (proto/wire/control_ops.h).\n"
    text += "enum class Op : std::uint16_t {\n    kNone = 0,\n"
    text += "".join(f"    {c.symbol} = {c.number},\n" for c in calls)
    text += "};\n\n"
    text += f"inline constexpr std::uint16_t kFirstOp = {calls[0].number};\n"
    text += (f"inline constexpr std::uint16_t kOpEnd = {calls[-1].number + 1};"
             "  // One past the last.\n")
    text += f"inline constexpr std::uint16_t kOpCount = {len(calls)};\n"
    text += "/// Hash of all wire layouts: two ends that differ in it must not talk.\n"
    text += f"inline constexpr std::uint64_t kTableHash = {table_hash:#018x}ull;\n\n"
    text += "/// The exported symbol of a call, or null for a number that is none.\n"
    text += "const char* op_name(Op op) noexcept;\n"
    return text + end_namespace("gantry::cuda")


def op_flags(calls):
    """Header-only flags by op, for checks on the hot path."""
    text = header("Flags of each call, for constant-time checks at the entry points.",
                  ["<array>", "<cstdint>", "proto/cuda/gen/opcodes.h"], "gantry::cuda")
    text += """enum OpFlag : std::uint8_t {
    kOpNeedsContext = 1u << 0,  ///< Answers CUDA_ERROR_INVALID_CONTEXT without a current context.
    kOpBeforeInit = 1u << 1,    ///< Works before cuInit.
    kOpMayBlock = 1u << 2,      ///< May wait for the device: never on the ring's consumer thread.
    kOpForwarded = 1u << 3,     ///< A command of its own crosses to the worker.
    kOpRefused = 1u << 4,       ///< Refused by name: CUDA_ERROR_NOT_SUPPORTED.
};

"""
    flags = {}
    for call in calls:
        bits = 0
        if call.cls != "refused" and "nocontext" not in call.flags and not call.same_as:
            bits |= 1
        if "preinit" in call.flags:
            bits |= 2
        if "blocking" in call.flags:
            bits |= 4
        if call.forwarded:
            bits |= 8
        if call.cls == "refused":
            bits |= 16
        flags[call.number] = bits
    by_symbol = {call.symbol: call for call in calls}
    for call in calls:  # A call that is another's twin in all but name has its flags.
        if call.same_as:
            flags[call.number] = flags[by_symbol[call.same_as].number]
    values = [str(flags.get(n, 0)) for n in range(calls[0].number, calls[-1].number + 1)]
    text += "inline constexpr std::array<std::uint8_t, kOpEnd - kFirstOp> kOpFlags = {\n"
    text += wrap("    ", values, "};", indent=0)
    text += """
constexpr std::uint8_t op_flags(Op op) noexcept {
    const auto number = static_cast<std::uint16_t>(op);
    return number >= kFirstOp && number < kOpEnd ? kOpFlags[number - kFirstOp] : std::uint8_t{0};
}
"""
    return text + end_namespace("gantry::cuda")


def op_table_h():
    text = header("What the table says of each call: class, effect, migration rule, sizes.",
                  ["<cstdint>", "proto/cuda/gen/opcodes.h", "proto/cuda/handle_kinds.h"],
                  "gantry::cuda")
    text += """enum class OpClass : std::uint8_t { kGuest, kAsync, kSync, kBulk, kRefused };
enum class OpEffect : std::uint8_t {
    kNone, kWrites, kLaunches, kSynchronises, kCreates, kConfigures, kDestroys,
};
enum class OpMigration : std::uint8_t { kNone, kReplay, kExtract, kDerived, kBlocks };

struct OpInfo {
    const char* name;             ///< Exported symbol.
    const char* why;              ///< Why refused or why it blocks a migration; "" otherwise.
    OpClass op_class;
    OpEffect effect;
    HandleKind effect_kind;       ///< kInvalid when the effect names no handle (memory, globals).
    OpMigration migration;
    std::uint16_t call_bytes;     ///< Fixed arguments; 0 when no command crosses.
    std::uint16_t reply_bytes;    ///< Fixed part of the reply.
    bool has_trailing;
    bool has_reply_trailing;
};

/// Never null: an unknown number gets an entry with an empty name.
const OpInfo& op_info(Op op) noexcept;
"""
    return text + end_namespace("gantry::cuda")


EFFECTS = {"none": "kNone", "writes": "kWrites", "launches": "kLaunches", "syncs": "kSynchronises",
           "creates": "kCreates", "configures": "kConfigures", "destroys": "kDestroys"}


def _size(item, part):
    return f"wire::kWireBytes<wire::{item.call.symbol}_{part}>" if item else "0"


def _trails(item, direction):
    """May bytes trail the fixed part? As C++; unknown, so true, for payloads of wire_hand.h."""
    if item is None:
        return "false"
    call = item.call
    known = {"send": item.send_items or call.send_trailing,
             "reply": item.reply_items or call.reply_trailing}
    return "true" if known[direction] or call.hand_call else "false"


def op_table_cc(calls, layouts):
    from table import HANDLE_KINDS
    sizes = {item.call.symbol: item for item in layouts}
    text = source("Constant facts of each call.",
                  ["proto/cuda/gen/op_table.h", "proto/cuda/gen/wire_structs.h"])
    text += "namespace gantry::cuda {\nnamespace {\n\n"
    text += "constexpr OpInfo kUnknown = {\"\", \"\", OpClass::kRefused, OpEffect::kNone,\n"
    text += "    HandleKind::kInvalid, OpMigration::kNone, 0, 0, false, false};\n\n"
    text += "constexpr OpInfo kOps[kOpEnd - kFirstOp] = {\n"
    by_number = {call.number: call for call in calls}
    by_symbol = {call.symbol: call for call in calls}
    for number in range(calls[0].number, calls[-1].number + 1):
        if number not in by_number:
            text += "    kUnknown,\n"
            continue
        named = by_number[number]
        call = by_symbol[named.same_as] if named.same_as else named
        item = None if named.same_as else sizes.get(call.symbol)
        kind = (enum_kind(call.effect_kind) if call.effect_kind in HANDLE_KINDS
                else "HandleKind::kInvalid")
        why = call.why.replace('"', '\\"')
        text += (f'    {{"{named.symbol}", "{why}", OpClass::{CLASS_NAMES[call.cls]},\n'
                 f"     OpEffect::{EFFECTS[call.effect]}, {kind},\n"
                 f"     OpMigration::k{call.migration.capitalize()}, "
                 f"{_size(item, 'call')}, {_size(item, 'reply')},\n     "
                 f"{_trails(item, 'send')}, {_trails(item, 'reply')}}},\n")
    text += """};

}  // namespace

const OpInfo& op_info(Op op) noexcept {
    const auto number = static_cast<std::uint16_t>(op);
    return number >= kFirstOp && number < kOpEnd ? kOps[number - kFirstOp] : kUnknown;
}

const char* op_name(Op op) noexcept {
    const char* const name = op_info(op).name;
    return name[0] != '\\0' ? name : nullptr;
}
"""
    return text + end_namespace("gantry::cuda")
