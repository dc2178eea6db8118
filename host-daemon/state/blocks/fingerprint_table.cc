#include "host-daemon/state/blocks/fingerprint_table.h"

namespace gantry::state {

void FingerprintTable::clear() {
    chunks_.clear();
    last_ = nullptr;
    size_ = 0;
}

FingerprintTable::Chunk* FingerprintTable::chunk_of(engine::BlockAddress block) {
    const engine::BlockAddress key{block.space, block.index / kChunkBlocks};
    if (last_ == nullptr || key != last_key_) {
        const auto found = chunks_.find(key);
        if (found == chunks_.end()) {
            return nullptr;
        }
        last_key_ = key;
        last_ = found->second.get();
    }
    return last_;
}

const snapshot::Fingerprint* FingerprintTable::find(engine::BlockAddress block) {
    Chunk* chunk = chunk_of(block);
    if (chunk == nullptr) {
        return nullptr;
    }
    Entry& entry = chunk->entries[block.index % kChunkBlocks];
    entry.look = look_;
    return entry.present ? &entry.fingerprint : nullptr;
}

void FingerprintTable::set(engine::BlockAddress block, const snapshot::Fingerprint& fingerprint) {
    Chunk* chunk = chunk_of(block);
    if (chunk == nullptr) {
        last_key_ = {block.space, block.index / kChunkBlocks};
        last_ = chunk = chunks_.emplace(last_key_, std::make_unique<Chunk>()).first->second.get();
    }
    Entry& entry = chunk->entries[block.index % kChunkBlocks];
    size_ += entry.present ? 0 : 1;
    entry = {fingerprint, look_, true};
}

void FingerprintTable::erase(engine::BlockAddress block) {
    if (Chunk* chunk = chunk_of(block)) {
        Entry& entry = chunk->entries[block.index % kChunkBlocks];
        size_ -= entry.present ? 1 : 0;
        entry.present = false;
    }
}

std::uint64_t FingerprintTable::drop_unseen() {
    std::uint64_t dropped = 0;
    for (auto& [key, chunk] : chunks_) {
        for (Entry& entry : chunk->entries) {
            if (entry.present && entry.look != look_) {
                entry.present = false;
                ++dropped;
            }
        }
    }
    size_ -= dropped;
    return dropped;
}

}  // namespace gantry::state
