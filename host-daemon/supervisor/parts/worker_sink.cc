// WorkersSink: see worker_state.h.
#include <fmt/format.h>
#include <lz4.h>

#include <algorithm>
#include <cstring>

#include "host-daemon/supervisor/parts/part_files.h"
#include "host-daemon/supervisor/parts/worker_blocks.h"
#include "host-daemon/supervisor/parts/worker_state.h"

namespace gantry::supervisor {
namespace {

std::span<const std::byte> as_bytes(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}

/// Descriptors of a graph blob and, unless empty, an images blob.
struct Blobs {
    std::vector<control::UniqueFd> owned;
    std::vector<int> fds;
    static Result<Blobs> make(std::string_view graph, std::string_view images) {
        Blobs blobs;
        GANTRY_ASSIGN(control::UniqueFd first, control::make_blob(as_bytes(graph)));
        blobs.owned.push_back(std::move(first));
        if (!images.empty()) {
            GANTRY_ASSIGN(control::UniqueFd second, control::make_blob(as_bytes(images)));
            blobs.owned.push_back(std::move(second));
        }
        for (const control::UniqueFd& fd : blobs.owned) {
            blobs.fds.push_back(fd.get());
        }
        return blobs;
    }
};

Error bad_batch(const std::string& text) {
    return Error{Code::kInvalidArgument, "stream.batch",
                 "the source sent a batch that makes no sense: " + text};
}

void add_run(control::ApplyBlocks& apply, const engine::BlockAddress& first, std::uint32_t count,
             bool zero) {
    control::IncomingRun& run = *apply.add_runs();
    run.mutable_run()->set_space(static_cast<std::uint32_t>(first.space));
    run.mutable_run()->set_first(first.index);
    run.mutable_run()->set_count(count);
    run.set_form(zero ? control::IncomingRun::FORM_ZERO : control::IncomingRun::FORM_BYTES);
}

/// What a worker has to do with blocks as a file has them. Their bytes are taken one after the
/// other.
Result<control::ApplyBlocks> apply_request(engine::PartId part,
                                           std::span<const snapshot::StoredBlock> blocks) {
    control::ApplyBlocks apply;
    for (const snapshot::StoredBlock& block : blocks) {
        const bool is_bytes = block.form == snapshot::StoredForm::kBytes;
        control::IncomingRun* last =
            apply.runs_size() > 0 ? apply.mutable_runs(apply.runs_size() - 1) : nullptr;
        if (is_bytes && last != nullptr && last->form() == control::IncomingRun::FORM_BYTES &&
            last->run().space() == block.ref.space &&
            last->run().first() + last->run().count() == block.ref.index) {
            last->mutable_run()->set_count(last->run().count() + 1);
            continue;
        }
        add_run(apply, {static_cast<engine::MemorySpace>(block.ref.space), block.ref.index}, 1,
                !is_bytes);
        if (block.form == snapshot::StoredForm::kCopyOf) {
            if (block.origin.part != part.value) {
                return Error{Code::kUnimplemented, "snapshot.copy",
                             "a block copies one of another part, which is not supported"};
            }
            control::IncomingRun& run = *apply.mutable_runs(apply.runs_size() - 1);
            run.set_form(control::IncomingRun::FORM_COPY);
            run.mutable_origin()->set_space(block.origin.space);
            run.mutable_origin()->set_first(block.origin.index);
            run.mutable_origin()->set_count(1);
        }
    }
    return apply;
}

}  // namespace

Result<void> WorkersSink::reserve(const engine::SessionNeeds& needs) {
    return hooks_.reserve(needs);
}

Result<std::shared_ptr<Worker>> WorkersSink::worker_for(engine::PartId part) {
    const MutexLock lock(mutex_);
    if (auto worker = workers_.find(part)) {
        return worker;
    }
    if (!is_part(part)) {
        return bad_batch("part " + std::to_string(part.value));
    }
    GANTRY_ASSIGN(auto worker, hooks_.launch(part));
    workers_.add(worker);
    return worker;
}

void WorkersSink::add_images(engine::PartId part, std::string image_list) {
    const MutexLock lock(mutex_);
    images_[part] += image_list;  // serialised repeated fields join by concatenation
}

std::string WorkersSink::take_images(engine::PartId part) {
    const MutexLock lock(mutex_);
    return std::exchange(images_[part], {});
}

Result<void> WorkersSink::prepare(engine::PartId part, engine::Seed seed, std::string_view graph) {
    seed_ = seed;
    GANTRY_ASSIGN(auto worker, worker_for(part));
    const std::string images = take_images(part);
    GANTRY_ASSIGN(const Blobs blobs, Blobs::make(graph, images));
    control::ToWorker request;
    control::Prepare& prepare = *request.mutable_prepare();
    prepare.mutable_seed()->set_low(seed.low);
    prepare.mutable_seed()->set_high(seed.high);
    prepare.set_graph_bytes(graph.size());
    prepare.set_images_bytes(images.size());
    prepare.set_blocks_from_file(from_file_);
    GANTRY_ASSIGN(const WorkerReply reply, worker->call(std::move(request), kLongCall, blobs.fds));
    if (reply.message.prepare().missing_image_sha256_size() != 0) {
        return Error{Code::kNotFound, "module.image_missing",
                     fmt::format("{} device code images of part {} did not arrive",
                                 reply.message.prepare().missing_image_sha256_size(), part.value)};
    }
    return {};
}

Result<void> WorkersSink::apply_batch(engine::PartId part, const engine::BlockBatch& batch) {
    std::size_t block_count = 0;
    std::size_t byte_blocks = 0;
    control::ToWorker request;
    control::ApplyBlocks& apply = *request.mutable_apply_blocks();
    for (const engine::BlockBatch::Run& run : batch.runs) {
        // Zero runs take no room, so only what lies in the content is bounded by the slot.
        block_count += run.zero ? 0 : run.count;
        byte_blocks += run.zero ? 0 : run.count;
        if (run.count == 0 || block_count > kBatchBlocks) {
            return bad_batch(std::to_string(run.count) + " blocks in a run");
        }
        add_run(apply, run.first, run.count, run.zero);
    }
    if (batch.content_bytes != byte_blocks * engine::kBlockBytes) {
        return bad_batch(fmt::format("{} blocks in {} bytes", byte_blocks, batch.content_bytes));
    }
    GANTRY_ASSIGN(auto worker, worker_for(part));
    GANTRY_ASSIGN(auto staging, workers_.staging(worker));
    const StagingSlot slot = staging->acquire();
    if (batch.lz4) {
        const int got = LZ4_decompress_safe(
            batch.content.data(), reinterpret_cast<char*>(slot.bytes().data()),
            static_cast<int>(batch.content.size()), static_cast<int>(slot.bytes().size()));
        if (got < 0 || static_cast<std::size_t>(got) != batch.content_bytes) {
            return bad_batch(
                fmt::format("LZ4 content does not unpack to {} bytes", batch.content_bytes));
        }
    } else if (batch.content.size() == batch.content_bytes) {
        std::memcpy(slot.bytes().data(), batch.content.data(), batch.content.size());
    } else {
        return bad_batch(fmt::format("content of {} bytes", batch.content.size()));
    }
    apply.set_arena_id(kStagingArena);
    apply.set_offset(slot.offset());
    GANTRY_TRY(worker->call(std::move(request), kLongCall));
    return {};
}

Result<void> WorkersSink::check(engine::PartId part, std::string_view graph) {
    GANTRY_ASSIGN(auto worker, worker_for(part));
    GANTRY_ASSIGN(const Blobs blobs, Blobs::make(graph, {}));
    control::ToWorker request;
    request.mutable_check_graph()->set_graph_bytes(graph.size());
    GANTRY_ASSIGN(const WorkerReply reply, worker->call(std::move(request), kLongCall, blobs.fds));
    for (const control::Problem& problem : reply.message.check_graph().problems()) {
        if (problem.refusal()) {
            return Error{Code::kFailedPrecondition, problem.reason(), problem.text()};
        }
    }
    return {};
}

Result<void> WorkersSink::apply_stored(engine::PartId part,
                                       std::span<const snapshot::StoredBlock> blocks) {
    if (blocks.size() > kBatchBlocks) {
        return Error{Code::kInternal, "staging.batch",
                     fmt::format("{} blocks do not fit the staging area's slot", blocks.size())};
    }
    GANTRY_ASSIGN(auto worker, worker_for(part));
    GANTRY_ASSIGN(auto staging, workers_.staging(worker));
    const StagingSlot slot = staging->acquire();
    std::byte* to = slot.bytes().data();
    for (const snapshot::StoredBlock& block : blocks) {
        if (block.form == snapshot::StoredForm::kBytes) {
            std::memcpy(to, block.bytes.data(), block.bytes.size());
            to += block.bytes.size();
        }
    }
    control::ToWorker request;
    GANTRY_ASSIGN(*request.mutable_apply_blocks(), apply_request(part, blocks));
    request.mutable_apply_blocks()->set_arena_id(kStagingArena);
    request.mutable_apply_blocks()->set_offset(slot.offset());
    GANTRY_TRY(worker->call(std::move(request), kLongCall));
    return {};
}

Result<void> WorkersSink::apply_final(const engine::FinalPart& final_part) {
    GANTRY_ASSIGN(auto worker, worker_for(final_part.part));
    const std::string images = take_images(final_part.part);
    GANTRY_ASSIGN(const Blobs blobs, Blobs::make(final_part.graph, images));
    control::ToWorker request;
    control::ApplyFinal& apply = *request.mutable_apply_final();
    apply.set_graph_bytes(final_part.graph.size());
    apply.set_images_bytes(images.size());
    apply.mutable_digest()->set_block_count(final_part.digest.block_count);
    apply.mutable_digest()->set_sum_low(final_part.digest.sum.low);
    apply.mutable_digest()->set_sum_high(final_part.digest.sum.high);
    GANTRY_TRY(worker->call(std::move(request), kLongCall, blobs.fds));
    return {};
}

Result<engine::BlockSetDigest> WorkersSink::digest(engine::PartId part) {
    GANTRY_ASSIGN(const auto worker, workers_.need(part));
    return digest_now(*worker);
}

Result<void> WorkersSink::mark_complete(engine::FreezeToken token) {
    for (const auto& worker : workers_.all()) {
        control::ToWorker request;
        control::FreezeToken& out = *request.mutable_mark_complete()->mutable_token();
        out.set_migration_low(token.migration.low);
        out.set_migration_high(token.migration.high);
        out.set_count(token.count);
        GANTRY_TRY(worker->call(std::move(request), kQuickCall));
    }
    return {};
}

Result<std::optional<engine::FreezeToken>> WorkersSink::complete_token() {
    std::optional<engine::FreezeToken> common;
    for (const auto& worker : workers_.all()) {
        GANTRY_ASSIGN(const control::StatusReply status, worker->status());
        if (!status.has_complete() || status.complete().count() == 0) {
            return std::optional<engine::FreezeToken>{};
        }
        const engine::FreezeToken token{
            {status.complete().migration_low(), status.complete().migration_high()},
            status.complete().count()};
        if (common && *common != token) {
            return std::optional<engine::FreezeToken>{};
        }
        common = token;
    }
    return common;
}

Result<void> WorkersSink::activate(Epoch epoch) {
    const auto workers = workers_.all();
    const bool is_whole = !has_lost_ && std::all_of(workers.begin(), workers.end(),
                                                    [](const auto& w) { return w->alive(); });
    if (!may_have_served_ && !is_whole) {
        return Error{Code::kUnavailable, "worker.gone",
                     "a worker died before its guest could be served"};
    }
    for (const auto& worker : workers) {
        const Result<void> activated = hooks_.activate(worker, epoch);
        if (!activated && !may_have_served_) {
            return activated;
        }
        if (!activated) {  // too late to go back: this one process gets errors
            hooks_.lost(worker, activated.error());
        }
    }
    may_have_served_ = true;
    workers_.drop_staging();
    return {};
}

void WorkersSink::keep_only(const std::vector<engine::PartId>& parts) {
    for (const auto& worker : workers_.all()) {  // programs that ended during precopy
        if (std::ranges::find(parts, worker->part()) == parts.end()) {
            worker->end();
            workers_.remove(worker->part());
        }
    }
}

bool WorkersSink::retract() {
    if (may_have_served_) {
        return true;
    }
    (void)discard();
    return false;
}

Result<void> WorkersSink::discard() {
    for (const auto& worker : workers_.all()) {
        worker->end();
        workers_.remove(worker->part());
    }
    has_lost_ = false;
    hooks_.discard();
    return {};
}

}  // namespace gantry::supervisor
