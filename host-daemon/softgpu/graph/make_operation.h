// From the parameter structures of graph nodes to checked operations.
#pragma once

#include "host-daemon/softgpu/graph/graph.h"

namespace gantry::softgpu {

/// `context` is the current one; a node's own context field wins when it is set.
CUresult make_kernel_operation(const std::shared_ptr<Context>& context,
                               const CUDA_KERNEL_NODE_PARAMS_v2& params,
                               const std::vector<CUlaunchAttribute>& attributes,
                               OperationPtr& operation);
CUresult make_memcpy_operation(const CUDA_MEMCPY3D& params, OperationPtr& operation);
CUresult make_memset_operation(const CUDA_MEMSET_NODE_PARAMS& params, OperationPtr& operation);
CUresult make_host_operation(const CUDA_HOST_NODE_PARAMS& params, OperationPtr& operation);
CUresult make_event_operation(CUgraphNodeType type, CUevent event, OperationPtr& operation);
CUresult make_batch_operation(const CUDA_BATCH_MEM_OP_NODE_PARAMS& params, OperationPtr& operation);
CUresult make_child_operation(CUgraph graph, OperationPtr& operation);
/// With its graphs, whose handles are written into `params`.
CUresult make_conditional_operation(CUDA_CONDITIONAL_NODE_PARAMS& params, OperationPtr& operation);
CUresult make_alloc_operation(Context& context, CUDA_MEM_ALLOC_NODE_PARAMS& params,
                              OperationPtr& operation);
CUresult make_free_operation(CUdeviceptr address, OperationPtr& operation);
/// Any of them by the union's type; alloc nodes write their address into `params`.
CUresult make_operation(const std::shared_ptr<Context>& context, CUgraphNodeParams& params,
                        OperationPtr& operation);

CUDA_KERNEL_NODE_PARAMS_v2 widen(const CUDA_KERNEL_NODE_PARAMS_v1& params);

/// Checks batch memory operations against the memory map.
CUresult check_memory_steps(const CUstreamBatchMemOpParams* steps, unsigned count);

}  // namespace gantry::softgpu
