// Gives code to the CUDA driver and takes it back.
//
// The driver gets an image as the application gave it: a fatbin's header, an ELF, a PTX text, or
// for a prelinked (-rdc) program a wrapper with all its parts. Threads: those that may call the
// driver with the code's context current.
#pragma once

#include <cstdint>
#include <span>

#include "host-daemon/driver/driver_library.h"
#include "host-daemon/execution/code/image_store.h"
#include "host-daemon/execution/code/jit_options.h"
#include "proto/cuda/wire_hand.h"

namespace gantry::worker {

/// Loads the image's parts, which must be sound, as a module or as a library; `native`: the
/// driver's handle.
CUresult hand_to_driver(const driver::DriverApi& api, const Image& image,
                        std::span<const cuda::wire_hand::ImagePart> parts, bool is_library,
                        JitOptions& options, std::uint64_t* native);
void unload_image(const driver::DriverApi& api, bool library, std::uint64_t native);

}  // namespace gantry::worker
