// How much device memory the variables of a kernel image take: what the quota counts before a
// driver loads it.
//
// Of a cubin the sections that hold variables, of PTX the declarations. Array bounds of PTX that
// are expressions count as their first number: whoever loads the image asks the driver afterwards.
//
// Pure functions; hostile bytes give some number. Cost: of a cubin one look at its sections; one
// pass over a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace gantry::worker {

std::uint64_t cubin_variable_bytes(std::span<const std::byte> cubin);
std::uint64_t ptx_variable_bytes(std::string_view ptx);

}  // namespace gantry::worker
