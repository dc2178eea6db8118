// What GPU the soft driver pretends to be: read once at cuInit from a TOML file.
//
// GANTRY_SOFT_PROFILE names the file, or one of the built-in profiles "h200-like" (default) and
// "soft-13". GANTRY_SOFT_MEMORY (bytes, or with suffix M or G) overrides the memory size, for
// runs on small machines. Keys are those of profiles/*.toml; an unknown key is refused by name.
// Thread-safe after loading (constant).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "host-daemon/softgpu/engine/engine.h"
#include "proto/base/result.h"

namespace gantry::softgpu {

struct GpuProfile {
    std::string name = "Gantry Soft GPU (H200-like)";
    DeviceProfile engine;            ///< Compute capability, SM count, launch limits, clock.
    std::uint64_t memory_bytes = 0;  ///< 0: half of the machine's memory.
    std::array<std::uint8_t, 16> uuid{};
    int pci_domain = 0;
    int pci_bus = 0x18;
    int pci_device = 0;
    int memory_clock_khz = 3201000;
    int memory_bus_bits = 6016;
    int l2_bytes = 62914560;
    int ecc = 1;
    /// 1: as a driver that is not Gantry's, which has no extension table (soft_extension.h) and
    /// puts variables of modules elsewhere. For tests of moves between unlike drivers.
    int foreign = 0;
    /// Attribute number -> value, for whatever has no key of its own.
    std::map<int, int> attributes;

    [[nodiscard]] unsigned capability() const {
        return static_cast<unsigned>(engine.compute_capability_major * 10 +
                                     engine.compute_capability_minor);
    }
};

/// The devices of this process; never empty.
Result<std::vector<GpuProfile>> load_profiles();

/// Parses one profile text; `where` names it in errors.
Result<std::vector<GpuProfile>> parse_profiles(const std::string& text, const std::string& where);

/// Text of a built-in profile; empty when the name is unknown.
std::string builtin_profile(const std::string& name);

}  // namespace gantry::softgpu
