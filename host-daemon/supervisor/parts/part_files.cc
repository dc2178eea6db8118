#include "host-daemon/supervisor/parts/part_files.h"

#include <fmt/format.h>
#include <algorithm>
#include <future>

#include "host-daemon/supervisor/parts/worker_blocks.h"
#include "proto/snapshot/file_io.h"
#include "proto/snapshot/large_pages.h"

namespace gantry::supervisor {
namespace {

using engine::BlockAddress;
using engine::kBlockBytes;
using snapshot::MemoryWriter;
using snapshot::StoredBlock;
using snapshot::StoredForm;

/// Blocks that are placed in one go.
constexpr std::size_t kPlacedAtOnce = 4096;
/// Blocks read back from the file.
constexpr std::size_t kSampleBlocks = 256;
/// The slowest disk that a snapshot may lie on.
constexpr std::uint64_t kBytesPerSecondMin = 50'000'000;

BlockAddress address_of_stored(const snapshot::BlockRef& ref) {
    return {static_cast<engine::MemorySpace>(ref.space), ref.index};
}

/// Runs of blocks for a FileRunList, as long as they can be.
class RunList {
public:
    void add(const BlockAddress& block, control::IncomingRun::Form form, std::uint64_t offset,
             std::uint64_t origin) {
        const bool follows =
            count_ != 0 && form == form_ && block.space == first_.space &&
            first_.index + count_ == block.index &&
            (form != control::IncomingRun::FORM_BYTES ||
             offset_ + count_ * kBlockBytes == offset) &&
            (form != control::IncomingRun::FORM_COPY || origin_ + count_ == origin);
        if (!follows) {
            end_run();
            first_ = block;
            form_ = form;
            offset_ = offset;
            origin_ = origin;
        }
        ++count_;
    }

    control::FileRunList take() {
        end_run();
        return std::move(list_);
    }

private:
    void set(std::uint64_t first, control::BlockRun* run) const {
        run->set_space(static_cast<std::uint32_t>(first_.space));
        run->set_first(first);
        run->set_count(count_);
    }
    void end_run() {
        if (count_ == 0) {
            return;
        }
        control::FileRun& run = *list_.add_runs();
        set(first_.index, run.mutable_run());
        run.set_form(form_);
        run.set_offset(offset_);
        if (form_ == control::IncomingRun::FORM_COPY) {
            set(origin_, run.mutable_origin());
        }
        count_ = 0;
    }

