// What `gantry validate` and `gantryd --check` look at: whether this host can serve and move
// sessions as its configuration says. Changes nothing on the host.
#pragma once

#include <string>

#include "host-daemon/supervisor/checks/check_list.h"
#include "host-daemon/supervisor/config/config.h"

namespace gantry::supervisor {

enum class Depth {
    /// The configuration, and the files, accounts and GPUs that it names. Makes no context on a
    /// GPU, asks no libvirt and opens no port.
    kConfiguration,
    /// All that the host needs: libvirt, VMs, ports, folders, kernel and clock, too; starts a
    /// worker on each GPU for a moment. Takes some seconds.
    kHost,
};

struct HostPlaces {
    std::string config_path;  ///< Whose mode is looked at; empty: there is none.
    std::string root;         ///< Where /etc, /proc and /sys of the host are; empty: there.
};

CheckList check_host(const Config& config, const HostPlaces& places, Depth depth);
/// The same list where the configuration cannot be read: its error, and nothing else was tried.
CheckList unreadable_config(const Error& error, const std::string& config_path);

}  // namespace gantry::supervisor
