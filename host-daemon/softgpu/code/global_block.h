// Memory for one module's variables: either a block of our own choosing, or exactly the addresses
// that a snapshot wants (which may come from another driver and lie outside our window).
#pragma once

#include <cstdint>
#include <vector>

#include "host-daemon/softgpu/core/device.h"
#include "proto/base/result.h"

namespace gantry::softgpu {

struct GlobalNeed {
    std::uint64_t bytes = 0;
    std::uint64_t align = 1;
    std::uint64_t wanted = 0;  ///< 0: anywhere.
};

class GlobalBlock {
public:
    explicit GlobalBlock(Device& device) : device_(device) {}
    ~GlobalBlock();
    GlobalBlock(const GlobalBlock&) = delete;
    GlobalBlock& operator=(const GlobalBlock&) = delete;

    /// Addresses for all needs, in order; memory is mapped and zero. Once per object.
    /// Reasons: module.memory (quota or space), module.place (a wanted address is taken).
    Result<std::vector<std::uint64_t>> allocate(const std::vector<GlobalNeed>& needs);

private:
    struct Piece {
        std::uint64_t address;
        std::uint64_t bytes;
        bool foreign;  ///< Outside the arena: plain anonymous pages.
    };
    Result<void> take(std::uint64_t first, std::uint64_t last);

    Device& device_;
    std::vector<Piece> pieces_;
};

}  // namespace gantry::softgpu
