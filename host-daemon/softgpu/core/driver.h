// The state of the driver in this process: whether it has started, forked or is about to exit, and
// its devices. Made by cuInit (runtime/start.h), never destroyed: threads may outlive exit().
// Thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "host-daemon/softgpu/core/device.h"
#include "proto/cuda/abi.h"

namespace gantry::softgpu {

struct Driver {
    std::vector<std::unique_ptr<Device>> devices;
};

/// Calls `start` once in the process and keeps its result: a driver that could not be started
/// stays so. 4 during exit, 3 in a forked child.
CUresult start_once(CUresult (*start)(Driver& driver));
/// 0 when calls may proceed: 3 before cuInit and in a forked child, 4 during exit.
CUresult check_ready();
/// 3 in a forked child, else 0: for calls that work before cuInit.
CUresult check_not_forked();
/// Only after check_ready() has answered 0.
Driver& driver();
Device* device_of(int ordinal);

}  // namespace gantry::softgpu
