// Generated from proto/cuda/driver_api by proto/codegen; do not edit.
// Decodes commands and calls the driver. Every byte of input is hostile.

#include <cstring>
#include <string>
#include <vector>

#include "proto/cuda/convert.h"
#include "proto/cuda/dispatch_support.h"
#include "proto/cuda/gen/driver_api_table.h"
#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {

using cuda::convert;
using cuda::Op;
using cuda::store;

namespace generated {

CUresult on_cuStreamCreate(CallContext& context,
    [[maybe_unused]] const wire::cuStreamCreate_call& call,
    [[maybe_unused]] std::span<const std::byte> trailing, [[maybe_unused]] Reply& reply) {
    auto* const entry_point = context.driver().cuStreamCreate;
    if (entry_point == nullptr) {
        return context.unsupported(Op::cuStreamCreate);
    }
    if (const CUresult status = context.reserve(cuda::HandleKind::kStream, call.phStream);
        status != CUDA_SUCCESS) {
        return status;
    }
    CUstream phStream{};
    const CUresult driver_status = entry_point(&phStream, convert<unsigned int>(call.Flags));
    if (driver_status != CUDA_SUCCESS) {
        return driver_status;
    }
    if (const CUresult status = context.bind(cuda::HandleKind::kStream, call.phStream,
            convert<std::uint64_t>(phStream), Recipe{Op::cuStreamCreate, args_of(call), trailing});
        status != CUDA_SUCCESS) {
        return status;
    }
    return driver_status;
}

CUresult on_cuStreamDestroy_v2(CallContext& context,
    [[maybe_unused]] const wire::cuStreamDestroy_v2_call& call,
    [[maybe_unused]] std::span<const std::byte> trailing, [[maybe_unused]] Reply& reply) {
    auto* const entry_point = context.driver().cuStreamDestroy_v2;
    if (entry_point == nullptr) {
        return context.unsupported(Op::cuStreamDestroy_v2);
    }
    std::uint64_t hStream_native = 0;
    if (const CUresult status =
            context.resolve(cuda::HandleKind::kStream, call.hStream, &hStream_native);
        status != CUDA_SUCCESS) {
        return status;
    }
    const CUresult driver_status = entry_point(convert<CUstream>(hStream_native));
    if (driver_status != CUDA_SUCCESS) {
        return driver_status;
    }
    context.unbind(cuda::HandleKind::kStream, call.hStream);
    return driver_status;
}

CUresult on_cuMemsetD8Async(CallContext& context,
    [[maybe_unused]] const wire::cuMemsetD8Async_call& call,
    [[maybe_unused]] std::span<const std::byte> trailing, [[maybe_unused]] Reply& reply) {
    auto* const entry_point = context.driver().cuMemsetD8Async;
    if (entry_point == nullptr) {
        return context.unsupported(Op::cuMemsetD8Async);
    }
    std::uint64_t hStream_native = 0;
    if (const CUresult status =
            context.resolve(cuda::HandleKind::kStream, call.hStream, &hStream_native);
        status != CUDA_SUCCESS) {
        return status;
    }
    const CUresult driver_status = entry_point(convert<CUdeviceptr>(call.dstDevice),
        convert<unsigned char>(call.uc), convert<size_t>(call.N),
        convert<CUstream>(hStream_native));
    return driver_status;
}

CUresult on_cuGraphAddMemsetNode(CallContext& context,
    [[maybe_unused]] const wire::cuGraphAddMemsetNode_call& call,
    [[maybe_unused]] std::span<const std::byte> trailing, [[maybe_unused]] Reply& reply) {
    auto* const entry_point = context.driver().cuGraphAddMemsetNode;
    if (entry_point == nullptr) {
        return context.unsupported(Op::cuGraphAddMemsetNode);
    }
    TrailingReader reader(trailing);
    const std::byte* const dependencies_bytes = reader.take(call.numDependencies, 8);
    if (dependencies_bytes == nullptr) {
        return context.malformed(Op::cuGraphAddMemsetNode, "dependencies: length");
    }
    std::vector<CUgraphNode> dependencies;
    if (const CUresult status = resolve_all(context, cuda::HandleKind::kGraphNode,
            dependencies_bytes, call.numDependencies, &dependencies);
        status != CUDA_SUCCESS) {
        return status;
    }
    if (!reader.empty()) {
        return context.malformed(Op::cuGraphAddMemsetNode, "bytes behind the arguments");
    }
    if (const CUresult status = context.reserve(cuda::HandleKind::kGraphNode, call.phGraphNode);
        status != CUDA_SUCCESS) {
        return status;
    }
    CUgraphNode phGraphNode{};
    std::uint64_t hGraph_native = 0;
    if (const CUresult status =
            context.resolve(cuda::HandleKind::kGraph, call.hGraph, &hGraph_native);
        status != CUDA_SUCCESS) {
        return status;
    }
    std::uint64_t ctx_native = 0;
    if (const CUresult status =
            context.resolve(cuda::HandleKind::kContext, call.ctx, &ctx_native);
        status != CUDA_SUCCESS) {
        return status;
    }
    const CUresult driver_status = entry_point(&phGraphNode, convert<CUgraph>(hGraph_native),
        dependencies.data(), convert<size_t>(call.numDependencies), &call.memsetParams,
        convert<CUcontext>(ctx_native));
    if (driver_status != CUDA_SUCCESS) {
        return driver_status;
    }
    if (const CUresult status = context.bind(cuda::HandleKind::kGraphNode, call.phGraphNode,
            convert<std::uint64_t>(phGraphNode), Recipe{Op::cuGraphAddMemsetNode, args_of(call), trailing});
        status != CUDA_SUCCESS) {
        return status;
    }
    return driver_status;
}

CUresult on_cuModuleGetFunctionCount(CallContext& context,
    [[maybe_unused]] const wire::cuModuleGetFunctionCount_call& call,
    [[maybe_unused]] std::span<const std::byte> trailing, [[maybe_unused]] Reply& reply) {
    auto* const entry_point = context.driver().cuModuleGetFunctionCount;
    if (entry_point == nullptr) {
        return context.unsupported(Op::cuModuleGetFunctionCount);
    }
    unsigned int count{};
    std::uint64_t hmod_native = 0;
    if (const CUresult status =
            context.resolve(cuda::HandleKind::kModule, call.hmod, &hmod_native);
        status != CUDA_SUCCESS) {
        return status;
    }
    const CUresult driver_status = entry_point(&count, convert<CUmodule>(hmod_native));
    if (driver_status != CUDA_SUCCESS) {
        return driver_status;
    }
    wire::cuModuleGetFunctionCount_reply answer{};
    store(&answer.count, count);
    reply.put(answer);
    return driver_status;
}

CUresult on_cuEventElapsedTime(CallContext& context,
    [[maybe_unused]] const wire::cuEventElapsedTime_call& call,
    [[maybe_unused]] std::span<const std::byte> trailing, [[maybe_unused]] Reply& reply) {
    auto* const entry_point = context.driver().cuEventElapsedTime;
    if (entry_point == nullptr) {
        return context.unsupported(Op::cuEventElapsedTime);
    }
    float pMilliseconds{};
    std::uint64_t hStart_native = 0;
    if (const CUresult status =
            context.resolve(cuda::HandleKind::kEvent, call.hStart, &hStart_native);
        status != CUDA_SUCCESS) {
        return status;
    }
    const CUresult driver_status = entry_point(&pMilliseconds, convert<CUevent>(hStart_native));
    if (driver_status != CUDA_SUCCESS) {
        return driver_status;
    }
    wire::cuEventElapsedTime_reply answer{};
    store(&answer.pMilliseconds, pMilliseconds);
    reply.put(answer);
    return driver_status;
}

CUresult on_cuLinkName(CallContext& context, [[maybe_unused]] const wire::cuLinkName_call& call,
    [[maybe_unused]] std::span<const std::byte> trailing, [[maybe_unused]] Reply& reply) {
    auto* const entry_point = context.driver().cuLinkName;
    if (entry_point == nullptr) {
        return context.unsupported(Op::cuLinkName);
    }
    TrailingReader reader(trailing);
    const std::byte* const name_bytes = reader.take(call.name_bytes, 1);
    if (name_bytes == nullptr) {
        return context.malformed(Op::cuLinkName, "name: length");
    }
    const std::string name(reinterpret_cast<const char*>(name_bytes),
                           call.name_bytes);
    const std::byte* const strides_bytes = reader.take((call.rank > 1 ? call.rank - 1 : 0), 8);
    if (strides_bytes == nullptr) {
        return context.malformed(Op::cuLinkName, "strides: length");
    }
    const cuuint64_t* const strides = reinterpret_cast<const cuuint64_t*>(strides_bytes);
    if (!reader.empty()) {
        return context.malformed(Op::cuLinkName, "bytes behind the arguments");
    }
    if (call.count > kMostReplyElements) {
        return context.malformed(Op::cuLinkName, "values: length");
    }
    std::vector<unsigned int> values(call.count);
    CUstreamCaptureMode mode{};
    store(&mode, call.mode);
    CUevent event{};
    if (call.rank != 1 && call.rank != 3) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult driver_status = entry_point(name.c_str(),
        call.has_uuid != 0 ? &call.uuid : nullptr, &mode, call.location, &event, values.data(),
        convert<unsigned int>(call.count), convert<unsigned int>(call.rank), strides);
    if (driver_status != CUDA_SUCCESS) {
        return driver_status;
    }
    context.configured(cuda::HandleKind::kContext, 0, Recipe{Op::cuLinkName, args_of(call), trailing});
    wire::cuLinkName_reply answer{};
    store(&answer.mode, mode);
    if (const CUresult status = context.guest_handle(cuda::HandleKind::kEvent,
            convert<std::uint64_t>(event), &answer.event);
        status != CUDA_SUCCESS) {
        return status;
    }
    reply.put(answer);
    reply.trailing(std::as_bytes(std::span(values)));
    return driver_status;
}

}  // namespace generated

