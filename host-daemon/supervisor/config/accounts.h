// Accounts of this host that gantryd.toml names; asked at the start and by `gantryd --check`.
// Thread-safe.
#pragma once

#include <sys/types.h>

#include <string>

#include "proto/base/result.h"

namespace gantry::supervisor {

struct UserIds {
    uid_t uid = 0;
    gid_t gid = 0;
};

/// worker.user, which is not empty.
Result<UserIds> find_worker_user(const std::string& name);
/// operator.group, which is not empty.
Result<gid_t> find_operator_group(const std::string& name);
/// guest.group, which is not empty.
Result<gid_t> find_guest_group(const std::string& name);

}  // namespace gantry::supervisor
