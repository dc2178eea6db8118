#include "host-daemon/supervisor/registry/vm_saves.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "host-daemon/supervisor/parts/worker_state.h"
#include "host-daemon/supervisor/snapshots/snapshot_job.h"
#include "proto/base/random.h"
#include "proto/snapshot/container.h"

namespace gantry::supervisor {
namespace {

using libvirt::EventKind;

constexpr std::size_t kMostAlerts = 16;

/// A handle of its own: the session's is for its guest's claims.
Result<Region> open_region(const SessionInfo& info) {
    if (!info.guest_key.empty()) {
        return Error{Code::kFailedPrecondition, "save.tcp",
                     "the programs of VM " + info.vm_name +
                         " reach the GPU over TCP: their connections cannot go into a file; end "
                         "them first, or give the VM a shared-memory device"};
    }
    return Region::open_file(info.region_path, info.region_bytes);
}

bool has_resumed(EventKind kind) {
    return kind == EventKind::kResumedUnpaused || kind == EventKind::kResumedOther ||
           kind == EventKind::kResumedMigrated;
}

}  // namespace

VmSaves::VmSaves(const std::string& state_directory, Hypervisor& hypervisor, SessionTable& sessions,
                 SerialExecutor& housekeeping, SaveHooks hooks)
    : states_(state_directory + "/saved"),
      hypervisor_(hypervisor),
      sessions_(sessions),
      housekeeping_(housekeeping),
      hooks_(std::move(hooks)) {}

void VmSaves::on_event(const libvirt::DomainEvent& event) {
    const std::string& id = event.uuid;
    // A guest that was paused before says nothing when it is saved: then QEMU's own event does.
    const bool may_be_save = event.kind == EventKind::kSuspendedPaused ||
                             (event.kind == EventKind::kMigrationStatus &&
                              event.qemu_status == libvirt::QemuMigrationStatus::kSetup);
    if (may_be_save && sessions_.is_concerned(id)) {
        hypervisor_.is_being_saved(id, [this, id](bool is_it) {
            if (is_it) {
                housekeeping_.post([this, id] { begin(id, false); });
            }
        });
    } else if (event.kind == EventKind::kJobCompleted && event.job &&
               event.job->kind == libvirt::JobKind::kSave) {
        const MutexLock lock(mutex_);
        if (const auto found = saves_.find(id); found != saves_.end()) {
            found->second.is_complete = true;
        }
    } else if (has_resumed(event.kind)) {
        {
            const MutexLock lock(mutex_);
            if (const auto found = saves_.find(id); found != saves_.end()) {
                found->second.has_resumed = true;  // Before the image of its region is taken, too.
            }
        }
        housekeeping_.post([this, id] { on_resumed(id); });
    }
}

/// `has_ended`: its save was over before anybody knew of it.
void VmSaves::begin(const std::string& id, bool has_ended) {
    const SessionTable::Here here = sessions_.find(id);
    if (!here || here.session->info().kind != SessionKind::kVm) {
        return;
    }
    const bool is_empty = here.session->workers().empty() && !here.session->suspended();
    wire::SaveMark mark;
    {
        const MutexLock lock(mutex_);
        if (const auto found = saves_.find(id); found != saves_.end()) {
            found->second.comes_again = found->second.comes_again || found->second.has_resumed;
            found->second.has_ended = found->second.has_ended || has_ended;
            return;
        }
        if (!is_empty) {
            Save& save = saves_[id];
            save.session = here.session;
            save.has_ended = has_ended;
            save.mark = mark = marks_[id];
        }
    }
    if (is_empty) {
        if (has_ended) {
            hooks_.close(here.session);
        }
        return;
    }
    spdlog::info("session {}: libvirt saves VM {}; its GPU's state goes into a file beside it", id,
                 here.session->info().vm_name);
    hooks_.run_aside([this, id, session = here.session, mark] {
        auto written = write(id, session, mark);
        housekeeping_.post([this, id, written = std::move(written)] { on_written(id, written); });
    });
}

bool VmSaves::is_cancelled(const std::string& id) const {
    const MutexLock lock(mutex_);
    const auto found = saves_.find(id);
    return found == saves_.end() || found->second.has_resumed;
}

/// Takes as long as it takes: neither libvirt nor the VM waits for it.
Result<void> VmSaves::write(const std::string& id, const std::shared_ptr<Session>& session,
                            const wire::SaveMark& mark) {
    if (mark == wire::SaveMark{}) {
        return Error{Code::kFailedPrecondition, "save.mark",
                     "the VM's region has no mark that would tie its memory to a state"};
    }
    GANTRY_ASSIGN(Region region, open_region(session->info()));
    GANTRY_TRY(hooks_.check(*session));
    GANTRY_ASSIGN(const SavedStates::Paths paths, states_.begin(id, mark));
    SavedState state;
    state.mark = mark;
    const auto gone_on = [&]() -> Result<void> {
        if (is_cancelled(id)) {
            return Error{Code::kAborted, "save.gone_on",
                         "the VM ran on before the state of its GPU could be taken"};
        }
        return {};
    };
    const WhenFrozen take_region = [&](const engine::Seed& seed) -> Result<void> {
        GANTRY_TRY(gone_on());
        GANTRY_ASSIGN(snapshot::AtomicFile file, snapshot::AtomicFile::create(paths.region));
        GANTRY_ASSIGN(const auto count, region.channel_count());
        state.channel_count = count.value_or(0);
        state.seed = {seed.low, seed.high};
        GANTRY_ASSIGN(state.region,
                      save_region(region, state.channel_count, state.seed, file.fd()));
        GANTRY_TRY(file.commit());
        return gone_on();
    };
    control::SnapshotRequest request;
    request.set_session(id);
    request.set_path(paths.session);
    GANTRY_TRY(save_snapshot(
        session, request, [&] { return is_cancelled(id); }, take_region));
    state.epoch = session->driver()->status().epoch;
    return states_.keep(id, state);
}

void VmSaves::tell(const std::string& id, const std::string& text) {
    spdlog::error("session {}: {}", id, text);
    sessions_.add_alert(id, text, kMostAlerts);
}

void VmSaves::on_written(const std::string& id, const Result<void>& written) {
    Save save;
    {
        const MutexLock lock(mutex_);
        const auto found = saves_.find(id);
        if (found == saves_.end()) {
            return;
        }
        found->second.is_written = true;
        found->second.has_failed = !written;
        save = found->second;
        if (written) {
            ++counters_.saved;
        } else if (save.has_ended || save.has_resumed) {
            ++counters_.lost;
        } else {
            ++counters_.refused;
        }
    }
    if (!written) {
        (void)states_.retire(id, save.mark, SavedFate::kUnwritten);
        const std::string why = written.error().to_string();
        if (save.has_ended || save.has_resumed) {
            tell(id,
                 "the GPU's state does not lie beside the VM's memory that libvirt has saved: " +
                     why + "; restored from there, its programs will get CUDA errors");
        } else {
            tell(id, "libvirt's save is ended, since the GPU's state cannot be saved: " + why);
            hypervisor_.abort_job(id);
        }
    }
    if (save.has_ended || save.has_resumed) {
        settle(id);
        return;
    }
    // An event that came before libvirt was asked is not waited for.
    hypervisor_.query(id, [this, id](engine::DomainReport report) {
        if (report.domain == engine::DomainState::kRunning) {
            housekeeping_.post([this, id] { on_resumed(id); });
        }
    });
}

void VmSaves::on_resumed(const std::string& id) {
    {
        const MutexLock lock(mutex_);
        const auto found = saves_.find(id);
        if (found == saves_.end()) {
            return;
        }
        found->second.has_resumed = true;
        if (!found->second.is_written) {
            return;  // on_written() goes on.
        }
    }
    settle(id);
}

/// All is written, and the VM has ended or runs on.
void VmSaves::settle(const std::string& id) {
    Save save;
    {
        const MutexLock lock(mutex_);
        const auto found = saves_.find(id);
        if (found == saves_.end()) {
            return;
        }
        save = std::move(found->second);
        saves_.erase(found);
    }
    if (save.comes_again) {
        begin(id, save.has_ended);
        if (save.next_life) {
            (void)opens_later(*save.next_life);
        }
        return;
    }
    if (save.has_ended) {
        hooks_.close(save.session);
        if (save.next_life) {
            hooks_.open(*save.next_life);
        }
        return;
    }
    if (!save.is_complete && !save.has_failed) {
        // libvirt's save was ended, and its file removed.
        (void)states_.retire(id, save.mark, SavedFate::kUnwritten);
    }
    renew_mark(save.session);
}

void VmSaves::on_saved(const std::shared_ptr<Session>& session) {
    const std::string& id = session->info().id;
    bool is_over = false;
    {
        const MutexLock lock(mutex_);
        const auto found = saves_.find(id);
        if (found != saves_.end()) {
            found->second.has_ended = true;
            // Its second save; of the first, the guest has run on.
            found->second.comes_again = found->second.has_resumed;
            is_over = found->second.is_written;
            if (is_over && found->second.has_failed) {
                ++counters_.lost;
                --counters_.refused;
            }
        }
        if (found != saves_.end() && !is_over) {
            return;
        }
    }
    if (is_over) {
        settle(id);
    } else {
        begin(id, true);
    }
}

bool VmSaves::closes_later(const std::shared_ptr<Session>& session) {
    const MutexLock lock(mutex_);
    const auto found = saves_.find(session->info().id);
    if (found == saves_.end() || found->second.session != session) {
        return false;
    }
    if (found->second.is_written) {
        saves_.erase(found);
        return false;
    }
    found->second.has_ended = true;
    return true;
}

bool VmSaves::opens_later(const libvirt::DomainInfo& domain) {
    const MutexLock lock(mutex_);
    const auto found = saves_.find(domain.uuid);
    if (found == saves_.end() || found->second.is_written) {
        return false;
    }
    found->second.has_ended = true;
    found->second.next_life = domain;
    return true;
}

void VmSaves::renew_mark(const std::shared_ptr<Session>& session) {
    const SessionInfo& info = session->info();
    if (info.kind != SessionKind::kVm || !info.guest_key.empty()) {
        return;
    }
    const auto bits = random_bits();
    const wire::SaveMark mark{bits[0], bits[1]};
    auto region = open_region(info);
    const Result<void> written = region ? region->write_mark(mark) : Result<void>(region.error());
    const MutexLock lock(mutex_);
    marks_[info.id] = written ? mark : wire::SaveMark{};
    if (!written) {
        spdlog::warn("session {}: {}; libvirt cannot save this VM", info.id,
                     written.error().to_string());
    }
}

void VmSaves::on_running(const std::shared_ptr<Session>& session) {
    const std::string& id = session->info().id;
    std::optional<wire::SaveMark> given;
    {
        const MutexLock lock(mutex_);
        if (const auto found = given_.find(id); found != given_.end()) {
            given = found->second;
            given_.erase(found);
        }
    }
    if (given) {
        if (auto retired = states_.retire(id, *given, SavedFate::kUsed); !retired) {
            tell(id, retired.error().to_string());
        }
        renew_mark(session);
    }
}

bool VmSaves::is_saving(const std::string& id) const {
    const MutexLock lock(mutex_);
    return saves_.contains(id);
}

Result<SavedState> VmSaves::find(const SessionInfo& info) const {
    GANTRY_ASSIGN(const Region region, open_region(info));
    GANTRY_ASSIGN(const wire::SaveMark mark, region.mark());
    GANTRY_ASSIGN(const SavedState state, states_.find(info.id, mark));
    GANTRY_ASSIGN(const auto count, region.channel_count());
    GANTRY_ASSIGN(const auto sum, sum_of_guest(region, count.value_or(0), state.seed));
    if (count.value_or(0) != state.channel_count || sum != state.region.guest) {
        return Error{Code::kFailedPrecondition, "save.another",
                     "the VM's memory is of another moment than the state of its GPU that lies "
                     "here"};
    }
    return state;
}

std::string VmSaves::snapshot_path(const std::string& id, const wire::SaveMark& mark) const {
    return states_.paths(id, mark).session;
}

Result<void> VmSaves::put_back(const SessionInfo& info, const SavedState& state) const {
    GANTRY_ASSIGN(const Region region, open_region(info));
    const std::string path = states_.paths(info.id, state.mark).region;
    const control::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.valid()) {
        return Error{Code::kDataLoss, "save.image", path + " cannot be opened"};
    }
    return restore_region(region, state.channel_count, state.seed, file.get(), state.region.host);
}

