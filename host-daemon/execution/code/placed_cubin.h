// A cubin whose code names other addresses for its variables than the driver would give it.
//
// WHAT. A driver puts a variable where it likes, and writes the address into code and data as the
// cubin's relocations say: symbol + addend. So the addend moves what the code names: with addend =
// wanted - actual it names the wanted address, whatever the format of the instructions. WHAT NOT.
// The driver itself still has the variable where it put it: whoever loads the file has memory at
// the wanted address (variable_memory.h), and the contents there.
//
// Relocations that hold an absolute address are known by their kinds; another kind that names a
// variable which is to move, a relocation without an addend (SHT_REL), code in capsules (compute
// capability 10 and later) and a variable in a constant bank, which code names by its offset, are
// refused.
//
// Pure functions. The file is the guest's: it has to have passed check_cubin() (elf_check.h), and
// each look at it is checked none the less. Failure: reasons `module.globals.not_movable`, image.*.
// Cost: one pass over the relocations; a copy of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "proto/base/result.h"

namespace gantry::worker {

/// wanted - actual, modulo 2^64, by name.
using VariableShifts = std::map<std::string, std::uint64_t, std::less<>>;

/// How code reaches its variables.
struct CubinVariables {
    std::set<std::string, std::less<>> named;      ///< By a relocation: the code knows the address.
    std::set<std::string, std::less<>> constants;  ///< By an offset in a constant bank.
};
Result<CubinVariables> cubin_variables(std::span<const std::byte> cubin);

/// The cubin with these variables elsewhere. A name that it does not have is ignored.
Result<std::vector<std::byte>> placed_cubin(std::span<const std::byte> cubin,
                                            const VariableShifts& shifts);

/// The same of an image: of a cubin, or of what a fatbin has for a device of this compute
/// capability (90: 9.0). What comes out has no code but that.
Result<CubinVariables> image_variables(std::span<const std::byte> image, unsigned capability);
Result<std::vector<std::byte>> placed_machine_code(std::span<const std::byte> image,
                                                   unsigned capability,
                                                   const VariableShifts& shifts);

}  // namespace gantry::worker
