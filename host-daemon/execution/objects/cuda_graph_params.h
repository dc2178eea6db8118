// What graph nodes were given, as the driver tells it, in the guest's terms.
//
// A node that a capture or a clone made has its parameters at the driver only: a snapshot and the
// guest's getters read them from there.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "host-daemon/execution/device/device.h"
#include "host-daemon/execution/objects/objects.h"
#include "proto/base/mutex.h"
#include "proto/cuda/wire_hand.h"

namespace gantry::worker {

/// The guest's handles of the kernels that a driver names in graphs. A kernel that was launched as
/// a CUkernel may be named as its function in the context, of which the guest need not know.
///
/// Threads: all calls lock. Cost: driver calls for every kernel the first time that the guest does
/// not know a function; then a look-up and one call.
class KernelNames {
public:
    KernelNames(Device& device, const ObjectTable& objects) : device_(device), objects_(objects) {}

    /// Handle of a kernel or of a function; 0 when neither lives any more.
    [[nodiscard]] std::uint64_t handle_of(const CUDA_KERNEL_NODE_PARAMS_v2& params);

private:
    [[nodiscard]] std::uint64_t kernel_of(CUfunction function);
    /// Null where the driver does not tell, or there is no such kernel any more.
    [[nodiscard]] CUfunction function_of(std::uint64_t kernel) const;

    Device& device_;
    const ObjectTable& objects_;
    Mutex mutex_;
    std::map<CUfunction, std::uint64_t> kernels_ GANTRY_GUARDED_BY(mutex_);
};

/// The arguments as one block, however the driver shows them; false when it does not tell their
/// layout.
bool pack_arguments(const driver::DriverApi& api, const CUDA_KERNEL_NODE_PARAMS_v2& params,
                    std::string* out);

/// A copy as the wire has it; stream is 0. An array that does not live any more is 0.
cuda::wire_hand::Copy3DCall describe_copy(const CUDA_MEMCPY3D_v2& params,
                                          const ObjectTable& objects);

}  // namespace gantry::worker
