// A gantry-worker without gantryd: accepts local guest processes and starts a worker for each, over
// the same control protocol. For tests and for trying things out: it has no sessions, no network,
// no policy beyond a memory quota, and its workers keep its user (gantryd's get an unprivileged
// one). It can move its guests into fresh workers (replace): on the same device their memory is
// handed over, to another one it is copied, from device to device where the driver can.
#pragma once

#include <cstdint>
#include <string>

namespace gantry::worker {

inline constexpr std::uint32_t kSameDevice = ~0u;

/// What a replace does with device memory.
enum class Copy : std::uint32_t {
    kNo,      ///< Hands it over; to another device: as kPeer.
    kPeer,    ///< From device to device, and if that cannot be, as kStaged.
    kStaged,  ///< By way of the host's memory.
};

struct StandaloneOptions {
    std::string socket_path;
    std::string driver = "libcuda.so.1";
    std::string profile;
    std::uint32_t device = 0;
    std::uint64_t memory_mib = 0;
    std::uint64_t region_mib = 4096;
    std::uint32_t spin_us = 20;
    bool batches_launches = true;
    bool seccomp = true;
    std::string replace;
    std::uint32_t to_device = kSameDevice;  ///< Of a replace.
    bool copy = false;                      ///< Of a replace: also on the same device.
    unsigned rehearsals = 0;                ///< Of a replace: not 0: nothing is moved.
    bool staged = false;                    ///< Of a replace: by way of the host's memory.
    /// For tests: "STEP:old" or "STEP:fresh", the worker that is killed when a replacement comes to
    /// the step (replacement::to_string).
    std::string kill_at;
};

int run_standalone(const StandaloneOptions& options);

/// Sends the wish to the process that listens on `socket_path`; prints its answer. 0: all moved.
/// `to_device` is a number of the driver's, or kSameDevice.
/// `rehearsals`: see replacement::Options.
int ask_replace(const std::string& socket_path, std::uint32_t to_device, Copy copy,
                unsigned rehearsals);

}  // namespace gantry::worker
