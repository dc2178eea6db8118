// Registry: sessions on their way here, and what a peer asks of those that are here.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>

#include "host-daemon/supervisor/registry/registry.h"
#include "proto/base/hex.h"
#include "proto/base/unless_exhausted.h"
#include "proto/wire/vm_proof.h"

namespace gantry::supervisor {
namespace {

/// How much longer than the engine's own bound an admission waits for the engine to decide.
constexpr std::chrono::seconds kAdmissionSlack{30};
/// So long the guest's first call is waited for, before records are exchanged.
constexpr std::chrono::milliseconds kFirstCall{1500};
constexpr std::uint64_t kMirroredBytesMax = 64ull << 30;  // A region takes what is used of it.

/// The size of the region that a program over TCP needs here. Others' memory does not come along.
Result<std::uint64_t> mirrored_region(const engine::SessionNeeds& needs) {
    const std::uint64_t bytes =
        needs.parts.size() == 1 ? needs.parts.front().mirror_region_bytes : 0;
    if (bytes == 0) {
        return Error{Code::kFailedPrecondition, "session.local",
                     "session " + needs.session_id +
                         " is a program that shares memory with its host: it can be pulled by "
                         "another gantryd of that host only, which needs --handover"};
    }
    wire::ChannelLayout layout{};
    if (bytes > kMirroredBytesMax || !wire::compute_layout(bytes, 1, 0, &layout)) {
        return Error{Code::kInvalidArgument, "region.layout",
                     fmt::format("the source names a region of {} bytes", bytes)};
    }
    return bytes;
}

}  // namespace

ArrivalHooks Registry::arrival_hooks(const ArrivalRequest& request) {
    const std::string id = request.info.id;
    ArrivalHooks hooks;
    hooks.choose = [this, request](std::optional<DeviceNumber> now) {
        return choose_gpu(request, now);
    };
    hooks.reserve = [this, id](const engine::SessionNeeds& needs, DeviceNumber device) {
        const std::uint64_t bytes =
            needs.memory_quota_bytes != 0 ? needs.memory_quota_bytes : needs.device_bytes();
        return devices_.reserve(id, device, bytes);
    };
    hooks.launch = [this](const SessionInfo& info, engine::PartId part, DeviceNumber device) {
        return stock_.launch(info.id, part, device, info.quota_bytes, handlers_for(info.id));
    };
    hooks.discard = [this, id] {
        sessions_.if_unknown(id, [&] { devices_.forget(id); });  // See remove_arrival().
    };
    hooks.query_domain = [this, id, kind = request.info.kind,
                          arrives = request.arrives_when_converged](auto answer) {
        if (kind == SessionKind::kVm) {
            hypervisor_.query(id, std::move(answer));
        } else {
            engine::DomainReport report;  // a local program is where it is served
            report.domain = arrives ? engine::DomainState::kRunning : engine::DomainState::kAbsent;
            report.job = engine::JobState::kNone;
            answer(report);
        }
    };
    hooks.log = {records_, MoveSide::kIncoming, id, request.info.vm_name};
    hooks.arrived = [this, id](Epoch epoch) { on_arrived(id, epoch); };
    hooks.ended = [this, id](engine::Outcome outcome, const Error& error) {
        stock_.note_attempt(id, outcome == engine::Outcome::kMoved ? nullptr : &error);
        on_arrival_ended(id, outcome, error);
    };
    return hooks;
}

/// Its memory is promised from then on. Where no GPU can take the session, the one that would be
/// tried first: its engine refuses, and both hosts record why.
Result<engine::HostGpu> Registry::choose_gpu(const ArrivalRequest& request,
                                             std::optional<DeviceNumber> now) {
    const SessionInfo& info = request.info;
    if (now) {
        return engine::HostGpu{*now, capabilities_of(*now, info.id)};
    }
    std::vector<engine::HostGpu> gpus = gpus_for(info.id, info.wish);
    if (gpus.empty()) {
        const std::vector<GpuOffer> offers = devices_.offers(info.id);
        if (!offers.empty()) {
            return no_such_gpu(info.wish, offers);
        }
        return no_gpu();
    }
    std::size_t chosen = 0;
    std::uint64_t bytes = info.quota_bytes;
    if (gpus.size() > 1) {
        transport::PeerClient client(request.source_address, *tls_, identity());
        if (const auto needs = client.needs(info.id)) {
            const engine::GpuChoice choice = engine::choose_gpu(*needs, gpus);
            chosen = choice.index;
            bytes = bytes != 0 ? bytes : needs->device_bytes();
            if (engine::refused(choice.findings)) {
                spdlog::warn("session {}: {}", info.id, engine::refusal_text(choice.findings));
                return std::move(gpus.front());
            }
        } else if (const auto placed = place(info)) {  // It is frozen already: by what is promised.
            chosen = static_cast<std::size_t>(
                std::find_if(gpus.begin(), gpus.end(),
                             [&](const engine::HostGpu& one) { return one.number == *placed; }) -
                gpus.begin());
        }
    }
    if (chosen >= gpus.size()) {
        chosen = 0;
    }
    // Whoever begins here meanwhile finds it taken. A failure is the engine's to tell of.
    (void)devices_.reserve(info.id, *gpus[chosen].number, bytes);
    spdlog::info("session {}: it is to come to GPU {} ({})", info.id, *gpus[chosen].number,
                 gpus[chosen].capabilities.gpu_name);
    return std::move(gpus[chosen]);
}

Result<std::shared_ptr<Arrival>> Registry::begin_arrival(ArrivalRequest request) {
    if (!tls_) {
        return Error{Code::kFailedPrecondition, "peer.off",
                     "this host takes part in no migration: peer.listen is empty in gantryd.toml"};
    }
    const std::string id = request.info.id;
    transport::PeerClient client(request.source_address, *tls_, identity());
    GANTRY_TRY(client.hello());
    ArrivalHooks hooks = arrival_hooks(request);
    GANTRY_ASSIGN(const auto arrival, unless_exhausted([&] {
                      return std::make_shared<Arrival>(std::move(request), config_, stock_,
                                                       settings(), store_, std::move(hooks));
                  }));
    GANTRY_TRY(sessions_.begin_arrival(id, arrival));
    const auto tried = unless_exhausted([&] {
        return arrival->begin([&](transport::TargetLinkHandlers handlers) {
            return client.pull(id, std::move(handlers));
        });
    });
    const Result<void> begun = tried ? *tried : Result<void>(tried.error());
    if (!begun) {
        housekeeping_.post([this, id] { remove_arrival(id); });
        return begun.error();
    }
    return arrival;
}

SessionInfo Registry::vm_session_info(const libvirt::DomainInfo& domain) const {
    SessionInfo info;
    info.id = domain.uuid;
    info.kind = SessionKind::kVm;
    info.vm_name = domain.name;
    info.quota_bytes = domain.gpu->memory_mib << 20;
    if (domain.gpu->share) {
        info.share = {domain.gpu->share->priority, domain.gpu->share->weight};
    }
    info.wish = domain.gpu->wish;
    info.cc_min = {domain.gpu->cc_min_major, domain.gpu->cc_min_minor};
    info.region_path = config_.vm.region_directory + "/" + domain.gpu->region.shmem_name;
    info.region_bytes = domain.gpu->region.region_bytes;
    info.guest_key = domain.gpu->guest_key;
    return info;
}

/// For a VM with our metadata and an owner.
ArrivalRequest Registry::arrival_request(const libvirt::DomainInfo& domain) const {
    ArrivalRequest request;
    request.info = vm_session_info(domain);
    request.source_address = domain.owner->daemon;
    request.ticket = domain.owner->ticket;
    return request;
}

Result<control::AdmitReply> Registry::admit(const control::AdmitRequest& request) {
    control::AdmitReply reply;
    GANTRY_ASSIGN(const libvirt::DomainInfo domain,
                  libvirt::parse_domain_xml(request.domain_xml()));
    if (!domain.gpu) {
        reply.set_text("VM " + request.vm_name() + " has no Gantry metadata: none of our business");
        return reply;
    }
    reply.set_ours(true);
    reply.set_session_id(domain.uuid);
    if (!domain.owner) {
        // Never served by a gantryd (or its libvirt refused the stamp): no state to bring.
        GANTRY_ASSIGN(const auto here, capabilities());
        if (here.front().capabilities.gpu_name.empty()) {
            return Error{Code::kFailedPrecondition, "gpu.absent",
                         "no usable GPU on " + here.front().capabilities.host + " for VM " +
                             request.vm_name()};
        }
        return Error{Code::kFailedPrecondition, "vm.owner",
                     "VM " + request.vm_name() +
                         " carries no address of the gantryd that serves it; is gantryd running on "
                         "its host, with peer.listen set?"};
    }
    if (domain.owner->daemon == vms_.own_address() && sessions_.find(domain.uuid)) {
        // It was left behind when the guest went. It is not simply thawed: what its workers wrote
        // for the guest since may be missing from the memory that comes back.
        return Error{Code::kFailedPrecondition, "session.behind",
                     "the GPU session of VM " + request.vm_name() +
                         " is still on this host and follows it to where it runs now: let it, "
                         "then move the VM. Does gantryd run there? `gantry status` tells"};
    }
    GANTRY_ASSIGN(const auto arrival, begin_arrival(arrival_request(domain)));
    std::chrono::milliseconds wait = std::chrono::seconds{std::max(config_.migration.hook_wait_s,
                                                                   config_.migration.hook_hold_s)} +
                                     kAdmissionSlack;
    if (request.wait_ms_max() != 0) {
        wait = std::min(wait, std::chrono::milliseconds{request.wait_ms_max()});
    }
    if (auto admitted = arrival->wait_admitted(wait); !admitted) {
        housekeeping_.post([this, id = domain.uuid] { remove_arrival(id); });
        return admitted.error();
    }
    const TargetStatus status = arrival->status();
    reply.set_text("admitted");
    reply.set_precopied_bytes(status.progress.bytes_sent);
    reply.set_remaining_bytes(status.progress.bytes_remaining);
    return reply;
}

Result<void> Registry::pull(const control::PullRequest& request) {
    if (!is_session_id(request.session())) {
        return Error{Code::kInvalidArgument, "session.name",
                     "'" + request.session() + "' is no session id; `gantry status` lists them"};
    }
    if (!tls_) {
        return Error{Code::kFailedPrecondition, "peer.off",
                     "this host takes part in no migration: peer.listen is empty in gantryd.toml"};
    }
    if (const std::string& handover = request.handover_path(); !handover.empty()) {
        std::error_code error;
        if (!std::filesystem::is_socket(handover, error)) {
            return Error{Code::kInvalidArgument, "handover.path",
                         handover + (error ? ": " + error.message() : " is no socket") +
                             "; --handover names the other gantryd's handover.sock, in its "
                             "daemon.run_directory"};
        }
    }
    transport::PeerClient client(request.source(), *tls_, identity());
    GANTRY_ASSIGN(const engine::SessionNeeds needs, client.needs(request.session()));
    ArrivalRequest arrival_request;
    arrival_request.info.id = request.session();
    arrival_request.info.kind = SessionKind::kLocal;
    arrival_request.info.quota_bytes = needs.memory_quota_bytes;
    arrival_request.source_address = request.source();
    arrival_request.handover_path = request.handover_path();
    arrival_request.arrives_when_converged = true;
    if (request.handover_path().empty()) {
        GANTRY_ASSIGN(arrival_request.info.region_bytes, mirrored_region(needs));
    }
    GANTRY_ASSIGN(const auto arrival, begin_arrival(std::move(arrival_request)));
    const std::chrono::milliseconds wait{request.wait_ms_max() == 0 ? 600'000
                                                                    : request.wait_ms_max()};
    const auto end = SerialExecutor::Clock::now() + wait;
    if (auto admitted = arrival->wait_admitted(wait); !admitted) {
        housekeeping_.post([this, id = request.session()] { remove_arrival(id); });
        return admitted.error();
    }
    while (SerialExecutor::Clock::now() < end) {
        const engine::TargetState state = arrival->status().state;
        if (state == engine::TargetState::kServing || state == engine::TargetState::kDone) {
            return {};
        }
        if (arrival->ended() || state == engine::TargetState::kDiscarded) {
            return Error{Code::kAborted, "migration.failed",
                         "the move of session " + request.session() +
                             " ended without success; the log of this gantryd says why"};
        }
        std::this_thread::sleep_for(std::chrono::milliseconds{5});
    }
    return Error{Code::kDeadlineExceeded, "migration.slow",
                 "the move goes on; `gantry watch " + request.session() + "` shows how"};
}

/// Runs on the arrival's executor of worker calls: the workers serve the guest already.
void Registry::on_arrived(const std::string& id, Epoch epoch) {
    const std::shared_ptr<Arrival> arrival = sessions_.arrival(id);
    if (!arrival) {
        return;
    }
    const std::shared_ptr<Session> session = arrival->session();
    auto old = sessions_.take(id);
    if (old) {
        // Given away and never confirmed, and now the VM is back: nothing of it is of use any more.
        housekeeping_.post(
            [this, retired = std::make_shared<SessionTable::Taken>(std::move(*old))] {
                run_aside([retired] {
                    retired->watcher.reset();
                    retired->driver->stop();
                    retired->session->end(std::nullopt);
                });
            });
    }
    // The guest is served already: where the system makes no thread now, that is waited for.
    std::shared_ptr<SourceRunner> driver;
    while (!driver) {
        if (auto made = unless_exhausted([&] { return make_driver(session, epoch); })) {
            driver = std::move(*made);
        } else if (sessions_.is_stopping()) {
            return;  // the next gantryd goes on with its workers
        } else {
            spdlog::error("session {}: {}; trying again", id, made.error().to_string());
            std::this_thread::sleep_for(std::chrono::seconds{1});
        }
    }
    session->own(driver);
    take_share(session->info());
    sessions_.put(session, driver);
    devices_.keep_only(id, session->device());  // An earlier life of it may have been on another.
    (void)session->write_record();  // Its note stays until the source knows that it may let go.
    while (true) {
        const auto watched = unless_exhausted([&] { watch_region(session); });
        if (watched || sessions_.is_stopping()) {
            break;
        }
        spdlog::error("session {}: {}; trying again", id, watched.error().to_string());
        std::this_thread::sleep_for(std::chrono::seconds{1});
    }
    if (session->info().kind == SessionKind::kVm) {
        saves_.renew_mark(session);
    }
    driver->feed(engine::source_event::Opened{});
    spdlog::info("session {} is served here now on GPU {}, epoch {}", id, session->device(),
                 epoch.value);
    housekeeping_.post([this] { look_after_guests(); });
    if (session->info().kind == SessionKind::kLocal && session->workers().empty()) {
        housekeeping_.post([this, session] { close_session(session, wire::WorkerState::kDead); });
    } else if (session->has_program_ended()) {
        spdlog::info("session {}: its program has ended on its way", id);
        housekeeping_.post([this, session] { close_session(session, wire::WorkerState::kNone); });
    }
}

void Registry::on_arrival_ended(const std::string& id, engine::Outcome outcome,
                                const Error& error) {
    if (outcome == engine::Outcome::kRetry) {
        spdlog::warn("session {}: the attempt failed ({}), another one begins", id,
                     error.to_string());
        housekeeping_.post([this, id] {
            if (const auto arrival = sessions_.arrival(id)) {
                if (auto begun = arrival->begin_again(); !begun) {
                    spdlog::error("session {}: {}", id, begun.error().to_string());
                }
            }
        });
        return;
    }
    if (const auto arrival = sessions_.arrival(id)) {
        status_.note_ended(*arrival, outcome, error);
        const auto migration = arrival->status().migration;
        housekeeping_.post([this, request = arrival->request(), migration] {
            if (migration) {
                exchange_records(request, migration_text(*migration));
            }
        });
    }
    housekeeping_.post([this, id] {
        forget_arrival_note(id);
        remove_arrival(id);
    });
}

/// On housekeeping_ only. Each host keeps both records from then on. The guest's first call is
/// waited for, as it belongs to them; a source that does not answer keeps its own.
void Registry::exchange_records(const ArrivalRequest& request, const std::string& migration_id) {
    if (!tls_) {
        return;
    }
    run_aside(
        [this, id = request.info.id, source = request.source_address, migration_id, tls = *tls_] {
            const auto until = SerialExecutor::Clock::now() + kFirstCall;
            while (!records_.has(MoveSide::kIncoming, migration_id, "first_call") &&
                   !sessions_.is_stopping() && SerialExecutor::Clock::now() < until) {
                std::this_thread::sleep_for(std::chrono::milliseconds{20});
            }
            const auto own = records_.own(MoveSide::kIncoming, migration_id);
            if (!own || sessions_.is_stopping()) {
                return;
            }
            auto theirs = transport::PeerClient(source, tls, identity()).share_record(*own);
            if (!theirs) {
                spdlog::info("session {}: the source's record of the move has not come: {}", id,
                             theirs.error().to_string());
            } else if (theirs->migration_id() == migration_id) {
                records_.join_peer(MoveSide::kIncoming, std::move(*theirs));
            }
        });
}

Result<control::MoveRecord> Registry::share_record(const control::MoveRecord& record,
                                                   const std::string& peer) {
    return records_.exchange(record, peer);
}

/// On housekeeping_ only. What is written about the way here matters no more: its source has let
/// go, or the session is on its way to another host.
void Registry::forget_arrival_note(const std::string& id) {
    const std::shared_ptr<Session> session = sessions_.find(id).session;
    if (!session || !sessions_.arrival(id)) {
        return;
    }
    session->set_arrival_note("");
    (void)session->write_record();
}

/// On housekeeping_ only.
void Registry::remove_arrival(const std::string& id) {
    const auto arrival = sessions_.take_arrival(id, [&] { devices_.forget(id); });
    if (!arrival) {
        return;
    }
    run_aside([this, id, arrival] {
        arrival->stop();
        const bool is_here = arrival->session()->driver() != nullptr;
        if (!is_here) {
            arrival->session()->end(std::nullopt);
            sessions_.unless_arriving(id, [&] { arrival->session()->remove_record(); });
        }
        if (arrival->left_guest_unknown() && arrival->request().info.kind == SessionKind::kVm) {
            look_after_guest(arrival);
        }
    });
}

/// Its arrival has ended without the session. If libvirt runs the VM here all the same, its calls
/// must not wait for ever: its session is asked for again, or its programs get errors.
void Registry::look_after_guest(const std::shared_ptr<Arrival>& arrival) {
    const std::string id = arrival->request().info.id;
    hypervisor_.query(id, [this, id, arrival](engine::DomainReport report) {
        if (report.domain != engine::DomainState::kRunning ||
            report.job == engine::JobState::kIncoming) {
            return;
        }
        housekeeping_.post([this, id, arrival] {
            if (sessions_.arrival(id) || sessions_.is_concerned(id)) {
                return;
            }
            if (arrival->is_hopeless()) {
                arrival->disown_guest();
            } else {
                vms_.find_session(id);
            }
        });
    });
}

void Registry::released(const control::ReleasedRequest& request) {
    const auto domain = libvirt::parse_domain_xml(request.domain_xml());
    if (!domain || !domain->gpu) {
        return;
    }
    // libvirt's own events say the same; the hook comes even when libvirtd is about to end.
    libvirt::DomainEvent event;
    event.kind = libvirt::EventKind::kStoppedFailed;
    event.uuid = domain->uuid;
    event.name = domain->name;
    vms_.feed_target(domain->uuid, event);
    forget_start(domain->uuid);
}

Result<GuestLink> Registry::give_guest(const HandoverRequest& request) {
    const auto [id, session, driver, alerts] = sessions_.find(request.session_id);
    if (!session) {
        return Error{Code::kNotFound, "session.unknown", "no such session is here"};
    }
    const SourceStatus status = driver->status();
    if (status.state != engine::SourceState::kGranted || status.epoch.value + 1 != request.epoch ||
        session->info().kind != SessionKind::kLocal) {
        return Error{Code::kFailedPrecondition, "handover.not_granted",
                     fmt::format("session {} was not granted as epoch {}", request.session_id,
                                 request.epoch)};
    }
    const auto workers = session->workers().all();
    if (workers.size() != 1) {
        return Error{Code::kUnavailable, "session.lost", "its worker has ended"};
    }
    control::ToWorker release;
    release.mutable_release()->set_return_guest(true);
    GANTRY_ASSIGN(WorkerReply reply, workers.front()->call(std::move(release), kLongCall));
    if (reply.descriptors.empty()) {
        return Error{Code::kInternal, "worker.protocol", "the worker returned no region"};
    }
    GuestLink link;
    link.region = Region::adopt(std::move(reply.descriptors[0]),
                                reply.message.release().guest().region_bytes());
    if (reply.descriptors.size() > 1) {
        link.socket = std::move(reply.descriptors[1]);
    }
    return link;
}

/// The key is looked at before anything else is told: who has none learns nothing of a VM.
Result<RelayedGuest> Registry::attach_vm(const wire::VmAttachRequest& request) {
    const std::string id = to_uuid_text(std::as_bytes(std::span(request.guest.vm.vm)));
    const std::shared_ptr<Session> session = sessions_.find(id).session;
    const auto key = session ? from_hex<32>(session->info().guest_key) : std::nullopt;
    const wire::GuestAttach& guest = request.guest;
    if (!key || !is_same_digest(wire::vm_proof(*key, request.session, guest.request, guest.vm),
                                guest.vm.proof)) {
        return Error{Code::kPermissionDenied, "guest.vm",
                     "no VM " + id +
                         " with this key is here; gantry-guest's --vm and --key must "
                         "be the VM's UUID and the key in its metadata"};
    }
    if (!session->serves()) {
        return Error{Code::kUnavailable, "session.busy", "VM " + id + " is being moved; try again"};
    }
    return session->give_channel(guest.request.guest_pid);
}

Result<RelayedGuest> Registry::resume_guest(const MirrorName& name) {
    const SessionTable::All all = sessions_.all();
    for (const SessionTable::Here& here : all.here) {
        auto guest = here.session->meet_relay(name);
        if (guest || guest.error().code != Code::kNotFound) {
            return guest;
        }
    }
    return Error{all.coming.empty() ? Code::kNotFound : Code::kUnavailable, "guest.unknown",
                 "no guest of this link is served here"};
}

Result<engine::SessionNeeds> Registry::needs(const std::string& session_id) {
    GANTRY_ASSIGN(const auto session, find(session_id));
    if (!session->serves()) {
        return Error{Code::kFailedPrecondition, "session.busy",
                     "session " + session_id + " is not being served here at the moment"};
    }
    return session->source().describe();
}

void Registry::receive(const std::string& session_id, engine::Message message,
                       const std::string& peer, std::shared_ptr<transport::MessageLink> link) {
    const bool gives_up = std::holds_alternative<engine::MsgAbort>(message.body) ||
                          std::holds_alternative<engine::MsgGrantReturned>(message.body);
    const auto [is_stopping, driver] =
        sessions_.note_message(session_id, message.migration, gives_up);
    if (is_stopping) {
        return;  // The next gantryd answers: it knows what this one has let go already.
    }
    if (driver) {
        if (std::holds_alternative<engine::MsgPrepare>(message.body)) {
            housekeeping_.post([this, session_id] { forget_arrival_note(session_id); });
        }
        driver->receive(std::move(message), peer, std::move(link));
        return;
    }
    engine::Message answer{message.migration, {}};
    if (std::holds_alternative<engine::MsgPrepare>(message.body)) {
        answer.body = engine::MsgRefused{{{engine::Severity::kRefusal, "session.unknown",
                                           "The source has no GPU session of this VM."}}};
    } else if (std::holds_alternative<engine::MsgGrantRequest>(message.body) ||
               std::holds_alternative<engine::MsgAbort>(message.body) ||
               std::holds_alternative<engine::MsgGrantReturned>(message.body)) {
        answer.body = engine::MsgGrantRefused{"session.unknown",
                                              "The source has no GPU session of this VM.", true};
    } else if (const auto* activated = std::get_if<engine::MsgActivated>(&message.body)) {
        answer.body = engine::MsgReleased{activated->epoch};  // let go long ago
    } else {
        answer.body =
            engine::MsgAbort{"session.unknown", "The source has no GPU session of this VM."};
    }
    link->send(answer);
}

void Registry::turned_away(const std::string& peer, const std::string& address) {
    spdlog::warn("{} ({}) is turned away: peer.allow does not have it", peer, address);
}

std::shared_ptr<BulkQueue> Registry::bulk(const std::string& session_id,
                                          engine::MigrationId migration, const std::string& peer) {
    const auto driver = sessions_.find(session_id).driver;
    return driver ? driver->bulk(migration, peer) : nullptr;
}

}  // namespace gantry::supervisor
