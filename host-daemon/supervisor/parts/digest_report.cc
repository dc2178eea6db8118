#include "host-daemon/supervisor/parts/digest_report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

#include "host-daemon/supervisor/parts/part_fingerprints.h"
#include "proto/snapshot/container.h"
#include "proto/wire/region.h"

namespace gantry::supervisor {
namespace {

constexpr std::size_t kNamedMax = 4;

struct TableEntry {
    engine::Fingerprint fingerprint;
    snapshot::StoredForm form = snapshot::StoredForm::kBytes;
    std::uint64_t offset = 0;  ///< Of the bytes in the file; 0: they are not there as they are.
};
using Table = std::map<engine::BlockAddress, TableEntry>;

engine::BlockAddress address_of(const snapshot::BlockRef& ref) {
    return {static_cast<engine::MemorySpace>(ref.space), ref.index};
}

/// Collects what a file says about the blocks of one part, and nothing else.
class TableReader final : public snapshot::SnapshotVisitor {
public:
    explicit TableReader(engine::PartId part) : part_(part) {}

    Result<void> on_header(const snapshot::SnapshotHeader&) override { return {}; }
    Result<void> on_graph(std::uint64_t, std::string_view) override { return {}; }
    Result<void> on_image(std::span<const std::byte, 32>, std::span<const std::byte>) override {
        return {};
    }
    Result<bool> on_memory(const snapshot::StoredMemory& memory) override {
        std::uint64_t offset = memory.offset;
        for (const snapshot::StoredBlock& block : memory.blocks) {
            add(block, block.form == snapshot::StoredForm::kBytes ? offset : 0);
            offset += block.stored_bytes;
        }
        return true;
    }
    Result<void> on_blocks(std::span<const snapshot::StoredBlock> blocks) override {
        for (const snapshot::StoredBlock& block : blocks) {
            add(block, 0);
        }
        return {};
    }
    Result<void> on_end(const snapshot::SnapshotSummary&) override { return {}; }

    [[nodiscard]] const Table& table() const { return table_; }

private:
    void add(const snapshot::StoredBlock& block, std::uint64_t offset) {
        if (block.ref.part == part_.value) {
            table_[address_of(block.ref)] = {block.fingerprint, block.form, offset};
        }
    }

    engine::PartId part_;
    Table table_;
};

const char* form_text(snapshot::StoredForm form) {
    return form == snapshot::StoredForm::kZero     ? ", a block of zeros"
           : form == snapshot::StoredForm::kCopyOf ? ", a copy of another"
                                                   : "";
}

/// What the file's own bytes say of a block that differs.
std::string file_text(int file, const TableEntry& entry, const snapshot::FingerprintKey& key,
                      std::optional<std::uint64_t>* damaged_at) {
    std::vector<std::byte> bytes(engine::kBlockBytes);
    if (entry.offset == 0 ||
        ::pread(file, bytes.data(), bytes.size(), static_cast<off_t>(entry.offset)) !=
            static_cast<ssize_t>(bytes.size())) {
        return form_text(entry.form);
    }
    const snapshot::BlockSpan block(bytes.data(), bytes.size());
    if (snapshot::fingerprint(key, block) == entry.fingerprint) {
        return ", right in the file";
    }
    *damaged_at = damaged_at->value_or(entry.offset);
    return ", damaged in the file";
}

}  // namespace

std::string name_of(const engine::BlockAddress& block) {
    char text[96];
    const std::uint64_t address = block.index * engine::kBlockBytes;
    if (block.space == engine::MemorySpace::kArray) {
        std::snprintf(text, sizeof text, "block %u of array %u", static_cast<unsigned>(block.index),
                      static_cast<unsigned>(block.index >> 32));
    } else if (block.space != engine::MemorySpace::kDevice) {
        std::snprintf(text, sizeof text, "block %llu of space %u",
                      static_cast<unsigned long long>(block.index),
                      static_cast<unsigned>(block.space));
    } else {
        const bool in_arena =
            address >= wire::kArenaBase && address - wire::kArenaBase < wire::kArenaBytes;
        std::snprintf(text, sizeof text, "%s at %#llx", in_arena ? "device memory" : "variables",
                      static_cast<unsigned long long>(address));
    }
    return text;
}

FileDifference memory_beside_file(Worker& worker, const std::string& path, engine::Seed seed) {
    const auto now = fingerprints_now(worker);
    if (!now) {
        return {"the worker cannot say which blocks differ: " + now.error().to_string(), {}};
    }
    FileDifference out;
    TableReader reader(worker.part());
    (void)snapshot::read_snapshot(path, reader);
    const auto opened = snapshot::open_snapshot(path);
    const control::UniqueFd file{opened ? *opened : -1};
    const snapshot::FingerprintKey key(seed);
    std::size_t differ = 0;
    std::size_t beyond = 0;
    std::string named;
    Table left = reader.table();
    for (const FingerprintedBlock& block : *now) {
        const auto entry = left.find(block.address);
        if (entry == left.end()) {
            named +=
                ++beyond <= kNamedMax ? "; " + name_of(block.address) + " (not in the file)" : "";
            continue;
        }
        if (entry->second.fingerprint != block.fingerprint && ++differ <= kNamedMax) {
            const bool is_zero = block.fingerprint == key.zero_block();
            named += "; " + name_of(block.address) + " (" + (is_zero ? "zeros" : "other bytes") +
                     file_text(file.get(), entry->second, key, &out.damaged_at) + ")";
        }
        left.erase(entry);
    }
    std::size_t missing = 0;
    for (const auto& [address, entry] : left) {
        named += ++missing <= kNamedMax ? "; " + name_of(address) + " (not in memory)" : "";
    }
    if (differ + beyond + missing == 0) {
        out.text = fmt::format("at a second look all {} blocks are as the file says", now->size());
        return out;
    }
    out.text = fmt::format("{} of {} blocks differ, {} are not in the file, {} not in memory{}",
                           differ, reader.table().size(), beyond, missing, named);
    return out;
}

void DigestReport::add(const engine::BlockAddress& block, const engine::Fingerprint& of_worker,
                       const engine::Fingerprint& of_gantryd) {
    blocks_.push_back({block, of_worker, of_gantryd});
}

std::string DigestReport::text(Worker& worker) const {
    if (blocks_.empty()) {
        return "every block that was read has the same fingerprint here and there";
    }
    std::string text = std::to_string(blocks_.size()) + " blocks differ";
    const auto now = fingerprints_now(worker);
    for (std::size_t i = 0; i < std::min(blocks_.size(), kNamedMax); ++i) {
        const Differs& one = blocks_[i];
        text += "; " + name_of(one.block);
        if (!now) {
            continue;
        }
        const auto found = std::find_if(
            now->begin(), now->end(),
            [&](const FingerprintedBlock& block) { return block.address == one.block; });
        text += found == now->end()                    ? " (gone at a second look)"
                : found->fingerprint == one.of_gantryd ? " (at a second look as in the file)"
                : found->fingerprint == one.of_worker  ? " (at a second look as the worker said)"
                                                       : " (at a second look different again)";
    }
    return text;
}

}  // namespace gantry::supervisor
