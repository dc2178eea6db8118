// The commands of `gantry`, one function each: ask gantryd, print, return the exit status.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "migration/cli/client.h"
#include "migration/cli/pki.h"
#include "migration/cli/print.h"

namespace gantry::cli {

struct Context {
    std::string socket;
    Form form = Form::kText;
};

int run_status(const Context& context, const std::string& session);
/// Reads twice, a second apart; `once`: then ends, else goes on until it is ended.
int run_top(const Context& context, bool once);
int run_preflight(const Context& context, const std::string& session, const std::string& target);
struct Watching {
    bool until_ended = true;  ///< Ends with the move under way, or the next.
    bool wait = false;        ///< A session that is not here may come.
};
int run_watch(const Context& context, const std::string& session, Watching watching);
/// Of a session's last move, or of the one named. A form whose file is not named is not written;
/// without any it is printed.
struct TimelineFiles {
    std::string svg;
    std::string html;
    std::string chrome;
};
int run_timeline(const Context& context, const std::string& session,
                 const std::string& migration_id, const TimelineFiles& files);
int run_abort(const Context& context, const std::string& session);
/// Becomes gantryd, which knows what a host needs. `config` empty: its usual file.
int run_validate(const Context& context, const std::string& config);
int run_force_complete(const Context& context, const std::string& session);
/// Of a session, or of a snapshot file (snapshot_file.h), for which it needs no gantryd.
int run_inspect(const Context& context, const std::string& session_or_file);
int run_account(const Context& context, const std::string& session);
/// Sets the level first, if there is one.
struct ProfileWish {
    std::optional<std::uint32_t> level = std::nullopt;
    std::string svg = {};
    std::string html = {};
    std::string chrome = {};
};
int run_profile(const Context& context, const std::string& session, const ProfileWish& wish);
/// What `gantry sched` changes before it prints.
struct SchedChange {
    std::string session;  ///< Of the share.
    std::uint32_t priority = 4;
    std::uint32_t weight = 100;
    enum class What { kNothing, kShare, kOn, kOff } what = What::kNothing;
};
int run_sched(const Context& context, const SchedChange& change);
int run_snapshot(const Context& context, const std::string& session, const std::string& path,
                 bool suspend);
int run_restore(const Context& context, const std::string& session, const std::string& path);
/// What a replacement does with device memory.
enum class MemoryWay {
    kBest,
    kPeer,    ///< Copies it from device to device where it can.
    kStaged,  ///< Copies it by way of host memory.
};
int run_replace_worker(const Context& context, const std::string& session, MemoryWay way);
int run_reassign(const Context& context, const std::string& session, std::uint32_t device,
                 MemoryWay way);
int run_pull(const Context& context, const std::string& session, const std::string& source,
             const std::string& handover);
/// Both say where the files are; they ask no gantryd.
int run_pki_init(const Context& context, const NewAuthority& wanted);
int run_pki_issue(const Context& context, const NewHost& wanted);
int run_fenced(const Context& context, const std::string& session);
int run_discard(const Context& context, const std::string& session);
/// The libvirt hook: XML on standard input, nothing on standard output (libvirt would take it for a
/// new XML), a refusal's text on standard error with status 1.
int run_hook_migrate_begin(const Context& context, const std::string& vm_name);
/// `is_loaded`: all its memory is there, and it is about to run; else it is about to be read.
int run_hook_restore(const Context& context, const std::string& vm_name, bool is_loaded);
int run_hook_released(const Context& context, const std::string& vm_name, const std::string& cause);

}  // namespace gantry::cli
