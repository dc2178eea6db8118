#include "host-daemon/supervisor/parts/stored_sender.h"

#include <algorithm>
#include <utility>

namespace gantry::supervisor {
namespace {

/// Offset in the slot at which the blocks' bytes lie packed; nullopt: they do not lie there.
std::optional<std::uint64_t> packed_at(std::span<const std::byte> slot,
                                       std::span<const snapshot::StoredBlock> blocks) {
    const std::byte* next = nullptr;
    std::uint64_t offset = 0;
    for (const snapshot::StoredBlock& block : blocks) {
        if (block.form != snapshot::StoredForm::kBytes) {
            continue;
        }
        const std::byte* at = block.bytes.data();
        if (next == nullptr) {
            if (at < slot.data() || at >= slot.data() + slot.size()) {
                return std::nullopt;
            }
            offset = static_cast<std::uint64_t>(at - slot.data());
        } else if (at != next) {
            return std::nullopt;
        }
        next = at + block.bytes.size();
    }
    return offset;
}

}  // namespace

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
        control::IncomingRun& run = *apply.add_runs();
        run.mutable_run()->set_space(block.ref.space);
        run.mutable_run()->set_first(block.ref.index);
        run.mutable_run()->set_count(1);
        run.set_form(is_bytes ? control::IncomingRun::FORM_BYTES : control::IncomingRun::FORM_ZERO);
        if (block.form == snapshot::StoredForm::kCopyOf) {
            if (block.origin.part != part.value) {
                return Error{Code::kUnimplemented, "snapshot.copy",
                             "a block copies one of another part, which is not supported"};
            }
            run.set_form(control::IncomingRun::FORM_COPY);
            run.mutable_origin()->set_space(block.origin.space);
            run.mutable_origin()->set_first(block.origin.index);
            run.mutable_origin()->set_count(1);
        }
    }
    return apply;
}

StoredSender::StoredSender(WorkerSet& workers) : workers_(workers), thread_([this] { run(); }) {}

StoredSender::~StoredSender() {
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

std::span<std::byte> StoredSender::place_for(engine::PartId part, std::size_t bytes) {
    filling_ = {};
    auto worker = workers_.need(part);
    if (!worker || bytes > kBatchBlocks * engine::kBlockBytes) {
        return {};
    }
    auto staging = workers_.staging(*worker);
    if (!staging) {
        return {};
    }
    filling_ = {*worker, std::make_shared<const StagingSlot>((*staging)->acquire())};
    return filling_.slot->bytes();
}

void StoredSender::take_place() { filled_ = std::exchange(filling_, {}); }

Result<bool> StoredSender::send(engine::PartId part,
                                std::span<const snapshot::StoredBlock> blocks) {
    Batch batch;
    GANTRY_ASSIGN(*batch.request.mutable_apply_blocks(), apply_request(part, blocks));
    const bool has_bytes = std::any_of(blocks.begin(), blocks.end(), [](const auto& block) {
        return block.form == snapshot::StoredForm::kBytes;
    });
    if (has_bytes) {
        if (filled_.slot == nullptr || filled_.worker->part() != part) {
            return false;
        }
        const auto offset = packed_at(filled_.slot->bytes(), blocks);
        if (!offset) {
            return false;
        }
        batch.place = filled_;
        batch.request.mutable_apply_blocks()->set_arena_id(kStagingArena);
        batch.request.mutable_apply_blocks()->set_offset(filled_.slot->offset() + *offset);
    } else {
        GANTRY_ASSIGN(batch.place.worker, workers_.need(part));
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_.size() < kAheadMax || !outcome_; });
    GANTRY_TRY(outcome_);
    waiting_.push_back(std::move(batch));
    changed_.notify_all();
    return true;
}

Result<void> StoredSender::finish() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return (waiting_.empty() && !sending_) || !outcome_; });
    return outcome_;
}

void StoredSender::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return ending_ || (!waiting_.empty() && outcome_); });
        if (ending_) {
            return;
        }
        sending_ = true;
        Batch batch = std::move(waiting_.front());
        waiting_.pop_front();
        changed_.notify_all();
        lock.unlock();
        auto sent = batch.place.worker->call(std::move(batch.request), kLongCall);
        batch.place = {};
        lock.lock();
        sending_ = false;
        if (!sent) {
            outcome_ = sent.error();
            waiting_.clear();
        }
        changed_.notify_all();
    }
}

}  // namespace gantry::supervisor
