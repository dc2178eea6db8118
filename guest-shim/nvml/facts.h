// What libnvidia-ml.so.1 knows of the tenant's GPUs: asked of the CUDA driver once, at nvmlInit.
//
// An application may ask NVML before it forks and must then still be able to use CUDA in the child:
// so a process that has not begun with CUDA does not begin here. A short-lived child asks instead.
// Owner: the library. Threads: load() and the memory query lock. Failure: false, no devices.
#pragma once

#include <cstddef>

#include "guest-shim/session/programs.h"

namespace gantry::nvml {

inline constexpr int kMaxDevices = 16;
inline constexpr unsigned kProcessNameBytes = 4096;
inline constexpr unsigned kMaxPrograms = 64;  ///< A region has no more channels.

struct DeviceFacts {
    char name[96];
    unsigned char uuid[16];
    unsigned pci_domain;
    unsigned pci_bus;
    unsigned pci_device;
    int compute_major;
    int compute_minor;
    int sm_clock_khz;
    int memory_clock_khz;
    int bus_width_bits;
    int ecc_enabled;
    int compute_mode;
    unsigned long long total_bytes;
    unsigned long long free_bytes;  ///< As the VM's programs leave it; see Facts::asked_ns.
};

/// A process that uses the GPU, as its libcuda.so.1 knows it.
using Program = session::Program;

struct Facts {
    int device_count;
    int cuda_version;    ///< As cuDriverGetVersion gives it: 1000 * major + 10 * minor.
    long long asked_ns;  ///< CLOCK_MONOTONIC when a child was asked; 0: none was.
    DeviceFacts devices[kMaxDevices];
    unsigned program_count;  ///< Of the VM's programs, those that fit.
    Program programs[kMaxPrograms];
};

/// Asks the CUDA driver; false when there is none or it has no device.
bool load(Facts* out) noexcept;

/// Memory of a device that the VM's programs leave free; false while this process has no context
/// there: then a child has to ask.
bool free_memory(int device, unsigned long long* bytes) noexcept;

enum class NameIs { kKnown, kHidden /* another user's */, kGone /* it has ended */ };

/// The path of a process's program.
NameIs process_name(unsigned pid, char (&out)[kProcessNameBytes]) noexcept;

/// Takes programs that have ended since they were asked for out of the list.
void leave_out_ended(Facts* facts) noexcept;

/// Asks for programs anew; of a process that does not use CUDA a child does so, and for free_bytes,
/// where what is known is older than `most_ns`: what a child costs, a session of its own, nobody
/// shall pay at each look.
void ask_again(Facts* facts, long long most_ns) noexcept;

}  // namespace gantry::nvml
