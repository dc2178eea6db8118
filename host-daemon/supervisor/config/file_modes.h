// Who else may read or change the files that gantryd trusts. Thread-safe.
#pragma once

#include <string>

#include "host-daemon/supervisor/config/config.h"
#include "proto/base/result.h"

namespace gantry::supervisor {

/// `config.mode` where the configuration (empty: none is looked at), its folder or a key may be
/// changed, or peer.key read, by users that are neither root nor gantryd's own. One a line.
Result<void> check_modes(const Config& config, const std::string& config_path);

/// Where operator.group lets users that are not root ask for snapshots, gantryd writes and reads
/// those in operator.snapshot_directory alone, directly: it is made where it does not exist, and
/// must be gantryd's own, so that nobody can have another file stand there. Otherwise
/// `snapshot.directory`.
Result<void> check_snapshot_path(const OperatorConfig& config, const std::string& path);

}  // namespace gantry::supervisor
