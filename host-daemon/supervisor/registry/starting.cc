// Registry: VMs that libvirt starts from memory that it had saved.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "host-daemon/supervisor/registry/registry.h"
#include "proto/base/unless_exhausted.h"

namespace gantry::supervisor {
namespace {

/// A state that is being written is written by then, unless it is as large as disks are slow.
constexpr std::chrono::minutes kEndAwaited{4};
constexpr std::chrono::milliseconds kBetweenLooks{50};

}  // namespace

SaveHooks Registry::save_hooks() {
    SaveHooks hooks;
    hooks.close = [this](const std::shared_ptr<Session>& session) {
        close_session(session, wire::WorkerState::kDead);
    };
    hooks.open = [this](const libvirt::DomainInfo& domain) { open_vm(domain, VmLife::kBooted); };
    hooks.check = [this](Session& session) { return check_save(session); };
    hooks.run_aside = [this](std::function<void()> errand) { run_aside(std::move(errand)); };
    return hooks;
}

/// What could not go on on this very device cannot go into a file.
Result<void> Registry::check_save(Session& session) {
    GANTRY_ASSIGN(const engine::SessionNeeds needs, session.source().describe());
    engine::TargetCapabilities here = capabilities_of(session.device(), "");
    here.memory_free_bytes = here.memory_total_bytes;
    const auto findings = engine::preflight(needs, here);
    if (engine::refused(findings)) {
        return Error{Code::kFailedPrecondition, findings.front().reason,
                     engine::refusal_text(findings)};
    }
    return {};
}

Result<control::StartingReply> Registry::starting(const control::StartingRequest& request) {
    GANTRY_ASSIGN(const libvirt::DomainInfo domain,
                  libvirt::parse_domain_xml(request.domain_xml()));
    if (!domain.gpu) {
        return control::StartingReply{};
    }
    if (request.step() == control::StartingRequest::STEP_RESTORE) {
        GANTRY_TRY(await_end(domain));
        const MutexLock lock(starting_mutex_);
        restoring_.insert(domain.uuid);
        return control::StartingReply{};
    }
    {
        const MutexLock lock(starting_mutex_);
        if (restoring_.erase(domain.uuid) == 0) {
            return control::StartingReply{};  // It boots, or arrives.
        }
    }
    return give_state(domain);
}

/// Of the VM's earlier life: its workers use the region that is about to be loaded.
Result<void> Registry::await_end(const libvirt::DomainInfo& domain) {
    const auto deadline = SerialExecutor::Clock::now() + kEndAwaited;
    while (sessions_.find(domain.uuid) || saves_.is_saving(domain.uuid) ||
           ending_.is_ending(domain.uuid)) {
        if (SerialExecutor::Clock::now() > deadline || sessions_.is_stopping()) {
            return Error{Code::kUnavailable, "save.busy",
                         fmt::format("the GPU's state of VM {} is still being written or let go; "
                                     "start it again in a moment",
                                     domain.name)};
        }
        vms_.close_if_ended(domain.uuid);
        std::this_thread::sleep_for(kBetweenLooks);
    }
    return {};
}

Result<control::StartingReply> Registry::give_state(const libvirt::DomainInfo& domain) {
    const SessionInfo info = vm_session_info(domain);
    saves_.note_restored(info.id, std::nullopt);
    control::StartingReply reply;
    const auto state = saves_.find(info);
    if (!state) {
        // Whether any program needs it is seen when the VM's session is opened.
        reply.set_text(state.error().to_string());
        const MutexLock lock(starting_mutex_);
        without_state_.insert_or_assign(info.id, state.error());
        return reply;
    }
    if (auto restored = restore_vm(info, *state); !restored) {
        saves_.note_start_refused();
        spdlog::error("session {}: VM {} is not started: {}; its saved state stays", info.id,
                      info.vm_name, restored.error().to_string());
        return restored.error();
    }
    saves_.note_restored(info.id, state->mark);
    reply.set_text("VM " + domain.name + " goes on with the state of its GPU");
    return reply;
}

/// Nothing of the saved state has changed when this fails.
Result<void> Registry::restore_vm(const SessionInfo& info, const SavedState& state) {
    GANTRY_ASSIGN(Epoch epoch, epoch_for_new_life(info.id));
    if (epoch <= state.epoch) {
        return Error{Code::kFailedPrecondition, "save.epoch",
                     fmt::format("the state was saved at epoch {}, and the clock of this host "
                                 "gives epoch {} now: set it right",
                                 state.epoch.value, epoch.value)};
    }
    GANTRY_ASSIGN(const DeviceNumber device, place(info));
    const auto opened = unless_exhausted([&] { return open_session(info, epoch, false, device); });
    if (!opened) {
        devices_.forget(info.id);
        return opened.error();
    }
    const std::shared_ptr<Session>& session = *opened;
    const std::string path = saves_.snapshot_path(info.id, state.mark);
    const auto restored = [&]() -> Result<void> {
        session->set_suspended({state.seed, path});
        GANTRY_TRY(saves_.put_back(info, state));
        GANTRY_TRY(restore_session(session, path));
        const Error no_worker{Code::kDataLoss, "save.program",
                              "the saved state has no such program"};
        const auto answered = saves_.lose_programs(info, session.get(), no_worker);
        GANTRY_TRY(unless_exhausted([&] { watch_region(session, answered); }));
        return session->write_record();
    }();
    if (!restored) {
        housekeeping_.post([this, session] { close_session(session, wire::WorkerState::kNone); });
    }
    return restored;
}

/// A start that fails has no event, only the `release end` hook.
void Registry::forget_start(const std::string& id) {
    {
        const MutexLock lock(starting_mutex_);
        restoring_.erase(id);
        without_state_.erase(id);
    }
    if (saves_.is_given(id)) {
        vms_.close_if_ended(id);
    }
}

Error Registry::why_without_state(const std::string& id) {
    const MutexLock lock(starting_mutex_);
    if (const auto found = without_state_.find(id); found != without_state_.end()) {
        Error why = found->second;
        without_state_.erase(found);
        return why;
    }
    return {Code::kFailedPrecondition, "save.no_hook",
            "its memory came with programs that no worker of this host serves: gantryd was not "
            "asked by libvirt's hook before it ran"};
}

/// On housekeeping_ only. Its guest runs.
void Registry::on_restored(const libvirt::DomainInfo& domain) {
    if (const auto here = sessions_.find(domain.uuid)) {
        saves_.on_running(here.session);
        here.driver->feed(engine::source_event::Opened{});
        return;
    }
    open_vm(domain, VmLife::kRestored);
}

}  // namespace gantry::supervisor
