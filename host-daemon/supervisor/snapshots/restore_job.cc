#include "host-daemon/supervisor/snapshots/restore_job.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cstring>
#include <future>
#include <map>

#include "host-daemon/supervisor/base/phases.h"
#include "host-daemon/supervisor/parts/digest_report.h"
#include "host-daemon/supervisor/parts/part_files.h"
#include "host-daemon/supervisor/parts/part_loader.h"
#include "migration/transport/message_map.h"
#include "proto/base/serial_executor.h"
#include "proto/snapshot/container.h"
#include "proto/snapshot/container.pb.h"

namespace gantry::supervisor {
namespace {

/// By a thread of its own, or, where the system makes none, when it is waited for.
constexpr auto kBesides = std::launch::async | std::launch::deferred;

/// Takes a file section by section into the workers behind `sink`.
class Restorer final : public snapshot::SnapshotVisitor {
public:
    Restorer(Session& session, Suspension from, std::string path, WorkersSink& sink,
             const RestoreHooks& hooks, Phases& phases)
        : session_(session),
          from_(std::move(from)),
          path_(std::move(path)),
          sink_(sink),
          hooks_(hooks),
          phases_(phases) {}

    Result<void> on_header(const snapshot::SnapshotHeader& header) override {
        if (header.session_id() != session_.info().id) {
            return Error{
                Code::kFailedPrecondition, "snapshot.session",
                "the file holds session " + header.session_id() + ", not " + session_.info().id};
        }
        seed_ = {header.seed_low(), header.seed_high()};
        key_ = std::make_unique<snapshot::FingerprintKey>(seed_);
        if (seed_ != from_.seed) {
            return Error{Code::kFailedPrecondition, "snapshot.stale",
                         "the file was saved at another moment than the one at which session " +
                             session_.info().id +
                             " was suspended, so it does not fit the memory "
                             "of the programs that wait; name the file that was written then (" +
                             from_.path + ")"};
        }
        control::SessionNeeds needs;
        if (!needs.ParseFromString(header.needs())) {
            return Error{Code::kInvalidArgument, "snapshot.malformed",
                         "the file's header does not say what the session needs"};
        }
        return hooks_.admit(transport::from_proto(needs));
    }

    Result<void> on_image(std::span<const std::byte, 32> sha256,
                          std::span<const std::byte> bytes) override {
        control::ImageBytes& image = *images_.add_images();
        image.set_sha256(sha256.data(), sha256.size());
        image.set_content(bytes.data(), bytes.size());
        return {};
    }

    /// The part's worker begins with it, while the file is read on.
    Result<void> on_graph(std::uint64_t id, std::string_view graph) override {
        const engine::PartId part{id};
        if (!is_part(part)) {
            return Error{Code::kInvalidArgument, "snapshot.malformed",
                         fmt::format("the file has a part {}, which cannot be", id)};
        }
        GANTRY_TRY(settle());
        sink_.add_images(part, images_.SerializeAsString());
        const auto kept = graphs_.emplace(id, graph).first;
        const auto prepare = [this, part, kept]() -> Result<Phases> {
            Phases phases;
            GANTRY_TRY(sink_.check(part, kept->second));
            phases.end("worker");
            GANTRY_TRY(sink_.prepare(part, seed_, kept->second));
            phases.end("build");
            return phases;
        };
        preparing_ = std::async(kBesides, prepare);
        return {};
    }

    /// The part's worker begins with the copies, while the table is read on.
    Result<void> on_first_blocks(const snapshot::StoredMemory& memory) override {
        if (!graphs_.contains(memory.part)) {
            return out_of_order(memory.part);
        }
        GANTRY_ASSIGN(FileLoad load, load_of(memory));
        const auto load_first =
            [this, part = engine::PartId{memory.part},
             first = std::make_shared<FileLoad>(std::move(load))]() -> Result<LoadedByWorker> {
            GANTRY_TRY(settle());
            GANTRY_ASSIGN(const auto worker, session_.workers().need(part));
            return load_by_worker(*worker, *first, true);
        };
        ahead_ = std::async(kBesides, load_first);
        ahead_blocks_ = memory.blocks.size();
        return {};
    }