[[gnu::weak]] CUresult on_cuStreamCreate(CallContext& context,
    const wire::cuStreamCreate_call& call, std::span<const std::byte> trailing, Reply& reply) {
    return generated::on_cuStreamCreate(context, call, trailing, reply);
}

[[gnu::weak]] CUresult on_cuStreamDestroy_v2(CallContext& context,
    const wire::cuStreamDestroy_v2_call& call, std::span<const std::byte> trailing, Reply& reply) {
    return generated::on_cuStreamDestroy_v2(context, call, trailing, reply);
}

[[gnu::weak]] CUresult on_cuMemsetD8Async(CallContext& context,
    const wire::cuMemsetD8Async_call& call, std::span<const std::byte> trailing, Reply& reply) {
    return generated::on_cuMemsetD8Async(context, call, trailing, reply);
}

[[gnu::weak]] CUresult on_cuGraphAddMemsetNode(CallContext& context,
    const wire::cuGraphAddMemsetNode_call& call, std::span<const std::byte> trailing,
    Reply& reply) {
    return generated::on_cuGraphAddMemsetNode(context, call, trailing, reply);
}

[[gnu::weak]] CUresult on_cuMemRangeGetAttribute(CallContext& context,
    const wire::cuMemRangeGetAttribute_call&, std::span<const std::byte>, Reply&) {
    return context.unsupported(Op::cuMemRangeGetAttribute);
}

