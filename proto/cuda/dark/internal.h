// What the files of this folder share; nobody else includes it.
#pragma once

#include "proto/cuda/dark/dark.h"

namespace gantry::dark {

/// The callbacks that configure() installed; reading them before is a programmer error.
const Callbacks& callbacks();

/// The integrity table's slot 1: two words for the runtime's version argument. `interface_table`,
/// `integrity_table` and `slot` are the addresses the runtime saw.
int integrity_digest(std::uint32_t version, std::uint64_t unix_seconds, std::uint64_t result[2],
                     const void* interface_table, const void* integrity_table, const void* slot);

}  // namespace gantry::dark
