// gantryd's configuration: /etc/gantry/gantryd.toml, every key with a default.
//
// A key that is not known is an error that names file, line, key and the nearest valid keys, and so
// is a value of the wrong type or out of range: a typing error must never quietly mean a default.
// `gantryd --print-config` writes the effective configuration as TOML with a comment for each key.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/base/result.h"

namespace gantry::supervisor {

/// Of a GPU, as the CUDA driver counts those of the host. A worker sees its own alone, as number 0.
using DeviceNumber = std::uint32_t;
inline constexpr DeviceNumber kDevicesMax = 256;

struct DaemonConfig {
    std::string run_directory = "/run/gantry";
    std::string state_directory = "/var/lib/gantry";
    std::string host_name;  // empty: the system's
    std::string log_level = "info";
    std::string log_file;  // empty: standard error
};

struct OperatorConfig {
    std::string socket = "/run/gantry/operator.sock";
    std::string group;  // may use the socket besides root; empty: root only
    std::string snapshot_directory = "/var/lib/gantry/snapshots";  // where a group's may lie
};

struct GuestConfig {
    std::string socket = "/run/gantry/guest.sock";  // empty: no local guests
    // Who may use it: gantryd's own user and root, and members of the group. With allow_uids:
    // those, and members of the group. With any_user: everybody.
    std::string group;
    std::vector<std::int64_t> allow_uids;
    bool any_user = false;
    std::int64_t sessions_of_user = 64;
    std::int64_t sessions_max = 256;
    std::int64_t region_mib = 4096;
    std::int64_t memory_mib = 0;  // quota of each local session; 0: the device's memory
};

struct VmConfig {
    std::string libvirt_uri = "qemu:///system";  // empty: no libvirt
    std::string region_directory = "/dev/shm";
    std::int64_t poll_ms = 5;
    bool destroy_split_brain = false;
};

struct WorkerConfig {
    std::string executable = "/usr/libexec/gantry/gantry-worker";
    std::string driver = "/usr/lib/gantry/libcuda-soft.so.1";
    std::string profile;
    std::vector<std::int64_t> devices;   // that are served; empty: all that the driver has
    std::int64_t only_device = -1;       // worker.device, the older key of one; -1: devices
    std::int64_t device = 0;             // no key: the one that a worker is started on with this
    std::string user = "gantry-worker";  // empty: gantryd's own user (unprivileged gantryd, tests)
    bool seccomp = true;
    bool private_tmp = true;
    bool private_network = true;
    bool pageable_access = false;  // also a GPU whose kernels reach all memory of a worker
    bool fixed_addresses = true;   // exec with address randomisation off
    std::int64_t files_max = 4096;
    std::int64_t memory_limit_mib = 0;  // RLIMIT_DATA; 0: none
    std::int64_t start_timeout_s = 60;
    std::int64_t spares = 0;
    bool await_restore = true;
    bool batch_launches = true;
    bool arbitrate = false;  // whose turn it is on a GPU that sessions share
    bool fill_gaps = false;  // of a holder, as far as its launches were measured
    std::int64_t fill_margin_us = 200;
    bool account = false;            // count and measure launches by kernel
    std::int64_t profile_level = 0;  // level of what programs note of their operations
};

struct PlacementConfig {
    std::string policy = "free_memory";  // free_memory, first, spread
};

struct PeerConfig {
    std::string listen;     // "0.0.0.0:7700"; empty: no peers
    std::string advertise;  // what others are told; empty: listen's address
    std::string authority = "/etc/gantry/tls/ca.pem";
    std::string certificate = "/etc/gantry/tls/host.pem";
    std::string key = "/etc/gantry/tls/host.key";
    std::vector<std::string> allow;  // certificate names that may call; empty: all
    std::int64_t streams = 4;
};

struct MigrationConfig {
    std::int64_t downtime_target_ms = 300;
    std::int64_t downtime_max_ms = 10'000;
    std::int64_t rounds_max = 30;
    std::int64_t hook_wait_s = 25;
    std::int64_t hook_hold_s = 280;
    std::int64_t reservation_s = 30;
    std::int64_t arrival_s = 600;
    bool may_abort_job = true;
    std::string compression = "auto";  // auto, on, off
    std::int64_t bandwidth_mib_s = 0;  // of bulk streams; 0: no bound
};

struct MetricsConfig {
    std::string listen;  // "127.0.0.1:9464"; empty: none
};

struct Config {
    DaemonConfig daemon;
    OperatorConfig operator_;
    GuestConfig guest;
    VmConfig vm;
    WorkerConfig worker;
    PlacementConfig placement;
    PeerConfig peer;
    MigrationConfig migration;
    MetricsConfig metrics;
};

/// The GPUs that the configuration names, in order; empty: all of the driver are served.
std::vector<DeviceNumber> named_devices(const WorkerConfig& config);

/// Reads and checks a file; the error lists every problem found, one a line.
Result<Config> load_config(const std::string& path);
/// The same from text; `name` stands for the file in messages.
Result<Config> parse_config(const std::string& text, const std::string& name);
/// The effective configuration with an explanation of each key.
std::string print_config(const Config& config);

}  // namespace gantry::supervisor
