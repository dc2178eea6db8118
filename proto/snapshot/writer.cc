#include <limits.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "proto/base/assert.h"
#include "proto/snapshot/block_codec.h"
#include "proto/snapshot/container.h"
#include "proto/snapshot/container.pb.h"
#include "proto/snapshot/file_pages.h"
#include "proto/snapshot/layout.h"
#include "proto/snapshot/memory_writer.h"

namespace gantry::snapshot {

using namespace layout;

class SnapshotWriter::Impl {
public:
    Impl(int fd, std::string name, const SnapshotHeader& header, Codec codec)
        : fd_(fd),
          name_(std::move(name)),
          codec_(codec),
          key_({header.seed_low(), header.seed_high()}),
          header_(header.SerializeAsString()) {}

    Result<void> start() {
        if (started_) {
            return {};
        }
        started_ = true;
        std::array<std::byte, kPreambleBytes> preamble{};
        std::memcpy(preamble.data(), kMagic.data(), kMagic.size());
        put(preamble.data() + 8, kContainerVersion);
        put<std::uint64_t>(preamble.data() + 56, XXH3_64bits(preamble.data(), 56));
        GANTRY_TRY(write(preamble.data(), preamble.size()));
        return section(Kind::kHeader, {as_bytes(header_)});
    }

    Result<void> add_graph(std::uint64_t part, std::string_view graph) {
        GANTRY_TRY(start());
        if (graph.size() + 8 > kGraphBytesMax) {
            return too_large("an object graph", graph.size(), kGraphBytesMax);
        }
        std::byte id[8];
        put(id, part);
        touch(part);
        // Blocks that follow are another worker's, at a restore: they copy none of earlier ones.
        origins_.clear();
        return section(Kind::kGraph, {id, as_bytes(graph)});
    }

    Result<void> add_image(std::span<const std::byte, 32> sha256,
                           std::span<const std::byte> bytes) {
        GANTRY_TRY(start());
        if (bytes.size() + 32 > kImageBytesMax) {
            return too_large("an image", bytes.size(), kImageBytesMax);
        }
        summary_.set_image_count(summary_.image_count() + 1);
        return section(Kind::kImage, {sha256, bytes});
    }

    Result<void> add_block(const BlockRef& ref, BlockSpan bytes) {
        GANTRY_TRY(start());
        if (add_entry(ref, bytes)) {
            put(&entries_.back() + 1 - kEntryBytes + 60, store(bytes));
        }
        return entries_.size() / kEntryBytes == kSectionBlocksMax ? flush_blocks() : Result<void>{};
    }

    Result<MemoryWriter*> begin_memory(std::uint64_t part, std::uint64_t count) {
        GANTRY_TRY(start());
        GANTRY_TRY(flush_blocks());
        GANTRY_ASSERT(memory_ == nullptr && !digests_[part].block_count, "part %llu",
                      static_cast<unsigned long long>(part));
        memory_part_ = part;
        GANTRY_ASSIGN(memory_, MemoryWriter::start(fd_, name_, offset_, part, count));
        return memory_.get();
    }

    Result<void> end_memory() {
        GANTRY_ASSIGN(const auto finished, memory_->finish(checksums_.size()));
        checksums_.push_back(finished.checksum);
        offset_ = finished.end;
        if (::lseek(fd_, static_cast<off_t>(offset_), SEEK_SET) < 0) {
            return write_error(errno, name_, offset_);
        }
        digests_[memory_part_] = memory_->digest();
        summary_.set_block_count(summary_.block_count() + memory_->digest().block_count);
        summary_.set_zero_block_count(summary_.zero_block_count() + memory_->zero_count());
        summary_.set_copy_block_count(summary_.copy_block_count() + memory_->copy_count());
        summary_.set_stored_bytes(summary_.stored_bytes() + memory_->stored_bytes());
        memory_.reset();
        return {};
    }

    Result<void> finish() {
        GANTRY_TRY(start());
        GANTRY_TRY(flush_blocks());
        for (const auto& [part, digest] : digests_) {
            PartSummary* out = summary_.add_parts();
            out->set_part_id(part);
            out->set_block_count(digest.block_count);
            out->set_digest_low(digest.sum.low);
            out->set_digest_high(digest.sum.high);
        }
        GANTRY_TRY(section(Kind::kSummary, {as_bytes(summary_.SerializeAsString())}));
        std::byte end[16];
        put<std::uint64_t>(end, checksum_of_checksums());
        put<std::uint64_t>(end + 8, offset_ + kSectionHeaderBytes + sizeof end + 8);
        GANTRY_TRY(section(Kind::kEnd, {end}));
        return cut();
    }

