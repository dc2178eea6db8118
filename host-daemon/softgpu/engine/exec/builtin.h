// Arguments and results of functions that the engine itself implements.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "host-daemon/softgpu/engine/kernel_code.h"
#include "host-daemon/softgpu/engine/warp.h"

namespace gantry::softgpu::exec {

/// Whether the lane's local memory holds [offset, offset + size) of its frame.
inline bool in_frame(const Warp& warp, std::uint32_t lane, std::uint32_t offset,
                     std::uint32_t size) {
    return std::uint64_t{warp.frame[lane]} + offset + size <= warp.local_stride;
}

/// Copies up to `size` bytes of the index-th argument from the caller's frame. The frame is the
/// lane's own memory, so this cannot fault.
inline void argument_bytes(const Warp& warp, const CallSite& site, std::size_t index,
                           std::uint32_t lane, void* to, std::uint32_t size) {
    if (index < site.in.size() && in_frame(warp, lane, site.in[index].from, site.in[index].size)) {
        const CallArgument& place = site.in[index];
        std::memcpy(
            to,
            warp.local + std::uint64_t{warp.local_stride} * lane + warp.frame[lane] + place.from,
            std::min(place.size, size));
    }
}

/// The index-th argument of at most 8 bytes.
inline std::uint64_t argument(const Warp& warp, const CallSite& site, std::size_t index,
                              std::uint32_t lane) {
    std::uint64_t value = 0;
    argument_bytes(warp, site, index, lane, &value, 8);
    return value;
}

inline void set_result(const Warp& warp, const CallSite& site, std::uint32_t lane,
                       std::uint64_t value) {
    if (!site.out.empty() && in_frame(warp, lane, site.out[0].to, site.out[0].size)) {
        std::memcpy(warp.local + std::uint64_t{warp.local_stride} * lane + warp.frame[lane] +
                        site.out[0].to,
                    &value, std::min(site.out[0].size, 8U));
    }
}

/// One call of the device runtime (device_runtime.cc).
void call_device_runtime(Warp& warp, const Inst* inst, const CallSite& site, std::uint32_t lane);

}  // namespace gantry::softgpu::exec
