#include "host-daemon/softgpu/engine/exec/touch.h"

#include <cstring>

#include "host-daemon/softgpu/engine/run/device_queue.h"
#include "host-daemon/softgpu/engine/run/launch_state.h"
#include "host-daemon/softgpu/engine/windows.h"

namespace gantry::softgpu::exec {
namespace {

struct Window {
    std::uint64_t host = 0;
    std::uint64_t bytes = 0;
    bool writable = true;
};

/// What the window of this address holds for this lane.
Window window_of(Warp& warp, std::uint32_t lane, std::uint64_t address) {
    Block& block = *warp.block;
    LaunchState& launch = *block.launch;
    const auto number = [](const void* pointer) {
        return reinterpret_cast<std::uint64_t>(pointer);
    };
    switch ((address - kWindows) / kWindowBytes * kWindowBytes + kWindows) {
        case kSharedWindow: return {number(block.shared), block.shared_bytes, true};
        case kLocalWindow:
            return {number(warp.local) + std::uint64_t{warp.local_stride} * lane, warp.local_stride,
                    true};
        case kParameterWindow: return {number(block.params), block.param_bytes, false};
        case kGridWindow:
            return {number(launch.grid_workspace.data()),
                    launch.grid_workspace.size() * sizeof(launch.grid_workspace[0]), true};
        default: return {};
    }
}

/// 0 if nothing lies there.
std::uint64_t find_in_windows(Warp& warp, std::uint32_t lane, std::uint64_t address,
                              std::uint64_t bytes, Touch touch) {
    if (address >= kLaunchWindow) {
        return warp.block->launch->children->parameters_at(address, bytes);
    }
    const Window window = window_of(warp, lane, address);
    const std::uint64_t offset = address % kWindowBytes;
    const bool held = offset <= window.bytes && bytes <= window.bytes - offset;
    return held && (window.writable || touch == Touch::kRead) ? window.host + offset : 0;
}

bool in_any_window(std::uint64_t address) { return address - kWindows < kWindowsEnd - kWindows; }

}  // namespace

std::uint64_t find_address(Warp& warp, const Inst* inst, Touch touch, std::uint32_t lane,
                           std::uint64_t address, std::uint64_t bytes) {
    if (in_any_window(address)) {
        const std::uint64_t host = find_in_windows(warp, lane, address, bytes, touch);
        if (host != 0) {
            return host;
        }
    } else {
        const Reach& reach = warp.block->launch->services->reach();
        ReachSpan span;
        if (reach.find(address, bytes, touch, span)) {
            warp.thread->reach.of(inst, touch) = span;
            return address;
        }
    }
    raise_fault(
        warp, inst, LaunchError::kIllegalAddress, lane, address,
        touch == Touch::kRead ? "illegal memory access: read" : "illegal memory access: write");
}

void LaneMemory::read(std::uint64_t address, void* to, std::uint32_t bytes) const {
    const std::uint64_t at = flat_address(warp_, inst_, Touch::kRead, lane_, address, bytes);
    std::memcpy(to, reinterpret_cast<const void*>(at), bytes);
}

void LaneMemory::write(std::uint64_t address, const void* from, std::uint32_t bytes) const {
    const std::uint64_t at = flat_address(warp_, inst_, Touch::kWrite, lane_, address, bytes);
    std::memcpy(reinterpret_cast<void*>(at), from, bytes);
}

void LaneMemory::append_text(std::uint64_t address, std::string& out) const {
    // A piece at a time: a text may end close to the end of what can be read.
    constexpr std::uint64_t kPiece = 64;
    for (std::uint64_t taken = 0; taken < kTextBytesMax;) {
        const std::uint64_t piece = kPiece - address % kPiece;
        char bytes[kPiece];
        std::uint64_t got = 0;
        while (got < piece && (got == 0 || bytes[got - 1] != '\0')) {
            read(address + got, bytes + got, 1);
            ++got;
        }
        const bool ended = bytes[got - 1] == '\0';
        out.append(bytes, got - (ended ? 1 : 0));
        if (ended) {
            return;
        }
        address += got;
        taken += got;
    }
}

}  // namespace gantry::softgpu::exec
