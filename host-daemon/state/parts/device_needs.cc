#include "host-daemon/state/parts/device_needs.h"

#include <algorithm>

namespace gantry::state {
namespace {

/// Shared memory of a block that every device has without being asked for it.
constexpr std::uint64_t kSharedEverywhere = 48 << 10;

}  // namespace

std::vector<engine::AttributeNeed> attribute_needs(worker::GuestProcess& process) {
    std::uint64_t most = 0;
    const auto is_alive = [&](std::uint64_t handle) { return process.objects.contains(handle); };
    for (const worker::FunctionUse& use : process.code.device_use.list(is_alive)) {
        const int dynamic_bytes = std::max(use.dynamic_shared_bytes, 0);
        most = std::max(most, use.static_shared_bytes + static_cast<std::uint64_t>(dynamic_bytes));
    }
    if (most <= kSharedEverywhere) {
        return {};
    }
    return {{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
             "max_shared_memory_per_block_optin", static_cast<std::int64_t>(most)}};
}

}  // namespace gantry::state
