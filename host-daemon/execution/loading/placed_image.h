// Code whose variables lie at given addresses, in place of the code that a driver has just loaded:
// where another driver had them, or, managed ones, in pages that the guest sees too.
//
// WHAT. Memory at the variables' addresses, and code that names them there: the image's machine
// code with other addends in its relocations (placed_cubin.h), or, where there is none or it cannot
// be done, its PTX, written anew (placed_ptx.h) and compiled by the driver. The image itself stays
// what the application gave: the next host loads it as it is, and places it only if that has to
// be. WHAT NOT. The variables' contents: they move like other memory.
//
// Threads: that which restores. Failure: reasons `module.globals.not_movable`,
// `module.globals.not_now`, `ptx.*`, `module.load`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host-daemon/execution/code/placed_ptx.h"
#include "host-daemon/execution/memory/variable_memory.h"
#include "host-daemon/execution/process/guest_process.h"

namespace gantry::worker {

/// What a placed module needs as long as it is loaded.
struct PlacedCode {
    Image image;  ///< Machine code, PTX text, or what a linker made of several. None: the image's.
    std::vector<cuda::wire_hand::ImagePart> parts;
    std::unique_ptr<VariableMemory::Hold> memory;
};

/// The PTX that a device of this compute capability (90: 9.0) compiles of an image: one text, or
/// of a program that was linked from several all of them.
Result<std::vector<std::string>> ptx_units(const LoadedImage& loaded, unsigned capability);

using Variables = std::map<std::string, ModuleVariable>;

/// Sees to it that the variables of a module or library of `process` that has just been loaded are
/// where the program has them; loads it again where that has to be. One that nobody can know, since
/// no code names it and the program never asked for it, stays where the driver has put it
/// (ModuleVariable::lies_at). On an error the driver may have the module no more: end it.
Result<void> bring_back_variables(GuestProcess& process, std::uint64_t handle,
                                  const Variables& variables);

/// Loads a module or library of `process` again, compiled from its PTX, with these variables there;
/// memory of the guest's (pinned addresses) has to be there. On an error the driver has it no more:
/// end it.
Result<void> place_image(GuestProcess& process, std::uint64_t handle, const Variables& variables,
                         Others others);

}  // namespace gantry::worker
