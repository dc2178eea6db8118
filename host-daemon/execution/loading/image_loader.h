// Loads a staged image as a module or a library, with the application's JIT options.
//
// The driver gets the image as the application gave it: a fatbin's header, an ELF, a PTX text, or
// for a prelinked (-rdc) program a wrapper with all its parts. The image is kept while the module
// lives.
#pragma once

#include <span>

#include "host-daemon/execution/loading/placed_image.h"
#include "host-daemon/execution/process/call.h"
#include "proto/cuda/wire_hand.h"

namespace gantry::worker {

CUresult load_image(Call& call, const cuda::wire_hand::LoadCall& load,
                    std::span<const std::byte> trailing, HandleKind kind, Reply& reply);

/// Loads `code` as `loaded` was loaded; `native`: the driver's handle.
CUresult load_placed(GuestProcess& process, const LoadedImage& loaded, const PlacedCode& code,
                     std::uint64_t* native);
void unload_image(const driver::DriverApi& api, bool library, std::uint64_t native);

}  // namespace gantry::worker
