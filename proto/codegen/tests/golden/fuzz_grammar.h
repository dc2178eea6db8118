// Generated from proto/cuda/driver_api by proto/codegen; do not edit.
// Fields of every command: for the trace printer and as the fuzzers' grammar.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/cuda/gen/opcodes.h"
#include "proto/cuda/gen/wire_structs.h"
#include "proto/cuda/handle_kinds.h"

namespace gantry::cuda {

enum class FieldForm : std::uint8_t { kUnsigned, kSigned, kFloat, kBytes };
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

inline constexpr CommandField k_cuStreamCreate_fields[] = {
    {"phStream", 0, 8, FieldForm::kUnsigned, FieldRole::kNewHandle,
     HandleKind::kStream},
    {"Flags", 8, 4, FieldForm::kUnsigned, FieldRole::kValue,
     HandleKind::kInvalid},
};
inline constexpr CommandField k_cuStreamDestroy_v2_fields[] = {
    {"hStream", 0, 8, FieldForm::kUnsigned, FieldRole::kHandle,
     HandleKind::kStream},
};
inline constexpr CommandField k_cuMemsetD8Async_fields[] = {
    {"dstDevice", 0, 8, FieldForm::kUnsigned, FieldRole::kAddress,
     HandleKind::kInvalid},
    {"uc", 8, 1, FieldForm::kUnsigned, FieldRole::kValue,
     HandleKind::kInvalid},
    {"N", 16, 8, FieldForm::kUnsigned, FieldRole::kValue,
     HandleKind::kInvalid},
    {"hStream", 24, 8, FieldForm::kUnsigned, FieldRole::kHandle,
     HandleKind::kStream},
};
inline constexpr CommandField k_cuGraphAddMemsetNode_fields[] = {
    {"phGraphNode", 0, 8, FieldForm::kUnsigned, FieldRole::kNewHandle,
     HandleKind::kGraphNode},
    {"hGraph", 8, 8, FieldForm::kUnsigned, FieldRole::kHandle,
     HandleKind::kGraph},
    {"numDependencies", 16, 8, FieldForm::kUnsigned, FieldRole::kLength,
     HandleKind::kInvalid},
    {"memsetParams", 24, 40, FieldForm::kBytes, FieldRole::kValue,
     HandleKind::kInvalid},
    {"ctx", 64, 8, FieldForm::kUnsigned, FieldRole::kHandle,
     HandleKind::kContext},
};
inline constexpr CommandField k_cuMemRangeGetAttribute_fields[] = {
    {"devPtr", 0, 8, FieldForm::kUnsigned, FieldRole::kAddress,
     HandleKind::kInvalid},
    {"count", 8, 8, FieldForm::kUnsigned, FieldRole::kLength,
     HandleKind::kInvalid},
    {"attribute", 16, 4, FieldForm::kUnsigned, FieldRole::kValue,
     HandleKind::kInvalid},
    {"data_bytes", 20, 4, FieldForm::kUnsigned, FieldRole::kLength,
     HandleKind::kInvalid},
};
static_assert(sizeof(wire::cuLaunchKernel_call) == 24);
inline constexpr CommandField k_cuLaunchKernel_fields[] = {
    {"kernel", 0, 8, FieldForm::kUnsigned, FieldRole::kValue,
     HandleKind::kInvalid},
    {"grid[0]", 8, 4, FieldForm::kUnsigned, FieldRole::kValue,
     HandleKind::kInvalid},
    {"grid[1]", 12, 4, FieldForm::kUnsigned, FieldRole::kValue,
     HandleKind::kInvalid},
    {"grid[2]", 16, 4, FieldForm::kUnsigned, FieldRole::kValue,
     HandleKind::kInvalid},
    {"param_bytes", 20, 4, FieldForm::kUnsigned, FieldRole::kLength,
     HandleKind::kInvalid},
};
inline constexpr CommandField k_cuModuleGetFunctionCount_fields[] = {
    {"hmod", 0, 8, FieldForm::kUnsigned, FieldRole::kHandle,
     HandleKind::kModule},
};
inline constexpr CommandField k_cuEventElapsedTime_fields[] = {
    {"hStart", 0, 8, FieldForm::kUnsigned, FieldRole::kHandle,
     HandleKind::kEvent},
};
inline constexpr CommandField k_cuLinkName_fields[] = {
    {"name_bytes", 0, 4, FieldForm::kUnsigned, FieldRole::kLength,
     HandleKind::kInvalid},
    {"has_uuid", 4, 4, FieldForm::kUnsigned, FieldRole::kValue,
     HandleKind::kInvalid},
    {"uuid", 8, 16, FieldForm::kBytes, FieldRole::kValue,
     HandleKind::kInvalid},
    {"mode", 24, 4, FieldForm::kUnsigned, FieldRole::kValue,
     HandleKind::kInvalid},
    {"location", 28, 8, FieldForm::kBytes, FieldRole::kValue,
     HandleKind::kInvalid},
    {"count", 36, 4, FieldForm::kUnsigned, FieldRole::kLength,
     HandleKind::kInvalid},
    {"rank", 40, 4, FieldForm::kUnsigned, FieldRole::kValue,
     HandleKind::kInvalid},
};

/// Every command that crosses, ordered by number.
inline constexpr CommandGrammar kCommands[] = {
    {Op::cuStreamCreate,
     wire::kWireBytes<wire::cuStreamCreate_call>, 2, false, false,
     k_cuStreamCreate_fields},
    {Op::cuStreamDestroy_v2,
     wire::kWireBytes<wire::cuStreamDestroy_v2_call>, 1, false, false,
     k_cuStreamDestroy_v2_fields},
    {Op::cuMemsetD8Async,
     wire::kWireBytes<wire::cuMemsetD8Async_call>, 4, false, false,
     k_cuMemsetD8Async_fields},
    {Op::cuGraphAddMemsetNode,
     wire::kWireBytes<wire::cuGraphAddMemsetNode_call>, 5, true, true,
     k_cuGraphAddMemsetNode_fields},
    {Op::cuMemRangeGetAttribute,
     wire::kWireBytes<wire::cuMemRangeGetAttribute_call>, 4, true, true,
     k_cuMemRangeGetAttribute_fields},
    {Op::cuLaunchKernel,
     wire::kWireBytes<wire::cuLaunchKernel_call>, 5, true, false,
     k_cuLaunchKernel_fields},
    {Op::cuModuleGetFunctionCount,
     wire::kWireBytes<wire::cuModuleGetFunctionCount_call>, 1, false, true,
     k_cuModuleGetFunctionCount_fields},
    {Op::cuEventElapsedTime,
     wire::kWireBytes<wire::cuEventElapsedTime_call>, 1, false, true,
     k_cuEventElapsedTime_fields},
    {Op::cuLinkName,
     wire::kWireBytes<wire::cuLinkName_call>, 7, true, true,
     k_cuLinkName_fields},
};

}  // namespace gantry::cuda
