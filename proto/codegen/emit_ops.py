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


# Flag of C++, what it means, and whether a call has it.
FLAGS = (
    ("kOpNeedsContext", "Answers CUDA_ERROR_INVALID_CONTEXT without a current context.",
     lambda c: c.cls != "refused" and "nocontext" not in c.flags and not c.same_as),
    ("kOpBeforeInit", "Works before cuInit.", lambda c: "preinit" in c.flags),
    ("kOpMayBlock", "May wait for the device: never on the ring's consumer thread.",
     lambda c: "blocking" in c.flags),
    ("kOpForwarded", "A command of its own crosses to the worker.", lambda c: c.forwarded),
    ("kOpRefused", "Refused by name: CUDA_ERROR_NOT_SUPPORTED.", lambda c: c.cls == "refused"),
    ("kOpSlow", "Takes long on the host, whatever the device does.", lambda c: "slow" in c.flags),
    ("kOpQueries", "Asks whether work has ended.", lambda c: "query" in c.flags),
    ("kOpTellsTime", "Tells when work has ended.", lambda c: "tells_time" in c.flags),
    ("kOpEndsMemory", "Ends memory that is not the arena's.",
     lambda c: "ends_memory" in c.flags),
    ("kOpEndsCode", "Ends kernels: nothing prepared for their launches is good any more.",
     lambda c: "ends_code" in c.flags),
    ("kOpRecordsUnseen", "Makes events record without cuEventRecord.",
     lambda c: "records_unseen" in c.flags),
    ("kOpQueuesCallback", "Queues a function of the guest's in a stream.",
     lambda c: "queues_callback" in c.flags),
    ("kOpRefusedInCapture", "Potentially unsafe while the thread may capture a stream.",
     lambda c: c.capture == "refused"),
    ("kOpContextRefusedInCapture", "Unsafe while any stream of the context is captured.",
     lambda c: c.capture == "refused_context"),
    ("kOpRefusedAfterCapture", "Potentially unsafe, unless its event is a capture's.",
     lambda c: c.capture == "refused_after"),
)


def op_flags(calls):
    """Header-only flags by op, for checks on the hot path."""
    text = header("Flags of each call, for constant-time checks at the entry points.",
                  ["<array>", "<cstdint>", "proto/cuda/gen/opcodes.h"], "gantry::cuda")
    text += "enum OpFlag : std::uint32_t {\n"
    text += "".join(f"    /// {what}\n    {name} = 1u << {bit},\n"
                    for bit, (name, what, _) in enumerate(FLAGS))
    text += "};\n\n"
    flags = {call.number: sum(1 << bit for bit, (_, _, has) in enumerate(FLAGS) if has(call))
             for call in calls}
    by_symbol = {call.symbol: call for call in calls}
    for call in calls:  # A call that is another's twin in all but name has its flags.
        if call.same_as:
            flags[call.number] = flags[by_symbol[call.same_as].number]
    values = [str(flags.get(n, 0)) for n in range(calls[0].number, calls[-1].number + 1)]
    text += "inline constexpr std::array<std::uint32_t, kOpEnd - kFirstOp> kOpFlags = {\n"
    text += wrap("    ", values, "};", indent=0)
    text += """
constexpr std::uint32_t op_flags(Op op) noexcept {
    const auto number = static_cast<std::uint16_t>(op);
    return number >= kFirstOp && number < kOpEnd ? kOpFlags[number - kFirstOp] : 0u;
}
"""
    return text + end_namespace("gantry::cuda")


def op_table_h(calls):
    text = header("What the table says of each call: class, effect, migration rule, sizes.",
                  ["<cstddef>", "<cstdint>", "<cstring>", "<span>", "proto/cuda/abi_result.h",
                   "proto/cuda/gen/opcodes.h", "proto/cuda/handle_kinds.h"],
                  "gantry::cuda")
    for name, values in calls.sets.items():
        text += wrap(f"inline constexpr int k{_camel(name)}[] = {{", values, "};")
        text += "\n"
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

enum class OpWait : std::uint8_t { kNothing, kStream, kEvent, kContext };

/// One of a call's fixed arguments; of 0 bytes: none.
struct OpField {
    std::uint16_t offset = 0;
    std::uint16_t bytes = 0;

    /// Its value in the bytes of a command; 0 where there is none.
    [[nodiscard]] std::uint64_t read(std::span<const std::byte> args) const noexcept {
        std::uint64_t value = 0;
        if (bytes != 0 && bytes <= sizeof(value) &&
            std::size_t{offset} + bytes <= args.size()) {
            std::memcpy(&value, args.data() + offset, bytes);
        }
        return value;
    }
};

/// Which arguments mean more than a value for the driver.
struct OpFacts {
    OpWait waits_for = OpWait::kNothing;  ///< What the caller waits for.
    OpField waited;            ///< The stream or event that the caller waits for.
    OpField recorded;          ///< The event that it records in a stream.
    OpField awaited;           ///< The event that a stream waits for.
    OpField owner;             ///< The object that the new one dies with.
    OpField key;               ///< Which of an object's settings it sets.
    OpField shared_attribute;  ///< A function's attribute ...
    OpField shared_value;      ///< ... that grants this much dynamic shared memory.
};

const OpFacts& op_facts(Op op) noexcept;

/// What native answers for a handle of this kind that is none.
constexpr CUresult bad_handle(HandleKind kind) noexcept {
    switch (kind) {
"""
    bads = {kind.bad for kind in calls.kinds.values()} - {"CUDA_ERROR_INVALID_HANDLE"}
    for result in sorted(bads):
        text += "".join(f"        case {enum_kind(kind.name)}:\n"
                        for kind in calls.kinds.values() if kind.bad == result)
        text += f"            return {result};\n"
    text += """        default: return CUDA_ERROR_INVALID_HANDLE;
    }
}
"""
    return text + end_namespace("gantry::cuda")


def _camel(name):
    return "".join(word.capitalize() for word in name.split("_"))


def _facts(call, item):
    """(member, C++ value) of what the table says beside the defaults."""
    places = {field.name: field for field in item.send} if item else {}
    if call.waits:
        yield "waits_for", f"OpWait::k{call.waits.capitalize()}"
    named = {"waited": call.waits_param, "recorded": call.records, "awaited": call.awaits,
             "owner": call.owner, "key": call.key}
    if call.grants_shared:
        named["shared_attribute"], named["shared_value"] = call.grants_shared
    for member, name in named.items():
        if name in places:
            yield member, f"{{{places[name].offset}, {places[name].size}}}"


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
                  ["<array>", "proto/cuda/gen/op_table.h", "proto/cuda/gen/wire_structs.h"])
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
    text += "};\n\n"
    text += "constexpr std::size_t at(Op op) { return static_cast<std::size_t>(op) - kFirstOp; }\n"
    text += "\nconstexpr auto kFacts = [] {\n"
    text += "    std::array<OpFacts, kOpEnd - kFirstOp> facts{};\n"
    for call in calls:
        for member, value in _facts(call, sizes.get(call.symbol)):
            text += f"    facts[at(Op::{call.symbol})].{member} = {value};\n"
    text += "    return facts;\n}();\n\nconstexpr OpFacts kNoFacts;\n"
    text += """
}  // namespace

const OpFacts& op_facts(Op op) noexcept {
    const auto number = static_cast<std::uint16_t>(op);
    return number >= kFirstOp && number < kOpEnd ? kFacts[at(op)] : kNoFacts;
}

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
