// What Gantry's own CUDA driver (libcuda-soft.so.1) can do beyond the public API.
//
// A driver has it when cuGetExportTable answers 0 for kGantrySoftExtensionId; NVIDIA's answers an
// error, and then the migration rules of the public API apply. The table lives as long as the
// process. Functions may be called from any thread after cuInit; they return CUresult values.
// New functions are appended; a caller checks `size_bytes` before it uses one.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "proto/cuda/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

static const CUuuid kGantrySoftExtensionId = {
    {'G', 'a', 'n', 't', 'r', 'y', '-', 's', 'o', 'f', 't', '-', 'e', 'x', 't', '1'}};

/// Where a module's variable has to be. Names are as in PTX (mangled).
typedef struct GantrySoftPlacement {
    const char* name;
    CUdeviceptr address;
} GantrySoftPlacement;

/// A variable of a loaded module, file-local and managed ones included.
typedef struct GantrySoftVariable {
    const char* name;  ///< Valid while the module is loaded.
    CUdeviceptr address;
    size_t bytes;
    int managed;
    int visible;  ///< Can be found by cuModuleGetGlobal.
} GantrySoftVariable;

/// Device memory that the driver itself uses and that a snapshot has to carry.
typedef struct GantrySoftRange {
    CUdeviceptr address;
    size_t bytes;
} GantrySoftRange;

enum {
    GANTRY_SOFT_MODULE_USES_HEAP = 1,  ///< malloc() or free() in a kernel.
    GANTRY_SOFT_MODULE_USES_PRINTF = 2,
    GANTRY_SOFT_MODULE_FUNCTION_ADDRESSES = 4,  ///< May store device function pointers.
};

enum {
    GANTRY_SOFT_HOST_ADDRESSABLE = 1,  ///< This process reads and writes device memory in place.
};

/// Device printf (1), device assert (2), driver messages (3).
typedef void (*GantrySoftOutput)(void* user, int channel, const char* text, size_t bytes);

typedef struct GantrySoftExtension {
    size_t size_bytes;
    uint32_t version;  ///< 1
    uint32_t traits;   ///< GANTRY_SOFT_HOST_ADDRESSABLE.

    /// The calling thread's next cuModuleLoad* or cuLibraryLoad* puts these variables there (a
    /// library when it is first used in a context). The load fails with 1 when an address is
    /// taken. Variables not named go anywhere.
    CUresult (*place_next_load)(const GantrySoftPlacement* places, size_t count);

    /// Lists a module's variables; `count` in: capacity, out: how many there are.
    CUresult (*list_variables)(CUmodule module, GantrySoftVariable* out, size_t* count);

    /// GANTRY_SOFT_MODULE_* bits of a module.
    CUresult (*module_traits)(CUmodule module, uint32_t* traits);

    /// Ranges of a context whose bytes have to be saved (read them with cuMemcpyDtoH).
    CUresult (*list_private_ranges)(CUcontext context, GantrySoftRange* out, size_t* count);

    /// The state that goes with them (heap book, printed but not flushed text). `bytes` in:
    /// capacity, out: size; `out` may be null to ask for the size.
    CUresult (*save_private_state)(CUcontext context, void* out, size_t* bytes);

    /// Makes the ranges at their old addresses in a context that has none yet; write their bytes
    /// with cuMemcpyHtoD afterwards. Before any module that uses the heap is loaded.
    CUresult (*restore_private_state)(CUcontext context, const void* state, size_t bytes);

    /// As cuTexObjectCreate and cuSurfObjectCreate, with the handle's value given; 1 when taken.
    CUresult (*create_texture_at)(CUtexObject wanted, const CUDA_RESOURCE_DESC* resource,
                                  const CUDA_TEXTURE_DESC* texture,
                                  const CUDA_RESOURCE_VIEW_DESC* view);
    CUresult (*create_surface_at)(CUsurfObject wanted, const CUDA_RESOURCE_DESC* resource);

    /// Device printf and assert text goes to `sink` instead of stdout and stderr; null undoes it.
    /// Called from the threads that synchronise (printf) and from driver threads (assert).
    CUresult (*set_output)(GantrySoftOutput sink, void* user);

    /// Hands over what has been printed so far without synchronising.
    CUresult (*flush_output)(void);

    /// As place_next_load and beside it: these variables lie in memory of the caller's (pages that
    /// the guest sees too). The driver maps and frees nothing there. `initialise`: their initial
    /// bytes are written at once; else the memory need not exist before the first launch.
    CUresult (*place_next_load_in)(const GantrySoftPlacement* places, size_t count, int initialise);

    /// A library's managed variables, as list_variables (addresses are 0 until it is used; names
    /// are valid until the thread's next call). Costs next to nothing for an image that names none.
    CUresult (*list_managed)(CUlibrary library, GantrySoftVariable* out, size_t* count);

    /// What the program was told of its device, perhaps on another host. How many blocks are
    /// resident at once (occupancy, cooperative grids, %nsmid) follows it from then on, since
    /// programs compute grids from numbers that they read once, and so does the rate of clock64;
    /// all other limits stay this device's. Attributes that do not matter are ignored; 1 for a
    /// value out of range.
    CUresult (*show_attributes)(CUdevice device, const CUdevice_attribute* numbers,
                                const int* values, size_t count);
} GantrySoftExtension;

#ifdef __cplusplus
}
#endif
