#include "proto/snapshot/memory_writer.h"

#include <bit>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "proto/base/assert.h"
#include "proto/snapshot/container.h"
#include "proto/snapshot/file_io.h"
#include "proto/snapshot/file_pages.h"
#include "proto/snapshot/large_pages.h"
#include "proto/snapshot/layout.h"

namespace gantry::snapshot {

using namespace layout;

namespace {

/// From here on a section's contents begin with a large page, so that none is filled by halves.
constexpr std::uint64_t kLargeBlocks = 512;
constexpr std::uint64_t kLargeAlign = 2U << 20;

}  // namespace

MemoryWriter::MemoryWriter(int fd, std::string name, std::uint64_t section_at, std::uint64_t part,
                           std::uint64_t count, std::uint64_t contents_at)
    : fd_(fd),
      name_(std::move(name)),
      section_at_(section_at),
      part_(part),
      count_(count),
      contents_at_(contents_at),
      next_(contents_at) {
    table_.reserve(count * kEntryBytes);
    want_large_pages(table_.data(), table_.capacity());
    origins_.resize(std::bit_ceil(2 * count + 1));
}

Result<std::unique_ptr<MemoryWriter>> MemoryWriter::start(int fd, std::string name,
                                                          std::uint64_t section_at,
                                                          std::uint64_t part, std::uint64_t count) {
    if (count > kMemoryBlocksMax) {
        return Error{Code::kResourceExhausted, "snapshot.malformed",
                     std::to_string(count) + " blocks do not fit one part of " + name +
                         ", whose limit is " + std::to_string(kMemoryBlocksMax)};
    }
    const std::uint64_t table_end =
        section_at + kSectionHeaderBytes + kMemoryHeadBytes + count * kEntryBytes;
    const std::uint64_t contents_at =
        round_up(table_end, count >= kLargeBlocks ? kLargeAlign : kMemoryAlign);
    if (count != 0) {
        GANTRY_TRY(
            grow_file(fd, name, round_up(contents_at + count * kBlockBytes, kLargePageBytes)));
    }
    return std::unique_ptr<MemoryWriter>(
        new MemoryWriter(fd, std::move(name), section_at, part, count, contents_at));
}

std::uint32_t MemoryWriter::origin_of(const Fingerprint& fingerprint, std::uint32_t entry) {
    const std::size_t mask = origins_.size() - 1;
    for (std::size_t at = fingerprint.low & mask;; at = (at + 1) & mask) {
        if (origins_[at] == 0) {
            origins_[at] = entry + 1;
            return entry;
        }
        const std::byte* known = &table_[(origins_[at] - 1) * kEntryBytes];
        if (get<std::uint64_t>(known + 24) == fingerprint.low &&
            get<std::uint64_t>(known + 32) == fingerprint.high) {
            return origins_[at] - 1;
        }
    }
}

Result<void> MemoryWriter::place(std::span<const Block> blocks, std::span<std::uint64_t> places) {
    GANTRY_ASSERT(
        places.size() == blocks.size() && table_.size() / kEntryBytes + blocks.size() <= count_,
        "%zu and %zu", blocks.size(), table_.size() / kEntryBytes);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        const Block& block = blocks[i];
        GANTRY_ASSERT(table_.empty() || block.space > last_space_ ||
                          (block.space == last_space_ && block.index > last_index_),
                      "block %llu of space %u is out of order",
                      static_cast<unsigned long long>(block.index), block.space);
        last_space_ = block.space;
        last_index_ = block.index;
        digest_.add(block.space, block.index, block.fingerprint);
        const auto number = static_cast<std::uint32_t>(table_.size() / kEntryBytes);
        std::byte* entry = &*table_.insert(table_.end(), kEntryBytes, std::byte{0});
        put(entry, part_);
        put(entry + 8, block.index);
        put(entry + 16, block.space);
        put(entry + 24, block.fingerprint.low);
        put(entry + 32, block.fingerprint.high);
        places[i] = kNotStored;
        StoredForm form = StoredForm::kBytes;
        if (block.is_zero) {
            form = StoredForm::kZero;
            ++zero_count_;
        } else if (const std::uint32_t origin = origin_of(block.fingerprint, number);
                   origin != number) {
            form = StoredForm::kCopyOf;
            const std::byte* from = &table_[origin * kEntryBytes];
            put(entry + 40, part_);
            put(entry + 48, get<std::uint64_t>(from + 8));
            put(entry + 56, get<std::uint32_t>(from + 16));
            ++copy_count_;
        } else {
            put(entry + 60, static_cast<std::uint32_t>(kBlockBytes));
            places[i] = next_;
            next_ += kBlockBytes;
        }
        put(entry + 20, static_cast<std::uint32_t>(form));
    }
    return {};
}

Result<MemoryWriter::Finished> MemoryWriter::finish(std::uint64_t ordinal) {
    GANTRY_ASSERT(table_.size() / kEntryBytes == count_, "%zu of %llu blocks",
                  table_.size() / kEntryBytes, static_cast<unsigned long long>(count_));
    std::byte front[kSectionHeaderBytes + kMemoryHeadBytes] = {};
    put(front, static_cast<std::uint32_t>(Kind::kMemory));
    put(front + 8, next_ - section_at_ - kSectionHeaderBytes);
    put(front + 16, ordinal);
    put<std::uint64_t>(front + 24, XXH3_64bits_withSeed(front, 24, section_at_));
    std::byte* head = front + kSectionHeaderBytes;
    put(head, part_);
    put(head + 8, static_cast<std::uint32_t>(count_));
    put(head + 16, contents_at_);
    put<std::uint64_t>(head + 24, XXH3_64bits_withSeed(table_.data(), table_.size(), section_at_));
    put<std::uint64_t>(head + 32, XXH3_64bits_withSeed(head, 32, section_at_));
    const std::uint64_t checksum = XXH3_64bits_withSeed(head, kMemoryHeadBytes, section_at_);
    GANTRY_TRY(write_at(fd_, name_, section_at_, front));
    GANTRY_TRY(write_at(fd_, name_, section_at_ + sizeof front, table_));
    // The pages between are a hole that reads as zeros; an empty part has no contents to end it.
    const std::uint64_t table_end = section_at_ + sizeof front + table_.size();
    if (next_ == contents_at_ && contents_at_ != table_end) {
        const std::byte last{0};
        GANTRY_TRY(write_at(fd_, name_, contents_at_ - 1, {&last, 1}));
    }
    GANTRY_TRY(write_at(fd_, name_, next_, std::as_bytes(std::span(&checksum, 1))));
    return Finished{next_ + sizeof checksum, checksum};
}

}  // namespace gantry::snapshot
