// What a running kernel launches (CUDA dynamic parallelism): grids, copies and fills. They wait
// here until the launching grid has ended, and run before the launch as a whole counts as done.
// That order is always allowed: a grid cannot wait for its children, and grids of one block's
// streams may not overtake each other, so running them one after the other in launch order
// satisfies every stream and event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "host-daemon/softgpu/engine/engine.h"

namespace gantry::softgpu {

/// Error codes of the CUDA runtime that device code can get from a launch of its own.
enum class DeviceRuntimeError : int {
    kNone = 0,
    kInvalidValue = 1,
    kInvalidConfiguration = 9,
    kMaxDepthExceeded = 65,
    kInvalidDeviceFunction = 98,
};

/// A grid, or a copy or fill in the order of the grids around it.
struct DeviceWork {
    enum class Kind : std::uint8_t { kGrid, kCopy, kFill };
    static constexpr std::uint32_t kAnyKernel = 0xffffffffU;  ///< Told by the launch itself.
    Kind kind = Kind::kGrid;
    std::uint32_t kernel = kAnyKernel;
    Dim3 grid;
    Dim3 block;
    std::uint32_t dynamic_shared_bytes = 0;
    std::vector<std::byte> params;
    std::uint64_t to = 0;    ///< kCopy, kFill: addresses as kernels use them.
    std::uint64_t from = 0;  ///< kCopy.
    std::uint64_t size = 0;  ///< kCopy, kFill: bytes.
    std::uint8_t value = 0;  ///< kFill.
};

class DeviceQueue {
public:
    /// Grids may nest this deep, the host's launch counted as the first (programming guide).
    static constexpr unsigned kMaxDepth = 24;
    /// Stream handles with a meaning; others order their grids only.
    static constexpr std::uint64_t kTailLaunchStream = 3;

    explicit DeviceQueue(unsigned depth) : depth_(depth) {}

    [[nodiscard]] unsigned depth() const { return depth_; }

    /// Keeps a grid without launching it. Returns the address of its parameter buffer in the
    /// launch window (windows.h); 0 if its parameters fit no slot, or no slot is left.
    [[nodiscard]] std::uint64_t reserve(DeviceWork child);

    /// Where [address, address + bytes) of a reserved grid's parameter buffer lies in this process;
    /// 0 if it is none. It stays there until the launching grid has ended.
    [[nodiscard]] std::uint64_t parameters_at(std::uint64_t address, std::uint64_t bytes);

    /// The reserved grid of this parameter buffer, to be launched; null if there is none.
    [[nodiscard]] std::unique_ptr<DeviceWork> claim(std::uint64_t buffer);

    void launch(std::unique_ptr<DeviceWork> child, std::uint64_t stream);

    /// Keeps what will not be launched: another thread of the grid may be writing its parameters.
    void keep(std::unique_ptr<DeviceWork> child);

    /// The launched grids in the order in which they must run.
    [[nodiscard]] std::vector<std::unique_ptr<DeviceWork>> take();

    /// The last error of one thread of the grid; success erases nothing.
    void set_error(std::uint64_t thread, DeviceRuntimeError error);
    [[nodiscard]] DeviceRuntimeError error(std::uint64_t thread, bool clear);

    /// A handle that no other stream or event of this grid has.
    [[nodiscard]] std::uint64_t make_handle();

private:
    const unsigned depth_;
    std::mutex mutex_;
    std::map<std::uint64_t, std::unique_ptr<DeviceWork>> reserved_;  ///< By slot.
    std::uint64_t slots_ = 0;                                        ///< Handed out so far.
    std::vector<std::unique_ptr<DeviceWork>> kept_;
    std::vector<std::unique_ptr<DeviceWork>> launched_;
    std::vector<std::unique_ptr<DeviceWork>> tail_;
    std::unordered_map<std::uint64_t, DeviceRuntimeError> errors_;
    std::uint64_t handles_ = 0;
};

}  // namespace gantry::softgpu
