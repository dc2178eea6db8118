// Generated from proto/cuda/driver_api by proto/codegen; do not edit.
// What the table says of each call: class, effect, migration rule, sizes.
#pragma once

#include <cstdint>

#include "proto/cuda/gen/opcodes.h"
#include "proto/cuda/handle_kinds.h"

namespace gantry::cuda {

enum class OpClass : std::uint8_t { kGuest, kAsync, kSync, kBulk, kRefused };
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

}  // namespace gantry::cuda
