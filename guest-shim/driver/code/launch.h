// What launches, launch-attribute calls and graph nodes share.
#pragma once

#include "guest-shim/driver/core/objects.h"

namespace gantry::shim {

struct Shape {
    std::uint32_t grid[3];
    std::uint32_t block[3];
    std::uint32_t shared_bytes;
};

/// The kernel's arguments as the application gave them: one of the two, or neither.
struct Arguments {
    void** params;
    void** extra;
};

/// Checks that native makes before a launch is queued, with its codes.
CUresult check_shape(const Kernel& kernel, const Shape& shape) noexcept;

/// Size of the packed arguments; fails when they are missing or of unknown layout.
CUresult packed_bytes(const Kernel& kernel, const Arguments& arguments,
                      std::uint32_t* bytes) noexcept;
void pack(const Kernel& kernel, const Arguments& arguments, std::byte* out,
          std::uint32_t bytes) noexcept;

// ---- launches of which the host's driver may find something wrong (launch_attributes.cc) --------

/// True when no driver that has told of this device refuses the launch for its attributes or its
/// clusters, `shape` and a cooperative grid's size having been checked.
bool is_plain_launch(const Kernel& kernel, const Shape& shape, const CUlaunchAttribute* attributes,
                     unsigned count) noexcept;
/// A launch whose result is the host's: it returns when the host's driver has taken or refused it.
/// One that is equal, arguments and stream aside, to one of the kernel's last that were taken is
/// only queued: the driver takes it again.
CUresult launch_asking(cuda::Op op, const void* call, std::uint32_t call_bytes, const Shape& shape,
                       const void* attributes, std::uint32_t attribute_bytes, Kernel* kernel,
                       const Arguments& arguments, std::uint32_t param_bytes) noexcept;
/// What the kernel was told changes what the driver takes.
void forget_accepted(Kernel* kernel) noexcept;

}  // namespace gantry::shim
