// Generated from proto/cuda/driver_api by proto/codegen; do not edit.
// Constant facts of each call.

#include "proto/cuda/gen/op_table.h"
#include "proto/cuda/gen/wire_structs.h"

namespace gantry::cuda {
namespace {

constexpr OpInfo kUnknown = {"", "", OpClass::kRefused, OpEffect::kNone,
    HandleKind::kInvalid, OpMigration::kNone, 0, 0, false, false};

constexpr OpInfo kOps[kOpEnd - kFirstOp] = {
    {"cuInit", "", OpClass::kGuest,
     OpEffect::kNone, HandleKind::kInvalid,
     OpMigration::kNone, 0, 0,
     false, false},
    {"cuStreamCreate", "", OpClass::kAsync,
     OpEffect::kCreates, HandleKind::kStream,
     OpMigration::kReplay, wire::kWireBytes<wire::cuStreamCreate_call>, wire::kWireBytes<wire::cuStreamCreate_reply>,
     false, false},
    {"cuStreamDestroy_v2", "", OpClass::kAsync,
     OpEffect::kDestroys, HandleKind::kStream,
     OpMigration::kReplay, wire::kWireBytes<wire::cuStreamDestroy_v2_call>, wire::kWireBytes<wire::cuStreamDestroy_v2_reply>,
     false, false},
    {"cuStreamDestroy", "", OpClass::kAsync,
     OpEffect::kDestroys, HandleKind::kStream,
     OpMigration::kReplay, 0, 0,
     false, false},
    {"cuMemsetD8Async", "", OpClass::kAsync,
     OpEffect::kWrites, HandleKind::kInvalid,
     OpMigration::kNone, wire::kWireBytes<wire::cuMemsetD8Async_call>, wire::kWireBytes<wire::cuMemsetD8Async_reply>,
     false, false},
    {"cuMemsetD8_v2", "", OpClass::kAsync,
     OpEffect::kWrites, HandleKind::kInvalid,
     OpMigration::kNone, 0, 0,
     false, false},
    kUnknown,
    {"cuGraphAddMemsetNode", "", OpClass::kSync,
     OpEffect::kCreates, HandleKind::kGraphNode,
     OpMigration::kReplay, wire::kWireBytes<wire::cuGraphAddMemsetNode_call>, wire::kWireBytes<wire::cuGraphAddMemsetNode_reply>,
     true, false},
    {"cuMemRangeGetAttribute", "", OpClass::kSync,
     OpEffect::kNone, HandleKind::kInvalid,
     OpMigration::kNone, wire::kWireBytes<wire::cuMemRangeGetAttribute_call>, wire::kWireBytes<wire::cuMemRangeGetAttribute_reply>,
     true, true},
    {"cuLaunchKernel", "", OpClass::kAsync,
     OpEffect::kLaunches, HandleKind::kInvalid,
     OpMigration::kNone, wire::kWireBytes<wire::cuLaunchKernel_call>, wire::kWireBytes<wire::cuLaunchKernel_reply>,
     true, true},
    {"cuGetProcAddress_v2", "", OpClass::kGuest,
     OpEffect::kNone, HandleKind::kInvalid,
     OpMigration::kNone, 0, 0,
     false, false},
    {"cuIpcGetMemHandle", "IPC handles name objects of one host", OpClass::kRefused,
     OpEffect::kNone, HandleKind::kInvalid,
     OpMigration::kNone, 0, 0,
     false, false},
    {"cuModuleGetFunctionCount", "", OpClass::kSync,
     OpEffect::kNone, HandleKind::kInvalid,
     OpMigration::kNone, wire::kWireBytes<wire::cuModuleGetFunctionCount_call>, wire::kWireBytes<wire::cuModuleGetFunctionCount_reply>,
     false, false},
    {"cuEventElapsedTime", "", OpClass::kSync,
     OpEffect::kNone, HandleKind::kInvalid,
     OpMigration::kNone, wire::kWireBytes<wire::cuEventElapsedTime_call>, wire::kWireBytes<wire::cuEventElapsedTime_reply>,
     false, false},
    {"cuLinkName", "", OpClass::kSync,
     OpEffect::kConfigures, HandleKind::kContext,
     OpMigration::kReplay, wire::kWireBytes<wire::cuLinkName_call>, wire::kWireBytes<wire::cuLinkName_reply>,
     true, true},
};

}  // namespace

const OpInfo& op_info(Op op) noexcept {
    const auto number = static_cast<std::uint16_t>(op);
    return number >= kFirstOp && number < kOpEnd ? kOps[number - kFirstOp] : kUnknown;
}

const char* op_name(Op op) noexcept {
    const char* const name = op_info(op).name;
    return name[0] != '\0' ? name : nullptr;
}

}  // namespace gantry::cuda
