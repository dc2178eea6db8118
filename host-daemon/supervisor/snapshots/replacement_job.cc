#include "host-daemon/supervisor/snapshots/replacement_job.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "host-daemon/replacement/replacement.h"

namespace gantry::supervisor {
namespace {

class WorkerEndpoint final : public replacement::Endpoint {
public:
    explicit WorkerEndpoint(Worker& worker) : worker_(worker) {}
    Result<replacement::Answer> call(control::ToWorker request,
                                     std::span<const int> descriptors) override {
        GANTRY_ASSIGN(WorkerReply reply, worker_.call(std::move(request), kLongCall, descriptors));
        return replacement::Answer{std::move(reply.message), std::move(reply.descriptors)};
    }
    void kill() override { worker_.kill(); }

private:
    Worker& worker_;
};

Result<std::shared_ptr<Worker>> launch_fresh(const Worker& old_worker, DeviceNumber device,
                                             const ReplacementHooks& hooks, Addresses addresses) {
    GANTRY_ASSIGN(std::shared_ptr<Worker> fresh,
                  hooks.launch(old_worker.part(), device, addresses));
    const std::uint64_t guest = old_worker.guest().table_hash();
    if (guest != 0 && fresh->table_hash() != guest) {
        fresh->end();
        return Error{Code::kFailedPrecondition, "version.table",
                     "the program's libcuda.so.1 and the gantry-worker that is installed now were "
                     "built from different versions of the CUDA API table; the worker that serves "
                     "it goes on"};
    }
    return fresh;
}

void fill_course(const replacement::Report& report, control::WorkerReplacement* out) {
    for (const replacement::Round& round : report.rounds) {
        control::CopyRound& each = *out->add_rounds();
        each.set_bytes(round.bytes);
        each.set_scan_us(round.scan_us);
        each.set_copy_us(round.copy_us);
        each.set_rest_us(round.rest_us);
        each.set_fingerprint_us(round.fingerprint_us);
        each.set_total_us(round.total_us);
    }
    for (const auto& [step, us] : report.pause_steps) {
        control::PauseStep& each = *out->add_pause_steps();
        each.set_step(step);
        each.set_us(us);
    }
    out->set_begun_us(report.begun_us);
    for (const replacement::Span& span : report.spans) {
        control::WorkSpan& each = *out->add_spans();
        each.set_whom(replacement::to_string(span.whom));
        each.set_what(span.what);
        each.set_at_us(span.at_us);
        each.set_us(span.us);
        each.set_count(span.count);
    }
}

void fill(const replacement::Report& report, const Worker& old_worker, const Worker& fresh,
          control::WorkerReplacement* out) {
    out->set_part_id(fresh.part().value);
    out->set_old_pid(static_cast<std::uint32_t>(old_worker.pid()));
    out->set_pid(static_cast<std::uint32_t>(fresh.pid()));
    out->set_way(replacement::to_string(report.way));
    out->set_staged_because(report.staged_because);
    out->set_pieces(report.pieces);
    out->set_bytes_handed_over(report.bytes_handed_over);
    out->set_bytes_copied(report.bytes_copied);
    out->set_bytes_copied_frozen(report.bytes_copied_frozen);
    out->set_bytes_left(report.bytes_left);
    out->set_drain_us(report.drain_us);
    out->set_pause_us(report.pause_us);
    out->set_elapsed_us(report.total_us);
    fill_course(report, out);
}

/// What all replacements of one request have in common.
struct Order {
    Session& session;
    Epoch epoch;
    DeviceNumber device;
    const ReplacementHooks& hooks;
};

Result<control::WorkerReplacement> replace_in(const Order& order,
                                              const std::shared_ptr<Worker>& old_worker,
                                              replacement::Way way, Addresses addresses) {
    Session& session = order.session;
    replacement::Options options;  // Begins now.
    GANTRY_ASSIGN(const std::shared_ptr<Worker> fresh,
                  launch_fresh(*old_worker, order.device, order.hooks, addresses));
    WorkerEndpoint from(*old_worker);
    WorkerEndpoint to(*fresh);
    const engine::PartId part = old_worker->part();
    session.begin_replacement(fresh);
    options.way = way;
    options.epoch = order.epoch.value;
    options.at_step = [&](replacement::Step step) {
        spdlog::debug("session {}: worker {}: replacement {} (process {} by {})", session.info().id,
                      part.value, replacement::to_string(step), old_worker->pid(), fresh->pid());
        if (step == replacement::Step::kAttached) {  // A later gantryd must find either.
            if (const auto written = session.write_record(); !written) {
                spdlog::warn("session {}: {}", session.info().id, written.error().to_string());
            }
        }
    };
    const replacement::Outcome outcome = replacement::replace(from, to, options);
    const bool is_fresh = outcome.owner == replacement::Owner::kFresh;
    if (is_fresh) {
        fresh->took_over(*old_worker, outcome.report->pause_us);
    }
    session.end_replacement(is_fresh);
    (is_fresh ? old_worker : fresh)->end();
    const auto& serving = is_fresh ? fresh : old_worker;
    if (outcome.owner == replacement::Owner::kNobody || !serving->alive()) {
        serving->end();
        const std::string how = outcome.report.ok() ? "it ended right after its take-over"
                                                    : outcome.report.error().to_string();
        order.hooks.lost(part, "while its worker was replaced: " + how);
    }
    if (!outcome.report.ok()) {
        return outcome.report.error();
    }
    control::WorkerReplacement out;
    fill(*outcome.report, *old_worker, *fresh, &out);
    spdlog::info(
        "session {}: worker {} is process {} on device {} now, {} on {} before: {}, {} bytes "
        "handed over, {} copied, pause {} us",
        session.info().id, part.value, fresh->pid(), fresh->device_number(), old_worker->pid(),
        old_worker->device_number(), out.way(), out.bytes_handed_over(), out.bytes_copied(),
        out.pause_us());
    return out;
}

/// Whether a copy by way of host memory may do what this refusal refused.
bool is_of_peer_copy(const Error& refusal) {
    return refusal.reason == "state.pull" ||
           (refusal.reason.starts_with("handover.") && refusal.reason != "handover.guest_gone");
}

/// Once more by a worker whose driver has its memory elsewhere, where it was in the way.
Result<control::WorkerReplacement> replace_in(const Order& order,
                                              const std::shared_ptr<Worker>& old_worker,
                                              replacement::Way way) {
    auto replaced = replace_in(order, old_worker, way, Addresses::kUsual);
    if (replaced || replaced.error().reason != kVariablesNotNow) {
        return replaced;
    }
    spdlog::info("session {}: worker {}: {}; a worker with other addresses tries it",
                 order.session.info().id, old_worker->part().value, replaced.error().to_string());
    auto again = replace_in(order, old_worker, way, Addresses::kScattered);
    // What such a worker cannot do another usual one may.
    const bool is_of_variables = !again && again.error().reason.starts_with("module.globals.");
    return is_of_variables ? replaced : again;
}

/// In the best way that there is: each way that is refused leaves the old worker serving.
Result<control::WorkerReplacement> replace_one(const Order& order,
                                               const std::shared_ptr<Worker>& old_worker,
                                               replacement::Way way) {
    using replacement::Way;
    const auto say = [&](const Error& error, const char* next) {
        spdlog::info("session {}: worker {}: {}; {}", order.session.info().id,
                     old_worker->part().value, error.to_string(), next);
    };
    if (way == Way::kHandOver) {
        auto handed = replace_in(order, old_worker, way);
        if (handed || handed.error().reason != "handover.not_exportable") {
            return handed;
        }
        say(handed.error(), "it is copied");
        way = Way::kPeer;
    }
    if (way == Way::kPeer) {
        auto pulled = replace_in(order, old_worker, way);
        if (pulled || !is_of_peer_copy(pulled.error())) {
            return pulled;
        }
        say(pulled.error(), "it is copied by way of host memory");
    }
    return replace_in(order, old_worker, Way::kStaged);
}

replacement::Way way_of(control::MemoryWay way, replacement::Way usual) {
    switch (way) {
        case control::MEMORY_WAY_HAND_OVER: return replacement::Way::kHandOver;
        case control::MEMORY_WAY_PEER: return replacement::Way::kPeer;
        case control::MEMORY_WAY_STAGED: return replacement::Way::kStaged;
        default: return usual;
    }
}

Result<void> check_free(const Session& session, const SourceStatus& status) {
    if (session.is_moving(status) || session.suspended()) {
        return Error{Code::kFailedPrecondition, "session.busy",
                     "session " + session.info().id +
                         " is being moved or is suspended; replace its workers before or "
                         "afterwards"};
    }
    return {};
}

/// Of the workers that `is_due` holds of.
template <typename IsDue>
Result<control::ReplaceWorkersReply> replace_each(const Order& order, replacement::Way way,
                                                  IsDue is_due) {
    control::ReplaceWorkersReply reply;
    reply.set_device(order.device);
    for (const auto& worker : order.session.workers().all()) {
        if (is_due(*worker)) {
            GANTRY_ASSIGN(*reply.add_workers(), replace_one(order, worker, way));
        }
    }
    if (const auto workers = order.session.workers().all(); !workers.empty()) {
        reply.set_device_name(workers.front()->device().name());
    }
    return reply;
}

bool is_all_on(Session& session, DeviceNumber device) {
    const auto workers = session.workers().all();
    return std::all_of(workers.begin(), workers.end(),
                       [device](const auto& worker) { return worker->device_number() == device; });
}

/// Those that are not there yet.
Result<control::ReplaceWorkersReply> move_all(const Order& order, replacement::Way way) {
    order.session.set_device(order.device);  // What begins from now on begins there.
    GANTRY_ASSIGN(auto reply, replace_each(order, way, [&order](const Worker& worker) {
                      return worker.device_number() != order.device;
                  }));
    order.hooks.settled(order.device);
    return reply;
}

Result<control::ReplaceWorkersReply> reassign_all(const Order& order, replacement::Way way) {
    Session& session = order.session;
    const DeviceNumber from = session.device();
    if (from == order.device && is_all_on(session, from)) {
        return Error{Code::kFailedPrecondition, "reassign.same_device",
                     fmt::format("session {} is on device {} already; `gantry replace-worker "
                                 "--copy` copies it into fresh workers there",
                                 session.info().id, from)};
    }
    GANTRY_ASSIGN(const engine::SessionNeeds needs, session.source().describe());
    GANTRY_TRY(order.hooks.admit(needs, order.device));
    auto moved = move_all(order, way);
    if (moved || from == order.device) {
        return moved;
    }
    const Order back{session, order.epoch, from, order.hooks};
    if (const auto returned = move_all(back, way); !returned) {
        return Error{moved.error().code, moved.error().reason,
                     fmt::format("{}; and back to device {}: {}; `gantry status` says where each "
                                 "program is, and the same command moves the others",
                                 moved.error().text, from, returned.error().to_string())};
    }
    return moved;
}

/// `work` beside no step of a move.
template <typename Work>
Result<control::ReplaceWorkersReply> with_workers(const std::shared_ptr<Session>& session,
                                                  Work work) {
    const auto driver = session->driver();
    const auto done = driver->run_with_workers([&]() -> Result<control::ReplaceWorkersReply> {
        const SourceStatus status = driver->status();
        GANTRY_TRY(check_free(*session, status));
        return work(status.epoch);
    });
    return done.value_or(
        Error{Code::kUnavailable, "session.closed",
              "session " + session->info().id + " ended before its workers were replaced"});
}

}  // namespace

Result<control::ReplaceWorkersReply> replace_workers(const std::shared_ptr<Session>& session,
                                                     control::MemoryWay way,
                                                     ReplacementHooks hooks) {
    return with_workers(session, [&](Epoch epoch) {
        return replace_each(Order{*session, epoch, session->device(), hooks},
                            way_of(way, replacement::Way::kHandOver),
                            [](const Worker&) { return true; });
    });
}

Result<control::ReplaceWorkersReply> reassign(const std::shared_ptr<Session>& session,
                                              DeviceNumber device, control::MemoryWay way,
                                              ReplacementHooks hooks) {
    const replacement::Way wanted = way_of(way, replacement::Way::kPeer);
    if (device >= kDevicesMax || wanted == replacement::Way::kHandOver) {
        return Error{
            Code::kInvalidArgument, "reassign.request",
            device >= kDevicesMax
                ? fmt::format("device {}: a number below {} is wanted", device, kDevicesMax)
                : std::string("memory changes hands on one device only")};
    }
    return with_workers(session, [&](Epoch epoch) {
        return reassign_all({*session, epoch, device, hooks}, wanted);
    });
}

}  // namespace gantry::supervisor