    std::uint64_t bytes_written() const { return offset_; }
    BlockSetDigest digest(std::uint64_t part) const {
        const auto it = digests_.find(part);
        return it == digests_.end() ? BlockSetDigest{} : it->second;
    }

private:
    static constexpr std::uint32_t kStoredWhole =
        static_cast<std::uint32_t>(Codec::kStored) << 24 | kBlockBytes;

    static std::span<const std::byte> as_bytes(std::string_view text) {
        return std::as_bytes(std::span(text.data(), text.size()));
    }

    BlockSetDigest& touch(std::uint64_t part) { return digests_[part]; }

    std::uint64_t checksum_of_checksums() const {
        return XXH3_64bits(checksums_.data(), checksums_.size() * sizeof(std::uint64_t));
    }

    Error too_large(const char* what, std::size_t size, std::uint64_t limit) const {
        return {Code::kResourceExhausted, "snapshot.malformed",
                std::string(what) + " of " + std::to_string(size) + " bytes does not fit " + name_ +
                    ", whose limit is " + std::to_string(limit)};
    }

    /// Appends the block's entry; true: its bytes have to be stored, and the entry to say how.
    bool add_entry(const BlockRef& ref, BlockSpan bytes) {
        const Fingerprint content = fingerprint(key_, bytes);
        touch(ref.part).add(ref.space, ref.index, content);
        std::byte* entry = &*entries_.insert(entries_.end(), kEntryBytes, std::byte{0});
        put(entry, ref.part);
        put(entry + 8, ref.index);
        put(entry + 16, ref.space);
        put(entry + 24, content.low);
        put(entry + 32, content.high);
        summary_.set_block_count(summary_.block_count() + 1);
        StoredForm form = StoredForm::kBytes;
        if (content == key_.zero_block() && is_zero_block(bytes)) {
            form = StoredForm::kZero;
            summary_.set_zero_block_count(summary_.zero_block_count() + 1);
        } else if (const auto [origin, fresh] = origins_.emplace(content, ref); !fresh) {
            form = StoredForm::kCopyOf;
            put(entry + 40, origin->second.part);
            put(entry + 48, origin->second.index);
            put(entry + 56, origin->second.space);
            summary_.set_copy_block_count(summary_.copy_block_count() + 1);
        }
        put(entry + 20, static_cast<std::uint32_t>(form));
        return form == StoredForm::kBytes;
    }

    /// Appends the block to the section's contents; returns codec and stored size.
    std::uint32_t store(BlockSpan bytes) {
        constexpr std::size_t kWorthwhile = kBlockBytes - kBlockBytes / 16;
        const std::size_t at = contents_.size();
        if (codec_ == Codec::kStored) {
            contents_.insert(contents_.end(), bytes.begin(), bytes.end());
            summary_.set_stored_bytes(summary_.stored_bytes() + kBlockBytes);
            return kStoredWhole;
        }
        contents_.resize(at + kBlockBytes);
        const auto to = std::span(contents_).subspan(at);
        std::size_t stored = pack_block(codec_, bytes, to.first(kWorthwhile));
        Codec used = codec_;
        if (stored == 0) {
            std::memcpy(to.data(), bytes.data(), kBlockBytes);
            stored = kBlockBytes;
            used = Codec::kStored;
        }
        contents_.resize(at + stored);
        summary_.set_stored_bytes(summary_.stored_bytes() + stored);
        return static_cast<std::uint32_t>(used) << 24 | static_cast<std::uint32_t>(stored);
    }

    Result<void> flush_blocks() {
        if (entries_.empty()) {
            return {};
        }
        std::byte head[kBlocksHeaderBytes] = {};
        put(head, static_cast<std::uint32_t>(entries_.size() / kEntryBytes));
        GANTRY_TRY(section(Kind::kBlocks, {head, entries_, contents_}));
        entries_.clear();
        contents_.clear();
        return {};
    }