    Result<bool> on_memory(const snapshot::StoredMemory& memory) override {
        if (!graphs_.contains(memory.part)) {
            return out_of_order(memory.part);
        }
        LoadedByWorker ahead;
        FileLoad rest;
        if (ahead_.valid()) {
            GANTRY_ASSIGN(rest, load_of(memory.beyond(ahead_blocks_)));
            GANTRY_ASSIGN(ahead, ahead_.get());
            ahead.how += "; ";
        } else {
            GANTRY_ASSIGN(rest, load_of(memory));
        }
        phases_.end("table");
        GANTRY_TRY(settle());
        GANTRY_ASSIGN(const auto worker, session_.workers().need({memory.part}));
        GANTRY_ASSIGN(const LoadedByWorker loaded, load_by_worker(*worker, rest, false));
        ahead.outside.insert(ahead.outside.end(), loaded.outside.begin(), loaded.outside.end());
        GANTRY_TRY(load_outside(sink_, memory, ahead.outside, *key_));
        phases_.end("memory", ahead.how + loaded.how);
        return true;
    }

    Result<void> on_blocks(std::span<const snapshot::StoredBlock> blocks) override {
        GANTRY_TRY(settle());
        for (std::size_t at = 0; at < blocks.size();) {
            const std::uint64_t part = blocks[at].ref.part;
            if (!graphs_.contains(part)) {
                return out_of_order(part);
            }
            std::size_t end = at + 1;
            while (end < blocks.size() && end - at < kBatchBlocks && blocks[end].ref.part == part) {
                ++end;
            }
            GANTRY_TRY(sink_.apply_stored({part}, blocks.subspan(at, end - at)));
            at = end;
        }
        return {};
    }

    Result<void> on_end(const snapshot::SnapshotSummary& summary) override {
        GANTRY_TRY(settle());
        for (const snapshot::PartSummary& part : summary.parts()) {
            const auto graph = graphs_.find(part.part_id());
            if (graph == graphs_.end()) {
                return Error{Code::kInvalidArgument, "snapshot.malformed",
                             "the file has no graph of part " + std::to_string(part.part_id())};
            }
            engine::FinalPart final_part;
            final_part.part = {part.part_id()};
            final_part.graph = std::move(graph->second);
            final_part.digest = {part.block_count(), {part.digest_low(), part.digest_high()}};
            GANTRY_TRY(sink_.apply_final(final_part));
            phases_.end("final");
            GANTRY_ASSIGN(const auto worker, session_.workers().need(final_part.part));
            GANTRY_ASSIGN(const auto digest, digest_after_copies(*worker));
            phases_.end("digest");
            if (digest != final_part.digest) {
                return is_not_as_in_file(final_part.part);
            }
        }
        return {};
    }

private:
    /// Until the last graph's part is built; the first failure.
    Result<void> settle() {
        if (preparing_.valid()) {
            const auto built = preparing_.get();
            if (built) {
                phases_.end("prepare", built->text());
            } else {
                prepared_ = built.error();
            }
        }
        return prepared_;
    }

    Error is_not_as_in_file(engine::PartId part) {
        const auto worker = session_.workers().need(part);
        if (!worker) {
            return worker.error();
        }
        const FileDifference difference = memory_beside_file(**worker, path_, seed_);
        if (difference.damaged_at) {
            return {Code::kDataLoss, "snapshot.checksum",
                    fmt::format(
                        "{}, offset {}: a block is damaged; take another copy of the snapshot ({})",
                        path_, *difference.damaged_at, difference.text)};
        }
        return {Code::kDataLoss, "snapshot.digest",
                "the memory that was built from the file is not what the file says: " +
                    difference.text};
    }
    static Error out_of_order(std::uint64_t part) {
        return {Code::kUnimplemented, "snapshot.order",
                fmt::format(
                    "the blocks of part {} come before its graph; restore reads the graph first",
                    part)};
    }

