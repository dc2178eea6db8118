// The undocumented start-up tables that every CUDA runtime asks a driver for, answered in this
// process. One implementation for the guest shim and for the soft GPU driver.
//
// What: cuGetExportTable's tables (runtime interface, runtime hooks, tools TLS, context-local
// storage, context checks, integrity check, tools context, tools module, JIT side, context
// bypass), with the answers that were seen to satisfy cudart 13.0, cuBLAS, cuFFT and cuDNN.
// Invariant: table addresses never change in a process; they are part of the integrity digest.
// Threads: every function may be called from any thread; configure() once, before the others.
// Failure: functions return a CUDA error number (0 is success) as a plain int.
// Cost: context-local storage reads take no lock (every runtime call makes one).
// Links libc only: no libstdc++ symbol, no exception, no allocation but malloc.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gantry::dark {

/// What the integrity digest says about one device; must equal the driver's public answers.
struct DeviceIdentity {
    std::uint8_t uuid[16];
    std::int32_t pci_domain;
    std::int32_t pci_bus;
    std::int32_t pci_device;
};

/// Called once per function of a module; the table's caller supplies it.
using FunctionVisitor = void (*)(void* user, void* function, std::uint64_t owner);

/// What the library that serves the tables provides. Every pointer must be set; each returns a
/// CUDA error number unless it says otherwise. Handles are the library's CUcontext, CUmodule
/// and CUfunction values.
struct Callbacks {
    /// What cuDriverGetVersion answers; a function, since a digest must match it at any time.
    std::uint32_t (*driver_version)();
    /// Number of devices (not an error number).
    int (*device_count)();
    int (*device_identity)(int ordinal, DeviceIdentity* out);
    /// The device's primary context handle, without retaining or activating it. It must be the
    /// value that cuDevicePrimaryCtxRetain returns later.
    int (*primary_context)(void** context, int ordinal);
    /// The calling thread's current context, or null (then still 0).
    int (*current_context)(void** context);
    /// Loads an image (fatbin wrapper, fatbin header, ELF or PTX) like cuModuleLoadData.
    int (*load_module)(void** module, const void* image);
    /// Visits each function of a module; returns how many there were (not an error number).
    int (*visit_functions)(void* module, FunctionVisitor visitor, void* user);
    /// A context for the legacy CtxCreate bypass table.
    int (*create_context)(void** context, unsigned flags, int ordinal);
    /// The library's own tables (for example Gantry's extension); null when the id is unknown.
    const void* (*own_table)(const std::uint8_t uuid[16]);
};

/// Installs the callbacks. Must run before get_export_table; a second call replaces them.
void configure(const Callbacks& callbacks);

/// Serves cuGetExportTable: 0, or 1 for null arguments, or 500 for a table we do not have.
int get_export_table(const void** table, const void* uuid);

/// Drops every context-local entry of a context and runs its destructors (context destroyed,
/// primary context reset or released for the last time).
void forget_context(void* context);

/// The integrity digest's parts, public for tests.
void md2(const void* data, std::size_t bytes, std::uint8_t digest[16]);
void hmac_md2(const std::uint8_t key[16], const void* data, std::size_t bytes,
              std::uint8_t digest[16]);

/// Context-local storage, as the table's slots call it. Null or all-ones context: the current one.
int storage_put(void* context, void* key, void* value, void (*destroy)(void*, void*, void*));
int storage_delete(void* context, void* key);
int storage_get(void** value, void* context, void* key);

}  // namespace gantry::dark
