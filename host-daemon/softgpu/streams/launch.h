// Launch checks: what CUDA refuses at the call, with its error codes.
#pragma once

#include <memory>

#include "host-daemon/softgpu/streams/operation.h"

namespace gantry::softgpu {

/// Packs parameters from kernelParams or extra; `kernel` is what they are checked against.
CUresult pack_parameters(const KernelInfo& kernel, void** kernel_params, void** extra,
                         std::vector<std::byte>& packed);

struct LaunchShape {
    Dim3 grid;
    Dim3 block;
    std::uint32_t dynamic_shared_bytes = 0;
};

/// Checks everything and builds the operation. `attributes` may hold any launch attributes;
/// those without meaning here are kept for queries only.
CUresult make_launch(const std::shared_ptr<Context>& context, const void* function_handle,
                     const LaunchShape& shape, void** kernel_params, void** extra,
                     const CUlaunchAttribute* attributes, unsigned attribute_count,
                     std::shared_ptr<KernelOperation>& operation);

/// What is wrong with an attribute whatever it is given to: an id that is none, a value.
CUresult check_attribute(const CUlaunchAttribute& attribute);

/// Blocks of the function on one SM, with the function's own limits.
int resident_blocks(const Function& function, std::uint32_t threads, std::uint64_t dynamic_bytes);

}  // namespace gantry::softgpu
