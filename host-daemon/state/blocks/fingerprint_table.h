// FingerprintTable: the fingerprint that each block of a part was last sent with.
//
// In chunks of neighbours, since a part of 64 GiB has a million blocks and is looked through once
// a round: looking up a block beside the last one costs no search. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "migration/engine/state.h"

namespace gantry::state {

class FingerprintTable {
public:
    [[nodiscard]] bool empty() const { return size_ == 0; }
    [[nodiscard]] std::size_t size() const { return size_; }
    void clear();
    /// Null: not there. Valid until the next change.
    [[nodiscard]] const snapshot::Fingerprint* find(engine::BlockAddress block);
    void set(engine::BlockAddress block, const snapshot::Fingerprint& fingerprint);
    void erase(engine::BlockAddress block);

    /// Between begin_look() and drop_unseen(): find() notes what was asked for, and what was not is
    /// dropped. Returns how many.
    void begin_look() { ++look_; }
    std::uint64_t drop_unseen();

    /// Calls visit(address, fingerprint) for each, ascending.
    template <typename Visit>
    void for_each(Visit visit) const {
        for (const auto& [key, chunk] : chunks_) {
            for (std::uint32_t i = 0; i < kChunkBlocks; ++i) {
                if (chunk->entries[i].present) {
                    visit(engine::BlockAddress{key.space, key.index * kChunkBlocks + i},
                          chunk->entries[i].fingerprint);
                }
            }
        }
    }

private:
    static constexpr std::uint32_t kChunkBlocks = 256;
    struct Entry {
        snapshot::Fingerprint fingerprint;
        std::uint32_t look = 0;
        bool present = false;
    };
    struct Chunk {
        std::array<Entry, kChunkBlocks> entries;
    };
    /// Null: no such chunk.
    Chunk* chunk_of(engine::BlockAddress block);

    std::map<engine::BlockAddress, std::unique_ptr<Chunk>> chunks_;  ///< By index / kChunkBlocks.
    std::size_t size_ = 0;
    std::uint32_t look_ = 0;
    engine::BlockAddress last_key_;
    Chunk* last_ = nullptr;
};

}  // namespace gantry::state