    Result<void> section(Kind kind, std::initializer_list<std::span<const std::byte>> pieces) {
        const std::uint64_t begin = offset_;
        std::uint64_t size = 0;
        XXH3_state_t state{};
        XXH3_64bits_reset_withSeed(&state, begin);
        for (const auto piece : pieces) {
            size += piece.size();
            XXH3_64bits_update(&state, piece.data(), piece.size());
        }
        std::byte header[kSectionHeaderBytes] = {};
        put(header, static_cast<std::uint32_t>(kind));
        put(header + 8, size);
        put(header + 16, static_cast<std::uint64_t>(checksums_.size()));
        put<std::uint64_t>(header + 24, XXH3_64bits_withSeed(header, 24, begin));
        const std::uint64_t checksum = XXH3_64bits_digest(&state);
        checksums_.push_back(checksum);
        std::vector<iovec> parts;
        const auto add = [&parts](const void* bytes, std::size_t count) {
            if (count != 0) {
                parts.push_back({const_cast<void*>(bytes), count});
            }
        };
        add(header, sizeof header);
        for (const auto piece : pieces) {
            add(piece.data(), piece.size());
        }
        add(&checksum, sizeof checksum);
        return write(parts);
    }

    /// Memory was given more room than it took, and pages that were made ahead may be too many.
    Result<void> cut() const {
        struct stat status {};
        const bool is_longer = ::fstat(fd_, &status) == 0 && S_ISREG(status.st_mode) &&
                               static_cast<std::uint64_t>(status.st_size) > offset_;
        if (is_longer && ::ftruncate(fd_, static_cast<off_t>(offset_)) != 0) {
            return write_error(errno, name_, offset_);
        }
        return {};
    }

    Result<void> write(const std::byte* bytes, std::size_t size) {
        iovec part{const_cast<std::byte*>(bytes), size};
        return write({&part, 1});
    }

    /// Writes all of `parts`, in as few calls as the system allows; they are used up.
    Result<void> write(std::span<iovec> parts) {
        while (!parts.empty()) {
            const ssize_t written = ::writev(
                fd_, parts.data(), static_cast<int>(std::min<std::size_t>(parts.size(), IOV_MAX)));
            if (written < 0 && errno == EINTR) {
                continue;
            }
            if (written <= 0) {
                return write_error(written < 0 ? errno : EIO, name_, offset_);
            }
            offset_ += static_cast<std::uint64_t>(written);
            auto left = static_cast<std::size_t>(written);
            while (!parts.empty() && left >= parts.front().iov_len) {
                left -= parts.front().iov_len;
                parts = parts.subspan(1);
            }
            if (left != 0) {
                parts.front().iov_base = static_cast<std::byte*>(parts.front().iov_base) + left;
                parts.front().iov_len -= left;
            }
        }
        return {};
    }

    int fd_;
    std::string name_;
    Codec codec_;
    FingerprintKey key_;
    std::string header_;
    bool started_ = false;
    std::uint64_t offset_ = 0;
    std::vector<std::uint64_t> checksums_;
    std::vector<std::byte> entries_;
    std::vector<std::byte> contents_;
    struct FingerprintHash {
        std::size_t operator()(const Fingerprint& f) const { return f.low ^ (f.high >> 9); }
    };
    std::unordered_map<Fingerprint, BlockRef, FingerprintHash> origins_;
    std::map<std::uint64_t, BlockSetDigest> digests_;
    SnapshotSummary summary_;
    std::unique_ptr<MemoryWriter> memory_;  ///< While a part's memory is being written.
    std::uint64_t memory_part_ = 0;
};

SnapshotWriter::SnapshotWriter(int fd, std::string name, const SnapshotHeader& header, Codec codec)
    : impl_(std::make_unique<Impl>(fd, std::move(name), header, codec)) {}
SnapshotWriter::~SnapshotWriter() = default;

Result<void> SnapshotWriter::add_graph(std::uint64_t part, std::string_view graph) {
    return impl_->add_graph(part, graph);
}
Result<void> SnapshotWriter::add_image(std::span<const std::byte, 32> sha256,
                                       std::span<const std::byte> bytes) {
    return impl_->add_image(sha256, bytes);
}
Result<void> SnapshotWriter::add_block(const BlockRef& ref, BlockSpan bytes) {
    return impl_->add_block(ref, bytes);
}
Result<MemoryWriter*> SnapshotWriter::begin_memory(std::uint64_t part, std::uint64_t count) {
    return impl_->begin_memory(part, count);
}
Result<void> SnapshotWriter::end_memory() { return impl_->end_memory(); }
Result<void> SnapshotWriter::finish() { return impl_->finish(); }
std::uint64_t SnapshotWriter::bytes_written() const { return impl_->bytes_written(); }
BlockSetDigest SnapshotWriter::digest(std::uint64_t part) const { return impl_->digest(part); }

}  // namespace gantry::snapshot
