// Generated from proto/cuda/driver_api by proto/codegen; do not edit.
// One handler per forwarded call, and the dispatch that checks and calls them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "proto/cuda/dispatch_interface.h"
#include "proto/cuda/gen/opcodes.h"
#include "proto/cuda/gen/wire_structs.h"

namespace gantry::worker {

namespace wire = cuda::wire;

/// Executes one command. `args` may lie in shared memory: it is copied once before use. `trailing`
/// must be the caller's own copy, 8-aligned. The result is the answer's status; outputs go to
/// `reply` (ignore them unless the result is CUDA_SUCCESS or the handler says otherwise).
CUresult dispatch(CallContext& context, cuda::Op op, std::span<const std::byte> args,
                  std::span<const std::byte> trailing, Reply& reply);

/// The handlers. Define the hand-written ones with these signatures, in objects of the same link.
CUresult on_cuStreamCreate(CallContext& context, const wire::cuStreamCreate_call& call,
    std::span<const std::byte> trailing, Reply& reply);
CUresult on_cuStreamDestroy_v2(CallContext& context, const wire::cuStreamDestroy_v2_call& call,
    std::span<const std::byte> trailing, Reply& reply);
CUresult on_cuMemsetD8Async(CallContext& context, const wire::cuMemsetD8Async_call& call,
    std::span<const std::byte> trailing, Reply& reply);
CUresult on_cuGraphAddMemsetNode(CallContext& context, const wire::cuGraphAddMemsetNode_call& call,
    std::span<const std::byte> trailing, Reply& reply);
CUresult on_cuMemRangeGetAttribute(CallContext& context,
    const wire::cuMemRangeGetAttribute_call& call, std::span<const std::byte> trailing,
    Reply& reply);
CUresult on_cuLaunchKernel(CallContext& context, const wire::cuLaunchKernel_call& call,
    std::span<const std::byte> trailing, Reply& reply);
CUresult on_cuModuleGetFunctionCount(CallContext& context,
    const wire::cuModuleGetFunctionCount_call& call, std::span<const std::byte> trailing,
    Reply& reply);
CUresult on_cuEventElapsedTime(CallContext& context, const wire::cuEventElapsedTime_call& call,
    std::span<const std::byte> trailing, Reply& reply);
CUresult on_cuLinkName(CallContext& context, const wire::cuLinkName_call& call,
    std::span<const std::byte> trailing, Reply& reply);

/// The generated bodies under names of their own, for hand-written handlers that add to them.
namespace generated {

CUresult on_cuStreamCreate(CallContext& context, const wire::cuStreamCreate_call& call,
    std::span<const std::byte> trailing, Reply& reply);
CUresult on_cuStreamDestroy_v2(CallContext& context, const wire::cuStreamDestroy_v2_call& call,
    std::span<const std::byte> trailing, Reply& reply);
CUresult on_cuMemsetD8Async(CallContext& context, const wire::cuMemsetD8Async_call& call,
    std::span<const std::byte> trailing, Reply& reply);
CUresult on_cuGraphAddMemsetNode(CallContext& context, const wire::cuGraphAddMemsetNode_call& call,
    std::span<const std::byte> trailing, Reply& reply);
CUresult on_cuModuleGetFunctionCount(CallContext& context,
    const wire::cuModuleGetFunctionCount_call& call, std::span<const std::byte> trailing,
    Reply& reply);
CUresult on_cuEventElapsedTime(CallContext& context, const wire::cuEventElapsedTime_call& call,
    std::span<const std::byte> trailing, Reply& reply);
CUresult on_cuLinkName(CallContext& context, const wire::cuLinkName_call& call,
    std::span<const std::byte> trailing, Reply& reply);

}  // namespace generated

}  // namespace gantry::worker
