// Modules, libraries, kernels: what the theme files share.
#pragma once

#include "guest-shim/driver/core/objects.h"
#include "proto/cuda/dark/dark.h"

namespace gantry::shim {

/// Visits each function of a module; returns how many there were.
int visit_functions(void* module, dark::FunctionVisitor visitor, void* user);

/// A kernel of a module or library by name: the same handle each time.
CUresult get_kernel(std::uint64_t owner, const char* name, HandleKind kind,
                    std::uint64_t* handle) noexcept;

/// Forgets the kernels of an owner that is being unloaded.
void forget_kernels(Module* owner) noexcept;

/// Forgets the modules of a context that has ended; libraries are the process's.
void forget_modules_of(std::uint64_t context) noexcept;

/// Lets go of the parts that images hold beside the handle tables.
CUresult load_image(cuda::Op op, HandleKind kind, const void* image, unsigned jit_count,
                    const CUjit_option* jit_options, void** jit_values, unsigned library_count,
                    const CUlibraryOption* library_options, void** library_values,
                    std::uint64_t* handle) noexcept;

/// Reads a whole file of the guest; NUL-terminated. The caller frees.
CUresult read_file(const char* path, char** bytes, std::size_t* count) noexcept;

}  // namespace gantry::shim