void VmSaves::note_restored(const std::string& id, std::optional<wire::SaveMark> mark) {
    const MutexLock lock(mutex_);
    if (mark) {
        given_[id] = *mark;
        ++counters_.restored;
    } else {
        given_.erase(id);
    }
}

bool VmSaves::is_given(const std::string& id) const {
    const MutexLock lock(mutex_);
    return given_.contains(id);
}

void VmSaves::note_start_refused() {
    const MutexLock lock(mutex_);
    ++counters_.start_refused;
}

std::vector<Claim> VmSaves::lose_programs(const SessionInfo& info, Session* session,
                                          const Error& why) {
    std::vector<Claim> answered;
    auto region = open_region(info);
    const auto count =
        region ? region->channel_count() : Result<std::optional<std::uint32_t>>(region.error());
    if (!count || !*count) {
        return answered;
    }
    const auto claims = region->claims(**count);
    const auto answers = region->answers(**count);
    if (!claims || !answers) {
        return answered;
    }
    std::size_t lost = 0;
    for (const Claim& claim : *claims) {
        const Answer& answer = (*answers)[claim.channel];
        if (claim.generation == 0 || answer.generation != claim.generation ||
            answer.state == wire::ServeState::kNone) {
            continue;  // It begins just now.
        }
        answered.push_back(claim);
        const bool is_served =
            answer.state == wire::ServeState::kServing && claim.state != wire::ClaimState::kFree;
        const engine::PartId part = part_of({claim.channel, claim.generation});
        if (is_served && !(session && session->workers().find(part))) {
            ++lost;
            (void)region->write_worker_state(**count, claim.channel, wire::WorkerState::kDead);
            (void)region->write_state(claim.channel, claim.generation, wire::ServeState::kClosed);
        }
    }
    if (lost != 0) {
        {
            const MutexLock lock(mutex_);
            ++counters_.started_without;
        }
        tell(info.id, fmt::format("{} programs of VM {} get CUDA errors, and have to be started "
                                  "again: {}",
                                  lost, info.vm_name, why.to_string()));
    }
    return answered;
}

SaveCounters VmSaves::counters() const {
    const MutexLock lock(mutex_);
    return counters_;
}

}  // namespace gantry::supervisor