    Session& session_;
    const Suspension from_;
    const std::string path_;
    WorkersSink& sink_;
    const RestoreHooks& hooks_;
    Phases& phases_;
    snapshot::Seed seed_;
    std::unique_ptr<snapshot::FingerprintKey> key_;
    control::ImageList images_;
    std::map<std::uint64_t, std::string> graphs_;  ///< By part.
    Result<void> prepared_;                        ///< The parts before.
    std::future<Result<Phases>> preparing_;        ///< Waited for before all else goes,
    std::future<Result<LoadedByWorker>> ahead_;    ///< and before that.
    std::size_t ahead_blocks_ = 0;                 ///< Those of ahead_.
};

Result<std::uint64_t> read_into(Session& session, const Suspension& from, WorkersSink& sink,
                                const RestoreHooks& hooks, const std::string& path,
                                Phases& phases) {
    GANTRY_ASSIGN(const int opened, snapshot::open_snapshot(path));
    const control::UniqueFd file{opened};
    Restorer restorer(session, from, path, sink, hooks, phases);
    return snapshot::read_snapshot(file.get(), path, restorer);
}

Result<control::RestoreReply> restore_suspended(const std::shared_ptr<Session>& session,
                                                const std::string& path, Epoch epoch,
                                                const RestoreHooks& hooks) {
    const auto begun = SerialExecutor::Clock::now();
    const auto from = session->suspended();
    if (!from) {
        return Error{Code::kFailedPrecondition, "session.running",
                     "session " + session->info().id +
                         " is running: only one that was suspended (`gantry snapshot --suspend`) "
                         "can go on from a file, since its programs' own memory must fit"};
    }
    if (!session->guest_waits()) {
        return Error{Code::kFailedPrecondition, "session.guest_gone",
                     "the program of session " + session->info().id + " has ended meanwhile"};
    }
    WorkersSink::Hooks sink_hooks;
    sink_hooks.launch = hooks.launch;
    sink_hooks.activate = [&](const std::shared_ptr<Worker>& worker, Epoch as) {
        return session->activate(worker, as);
    };
    sink_hooks.discard = [] {};
    WorkersSink sink(session->workers(), std::move(sink_hooks));
    sink.expect_file();
    Phases phases;
    const auto read = read_into(*session, *from, sink, hooks, path, phases);
    if (!read) {
        (void)sink.discard();
        return read.error();
    }
    if (auto active = sink.activate(epoch); !active) {
        (void)sink.discard();
        return active.error();
    }
    phases.end("activate");
    session->resume();
    control::RestoreReply reply;
    reply.set_bytes(*read);
    reply.set_elapsed_us(static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(SerialExecutor::Clock::now() - begun)
            .count()));
    spdlog::info("session {} goes on from {}: {} bytes in {} us ({})", session->info().id, path,
                 *read, reply.elapsed_us(), phases.text());
    return reply;
}

}  // namespace

Result<control::RestoreReply> restore_snapshot(const std::shared_ptr<Session>& session,
                                               const control::RestoreRequest& request,
                                               RestoreHooks hooks) {
    if (request.path().empty() || request.path().front() != '/') {
        return Error{Code::kInvalidArgument, "snapshot.path",
                     "the file's path must be absolute: '" + request.path() + "'"};
    }
    const auto driver = session->driver();
    const auto restored = driver->run_with_workers(
        [&] { return restore_suspended(session, request.path(), driver->status().epoch, hooks); });
    return restored.value_or(
        Error{Code::kUnavailable, "session.closed",
              "session " + session->info().id + " ended before it could be restored"});
}

}  // namespace gantry::supervisor
