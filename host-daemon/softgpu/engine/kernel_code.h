// One kernel with all functions it may call, decoded into one line of instructions and one
// register file. Functions stand before their callers, so that "lowest instruction first" lets
// lanes inside a call catch up with those that wait behind it.
//
// Every function has its own fixed region of the file (registers are per lane, so lanes in
// different functions do not disturb each other); a lane that re-enters a function has the
// region saved by the call (control.cc).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "host-daemon/softgpu/engine/engine.h"
#include "host-daemon/softgpu/engine/inst.h"
#include "host-daemon/softgpu/engine/matrix.h"
#include "host-daemon/softgpu/engine/texture_site.h"

namespace gantry::softgpu {

/// Constant slots whose lanes are known only at launch.
enum class Special : std::uint8_t {
    kTidX,
    kTidY,
    kTidZ,
    kNtidX,
    kNtidY,
    kNtidZ,
    kCtaidX,
    kCtaidY,
    kCtaidZ,
    kNctaidX,
    kNctaidY,
    kNctaidZ,
    kLaneid,
    kWarpid,
    kNwarpid,
    kSmid,
    kNsmid,
    kGridid,
    kLanemaskEq,
    kLanemaskLe,
    kLanemaskLt,
    kLanemaskGe,
    kLanemaskGt,
    kDynamicSharedSize,
    kTotalSharedSize,
    kEnvreg1,
    kEnvreg2,
    kEnvregOther,
    kClusterid,
    kNclusteridX,
    kNclusteridY,
    kNclusteridZ,
    kClusteridX,
    kClusteridY,
    kClusteridZ,
    kClusterCtaidX,
    kClusterCtaidY,
    kClusterCtaidZ,
    kClusterNctaidX,
    kClusterNctaidY,
    kClusterNctaidZ,
    kClusterCtarank,
    kClusterNctarank,
    kIsExplicitCluster,
    kAggregateSharedSize,
    kReservedSharedBegin,
    kReservedSharedSlot1,
    kReservedSharedEnd,
    kReservedSharedCap,
};

struct SpecialSlot {
    Special what = Special::kTidX;
    bool wide = false;
    std::uint32_t offset = 0;  ///< In the file.
};

/// A constant slot that holds a global's address (plus addend), filled by Program::place().
struct AddressSlot {
    std::uint32_t global = 0;
    bool wide = true;
    std::uint64_t addend = 0;
    std::uint32_t offset = 0;  ///< In the constant image.
};

struct CallArgument {
    std::uint32_t from = 0;  ///< Offset in the caller's frame.
    std::uint32_t to = 0;    ///< Offset in the callee's frame.
    std::uint32_t size = 0;
};

enum class Builtin : std::uint8_t {
    kNone,
    kVprintf,
    kAssertFail,
    kMalloc,
    kFree,
    // The device runtime, for kernels that launch kernels.
    kGetParameterBuffer,
    kGetParameterBufferV2,
    kLaunchDevice,
    kLaunchDeviceV2,
    kStreamCreate,
    kEventCreate,
    kAlreadyOrdered,
    kGetLastError,
    kPeekAtLastError,
    kCopyAsync,
    kFillAsync,
    kDeviceMalloc,
    kDeviceFree,
    kSetCondition,
};

/// What a call instruction refers to.
struct CallSite {
    std::uint32_t callee = 0;  ///< Index into KernelCode::functions; ~0: indirect.
    Builtin builtin = Builtin::kNone;
    std::uint32_t caller = 0;      ///< Index into KernelCode::functions.
    const Inst* target = nullptr;  ///< Of a direct call.
    std::vector<CallArgument> in;
    std::vector<CallArgument> out;  ///< from: callee's frame; to: caller's.
};

struct CodeFunction {
    std::uint32_t program_function = 0;
    std::uint32_t first_inst = 0;
    std::uint32_t region_begin = 0;  ///< In the file.
    std::uint32_t region_end = 0;
    std::uint32_t predicate_bytes = 0;  ///< Predicates lie first in the region...
    std::uint32_t words_begin = 0;      ///< ...then 32-bit slots, relative to the region...
    std::uint32_t wides_begin = 0;      ///< ...then 64-bit and 128-bit ones.
    std::uint32_t frame_bytes = 0;
    bool recursive = false;  ///< May be re-entered.
};

struct BranchTable {
    std::vector<const Inst*> targets;
};

struct KernelCode {
    std::vector<Inst> code;
    std::uint32_t entry = 0;            ///< First instruction of the kernel itself.
    std::uint32_t constants_begin = 0;  ///< In the file; the registers lie before.
    std::uint32_t file_bytes = 0;
    std::vector<std::uint8_t> constants;  ///< Image of [constants_begin, file_bytes).
    std::vector<SpecialSlot> specials;
    std::vector<AddressSlot> addresses;
    std::vector<CodeFunction> functions;
    std::vector<std::uint32_t> code_function_of;  ///< Program function -> functions, or ~0.
    std::vector<std::unique_ptr<CallSite>> calls;
    std::vector<std::unique_ptr<BranchTable>> tables;
    std::vector<std::unique_ptr<exec::MatrixSite>> matrices;
    std::vector<std::unique_ptr<exec::TextureSite>> textures;
    std::uint32_t static_shared_bytes = 0;
    std::uint32_t local_bytes = 0;  ///< Deepest chain of frames; kernels without recursion.
    bool needs_stack = false;       ///< Recursion, indirect calls or alloca: size set at launch.
    std::string refusal;            ///< Not empty: reaches an instruction that is refused.
    std::string name;
};

}  // namespace gantry::softgpu
