// Registry: what operators ask for by a session's name.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "host-daemon/supervisor/registry/registry.h"
#include "migration/transport/message_map.h"

namespace gantry::supervisor {

Result<std::shared_ptr<Session>> Registry::find(const std::string& name) {
    if (auto found = sessions_.find_named(name)) {
        return std::move(found.session);
    }
    return unknown_session(name);
}

namespace {

struct Chosen {
    engine::HostGpu gpu;
    std::vector<engine::Finding> findings;
};

/// As the host that has `gpus`, of which there is one at least, will choose.
Chosen choose(const libvirt::GpuWish& wish, const engine::SessionNeeds& needs,
              std::vector<engine::HostGpu> gpus) {
    std::vector<GpuOffer> offers;
    std::vector<engine::HostGpu> allowed;
    for (const engine::HostGpu& gpu : gpus) {
        GpuOffer offer;
        offer.device = gpu.number.value_or(wish.number.value_or(0));
        offer.name = gpu.capabilities.gpu_name;
        offer.uuid = gpu.capabilities.gpu_uuid;
        if (is_wished(offer, wish) || offer.name.empty()) {
            allowed.push_back(gpu);
        }
        offers.push_back(std::move(offer));
    }
    if (allowed.empty()) {
        const Error error = no_such_gpu(wish, offers);
        return {std::move(gpus.front()), {{engine::Severity::kRefusal, error.reason, error.text}}};
    }
    engine::GpuChoice choice = engine::choose_gpu(needs, allowed);
    return {std::move(allowed[choice.index]), std::move(choice.findings)};
}

}  // namespace

Result<control::PreflightReply> Registry::preflight(const control::PreflightRequest& request) {
    GANTRY_ASSIGN(const auto session, find(request.session()));
    GANTRY_ASSIGN(const engine::SessionNeeds needs, session->source().describe());
    std::vector<engine::HostGpu> gpus;
    std::optional<Error> unreachable;
    if (request.target().empty()) {
        gpus.push_back({session->device(), capabilities_of(session->device(), session->info().id)});
    } else if (!tls_) {
        return Error{Code::kFailedPrecondition, "peer.off",
                     "this host takes part in no migration: peer.listen is empty in gantryd.toml"};
    } else {
        transport::PeerClient client(request.target(), *tls_, identity());
        auto asked = client.capabilities();
        if (asked) {
            gpus = std::move(*asked);
        } else {
            unreachable = asked.error();
        }
    }
    control::PreflightReply reply;
    reply.set_resident_bytes(needs.resident_bytes());
    if (const auto device = devices_.known(session->device())) {
        reply.set_source_device(device->name());
    }
    reply.set_source_gpu(session->device());
    if (!tls_) {  // Only without a target: see above.
        control::Finding& finding = *reply.add_findings();
        finding.set_refusal(true);
        finding.set_reason("peer.off");
        finding.set_text(
            "this host takes part in no migration: peer.listen is empty in "
            "gantryd.toml");
    }
    if (unreachable) {  // nothing else can be judged
        control::Finding& finding = *reply.add_findings();
        finding.set_refusal(true);
        finding.set_reason(unreachable->reason);
        finding.set_text(unreachable->text);
        return reply;
    }
    const auto [target, findings] = choose(session->info().wish, needs, std::move(gpus));
    reply.set_target_device(target.capabilities.gpu_name);
    reply.set_target_host(target.capabilities.host);
    if (target.number) {
        reply.set_target_gpu(*target.number);
    }
    for (const engine::Finding& finding : findings) {
        *reply.add_findings() = transport::to_proto(finding);
    }
    reply.set_can_move(tls_ && !engine::refused(findings));
    reply.set_downtime_max_us(static_cast<std::uint64_t>(config_.migration.downtime_max_ms) * 1000);
    if (const double rate = status_.link_bytes_per_second(); rate > 0.0) {
        reply.set_link_bytes_per_second(rate);
        reply.set_first_round_expected_us(
            static_cast<std::uint64_t>(1e6 * static_cast<double>(needs.resident_bytes()) / rate));
    }
    return reply;
}

Result<std::string> Registry::abort(const std::string& name) {
    const auto driver = sessions_.find_named(name).driver;
    const SourceStatus status = driver ? driver->status() : SourceStatus{};
    if (status.migration) {
        if (status.state == engine::SourceState::kGranting ||
            status.state == engine::SourceState::kGranted) {
            return Error{Code::kFailedPrecondition, "migration.committed",
                         fmt::format("the move of {} cannot be aborted any more: the other host "
                                     "owns the session since epoch {}",
                                     name, status.epoch.value + 1)};
        }
        driver->feed(engine::source_event::OperatorAbort{});
        return std::string("aborting the move of " + name + "; it goes on here");
    }
    if (const auto arrival = sessions_.arrival_named(name)) {
        arrival->feed(engine::target_event::OperatorAbort{});
        return std::string("aborting the arrival of " + name);
    }
    return Error{Code::kNotFound, "migration.none", "no move of '" + name + "' is under way here"};
}

Result<std::string> Registry::force_complete(const std::string& name) {
    const auto driver = sessions_.find_named(name).driver;
    const SourceStatus status = driver ? driver->status() : SourceStatus{};
    const auto ended = status_.ended(name);
    const bool was_refused = ended && ended->move().error_reason() == "migration.not_converging";
    if (driver && (status.migration || status.awaits_attempt || was_refused)) {
        driver->feed(engine::source_event::OperatorForce{});
        return (status.migration ? "the move of " : "the next move of ") + name +
               " may pause its programs for as long as it takes, once";
    }
    if (sessions_.arrival_named(name)) {
        return Error{Code::kFailedPrecondition, "migration.not_source",
                     "'" + name +
                         "' is arriving here; its source host decides about the pause: "
                         "run `gantry force-complete` there"};
    }
    return Error{Code::kNotFound, "migration.none", "no move of '" + name + "' is under way here"};
}

Result<void> Registry::fenced(const std::string& name) {
    const auto arrival = sessions_.arrival_named(name);
    if (!arrival) {
        return Error{Code::kNotFound, "migration.none",
                     "no session '" + name + "' waits here for its source host"};
    }
    const engine::TargetState state = arrival->status().state;
    const bool waits = state == engine::TargetState::kRequesting ||
                       state == engine::TargetState::kWithdrawing ||
                       state == engine::TargetState::kReturning || arrival->has_waited_in_vain();
    if (!waits) {
        return Error{Code::kFailedPrecondition, "migration.not_waiting",
                     "session '" + name + "' does not wait for its source host (" +
                         engine::to_string(state) +
                         "): only complete state can be taken over without it"};
    }
    arrival->confirm_source_fenced();
    return {};
}

Result<void> Registry::discard(const std::string& name) {
    GANTRY_ASSIGN(const auto session, find(name));
    const engine::SourceState state = session->driver()->status().state;
    if (state != engine::SourceState::kGranted && state != engine::SourceState::kHolding) {
        return Error{Code::kFailedPrecondition, "session.not_kept",
                     "session " + session->info().id + " is " + state_word(state) +
                         " here; there is no state of it that is kept for another host"};
    }
    session->driver()->feed(engine::source_event::OperatorDiscard{});
    return {};
}

Result<control::InspectReply> Registry::inspect(const std::string& name) {
    GANTRY_ASSIGN(const auto session, find(name));
    control::InspectReply reply;
    GANTRY_ASSIGN(*reply.mutable_status(), status_.of(name));
    for (const engine::PartId part : session->source().parts()) {
        control::PartGraph& out = *reply.add_parts();
        out.set_part_id(part.value);
        GANTRY_ASSIGN(*out.mutable_graph(), session->source().graph(part));
    }
    return reply;
}

namespace {

/// A worker may have been taken over by its guest: it can make no list that fills gantryd.
constexpr std::uint64_t kAccountBytesMax = 16U << 20;
constexpr int kKernelsListed = 1000;

Result<control::ProgramAccount> account_of(Worker& worker) {
    control::ToWorker request;
    request.mutable_get_account();
    GANTRY_ASSIGN(WorkerReply reply, worker.call(std::move(request), kQuickCall));
    control::Account account;
    GANTRY_TRY(control::parse_blob(reply.descriptors, 0, reply.message.account().bytes(), &account,
                                   kAccountBytesMax));
    control::ProgramAccount out;
    out.set_part_id(worker.part().value);
    out.set_guest_pid(worker.guest().guest_pid());
    out.set_device(worker.device_number());
    for (const control::KernelAccount& kernel : account.kernels()) {
        control::KernelUse& use = *out.add_kernels();
        use.set_image_sha256(kernel.image_sha256());
        use.set_entry(kernel.entry());
        *use.mutable_grid() = kernel.grid();
        *use.mutable_block() = kernel.block();
        use.set_shared_bytes(kernel.shared_bytes());
        use.set_launches(kernel.launches());
        use.set_samples(kernel.samples());
        use.set_gpu_us(kernel.gpu_us());
        out.set_gpu_us(out.gpu_us() + kernel.gpu_us());
        out.set_launches(out.launches() + kernel.launches());
    }
    auto& kernels = *out.mutable_kernels();
    std::sort(kernels.begin(), kernels.end(), [](const auto& a, const auto& b) {
        return a.gpu_us() != b.gpu_us() ? a.gpu_us() > b.gpu_us() : a.launches() > b.launches();
    });
    if (kernels.size() > kKernelsListed) {
        kernels.DeleteSubrange(kKernelsListed, kernels.size() - kKernelsListed);
    }
    return out;
}

control::AccountReply account_of(Session& session) {
    control::AccountReply out;
    out.set_session_id(session.info().id);
    out.set_vm_name(session.info().vm_name);
    for (const auto& worker : session.workers().all()) {
        auto program = account_of(*worker);
        if (!program) {
            spdlog::warn("session {}: no account of worker {}: {}", session.info().id,
                         worker->part().value, program.error().to_string());
            continue;
        }
        if (const auto status = worker->status()) {
            program->set_process_name(status->process_name());
            program->set_guest_pid(status->guest_pid());
        }
        out.set_gpu_us(out.gpu_us() + program->gpu_us());
        out.set_launches(out.launches() + program->launches());
        *out.add_programs() = std::move(*program);
    }
    return out;
}

}  // namespace

Result<control::AccountReply> Registry::account(const std::string& name) {
    GANTRY_ASSIGN(const auto session, find(name));
    if (!config_.worker.account) {
        return Error{Code::kFailedPrecondition, "account.off",
                     "launches are not accounted on this host; set worker.account = true in "
                     "gantryd.toml, restart gantryd, and programs that begin then are"};
    }
    return account_of(*session);
}

namespace {

constexpr std::uint64_t kProfileBytesMax = 2U << 20;
constexpr std::uint32_t kProfileLevelMax = 2;

Result<control::Profile> profile_of(Worker& worker, const control::ProfileRequest& wanted) {
    if (wanted.has_level()) {
        control::ToWorker request;
        request.mutable_set_profile()->set_level(wanted.level());
        GANTRY_TRY(worker.call(std::move(request), kQuickCall));
    }
    control::ToWorker request;
    request.mutable_get_profile();
    GANTRY_ASSIGN(WorkerReply reply, worker.call(std::move(request), kQuickCall));
    control::Profile profile;
    GANTRY_TRY(control::parse_blob(reply.descriptors, 0, reply.message.profile().bytes(), &profile,
                                   kProfileBytesMax));
    for (control::Operation& operation : *profile.mutable_operations()) {  // For terminals, too.
        std::ranges::replace_if(
            *operation.mutable_name(), [](char one) { return one < ' ' || one > '~'; }, '?');
    }
    return profile;
}

}  // namespace

Result<control::ProfileReply> Registry::profile(const control::ProfileRequest& request) {
    GANTRY_ASSIGN(const auto session, find(request.session()));
    if (request.has_level() && request.level() > kProfileLevelMax) {
        return Error{Code::kInvalidArgument, "account.level",
                     fmt::format("a level is 0 to {}", kProfileLevelMax)};
    }
    control::ProfileReply out;
    out.set_session_id(session->info().id);
    out.set_vm_name(session->info().vm_name);
    for (const auto& worker : session->workers().all()) {
        auto profile = profile_of(*worker, request);
        if (!profile) {
            spdlog::warn("session {}: no profile of worker {}: {}", session->info().id,
                         worker->part().value, profile.error().to_string());
            continue;
        }
        control::ProgramProfile& program = *out.add_programs();
        program.set_part_id(worker->part().value);
        program.set_guest_pid(worker->guest().guest_pid());
        if (const auto status = worker->status()) {
            program.set_process_name(status->process_name());
            program.set_guest_pid(status->guest_pid());
        }
        *program.mutable_profile() = std::move(*profile);
    }
    return out;
}

Result<control::SchedReply> Registry::sched(const control::SchedRequest& request) {
    if (!config_.worker.arbitrate) {
        return Error{Code::kFailedPrecondition, "arbiter.off",
                     "launches are not arbitrated on this host; set worker.arbitrate = true in "
                     "gantryd.toml and restart gantryd"};
    }
    if (request.has_share()) {
        GANTRY_ASSIGN(const auto session, find(request.session()));
        const scheduling::Share share{request.share().priority(), request.share().weight()};
        if (share.priority > scheduling::kPriorityMax || share.weight == 0 ||
            share.weight > scheduling::kWeightMax) {
            return Error{Code::kInvalidArgument, "arbiter.share",
                         fmt::format("a priority is 0 to {}, a weight 1 to {}",
                                     scheduling::kPriorityMax, scheduling::kWeightMax)};
        }
        shares_.set_share(session->info().id, share);
    }
    if (request.has_enabled()) {
        shares_.set_enabled(request.enabled());
    }
    static constexpr const char* kPermits[] = {"open", "told", "window", "once", "hold", "fill"};
    control::SchedReply out;
    out.set_enabled(shares_.is_enabled());
    for (const auto& [device, status] : shares_.status()) {
        control::GpuSched& gpu = *out.add_gpus();
        gpu.set_device(device);
        const auto description = devices_.known(device);
        gpu.set_device_name(description ? description->name() : "");
        gpu.set_arbitrates(status.arbitrates);
        for (const auto& [session, standing] : status.sessions) {
            control::SessionSched& one = *gpu.add_sessions();
            one.set_session_id(session);
            one.set_priority(standing.share.priority);
            one.set_weight(standing.share.weight);
            one.set_permit(kPermits[static_cast<std::size_t>(standing.verdict.permit)]);
            one.set_wants(standing.claim.wants);
            one.set_runs(standing.claim.runs);
            one.set_holds(standing.holds);
            one.set_held_us(static_cast<std::uint64_t>(standing.charged.count()) / 1000);
            one.set_wait_us_max(static_cast<std::uint64_t>(standing.wait_max.count()) / 1000);
            one.set_windows_once(standing.windows_once);
            one.set_fills(standing.fills);
        }
    }
    return out;
}

std::vector<control::AccountReply> Registry::accounts() {
    std::vector<control::AccountReply> out;
    if (config_.worker.account) {
        for (const auto& here : sessions_.all().here) {
            out.push_back(account_of(*here.session));
        }
    }
    return out;
}

}  // namespace gantry::supervisor
