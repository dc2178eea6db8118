// Code whose variables lie at given addresses, in place of the code that a driver has just loaded:
// where another driver had them, or, managed ones, in pages that the guest sees too.
//
// WHAT. The image's PTX, written anew (placed_ptx.h), compiled by the driver, and memory at the
// variables' addresses. The image itself stays what the application gave: the next host loads it
// as it is, and places it only if that has to be. WHAT NOT. The variables' contents: they move like
// other memory.
//
// Threads: that which restores. Failure: reasons `module.globals.not_movable`, `ptx.*`,
// `module.load`.
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
    Image image;  ///< PTX text, or what a linker made of several.
    std::vector<cuda::wire_hand::ImagePart> parts;
    std::unique_ptr<VariableMemory::Hold> memory;
};

/// The PTX that a device of this compute capability (90: 9.0) compiles of an image: one text, or
/// of a program that was linked from several all of them.
Result<std::vector<std::string>> ptx_units(const LoadedImage& loaded, unsigned capability);

/// Loads a module or library of `process` again, with these variables there; memory of the guest's
/// (pinned addresses) has to be there. On an error the driver has it no more: end it.
Result<void> place_image(GuestProcess& process, std::uint64_t handle,
                         const std::map<std::string, ModuleVariable>& variables, Others others);

}  // namespace gantry::worker
