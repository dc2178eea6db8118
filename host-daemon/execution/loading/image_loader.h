// Loads a staged image as a module or a library, with the application's JIT options. The
// image is kept while the module lives.
#pragma once

#include <span>

#include "host-daemon/execution/dispatch/call.h"
#include "proto/cuda/wire_hand.h"

namespace gantry::worker {

CUresult load_image(Call& call, const cuda::wire_hand::LoadCall& load,
                    std::span<const std::byte> trailing, HandleKind kind, Reply& reply);

}  // namespace gantry::worker
