#include "host-daemon/supervisor/parts/part_loader.h"

#include <vector>

namespace gantry::supervisor {
namespace {

using snapshot::kBlockBytes;
using snapshot::StoredBlock;
using snapshot::StoredForm;

/// Blocks on their way to the sink.
class Batch {
public:
    Batch(WorkersSink& sink, const snapshot::StoredMemory& memory,
          const snapshot::FingerprintKey& key)
        : sink_(sink), memory_(memory), key_(key), bytes_(kBatchBlocks * kBlockBytes) {}

    /// `offset`: of its bytes in the file, if it has any.
    Result<void> add(StoredBlock block, std::uint64_t offset) {
        if (block.form == StoredForm::kBytes) {
            const auto to = std::span(bytes_).subspan(blocks_.size() * kBlockBytes, kBlockBytes);
            GANTRY_TRY(memory_.read(offset, to));
            if (snapshot::fingerprint(key_, snapshot::BlockSpan(to)) != block.fingerprint) {
                return memory_.damaged(offset);
            }
            block.bytes = to;
        }
        blocks_.push_back(block);
        return blocks_.size() == kBatchBlocks ? flush() : Result<void>{};
    }
    Result<void> flush() {
        if (!blocks_.empty()) {
            GANTRY_TRY(sink_.apply_stored({memory_.part}, blocks_));
            blocks_.clear();
        }
        return {};
    }

private:
    WorkersSink& sink_;
    const snapshot::StoredMemory& memory_;
    const snapshot::FingerprintKey& key_;
    std::vector<std::byte> bytes_;
    std::vector<StoredBlock> blocks_;
};

}  // namespace

Result<void> load_outside(WorkersSink& sink, const snapshot::StoredMemory& memory,
                          std::span<const engine::BlockAddress> outside,
                          const snapshot::FingerprintKey& key) {
    if (outside.empty()) {
        return {};
    }
    Batch batch(sink, memory, key);
    std::vector<StoredBlock> copies;  // When their origins are there.
    std::uint64_t offset = memory.offset;
    auto next = outside.begin();
    for (const StoredBlock& block : memory.blocks) {
        const engine::BlockAddress address{static_cast<engine::MemorySpace>(block.ref.space),
                                           block.ref.index};
        if (next != outside.end() && *next == address) {
            ++next;
            if (block.form == StoredForm::kCopyOf) {
                copies.push_back(block);
            } else {
                GANTRY_TRY(batch.add(block, offset));
            }
        }
        offset += block.stored_bytes;
    }
    GANTRY_TRY(batch.flush());
    for (const StoredBlock& block : copies) {
        GANTRY_TRY(batch.add(block, 0));
    }
    return batch.flush();
}

}  // namespace gantry::supervisor
