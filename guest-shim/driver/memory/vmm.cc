// Virtual memory management: what the guest keeps of address ranges and of mappings into them.
#include "guest-shim/driver/core/call_rules.h"
#include "guest-shim/driver/core/ranges.h"

namespace gantry::shim::rules {

void range_reserved(CUdeviceptr address, std::size_t bytes) noexcept {
    Range range{};
    range.address = address;
    range.bytes = bytes;
    range.kind = RangeKind::kReserved;
    range.device = current_device();
    add_range(&range);
}

void range_freed(CUdeviceptr address) noexcept {
    Range range{};
    if (find_range(address, &range) && range.kind == RangeKind::kReserved) {
        remove_range(address, &range);
    }
}

void range_mapped(CUdeviceptr address, std::size_t bytes) noexcept {
    Range mapping{};
    if (find_range(address, &mapping)) {
        mapping.address = address;
        mapping.bytes = bytes;
        add_mapping(&mapping);
    }
}

void range_unmapped(CUdeviceptr address, std::size_t bytes) noexcept {
    remove_mappings(address, bytes);
}

}  // namespace gantry::shim::rules
