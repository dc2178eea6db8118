#include "host-daemon/softgpu/graph/make_operation.h"

#include <algorithm>

#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/graph/graph_memory.h"
#include "host-daemon/softgpu/memory/map.h"
#include "host-daemon/softgpu/streams/launch.h"

namespace gantry::softgpu {

CUDA_KERNEL_NODE_PARAMS_v2 widen(const CUDA_KERNEL_NODE_PARAMS_v1& params) {
    CUDA_KERNEL_NODE_PARAMS_v2 wide{};
    wide.func = params.func;
    wide.gridDimX = params.gridDimX;
    wide.gridDimY = params.gridDimY;
    wide.gridDimZ = params.gridDimZ;
    wide.blockDimX = params.blockDimX;
    wide.blockDimY = params.blockDimY;
    wide.blockDimZ = params.blockDimZ;
    wide.sharedMemBytes = params.sharedMemBytes;
    wide.kernelParams = params.kernelParams;
    wide.extra = params.extra;
    return wide;
}

CUresult make_kernel_operation(const std::shared_ptr<Context>& context,
                               const CUDA_KERNEL_NODE_PARAMS_v2& params,
                               const std::vector<CUlaunchAttribute>& attributes,
                               OperationPtr& operation) {
    std::shared_ptr<Context> owner = context;
    if (params.ctx != nullptr) {
        owner = find<Context>(params.ctx);
        GANTRY_REFUSE_IF(owner == nullptr, CUDA_ERROR_INVALID_CONTEXT);
    }
    const void* handle = params.func != nullptr ? static_cast<const void*>(params.func)
                                                : static_cast<const void*>(params.kern);
    const LaunchShape shape{{params.gridDimX, params.gridDimY, params.gridDimZ},
                            {params.blockDimX, params.blockDimY, params.blockDimZ},
                            params.sharedMemBytes};
    std::shared_ptr<KernelOperation> made;
    GANTRY_CU(make_launch(owner, handle, shape, params.kernelParams, params.extra,
                          attributes.data(), static_cast<unsigned>(attributes.size()), made));
    operation = std::move(made);
    return CUDA_SUCCESS;
}

CUresult make_memcpy_operation(const CUDA_MEMCPY3D& params, OperationPtr& operation) {
    auto made = std::make_shared<CopyOperation>();
    ResolvedCopy resolved;
    GANTRY_CU(resolve_copy(params, resolved));
    made->plan = resolved.plan;
    made->params = params;
    operation = std::move(made);
    return CUDA_SUCCESS;
}

CUresult make_memset_operation(const CUDA_MEMSET_NODE_PARAMS& params, OperationPtr& operation) {
    const bool element =
        params.elementSize == 1 || params.elementSize == 2 || params.elementSize == 4;
    GANTRY_REFUSE_IF(!element || params.width == 0, CUDA_ERROR_INVALID_VALUE);
    const std::uint64_t row_bytes = params.width * params.elementSize;
    const std::uint64_t rows = std::max<std::uint64_t>(params.height, 1);
    if ((rows > 1 && params.pitch < row_bytes) || params.dst % params.elementSize != 0 ||
        !MemoryMap::instance().covers(params.dst, (rows - 1) * params.pitch + row_bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto made = std::make_shared<MemsetOperation>();
    made->params = params;
    operation = std::move(made);
    return CUDA_SUCCESS;
}

CUresult make_host_operation(const CUDA_HOST_NODE_PARAMS& params, OperationPtr& operation) {
    GANTRY_REFUSE_IF(params.fn == nullptr, CUDA_ERROR_INVALID_VALUE);
    auto made = std::make_shared<HostOperation>();
    made->params = params;
    operation = std::move(made);
    return CUDA_SUCCESS;
}

CUresult make_event_operation(CUgraphNodeType type, CUevent event, OperationPtr& operation) {
    auto made = std::make_shared<EventOperation>(type);
    made->event = find<Event>(event);
    GANTRY_REFUSE_IF(made->event == nullptr, CUDA_ERROR_INVALID_HANDLE);
    operation = std::move(made);
    return CUDA_SUCCESS;
}

CUresult check_memory_steps(const CUstreamBatchMemOpParams* steps, unsigned count) {
    GANTRY_REFUSE_IF(count != 0 && steps == nullptr, CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < count; ++i) {
        std::uint64_t bytes = 4;
        switch (steps[i].operation) {
            case CU_STREAM_MEM_OP_WAIT_VALUE_64:
            case CU_STREAM_MEM_OP_WRITE_VALUE_64: bytes = 8; [[fallthrough]];
            case CU_STREAM_MEM_OP_WAIT_VALUE_32:
            case CU_STREAM_MEM_OP_WRITE_VALUE_32:
                if (steps[i].waitValue.address % bytes != 0 ||
                    !MemoryMap::instance().covers(steps[i].waitValue.address, bytes)) {
                    return CUDA_ERROR_INVALID_VALUE;
                }
                break;
            case CU_STREAM_MEM_OP_BARRIER:
            case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: break;
            default: return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

CUresult make_batch_operation(const CUDA_BATCH_MEM_OP_NODE_PARAMS& params,
                              OperationPtr& operation) {
    GANTRY_CU(check_memory_steps(params.paramArray, params.count));
    auto made = std::make_shared<BatchMemoryOperation>();
    made->context = params.ctx;
    made->flags = params.flags;
    made->steps.assign(params.paramArray, params.paramArray + params.count);
    operation = std::move(made);
    return CUDA_SUCCESS;
}

CUresult make_child_operation(CUgraph graph, OperationPtr& operation) {
    const auto child = find<Graph>(graph);
    GANTRY_REFUSE_IF(child == nullptr, CUDA_ERROR_INVALID_VALUE);
    const GraphLock lock;
    GANTRY_REFUSE_IF(child->is_conditional(lock), CUDA_ERROR_NOT_SUPPORTED);
    auto copy = child->clone(lock);
    copy->is_child = true;
    operation = std::make_shared<ChildGraphOperation>(std::move(copy));
    return CUDA_SUCCESS;
}

CUresult make_conditional_operation(CUDA_CONDITIONAL_NODE_PARAMS& params, OperationPtr& operation) {
    const bool fits = (params.type == CU_GRAPH_COND_TYPE_IF && params.size <= 2) ||
                      (params.type == CU_GRAPH_COND_TYPE_WHILE && params.size == 1) ||
                      params.type == CU_GRAPH_COND_TYPE_SWITCH;
    auto made = std::make_shared<ConditionalOperation>();
    made->condition = Condition::find(params.handle);
    GANTRY_REFUSE_IF(
        !fits || params.size == 0 || made->condition == nullptr || !made->condition->claim(),
        CUDA_ERROR_INVALID_VALUE);
    made->kind = params.type;
    for (unsigned i = 0; i < params.size; ++i) {
        auto body = std::make_shared<Graph>();
        body->is_child = true;
        made->handles.push_back(publish<CUgraph>(body));
        made->bodies.push_back(std::move(body));
    }
    params.phGraph_out = made->handles.data();
    operation = std::move(made);
    return CUDA_SUCCESS;
}

CUresult make_alloc_operation(Context& context, CUDA_MEM_ALLOC_NODE_PARAMS& params,
                              OperationPtr& operation) {
    if (params.bytesize == 0 || params.poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        params.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto made = std::make_shared<AllocOperation>();
    GANTRY_CU(GraphAllocation::create(context, params.bytesize, made->allocation));
    params.dptr = made->allocation->address;
    made->params = params;
    if (params.accessDescs != nullptr) {
        made->access.assign(params.accessDescs, params.accessDescs + params.accessDescCount);
        made->params.accessDescs = made->access.data();
    }
    operation = std::move(made);
    return CUDA_SUCCESS;
}

CUresult make_free_operation(CUdeviceptr address, OperationPtr& operation) {
    const auto range = MemoryMap::instance().find(address);
    GANTRY_REFUSE_IF(!range || range->base != address || range->kind != MemoryKind::kPooled,
                     CUDA_ERROR_INVALID_VALUE);
    auto made = std::make_shared<FreeOperation>();
    made->address = address;
    operation = std::move(made);
    return CUDA_SUCCESS;
}

CUresult make_operation(const std::shared_ptr<Context>& context, CUgraphNodeParams& params,
                        OperationPtr& operation) {
    switch (params.type) {
        case CU_GRAPH_NODE_TYPE_KERNEL: {
            const auto& kernel = params.kernel;
            CUDA_KERNEL_NODE_PARAMS_v2 wide{};
            static_assert(sizeof wide == sizeof kernel);
            wide = reinterpret_cast<const CUDA_KERNEL_NODE_PARAMS_v2&>(kernel);
            return make_kernel_operation(context, wide, {}, operation);
        }
        case CU_GRAPH_NODE_TYPE_MEMCPY:
            return make_memcpy_operation(params.memcpy.copyParams, operation);
        case CU_GRAPH_NODE_TYPE_MEMSET: {
            const auto& m = params.memset;
            return make_memset_operation(
                {m.dst, m.pitch, m.value, m.elementSize, m.width, m.height}, operation);
        }
        case CU_GRAPH_NODE_TYPE_HOST:
            return make_host_operation({params.host.fn, params.host.userData}, operation);
        case CU_GRAPH_NODE_TYPE_GRAPH: return make_child_operation(params.graph.graph, operation);
        case CU_GRAPH_NODE_TYPE_EMPTY:
            operation = std::make_shared<EmptyOperation>();
            return CUDA_SUCCESS;
        case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
            return make_event_operation(params.type, params.eventWait.event, operation);
        case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
            return make_event_operation(params.type, params.eventRecord.event, operation);
        case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
            CUDA_MEM_ALLOC_NODE_PARAMS alloc{params.alloc.poolProps, params.alloc.accessDescs,
                                             params.alloc.accessDescCount, params.alloc.bytesize,
                                             0};
            const CUresult error = make_alloc_operation(*context, alloc, operation);
            params.alloc.dptr = alloc.dptr;
            return error;
        }
        case CU_GRAPH_NODE_TYPE_MEM_FREE: return make_free_operation(params.free.dptr, operation);
        case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
            const auto& batch = params.memOp;
            return make_batch_operation({batch.ctx, batch.count, batch.paramArray, batch.flags},
                                        operation);
        }
        case CU_GRAPH_NODE_TYPE_CONDITIONAL:
            return make_conditional_operation(params.conditional, operation);
        default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

}  // namespace gantry::softgpu
