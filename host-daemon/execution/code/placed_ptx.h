// PTX whose variables lie at given addresses.
//
// A driver alone decides where a module's variables lie, and a program that comes from another one
// may have stored their addresses. PTX cannot say where a variable has to be, but code need not
// name it: placed_ptx() drops the declarations and loads the addresses as numbers, once at the
// beginning of each function. Constants become global memory, whose addresses are plain numbers;
// `isspacep.const` is then false for them. Whoever loads the text has to have memory at the
// addresses, with the variables' contents (variable_memory.h).
//
// Pure functions; a text is as hostile as the guest that it came from. Failure: reasons `ptx.*`
// for a text that does not parse, `module.globals.not_movable` for one that cannot be placed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "proto/base/result.h"

namespace gantry::worker {

/// Addresses by name, as in PTX (mangled).
using VariablePlaces = std::map<std::string, std::uint64_t, std::less<>>;

/// What becomes of variables without a place that the code names.
enum class Others : bool {
    kRefused,  ///< Nobody knows where the program has them.
    kStay,     ///< They lie where the driver puts them.
};

Result<std::string> placed_ptx(std::string_view text, const VariablePlaces& places,
                               Others others = Others::kRefused);

/// The name of a function whose address the code or a variable holds; empty: none does. Such an
/// address means something to the driver alone that gave it.
Result<std::string> stored_function(std::string_view text);

}  // namespace gantry::worker
