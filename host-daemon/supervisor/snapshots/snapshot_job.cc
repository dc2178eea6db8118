#include "host-daemon/supervisor/snapshots/snapshot_job.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <mutex>

#include "host-daemon/supervisor/base/phases.h"
#include "host-daemon/supervisor/config/version.h"
#include "host-daemon/supervisor/parts/part_files.h"
#include "host-daemon/supervisor/snapshots/snapshot_pages.h"
#include "migration/transport/message_map.h"
#include "proto/base/serial_executor.h"
#include "proto/snapshot/container.h"
#include "proto/snapshot/container.pb.h"

namespace gantry::supervisor {
namespace {

constexpr std::chrono::seconds kFreezeDeadline{10};
constexpr std::size_t kNeededModulesMax = 1000;

std::uint64_t us_since(SerialExecutor::Clock::time_point begun) {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(SerialExecutor::Clock::now() - begun)
            .count());
}

Result<void> add_images(WorkersSource& source, engine::PartId part, std::vector<std::string>* known,
                        snapshot::SnapshotWriter* writer) {
    GANTRY_ASSIGN(const std::string serialised, source.images(part, *known));
    control::ImageList list;
    if (!list.ParseFromString(serialised)) {
        return Error{Code::kInvalidArgument, "worker.protocol", "a damaged list of images"};
    }
    for (const control::ImageBytes& image : list.images()) {
        if (image.sha256().size() != 32) {
            return Error{Code::kInvalidArgument, "worker.protocol", "an image without SHA-256"};
        }
        known->push_back(image.sha256());
        const auto name = std::as_bytes(std::span(image.sha256().data(), 32)).first<32>();
        GANTRY_TRY(writer->add_image(
            name, std::as_bytes(std::span(image.content().data(), image.content().size()))));
    }
    return {};
}

struct What {
    snapshot::AtomicFile& file;
    Epoch epoch;
    engine::Seed seed;
    std::string needs;  ///< Serialised control.SessionNeeds.
};

/// One frozen part: what a reader needs before the blocks comes before them.
Result<void> write_part(Session& session, engine::PartId part, const snapshot::FingerprintKey& key,
                        std::vector<std::string>* images_known, snapshot::SnapshotWriter* writer,
                        Phases& phases) {
    WorkersSource& source = session.source();
    GANTRY_TRY(add_images(source, part, images_known, writer));
    GANTRY_ASSIGN(const engine::FinalPart before, source.final_part(part));
    GANTRY_TRY(writer->add_graph(part.value, before.graph));
    phases.end("graph");
    GANTRY_ASSIGN(const auto worker, session.workers().need(part));
    GANTRY_ASSIGN(const FirstFingerprints first,
                  first_fingerprints(*worker, WorkersCopy::first_count()));
    phases.end("scan");
    GANTRY_ASSIGN(snapshot::MemoryWriter * memory, writer->begin_memory(part.value, first.total()));
    WorkersCopy copy(source, worker, first, key);
    GANTRY_TRY(copy.begin(*memory));
    const engine::BlockSetDigest placed = memory->digest();
    GANTRY_TRY(writer->end_memory());  // While the worker copies.
    DigestReport differences;
    GANTRY_ASSIGN(const engine::BlockSetDigest held, copy.end(&differences));
    phases.end("memory", copy.how());
    if (held != placed || !differences.empty()) {
        return Error{
            Code::kDataLoss, "snapshot.digest",
            fmt::format("the bytes of part {} in the file are not those that its worker holds: {}",
                        part.value, differences.text(*worker))};
    }
    phases.end("check");
    return {};
}

/// Everything of a frozen session into the file.
Result<std::uint64_t> write_file(Session& session, const What& what, Phases& phases) {
    const std::vector<engine::PartId> parts = session.source().parts();
    snapshot::SnapshotHeader header;
    header.set_session_id(session.info().id);
    header.set_producer(std::string("gantryd ") + kGantryVersion);
    header.set_created_unix_seconds(
        static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(
                                       std::chrono::system_clock::now().time_since_epoch())
                                       .count()));
    header.set_epoch(what.epoch.value);
    header.set_seed_low(what.seed.low);
    header.set_seed_high(what.seed.high);
    header.set_part_count(static_cast<std::uint32_t>(parts.size()));
    header.set_needs(what.needs);
    snapshot::SnapshotWriter writer(what.file.fd(), what.file.path(), header,
                                    snapshot::Codec::kStored);
    const snapshot::FingerprintKey key(what.seed);
    std::vector<std::string> images_known;
    for (const engine::PartId part : parts) {
        GANTRY_TRY(write_part(session, part, key, &images_known, &writer, phases));
    }
    GANTRY_TRY(writer.finish());
    GANTRY_TRY(what.file.commit());
    phases.end("commit");
    return writer.bytes_written();
}

