// The device runtime: kernels that launch kernels. nvcc turns `k<<<...>>>` in device code into a
// call for a parameter buffer, stores into it, and a call that launches it; the names and
// signatures are those of CUDA's cuda_device_runtime_api.h.
#include <utility>

#include "host-daemon/softgpu/engine/exec/builtin.h"
#include "host-daemon/softgpu/engine/exec/touch.h"
#include "host-daemon/softgpu/engine/linked.h"
#include "host-daemon/softgpu/engine/run/device_queue.h"
#include "host-daemon/softgpu/engine/run/launch_state.h"

namespace gantry::softgpu::exec {
namespace {

constexpr std::uint32_t kSharedBytesMax = 49152;  // More needs an attribute device code cannot set.
constexpr std::uint64_t kStreamNonBlocking = 1;
constexpr std::uint64_t kErrorMemoryAllocation = 2;

std::uint64_t thread_key(const Warp& warp, std::uint32_t lane) {
    const Block& block = *warp.block;
    const Dim3& grid = block.launch->config->grid;
    const std::uint64_t index = (std::uint64_t{block.z} * grid.y + block.y) * grid.x + block.x;
    return index * 1024 + warp.index * kLanes + lane;
}

/// A kernel's number from what a kernel sees as its address; kAnyKernel if it is none.
std::uint32_t kernel_at(const LinkedProgram& program, std::uint64_t address) {
    for (std::uint32_t i = 0; i < program.kernel_functions.size(); ++i) {
        if (ProgramFunction::address(program.kernel_functions[i]) == address) {
            return i;
        }
    }
    return DeviceWork::kAnyKernel;
}

DeviceRuntimeError check_shape(const LaunchState& launch, const DeviceWork& child) {
    if (child.kernel == DeviceWork::kAnyKernel) {
        return DeviceRuntimeError::kInvalidDeviceFunction;
    }
    if (launch.children->depth() >= DeviceQueue::kMaxDepth) {
        return DeviceRuntimeError::kMaxDepthExceeded;
    }
    const KernelInfo& kernel = launch.program->kernels[child.kernel];
    const std::uint64_t threads = child.block.count();
    const bool fits =
        child.grid.count() != 0 && child.grid.y <= 65535 && child.grid.z <= 65535 && threads != 0 &&
        child.block.z <= 64 && threads <= launch.profile->max_threads_per_block &&
        threads <= kernel.max_threads_per_block &&
        std::uint64_t{kernel.static_shared_bytes} + child.dynamic_shared_bytes <= kSharedBytesMax;
    return fits ? DeviceRuntimeError::kNone : DeviceRuntimeError::kInvalidConfiguration;
}

/// __cudaCDP2GetParameterBufferV2(function, grid, block, dynamic shared bytes) -> buffer
void reserve_with_shape(Warp& warp, const CallSite& site, std::uint32_t lane) {
    const LaunchState& launch = *warp.block->launch;
    DeviceWork child;
    child.kernel = kernel_at(*launch.program, argument(warp, site, 0, lane));
    argument_bytes(warp, site, 1, lane, &child.grid, sizeof(Dim3));
    argument_bytes(warp, site, 2, lane, &child.block, sizeof(Dim3));
    child.dynamic_shared_bytes = static_cast<std::uint32_t>(argument(warp, site, 3, lane));
    const DeviceRuntimeError error = check_shape(launch, child);
    std::uint64_t buffer = 0;
    {
        const ServiceCall call(warp);
        if (error == DeviceRuntimeError::kNone) {
            child.params.resize(launch.program->kernels[child.kernel].parameter_bytes);
            buffer = launch.children->reserve(std::move(child));
        } else {
            launch.children->set_error(thread_key(warp, lane), error);
        }
    }
    set_result(warp, site, lane, buffer);
}

/// __cudaCDP2GetParameterBuffer(alignment, size) -> buffer
void reserve_plain(Warp& warp, const CallSite& site, std::uint32_t lane) {
    constexpr std::uint64_t kParameterBytesMax = 32764;
    const std::uint64_t size = argument(warp, site, 1, lane);
    std::uint64_t buffer = 0;
    if (size <= kParameterBytesMax) {
        const ServiceCall call(warp);
        DeviceWork child;
        child.params.resize(size);
        buffer = warp.block->launch->children->reserve(std::move(child));
    }
    set_result(warp, site, lane, buffer);
}

void finish_launch(Warp& warp, const CallSite& site, std::uint32_t lane, DeviceRuntimeError error,
                   std::unique_ptr<DeviceWork> child, std::uint64_t stream) {
    DeviceQueue& queue = *warp.block->launch->children;
    if (error == DeviceRuntimeError::kNone) {
        queue.launch(std::move(child), stream);
    } else {
        queue.set_error(thread_key(warp, lane), error);
        queue.keep(std::move(child));
    }
    set_result(warp, site, lane, static_cast<std::uint64_t>(error));
}

/// __cudaCDP2LaunchDeviceV2(buffer, stream) -> error
void launch_reserved(Warp& warp, const CallSite& site, std::uint32_t lane) {
    const ServiceCall call(warp);
    auto child = warp.block->launch->children->claim(argument(warp, site, 0, lane));
    const bool known = child != nullptr && child->kernel != DeviceWork::kAnyKernel;
    finish_launch(warp, site, lane,
                  known ? DeviceRuntimeError::kNone : DeviceRuntimeError::kInvalidValue,
                  std::move(child), argument(warp, site, 1, lane));
}

/// __cudaCDP2LaunchDevice(function, buffer, grid, block, dynamic shared bytes, stream) -> error
void launch_plain(Warp& warp, const CallSite& site, std::uint32_t lane) {
    const ServiceCall call(warp);
    const LaunchState& launch = *warp.block->launch;
    auto child = launch.children->claim(argument(warp, site, 1, lane));
    DeviceRuntimeError error = DeviceRuntimeError::kInvalidValue;
    if (child != nullptr) {
        child->kernel = kernel_at(*launch.program, argument(warp, site, 0, lane));
        argument_bytes(warp, site, 2, lane, &child->grid, sizeof(Dim3));
        argument_bytes(warp, site, 3, lane, &child->block, sizeof(Dim3));
        child->dynamic_shared_bytes = static_cast<std::uint32_t>(argument(warp, site, 4, lane));
        error = check_shape(launch, *child);
    }
    finish_launch(warp, site, lane, error, std::move(child), argument(warp, site, 5, lane));
}

/// (pointer to a handle, flags) -> error
void make_handle(Warp& warp, const Inst* inst, const CallSite& site, std::uint32_t lane,
                 bool stream) {
    const std::uint64_t place = argument(warp, site, 0, lane);
    if (stream && argument(warp, site, 1, lane) != kStreamNonBlocking) {
        set_result(warp, site, lane, static_cast<std::uint64_t>(DeviceRuntimeError::kInvalidValue));
        return;
    }
    std::uint64_t handle = 0;
    {
        const ServiceCall call(warp);
        handle = warp.block->launch->children->make_handle();
    }
    LaneMemory(warp, inst, lane).write(place, &handle, sizeof(handle));
    set_result(warp, site, lane, 0);
}

/// __cudaCDP2Malloc(pointer to a pointer, size) -> error
void allocate(Warp& warp, const Inst* inst, const CallSite& site, std::uint32_t lane) {
    const std::uint64_t place = argument(warp, site, 0, lane);
    const std::uint64_t size = argument(warp, site, 1, lane);
    std::uint64_t address = 0;
    {
        const ServiceCall call(warp);
        address = call.services().heap_allocate(size);
    }
    LaneMemory(warp, inst, lane).write(place, &address, sizeof(address));
    set_result(warp, site, lane, address == 0 && size != 0 ? kErrorMemoryAllocation : 0);
}

/// __cudaCDP2MemcpyAsync(to, from, size, kind, stream) -> error
/// __cudaCDP2MemsetAsync(to, value, size, stream) -> error
void copy_or_fill(Warp& warp, const CallSite& site, std::uint32_t lane, DeviceWork::Kind kind) {
    const ServiceCall call(warp);
    const bool copy = kind == DeviceWork::Kind::kCopy;
    auto work = std::make_unique<DeviceWork>();
    work->kind = kind;
    work->to = argument(warp, site, 0, lane);
    work->from = copy ? argument(warp, site, 1, lane) : 0;
    work->value = copy ? std::uint8_t{0} : static_cast<std::uint8_t>(argument(warp, site, 1, lane));
    work->size = argument(warp, site, 2, lane);
    const std::uint64_t stream = argument(warp, site, copy ? 4 : 3, lane);
    warp.block->launch->children->launch(std::move(work), stream);
    set_result(warp, site, lane, 0);
}

void last_error(Warp& warp, const CallSite& site, std::uint32_t lane, bool clear) {
    const ServiceCall call(warp);
    set_result(warp, site, lane,
               static_cast<std::uint64_t>(
                   warp.block->launch->children->error(thread_key(warp, lane), clear)));
}

}  // namespace

void call_device_runtime(Warp& warp, const Inst* inst, const CallSite& site, std::uint32_t lane) {
    switch (site.builtin) {
        case Builtin::kGetParameterBuffer: reserve_plain(warp, site, lane); break;
        case Builtin::kGetParameterBufferV2: reserve_with_shape(warp, site, lane); break;
        case Builtin::kLaunchDevice: launch_plain(warp, site, lane); break;
        case Builtin::kLaunchDeviceV2: launch_reserved(warp, site, lane); break;
        case Builtin::kStreamCreate: make_handle(warp, inst, site, lane, true); break;
        case Builtin::kEventCreate: make_handle(warp, inst, site, lane, false); break;
        case Builtin::kGetLastError: last_error(warp, site, lane, true); break;
        case Builtin::kPeekAtLastError: last_error(warp, site, lane, false); break;
        case Builtin::kCopyAsync: copy_or_fill(warp, site, lane, DeviceWork::Kind::kCopy); break;
        case Builtin::kFillAsync: copy_or_fill(warp, site, lane, DeviceWork::Kind::kFill); break;
        case Builtin::kDeviceMalloc: allocate(warp, inst, site, lane); break;
        case Builtin::kDeviceFree: {
            const ServiceCall call(warp);
            if (const std::uint64_t address = argument(warp, site, 0, lane); address != 0) {
                call.services().heap_free(address);
            }
            set_result(warp, site, lane, 0);
            break;
        }
        default: set_result(warp, site, lane, 0); break;  // kAlreadyOrdered
    }
}

}  // namespace gantry::softgpu::exec
