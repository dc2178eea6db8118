#include "host-daemon/execution/process/device_use.h"

#include <algorithm>

#include "host-daemon/execution/device/device.h"
#include "host-daemon/execution/objects/objects.h"
#include "proto/cuda/gen/opcodes.h"

namespace gantry::worker {
namespace {

constexpr std::size_t kGridsMax = 16;
constexpr std::size_t kNameMax = 120;

/// A name from the guest, for a sentence.
std::string readable(std::span<const std::byte> bytes) {
    std::string out;
    for (const std::byte byte : bytes.first(std::min(bytes.size(), kNameMax))) {
        const char c = static_cast<char>(byte);
        out += c > ' ' && c < 0x7f && c != '"' ? c : '?';
    }
    return out;
}

/// The name that the function, or the kernel it came from, was asked for by.
std::string kernel_name(const ObjectTable& objects, std::uint64_t function) {
    auto object = objects.get(function);
    const auto twin = static_cast<std::uint16_t>(cuda::Op::cuKernelGetFunction);
    if (object && object->creation.op == twin) {
        object = objects.get(object->parent);
    }
    return object ? readable(object->creation.trailing) : std::string();
}

int function_attribute(Device& device, const ObjectTable& objects, std::uint64_t function,
                       CUfunction_attribute attribute) {
    const driver::DriverApi& api = device.api();
    int value = 0;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
    if (const auto kernel = objects.native_as<CUkernel>(function, HandleKind::kKernel);
        kernel != nullptr && api.cuKernelGetAttribute != nullptr) {
        result = api.cuKernelGetAttribute(&value, attribute, kernel, device.ordinal());
    } else if (kernel == nullptr && api.cuFuncGetAttribute != nullptr) {
        result = api.cuFuncGetAttribute(
            &value, attribute, objects.native_as<CUfunction>(function, HandleKind::kFunction));
    }
    return result == CUDA_SUCCESS ? std::max(value, 0) : 0;
}

}  // namespace

bool CooperativeGrid::covers(const CooperativeGrid& other) const {
    return blocks >= other.blocks && threads_per_block >= other.threads_per_block &&
           shared_bytes >= other.shared_bytes && registers_per_thread >= other.registers_per_thread;
}

FunctionUse& DeviceUse::use_of(std::uint64_t function) {
    const auto known = uses_.find(function);
    if (known != uses_.end() && known->second.is_looked_up) {
        return known->second;
    }
    if (uses_.size() >= sweep_at_) {
        std::erase_if(uses_, [&](const auto& use) { return !objects_.contains(use.first); });
        sweep_at_ = std::max<std::size_t>(1024, 2 * uses_.size());
    }
    FunctionUse& use = uses_[function];
    use.function = function;
    use.is_looked_up = true;
    use.kernel = kernel_name(objects_, function);
    use.static_shared_bytes = static_cast<std::uint64_t>(
        function_attribute(device_, objects_, function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
    use.registers_per_thread = static_cast<std::uint32_t>(
        function_attribute(device_, objects_, function, CU_FUNC_ATTRIBUTE_NUM_REGS));
    return use;
}

void DeviceUse::add(FunctionUse& use, const CooperativeGrid& grid) {
    for (const CooperativeGrid& known : use.grids) {
        if (known.covers(grid)) {
            return;
        }
    }
    std::erase_if(use.grids, [&](const CooperativeGrid& known) { return grid.covers(known); });
    if (use.grids.size() < kGridsMax) {
        use.grids.push_back(grid);
        return;
    }
    // A program of many shapes: rather too much is asked of a target than too little.
    CooperativeGrid& last = use.grids.back();
    last.blocks = std::max(last.blocks, grid.blocks);
    last.threads_per_block = std::max(last.threads_per_block, grid.threads_per_block);
    last.shared_bytes = std::max(last.shared_bytes, grid.shared_bytes);
    last.registers_per_thread = std::max(last.registers_per_thread, grid.registers_per_thread);
}

bool DeviceUse::note_dynamic_shared(std::uint64_t function, std::int32_t bytes) {
    const MutexLock lock(mutex_);
    FunctionUse& use = use_of(function);
    if (bytes < use.dynamic_shared_bytes) {
        return false;
    }
    use.dynamic_shared_bytes = bytes;
    return true;
}

void DeviceUse::note_cooperative(std::uint64_t function, std::uint64_t blocks,
                                 std::uint32_t threads_per_block, std::uint32_t dynamic_bytes) {
    const MutexLock lock(mutex_);
    FunctionUse& use = use_of(function);
    add(use, {blocks, threads_per_block, use.static_shared_bytes + dynamic_bytes,
              use.registers_per_thread});
}

void DeviceUse::restore(std::uint64_t function, const std::string& kernel,
                        const CooperativeGrid& grid) {
    const MutexLock lock(mutex_);
    const auto [use, is_new] = uses_.try_emplace(function);
    if (is_new) {
        use->second.function = function;
        use->second.kernel = readable(std::as_bytes(std::span(kernel)));
    }
    add(use->second, grid);
}

std::vector<FunctionUse> DeviceUse::list(const Alive& is_alive) const {
    std::vector<FunctionUse> out;
    {
        const MutexLock lock(mutex_);
        for (const auto& [function, use] : uses_) {
            out.push_back(use);
        }
    }
    std::erase_if(out, [&](const FunctionUse& use) { return !is_alive(use.function); });
    return out;
}

}  // namespace gantry::worker