[[gnu::weak]] CUresult on_cuLaunchKernel(CallContext& context, const wire::cuLaunchKernel_call&,
    std::span<const std::byte>, Reply&) {
    return context.unsupported(Op::cuLaunchKernel);
}

[[gnu::weak]] CUresult on_cuModuleGetFunctionCount(CallContext& context,
    const wire::cuModuleGetFunctionCount_call& call, std::span<const std::byte> trailing,
    Reply& reply) {
    return generated::on_cuModuleGetFunctionCount(context, call, trailing, reply);
}

[[gnu::weak]] CUresult on_cuEventElapsedTime(CallContext& context,
    const wire::cuEventElapsedTime_call& call, std::span<const std::byte> trailing, Reply& reply) {
    return generated::on_cuEventElapsedTime(context, call, trailing, reply);
}

[[gnu::weak]] CUresult on_cuLinkName(CallContext& context, const wire::cuLinkName_call&,
    std::span<const std::byte>, Reply&) {
    return context.unsupported(Op::cuLinkName);
}

namespace {

CUresult decode_cuStreamCreate(CallContext& context, std::span<const std::byte> args,
    std::span<const std::byte> trailing, Reply& reply) {
    wire::cuStreamCreate_call call;
    if (!copy_args(args, &call)) {
        return context.malformed(Op::cuStreamCreate, "size of the arguments");
    }
    if (!trailing.empty()) {
        return context.malformed(Op::cuStreamCreate, "bytes behind the arguments");
    }
    return on_cuStreamCreate(context, call, trailing, reply);
}

CUresult decode_cuStreamDestroy_v2(CallContext& context, std::span<const std::byte> args,
    std::span<const std::byte> trailing, Reply& reply) {
    wire::cuStreamDestroy_v2_call call;
    if (!copy_args(args, &call)) {
        return context.malformed(Op::cuStreamDestroy_v2, "size of the arguments");
    }
    if (!trailing.empty()) {
        return context.malformed(Op::cuStreamDestroy_v2, "bytes behind the arguments");
    }
    return on_cuStreamDestroy_v2(context, call, trailing, reply);
}

CUresult decode_cuMemsetD8Async(CallContext& context, std::span<const std::byte> args,
    std::span<const std::byte> trailing, Reply& reply) {
    wire::cuMemsetD8Async_call call;
    if (!copy_args(args, &call)) {
        return context.malformed(Op::cuMemsetD8Async, "size of the arguments");
    }
    if (!trailing.empty()) {
        return context.malformed(Op::cuMemsetD8Async, "bytes behind the arguments");
    }
    return on_cuMemsetD8Async(context, call, trailing, reply);
}

CUresult decode_cuGraphAddMemsetNode(CallContext& context, std::span<const std::byte> args,
    std::span<const std::byte> trailing, Reply& reply) {
    wire::cuGraphAddMemsetNode_call call;
    if (!copy_args(args, &call)) {
        return context.malformed(Op::cuGraphAddMemsetNode, "size of the arguments");
    }
    return on_cuGraphAddMemsetNode(context, call, trailing, reply);
}

CUresult decode_cuMemRangeGetAttribute(CallContext& context, std::span<const std::byte> args,
    std::span<const std::byte> trailing, Reply& reply) {
    wire::cuMemRangeGetAttribute_call call;
    if (!copy_args(args, &call)) {
        return context.malformed(Op::cuMemRangeGetAttribute, "size of the arguments");
    }
    if (trailing.size() != std::uint64_t{call.data_bytes} * 2) {
        return context.malformed(Op::cuMemRangeGetAttribute, "size of what trails");
    }
    return on_cuMemRangeGetAttribute(context, call, trailing, reply);
}

CUresult decode_cuLaunchKernel(CallContext& context, std::span<const std::byte> args,
    std::span<const std::byte> trailing, Reply& reply) {
    wire::cuLaunchKernel_call call;
    if (!copy_args(args, &call)) {
        return context.malformed(Op::cuLaunchKernel, "size of the arguments");
    }
    return on_cuLaunchKernel(context, call, trailing, reply);
}

CUresult decode_cuModuleGetFunctionCount(CallContext& context, std::span<const std::byte> args,
    std::span<const std::byte> trailing, Reply& reply) {
    wire::cuModuleGetFunctionCount_call call;
    if (!copy_args(args, &call)) {
        return context.malformed(Op::cuModuleGetFunctionCount, "size of the arguments");
    }
    if (!trailing.empty()) {
        return context.malformed(Op::cuModuleGetFunctionCount, "bytes behind the arguments");
    }
    return on_cuModuleGetFunctionCount(context, call, trailing, reply);
}

CUresult decode_cuEventElapsedTime(CallContext& context, std::span<const std::byte> args,
    std::span<const std::byte> trailing, Reply& reply) {
    wire::cuEventElapsedTime_call call;
    if (!copy_args(args, &call)) {
        return context.malformed(Op::cuEventElapsedTime, "size of the arguments");
    }
    if (!trailing.empty()) {
        return context.malformed(Op::cuEventElapsedTime, "bytes behind the arguments");
    }
    return on_cuEventElapsedTime(context, call, trailing, reply);
}

CUresult decode_cuLinkName(CallContext& context, std::span<const std::byte> args,
    std::span<const std::byte> trailing, Reply& reply) {
    wire::cuLinkName_call call;
    if (!copy_args(args, &call)) {
        return context.malformed(Op::cuLinkName, "size of the arguments");
    }
    return on_cuLinkName(context, call, trailing, reply);
}

using Decoder = CUresult (*)(CallContext&, std::span<const std::byte>,
                             std::span<const std::byte>, Reply&);

constexpr Decoder kDecoders[cuda::kOpEnd - cuda::kFirstOp] = {
    nullptr,
    decode_cuStreamCreate,
    decode_cuStreamDestroy_v2,
    nullptr,
    decode_cuMemsetD8Async,
    nullptr,
    nullptr,
    decode_cuGraphAddMemsetNode,
    decode_cuMemRangeGetAttribute,
    decode_cuLaunchKernel,
    nullptr,
    nullptr,
    decode_cuModuleGetFunctionCount,
    decode_cuEventElapsedTime,
    decode_cuLinkName,
};

}  // namespace

CUresult dispatch(CallContext& context, Op op, std::span<const std::byte> args,
                  std::span<const std::byte> trailing, Reply& reply) {
    const auto number = static_cast<std::uint16_t>(op);
    if (number < cuda::kFirstOp || number >= cuda::kOpEnd ||
        kDecoders[number - cuda::kFirstOp] == nullptr) {
        return context.malformed(op, "a number that never crosses");
    }
    return kDecoders[number - cuda::kFirstOp](context, args, trailing, reply);
}

}  // namespace gantry::worker