/// One call.
struct Job {
    Session& session;
    SourceRunner& driver;
    const control::SnapshotRequest& request;
    const std::function<bool()>& is_cancelled;
    const WhenFrozen& when_frozen;
    const SerialExecutor::Clock::time_point begun = SerialExecutor::Clock::now();
    Phases phases{};

    /// Whether the session may be saved, as far as can be told before it is frozen.
    [[nodiscard]] Result<void> check() const {
        const std::string& id = session.info().id;
        if (is_cancelled()) {
            return Error{Code::kCancelled, "snapshot.cancelled", "nobody waits for the snapshot"};
        }
        if (driver.is_stopped()) {
            return closed(id);
        }
        if (session.is_moving(driver.status())) {
            return Error{Code::kFailedPrecondition, "session.busy",
                         "session " + id + " is being moved; save it before or afterwards"};
        }
        if (session.suspended()) {
            return Error{Code::kFailedPrecondition, "session.suspended",
                         "session " + id + " is suspended into a file; `gantry restore` it first"};
        }
        return {};
    }
    static Error closed(const std::string& id) {
        return {Code::kUnavailable, "session.closed",
                "session " + id + " ended before it could be saved"};
    }
};

/// On the executor of worker calls.
Result<control::SnapshotReply> freeze_and_save(Job& job, snapshot::AtomicFile& file,
                                               SnapshotPages& pages) {
    GANTRY_TRY(job.check());
    Session& session = job.session;
    const bool suspend = job.request.suspend();
    WorkersSource& source = session.source();
    GANTRY_ASSIGN(engine::SessionNeeds needs, source.describe());
    if (needs.modules.size() > kNeededModulesMax) {
        needs.modules.clear();  // a header is small; the workers check each graph anyway
    }
    const What what{file, job.driver.status().epoch, snapshot::random_seed(),
                    transport::to_proto(needs).SerializeAsString()};
    const engine::FreezeToken token{random_migration(), 1};
    Phases& phases = job.phases;
    phases.end("describe");
    const auto frozen = SerialExecutor::Clock::now();
    GANTRY_TRY(source.freeze(token, kFreezeDeadline));
    phases.end("freeze");
    Result<void> begun = job.when_frozen ? job.when_frozen(what.seed) : Result<void>();
    if (begun) {
        begun = source.begin_precopy(what.seed);
    }
    Result<std::uint64_t> written =
        begun ? write_file(session, what, phases) : Result<std::uint64_t>(begun.error());
    source.end_precopy();
    if (written) {
        pages.leave();  // Now, while the device is idle.
    }
    const Result<void> let_go =
        written && suspend ? session.suspend({what.seed, file.path()}) : source.thaw();
    if (!written) {
        return written.error();
    }
    if (suspend && !let_go && !session.suspended()) {
        (void)source.thaw();
    }
    GANTRY_TRY(let_go);
    phases.end(suspend ? "suspend" : "thaw");
    control::SnapshotReply reply;
    reply.set_bytes(*written);
    reply.set_elapsed_us(us_since(job.begun));
    reply.set_pause_us(us_since(frozen));
    spdlog::info("session {} lies in {}: {} bytes, pause {} us, all in {} us ({})",
                 session.info().id, file.path(), *written, reply.pause_us(), reply.elapsed_us(),
                 phases.text());
    return reply;
}

Result<control::SnapshotReply> save(Job& job) {
    GANTRY_TRY(job.check());
    GANTRY_ASSIGN(snapshot::AtomicFile file, snapshot::AtomicFile::create(job.request.path()));
    // What ends with its snapshot, or is paused already, has no pause that could be short.
    const auto made = job.request.suspend() || job.when_frozen ? SnapshotPages::Made::kWhenWritten
                                                               : SnapshotPages::Made::kBeforeFreeze;
    GANTRY_ASSIGN(SnapshotPages pages,
                  SnapshotPages::prepare(job.session, job.driver, file.fd(), job.request.path(),
                                         made, [&job] { return job.check(); }));
    job.phases.end("prepare", pages.how());
    spdlog::info("session {} is about to be saved: its file has room [{}]", job.session.info().id,
                 pages.how());
    const auto saved =
        job.driver.run_with_workers([&] { return freeze_and_save(job, file, pages); });
    return saved ? *saved : Result<control::SnapshotReply>(Job::closed(job.session.info().id));
}

}  // namespace

Result<control::SnapshotReply> save_snapshot(const std::shared_ptr<Session>& session,
                                             const control::SnapshotRequest& request,
                                             const std::function<bool()>& is_cancelled,
                                             const WhenFrozen& when_frozen) {
    if (request.path().empty() || request.path().front() != '/') {
        return Error{Code::kInvalidArgument, "snapshot.path",
                     "the file's path must be absolute: '" + request.path() + "'"};
    }
    const MutexLock one_at_a_time(session->saving());
    const auto driver = session->driver();
    Job job{*session, *driver, request, is_cancelled, when_frozen};
    return save(job);
}

}  // namespace gantry::supervisor
