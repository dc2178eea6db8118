// Who else may read or change the files that gantryd trusts. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "host-daemon/supervisor/config/config.h"
#include "proto/base/result.h"

namespace gantry::supervisor {

struct ModeFault {
    std::string path;
    std::string text;  ///< What is wrong, and what to take from it.
    bool is_private_key = false;
};

/// Where the configuration (empty: none is looked at), its folder, gantryd's own folders or a
/// certificate may be changed, or peer.key read, by users that are neither root nor gantryd's own
/// (a key's group may read it). What does not exist has no fault.
std::vector<ModeFault> mode_faults(const Config& config, const std::string& config_path);
/// The same as `config.mode`, one a line.
Result<void> check_modes(const Config& config, const std::string& config_path);

/// Where operator.group lets users that are not root ask for snapshots, gantryd writes and reads
/// those in operator.snapshot_directory alone, directly: it is made where it does not exist, and
/// must be gantryd's own, so that nobody can have another file stand there. Otherwise
/// `snapshot.directory`.
Result<void> check_snapshot_path(const OperatorConfig& config, const std::string& path);

}  // namespace gantry::supervisor
