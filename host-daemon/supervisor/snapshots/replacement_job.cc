#include "host-daemon/supervisor/snapshots/replacement_job.h"

#include <spdlog/spdlog.h>

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

Result<std::shared_ptr<Worker>> launch_fresh(const Worker& old_worker,
                                             const ReplacementHooks& hooks) {
    GANTRY_ASSIGN(std::shared_ptr<Worker> fresh, hooks.launch(old_worker.part()));
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

void fill(const replacement::Report& report, const Worker& old_worker, const Worker& fresh,
          control::WorkerReplacement* out) {
    out->set_part_id(fresh.part().value);
    out->set_old_pid(static_cast<std::uint32_t>(old_worker.pid()));
    out->set_pid(static_cast<std::uint32_t>(fresh.pid()));
    out->set_pieces(report.pieces);
    out->set_bytes_handed_over(report.bytes_handed_over);
    out->set_bytes_copied(report.bytes_copied);
    out->set_bytes_copied_frozen(report.bytes_copied_frozen);
    out->set_drain_us(report.drain_us);
    out->set_pause_us(report.pause_us);
    out->set_elapsed_us(report.total_us);
}

Result<void> replace_one(Session& session, const std::shared_ptr<Worker>& old_worker, Epoch epoch,
                         const ReplacementHooks& hooks, control::WorkerReplacement* out) {
    GANTRY_ASSIGN(const std::shared_ptr<Worker> fresh, launch_fresh(*old_worker, hooks));
    WorkerEndpoint from(*old_worker);
    WorkerEndpoint to(*fresh);
    const engine::PartId part = old_worker->part();
    session.begin_replacement(fresh);
    replacement::Options options;
    options.epoch = epoch.value;
    options.at_step = [&](replacement::Step step) {
        spdlog::debug("session {}: replacing worker {}: {}", session.info().id, part.value,
                      replacement::to_string(step));
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
        hooks.lost(part, "while its worker was replaced: " + how);
    }
    if (!outcome.report.ok()) {
        return outcome.report.error();
    }
    fill(*outcome.report, *old_worker, *fresh, out);
    spdlog::info(
        "session {}: worker {} is process {} now, {} before: {} bytes handed over, {} "
        "copied, pause {} us",
        session.info().id, part.value, fresh->pid(), old_worker->pid(), out->bytes_handed_over(),
        out->bytes_copied(), out->pause_us());
    return {};
}

Result<control::ReplaceWorkersReply> replace_all(Session& session, const SourceStatus& status,
                                                 const ReplacementHooks& hooks) {
    if (session.is_moving(status) || session.suspended()) {
        return Error{Code::kFailedPrecondition, "session.busy",
                     "session " + session.info().id +
                         " is being moved or is suspended; replace its workers before or "
                         "afterwards"};
    }
    control::ReplaceWorkersReply reply;
    for (const auto& worker : session.workers().all()) {
        GANTRY_TRY(replace_one(session, worker, status.epoch, hooks, reply.add_workers()));
    }
    return reply;
}

}  // namespace

Result<control::ReplaceWorkersReply> replace_workers(const std::shared_ptr<Session>& session,
                                                     ReplacementHooks hooks) {
    const auto driver = session->driver();
    const auto replaced =
        driver->run_with_workers([&] { return replace_all(*session, driver->status(), hooks); });
    return replaced.value_or(
        Error{Code::kUnavailable, "session.closed",
              "session " + session->info().id + " ended before its workers were replaced"});
}

}  // namespace gantry::supervisor
