#include "host-daemon/supervisor/config/accounts.h"

#include <grp.h>
#include <pwd.h>

#include <array>

namespace gantry::supervisor {
namespace {

/// The members' names of a group lie in it.
constexpr std::size_t kEntryBytesMax = 65536;

/// `key`: its name in gantryd.toml, which is the error's reason as well.
Result<gid_t> find_group(const char* key, const std::string& name) {
    std::array<char, kEntryBytesMax> text;
    ::group entry{};
    ::group* group = nullptr;
    ::getgrnam_r(name.c_str(), &entry, text.data(), text.size(), &group);
    if (group == nullptr) {
        return Error{Code::kFailedPrecondition, key,
                     std::string(key) + " '" + name + "' does not exist; create it (groupadd " +
                         "--system " + name + ") or name another"};
    }
    return group->gr_gid;
}

}  // namespace

Result<UserIds> find_worker_user(const std::string& name) {
    std::array<char, kEntryBytesMax> text;
    passwd entry{};
    passwd* user = nullptr;
    ::getpwnam_r(name.c_str(), &entry, text.data(), text.size(), &user);
    if (user == nullptr) {
        return Error{Code::kFailedPrecondition, "worker.user",
                     "worker.user '" + name + "' does not exist; create it (useradd --system " +
                         name + ") or name another"};
    }
    return UserIds{user->pw_uid, user->pw_gid};
}

Result<gid_t> find_operator_group(const std::string& name) {
    return find_group("operator.group", name);
}

Result<gid_t> find_guest_group(const std::string& name) { return find_group("guest.group", name); }

}  // namespace gantry::supervisor
