#include "host-daemon/supervisor/snapshot_job.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <future>

#include "host-daemon/supervisor/part_files.h"
#include "host-daemon/supervisor/part_saver.h"
#include "host-daemon/supervisor/phases.h"
#include "host-daemon/supervisor/version.h"
#include "migration/transport/message_map.h"
#include "proto/snapshot/container.h"
#include "proto/snapshot/container.pb.h"

namespace gantry::supervisor {
namespace {

constexpr std::chrono::seconds kFreezeDeadline{10};
constexpr std::size_t kNeededModulesMax = 1000;

std::uint64_t us_since(Strand::Clock::time_point begun) {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(Strand::Clock::now() - begun)
            .count());
}

Result<void> add_images(WorkersSource& source, engine::PartId part,
                        std::vector<std::string>* known, snapshot::SnapshotWriter* writer) {
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
    std::string path;
    Epoch epoch;
    engine::Seed seed;
    std::string needs;  ///< Serialised control.SessionNeeds.
};

/// One frozen part: what a reader needs before the blocks comes before them.
Result<void> write_part(Session& session, engine::PartId part,
                        const snapshot::FingerprintKey& key,
                        std::vector<std::string>* images_known, snapshot::SnapshotWriter* writer,
                        Phases& phases) {
    WorkersSource& source = session.source();
    GANTRY_TRY(add_images(source, part, images_known, writer));
    GANTRY_ASSIGN(const engine::FinalPart before, source.final_part(part));
    GANTRY_TRY(writer->add_graph(part.value, before.graph));
    phases.end("graph");
    GANTRY_ASSIGN(const engine::ScanResult scanned, source.scan(part));
    phases.end("scan");
    GANTRY_ASSIGN(const auto worker, session.workers().need(part));
    GANTRY_ASSIGN(const SavedMemory saved,
                  save_memory(source, worker, scanned.changed, key, writer));
    phases.end("memory", saved.how);
    engine::BlockSetDigest held;
    if (saved.by_worker) {
        GANTRY_ASSIGN(held, digest_now(*worker));
    } else {
        GANTRY_ASSIGN(const engine::FinalPart after, source.final_part(part));
        held = after.digest;
    }
    if (held != saved.digest || !saved.differences.empty()) {
        return Error{Code::kDataLoss, "snapshot.digest",
                     "the bytes of part " + std::to_string(part.value) +
                         " in the file are not those that its worker holds: " +
                         saved.differences.text(*worker)};
    }
    phases.end("check");
    return {};
}

/// Everything of a frozen session into the file.
Result<std::uint64_t> write_file(Session& session, const What& what, Phases& phases) {
    const std::vector<engine::PartId> parts = session.source().parts();
    GANTRY_ASSIGN(snapshot::AtomicFile file, snapshot::AtomicFile::create(what.path));
    snapshot::SnapshotHeader header;
    header.set_session_id(session.info().id);
    header.set_producer(std::string("gantryd ") + kGantryVersion);
    header.set_created_unix_seconds(static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::seconds>(
            std::chrono::system_clock::now().time_since_epoch())
            .count()));
    header.set_epoch(what.epoch.value);
    header.set_seed_low(what.seed.low);
    header.set_seed_high(what.seed.high);
    header.set_part_count(static_cast<std::uint32_t>(parts.size()));
    header.set_needs(what.needs);
    snapshot::SnapshotWriter writer(file.fd(), what.path, header, snapshot::Codec::kStored);
    const snapshot::FingerprintKey key(what.seed);
    std::vector<std::string> images_known;
    for (const engine::PartId part : parts) {
        GANTRY_TRY(write_part(session, part, key, &images_known, &writer, phases));
    }
    GANTRY_TRY(writer.finish());
    GANTRY_TRY(file.commit());
    phases.end("commit");
    return writer.bytes_written();
}

Result<control::SnapshotReply> save_frozen(Session& session, const std::string& path, Epoch epoch,
                                           bool suspend) {
    WorkersSource& source = session.source();
    GANTRY_ASSIGN(engine::SessionNeeds needs, source.describe());
    if (needs.modules.size() > kNeededModulesMax) {
        needs.modules.clear();  // a header is small; the workers check each graph anyway
    }
    const What what{path, epoch, random_seed(), transport::to_proto(needs).SerializeAsString()};
    const auto begun = Strand::Clock::now();
    const engine::FreezeToken token{random_migration(), 1};
    Phases phases;
    GANTRY_TRY(source.freeze(token, kFreezeDeadline));
    phases.end("freeze");
    Result<void> prepared = source.begin_precopy(what.seed);
    Result<std::uint64_t> written =
        prepared ? write_file(session, what, phases) : Result<std::uint64_t>(prepared.error());
    source.end_precopy();
    const Result<void> let_go =
        written && suspend ? session.suspend({what.seed, path}) : source.thaw();
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
    reply.set_elapsed_us(us_since(begun));
    reply.set_pause_us(us_since(begun));
    spdlog::info("session {} lies in {}: {} bytes in {} us ({})", session.info().id, path, *written,
                 reply.elapsed_us(), phases.text());
    return reply;
}

}  // namespace

Result<control::SnapshotReply> save_snapshot(const std::shared_ptr<Session>& session,
                                             const control::SnapshotRequest& request) {
    if (request.path().empty() || request.path().front() != '/') {
        return Error{Code::kInvalidArgument, "snapshot.path",
                     "the file's path must be absolute: '" + request.path() + "'"};
    }
    const auto driver = session->driver();
    const auto outcome =
        std::make_shared<std::promise<Result<control::SnapshotReply>>>();
    auto waiting = outcome->get_future();
    driver->run_with_workers([session, driver, outcome, request] {
        const SourceStatus status = driver->status();
        if (session->is_moving(status)) {
            outcome->set_value(Error{Code::kFailedPrecondition, "session.busy",
                                     "session " + session->info().id +
                                         " is being moved; save it before or afterwards"});
            return;
        }
        outcome->set_value(save_frozen(*session, request.path(), status.epoch, request.suspend()));
    });
    try {  // the standard library tells a dropped promise by throwing; it ends here
        return waiting.get();
    } catch (const std::future_error&) {
        return Error{Code::kUnavailable, "session.closed",
                     "session " + session->info().id + " ended before it could be saved"};
    }
}

}  // namespace gantry::supervisor
