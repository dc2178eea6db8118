#include "host-daemon/supervisor/part_files.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "host-daemon/supervisor/block_runs.h"

namespace gantry::supervisor {
namespace {

using engine::BlockAddress;
using engine::kBlockBytes;
using snapshot::MemoryWriter;
using snapshot::StoredBlock;
using snapshot::StoredForm;

constexpr std::uint64_t kPartBlocksMax = 1ULL << 24;
/// Blocks read back from the file.
constexpr std::size_t kSampleBlocks = 256;
/// The slowest disk that a snapshot may lie on.
constexpr std::uint64_t kBytesPerSecondMin = 50'000'000;

BlockAddress address_of_stored(const snapshot::BlockRef& ref) {
    return {static_cast<engine::MemorySpace>(ref.space), ref.index};
}

/// One more block: longer runs make shorter lists.
void add_block(const BlockAddress& block, control::IncomingRun::Form form, std::uint64_t offset,
               std::uint64_t origin, control::FileRunList* list) {
    if (list->runs_size() != 0) {
        control::FileRun& last = *list->mutable_runs(list->runs_size() - 1);
        const std::uint32_t count = last.run().count();
        const bool follows =
            last.form() == form && last.run().space() == static_cast<std::uint32_t>(block.space) &&
            last.run().first() + count == block.index &&
            (form != control::IncomingRun::FORM_BYTES ||
             last.offset() + count * kBlockBytes == offset) &&
            (form != control::IncomingRun::FORM_COPY || last.origin().first() + count == origin);
        if (follows) {
            last.mutable_run()->set_count(count + 1);
            if (form == control::IncomingRun::FORM_COPY) {
                last.mutable_origin()->set_count(count + 1);
            }
            return;
        }
    }
    control::FileRun& run = *list->add_runs();
    run.mutable_run()->set_space(static_cast<std::uint32_t>(block.space));
    run.mutable_run()->set_first(block.index);
    run.mutable_run()->set_count(1);
    run.set_form(form);
    run.set_offset(offset);
    if (form == control::IncomingRun::FORM_COPY) {
        run.mutable_origin()->set_space(static_cast<std::uint32_t>(block.space));
        run.mutable_origin()->set_first(origin);
        run.mutable_origin()->set_count(1);
    }
}

/// Sends the list and the file; the blocks that the worker left alone.
template <typename Fill>
Result<LoadedByWorker> copy_by_worker(Worker& worker, const control::FileRunList& list, int file,
                                      std::size_t blocks, Fill fill) {
    const std::string bytes = list.SerializeAsString();
    GANTRY_ASSIGN(const control::UniqueFd blob, control::make_blob(bytes));
    control::ToWorker request;
    fill(request, bytes.size());
    const int descriptors[] = {file, blob.get()};
    GANTRY_ASSIGN(WorkerReply reply,
                  worker.call(std::move(request), patience_for(blocks * kBlockBytes),
                              descriptors));
    const control::FileBlocksReply& done = reply.message.file_blocks();
    LoadedByWorker out{{}, done.how()};
    if (done.outside_bytes() != 0) {
        if (reply.descriptors.empty()) {
            return Error{Code::kInvalidArgument, "worker.protocol", "a reply lacks its blob"};
        }
        GANTRY_ASSIGN(const control::MappedBlob left,
                      control::MappedBlob::map(std::move(reply.descriptors.front()),
                                               done.outside_bytes()));
        control::BlockRunList outside;
        if (!outside.ParseFromArray(left.bytes().data(), static_cast<int>(left.bytes().size()))) {
            return Error{Code::kInvalidArgument, "worker.protocol", "a damaged list of blocks"};
        }
        GANTRY_ASSIGN(out.outside, expand_runs(outside.runs(), kPartBlocksMax));
        std::sort(out.outside.begin(), out.outside.end());
    }
    if (done.block_count() + out.outside.size() != blocks) {
        return Error{Code::kInvalidArgument, "worker.protocol",
                     "a worker copied " + std::to_string(done.block_count()) + " blocks of " +
                         std::to_string(blocks)};
    }
    return out;
}

/// What the worker left alone, read through the staging area.
Result<void> store_outside(WorkersSource& source, engine::PartId part,
                           std::span<const BlockAddress> outside,
                           std::span<const BlockAddress> blocks,
                           std::span<const std::uint64_t> places, const MemoryWriter& writer) {
    for (std::size_t at = 0; at < outside.size(); at += kBatchBlocks) {
        const auto some = outside.subspan(at, std::min(kBatchBlocks, outside.size() - at));
        GANTRY_ASSIGN(const auto staged, source.read_blocks(part, some));
        for (std::size_t i = 0; i < staged->count(); ++i) {
            const auto found = std::lower_bound(blocks.begin(), blocks.end(), staged->address(i));
            const auto index = static_cast<std::size_t>(found - blocks.begin());
            if (found == blocks.end() || *found != some[i] ||
                places[index] == MemoryWriter::kNotStored) {
                return Error{Code::kInvalidArgument, "worker.protocol",
                             "a worker read other blocks than it was asked for"};
            }
            GANTRY_TRY(writer.store(places[index], staged->bytes(i)));
        }
        if (staged->count() != some.size()) {
            return Error{Code::kInvalidArgument, "worker.protocol",
                         "blocks vanished from a frozen worker"};
        }
    }
    return {};
}

/// Reads every so many-th block back.
Result<void> check_sample(std::span<const PrintedBlock> blocks,
                          std::span<const std::uint64_t> places,
                          const snapshot::FingerprintKey& key, const MemoryWriter& writer,
                          DigestReport* differences) {
    std::vector<std::byte> bytes(kBlockBytes);
    const std::size_t step = std::max<std::size_t>(1, blocks.size() / kSampleBlocks);
    for (std::size_t i = step - 1; i < blocks.size(); i += step) {
        if (places[i] == MemoryWriter::kNotStored) {
            continue;
        }
        GANTRY_TRY(writer.read_back(places[i], bytes));
        const auto print =
            snapshot::fingerprint(key, snapshot::BlockSpan(bytes.data(), bytes.size()));
        if (print != blocks[i].print) {
            differences->add(blocks[i].address, blocks[i].print, print);
        }
    }
    return {};
}

}  // namespace

Result<SnapshotSettings> snapshot_settings() {
    const char* value = std::getenv("GANTRY_SNAPSHOTS");
    const std::string_view text = value == nullptr ? "auto" : value;
    if (text == "auto") {
        return SnapshotSettings{};
    }
    if (text == "registered") {
        return SnapshotSettings{control::FILE_WAY_REGISTERED, true};
    }
    if (text == "staged") {
        return SnapshotSettings{control::FILE_WAY_STAGED, true};
    }
    return Error{Code::kInvalidArgument, "gantryd.settings",
                 "GANTRY_SNAPSHOTS is '" + std::string(text) +
                     "'; it can be auto, registered or staged"};
}

std::chrono::milliseconds patience_for(std::uint64_t bytes) {
    return kLongCall + std::chrono::milliseconds(bytes * 1000 / kBytesPerSecondMin);
}

Result<engine::BlockSetDigest> digest_now(Worker& worker) { return digest_beyond(worker, {}); }

Result<engine::BlockSetDigest> digest_beyond(Worker& worker, const ProvenBlocks& proven) {
    const std::string runs = proven.runs.SerializeAsString();
    control::ToWorker request;
    request.mutable_get_digest()->set_known_bytes(runs.size());
    control::UniqueFd blob;
    std::vector<int> descriptors;
    if (!runs.empty()) {
        GANTRY_ASSIGN(blob, control::make_blob(runs));
        descriptors.push_back(blob.get());
    }
    GANTRY_ASSIGN(const WorkerReply reply,
                  worker.call(std::move(request), kLongCall, descriptors));
    const control::Digest& rest = reply.message.digest();
    engine::BlockSetDigest digest{rest.block_count(), {rest.sum_low(), rest.sum_high()}};
    digest.merge(proven.digest);
    digest.block_count -= proven.digest.block_count - rest.known_count();
    return digest;
}

Result<std::string> store_by_worker(WorkersSource& source, Worker& worker, control::FileWay way,
                                    std::span<const BlockAddress> blocks,
                                    const snapshot::FingerprintKey& key, MemoryWriter& writer,
                                    engine::BlockSetDigest* digest, DigestReport* differences) {
    GANTRY_ASSIGN(std::vector<PrintedBlock> prints, prints_now(worker));
    std::sort(prints.begin(), prints.end(), [](const PrintedBlock& a, const PrintedBlock& b) {
        return a.address < b.address;
    });
    const bool is_same = std::equal(prints.begin(), prints.end(), blocks.begin(), blocks.end(),
                                    [](const PrintedBlock& print, const BlockAddress& block) {
                                        return print.address == block;
                                    });
    if (!is_same) {
        return Error{Code::kInvalidArgument, "worker.protocol",
                     "a frozen worker has other blocks than it had"};
    }
    std::vector<MemoryWriter::Block> entries;
    entries.reserve(prints.size());
    for (const PrintedBlock& block : prints) {
        const auto space = static_cast<std::uint32_t>(block.address.space);
        entries.push_back({space, block.address.index, block.print,
                           block.print == key.zero_block()});
        digest->add(space, block.address.index, block.print);
    }
    std::vector<std::uint64_t> places(entries.size());
    GANTRY_TRY(writer.place(entries, places));
    control::FileRunList list;
    std::size_t count = 0;
    for (std::size_t i = 0; i < places.size(); ++i) {
        if (places[i] != MemoryWriter::kNotStored) {
            add_block(blocks[i], control::IncomingRun::FORM_BYTES, places[i], 0, &list);
            ++count;
        }
    }
    GANTRY_ASSIGN(const LoadedByWorker done,
                  copy_by_worker(worker, list, writer.file(), count,
                                 [way](control::ToWorker& request, std::size_t bytes) {
                                     request.mutable_store_blocks()->set_runs_bytes(bytes);
                                     request.mutable_store_blocks()->set_way(way);
                                 }));
    GANTRY_TRY(store_outside(source, worker.part(), done.outside, blocks, places, writer));
    GANTRY_TRY(check_sample(prints, places, key, writer, differences));
    return done.how;
}

Result<LoadedByWorker> load_by_worker(Worker& worker, control::FileWay way,
                                      const snapshot::StoredMemory& memory) {
    control::FileRunList list;
    std::uint64_t offset = memory.offset;
    for (const StoredBlock& block : memory.blocks) {
        const bool is_copy = block.form == StoredForm::kCopyOf;
        if (is_copy && block.origin.space != block.ref.space) {
            return Error{Code::kUnimplemented, "snapshot.copy",
                         "a block copies one of another kind, which is not supported"};
        }
        add_block(address_of_stored(block.ref),
                  block.form == StoredForm::kZero ? control::IncomingRun::FORM_ZERO
                  : is_copy                       ? control::IncomingRun::FORM_COPY
                                                  : control::IncomingRun::FORM_BYTES,
                  block.form == StoredForm::kBytes ? offset : 0,
                  is_copy ? block.origin.index : 0, &list);
        offset += block.stored_bytes;
    }
    return copy_by_worker(worker, list, memory.fd, memory.blocks.size(),
                          [way](control::ToWorker& request, std::size_t bytes) {
                              request.mutable_load_blocks()->set_runs_bytes(bytes);
                              request.mutable_load_blocks()->set_way(way);
                          });
}

}  // namespace gantry::supervisor