    control::FileRunList list_;
    BlockAddress first_;  ///< Of the run in hand, as the next four.
    control::IncomingRun::Form form_ = control::IncomingRun::FORM_BYTES;
    std::uint64_t offset_ = 0;
    std::uint64_t origin_ = 0;
    std::uint32_t count_ = 0;
};

engine::BlockSetDigest digest_of(const control::Digest& digest) {
    return {digest.block_count(), {digest.sum_low(), digest.sum_high()}};
}

/// Sends the list and the file. `in_hand`: blocks, these among them, that the worker copies until
/// it answers.
template <typename Fill>
Result<WorkerChannel::Sent> send_load(Worker& worker, const FileLoad& load, std::size_t in_hand,
                                      Fill fill) {
    const std::string bytes = load.runs.SerializeAsString();
    GANTRY_ASSIGN(const control::UniqueFd blob, control::make_blob(bytes));
    control::ToWorker request;
    fill(request, bytes.size());
    const int descriptors[] = {load.file, blob.get()};
    return worker.send(std::move(request), patience_for(in_hand * kBlockBytes), descriptors);
}

/// What has become of a load of so many blocks.
Result<LoadedByWorker> take_loaded(Worker& worker, WorkerChannel::Sent sent, std::size_t blocks) {
    GANTRY_ASSIGN(WorkerReply reply, worker.await(std::move(sent)));
    const control::FileBlocksReply& done = reply.message.file_blocks();
    LoadedByWorker out{{}, done.how(), {}};
    if (done.outside_bytes() != 0) {
        GANTRY_ASSIGN(const control::BlockRunList outside,
                      take_runs(reply, 0, done.outside_bytes()));
        GANTRY_ASSIGN(out.outside, expand_runs(outside.runs(), blocks));
        std::sort(out.outside.begin(), out.outside.end());
        if (!is_ascending(out.outside, [](const BlockAddress& block) { return block; })) {
            return Error{Code::kInvalidArgument, "worker.protocol",
                         "a worker left a block alone twice"};
        }
    }
    if (done.block_count() > blocks || done.block_count() + out.outside.size() != blocks) {
        return Error{Code::kInvalidArgument, "worker.protocol",
                     fmt::format("a worker copied {} blocks of {}", done.block_count(), blocks)};
    }
    GANTRY_ASSIGN(out.looked,
                  take_fingerprints(reply, done.looked(), done.outside_bytes() == 0 ? 0 : 1));
    return out;
}

}  // namespace

std::chrono::milliseconds patience_for(std::uint64_t bytes) {
    return kLongCall + std::chrono::milliseconds(bytes * 1000 / kBytesPerSecondMin);
}

Result<engine::BlockSetDigest> digest_now(Worker& worker) {
    control::ToWorker request;
    request.mutable_get_digest();
    GANTRY_ASSIGN(const WorkerReply reply, worker.call(std::move(request), kLongCall));
    return digest_of(reply.message.digest());
}

Result<engine::BlockSetDigest> digest_after_copies(Worker& worker) {
    control::ToWorker request;
    request.mutable_get_digest()->set_after_copies(true);
    GANTRY_ASSIGN(const WorkerReply reply, worker.call(std::move(request), kLongCall));
    return digest_of(reply.message.digest());
}

WorkersCopy::WorkersCopy(WorkersSource& source, const std::shared_ptr<Worker>& worker,
                         const FirstFingerprints& first, const snapshot::FingerprintKey& key)
    : source_(source), worker_(worker), total_(first.total()), key_(key), places_(total_) {
    blocks_.reserve(total_);
    snapshot::want_large_pages(blocks_.data(), total_ * sizeof(FingerprintedBlock));
    blocks_.insert(blocks_.end(), first.blocks.begin(), first.blocks.end());
    plan_portions();
}

WorkersCopy::~WorkersCopy() {
    for (Copy& copy : copies_) {
        static_cast<void>(worker_->await(std::move(copy.sent)));
    }
}

void WorkersCopy::plan_portions() {
    constexpr std::size_t least = kFirstPortion;
    for (std::size_t begin = 0, count = least; begin < total_;
         begin += count, count = std::min(count * kPortionGrowth, kPortionMax * least)) {
        const std::size_t left = total_ - begin;
        if (left < count + least) {
            count = left > 2 * least ? left - least : left;  // The last one is small, too.
        }
        portions_.push_back({begin, count});
    }
}

Result<void> WorkersCopy::begin(MemoryWriter& writer) {
    file_ = writer.file();
    file_name_ = writer.name();
    std::size_t asked = blocks_.size();
    for (std::size_t i = 0; i < portions_.size(); ++i) {
        if (i >= 2) {
            GANTRY_TRY(end_first());
        }
        if (blocks_.size() < portions_[i].end()) {
            return Error{
                Code::kInvalidArgument, "worker.protocol",
                std::to_string(total_ - blocks_.size()) + " blocks vanished from a frozen worker"};
        }
        const std::size_t known = i + 2 < portions_.size() ? portions_[i + 2].end() : total_;
        const std::size_t look_count = known > asked ? known - asked : 0;
        asked += look_count;
        GANTRY_ASSIGN(const FileLoad portion, place(portions_[i], writer));
        GANTRY_ASSIGN(WorkerChannel::Sent sent, send(portion, look_count));
        copies_.push_back({std::move(sent), portion.blocks});
    }
    return {};
}

Result<FileLoad> WorkersCopy::place(const Portion& portion, MemoryWriter& writer) {
    RunList list;
    std::size_t stored = 0;
    std::vector<MemoryWriter::Block> entries;
    for (std::size_t at = portion.begin; at < portion.end(); at += entries.size()) {
        entries.clear();
        const auto blocks =
            std::span(blocks_).subspan(at, std::min(kPlacedAtOnce, portion.end() - at));
        for (const FingerprintedBlock& block : blocks) {
            entries.push_back({static_cast<std::uint32_t>(block.address.space), block.address.index,
                               block.fingerprint, block.fingerprint == key_.zero_block()});
        }
        const auto places = std::span(places_).subspan(at, blocks.size());
        GANTRY_TRY(writer.place(entries, places));
        for (std::size_t i = 0; i < blocks.size(); ++i) {
            if (places[i] != MemoryWriter::kNotStored) {
                list.add(blocks[i].address, control::IncomingRun::FORM_BYTES, places[i], 0);
                ++stored;
            }
        }
    }
    return FileLoad{list.take(), stored, file_};
}

Result<WorkerChannel::Sent> WorkersCopy::send(const FileLoad& portion,
                                              std::size_t look_count) const {
    return send_load(*worker_, portion, total_,
                     [look_count](control::ToWorker& request, std::size_t bytes) {
                         request.mutable_store_blocks()->set_runs_bytes(bytes);
                         request.mutable_store_blocks()->set_look_count(look_count);
                     });
}

Result<void> WorkersCopy::end_first() {
    Copy copy = std::move(copies_.front());
    copies_.pop_front();
    GANTRY_ASSIGN(const LoadedByWorker stored,
                  take_loaded(*worker_, std::move(copy.sent), copy.blocks));
    how_ += (how_.empty() ? "" : "; ") + stored.how;
    outside_.insert(outside_.end(), stored.outside.begin(), stored.outside.end());
    if (stored.looked.empty()) {
        return {};
    }
    if (stored.looked.size() > total_ - blocks_.size() ||
        !(blocks_.back().address < stored.looked.front().address)) {
        return Error{Code::kInvalidArgument, "worker.protocol",
                     "a worker lists the blocks of its memory out of order"};
    }
    blocks_.insert(blocks_.end(), stored.looked.begin(), stored.looked.end());
    return {};
}

Result<engine::BlockSetDigest> WorkersCopy::end(DigestReport* differences) {
    while (!copies_.empty()) {
        GANTRY_TRY(end_first());
    }
    GANTRY_TRY(store_outside());
    const auto check = [&] { return check_sample(differences); };
    auto sample = std::async(std::launch::async | std::launch::deferred, check);
    Result<engine::BlockSetDigest> held = digest_after_copies(*worker_);
    GANTRY_TRY(sample.get());
    return held;
}

/// What the worker left alone, read through the staging area.
Result<void> WorkersCopy::store_outside() const {
    const auto is_before = [](const FingerprintedBlock& block, const BlockAddress& address) {
        return block.address < address;
    };
    for (std::size_t at = 0; at < outside_.size(); at += kBatchBlocks) {
        const auto some =
            std::span(outside_).subspan(at, std::min(kBatchBlocks, outside_.size() - at));
        GANTRY_ASSIGN(const auto staged, source_.read_blocks(worker_->part(), some));
        for (std::size_t i = 0; i < staged->count(); ++i) {
            const BlockAddress address = staged->address(i);
            const auto found = std::lower_bound(blocks_.begin(), blocks_.end(), address, is_before);
            const auto index = static_cast<std::size_t>(found - blocks_.begin());
            if (found == blocks_.end() || found->address != some[i] || address != some[i] ||
                places_[index] == MemoryWriter::kNotStored) {
                return Error{Code::kInvalidArgument, "worker.protocol",
                             "a worker read other blocks than it was asked for"};
            }
            GANTRY_TRY(snapshot::write_at(file_, file_name_, places_[index], staged->bytes(i)));
        }
        if (staged->count() != some.size()) {
            return Error{Code::kInvalidArgument, "worker.protocol",
                         "blocks vanished from a frozen worker"};
        }
    }
    return {};
}

/// Reads every so many-th block back.
Result<void> WorkersCopy::check_sample(DigestReport* differences) const {
    std::vector<std::byte> bytes(kBlockBytes);
    const std::size_t step = std::max<std::size_t>(1, blocks_.size() / kSampleBlocks);
    for (std::size_t i = step - 1; i < blocks_.size(); i += step) {
        if (places_[i] == MemoryWriter::kNotStored) {
            continue;
        }
        GANTRY_TRY(snapshot::read_at(file_, file_name_, places_[i], bytes));
        const auto fingerprint =
            snapshot::fingerprint(key_, snapshot::BlockSpan(bytes.data(), bytes.size()));
        if (fingerprint != blocks_[i].fingerprint) {
            differences->add(blocks_[i].address, blocks_[i].fingerprint, fingerprint);
        }
    }
    return {};
}

Result<FileLoad> load_of(const snapshot::StoredMemory& memory) {
    RunList list;
    std::uint64_t offset = memory.offset;
    for (const StoredBlock& block : memory.blocks) {
        const bool is_copy = block.form == StoredForm::kCopyOf;
        if (is_copy && block.origin.space != block.ref.space) {
            return Error{Code::kUnimplemented, "snapshot.copy",
                         "a block copies one of another kind, which is not supported"};
        }
        list.add(address_of_stored(block.ref),
                 block.form == StoredForm::kZero ? control::IncomingRun::FORM_ZERO
                 : is_copy                       ? control::IncomingRun::FORM_COPY
                                                 : control::IncomingRun::FORM_BYTES,
                 block.form == StoredForm::kBytes ? offset : 0, is_copy ? block.origin.index : 0);
        offset += block.stored_bytes;
    }
    return FileLoad{list.take(), memory.blocks.size(), memory.fd};
}

Result<LoadedByWorker> load_by_worker(Worker& worker, const FileLoad& load, bool more_follow) {
    GANTRY_ASSIGN(WorkerChannel::Sent sent,
                  send_load(worker, load, load.blocks,
                            [more_follow](control::ToWorker& request, std::size_t bytes) {
                                request.mutable_load_blocks()->set_runs_bytes(bytes);
                                request.mutable_load_blocks()->set_more_follow(more_follow);
                            }));
    return take_loaded(worker, std::move(sent), load.blocks);
}

}  // namespace gantry::supervisor
