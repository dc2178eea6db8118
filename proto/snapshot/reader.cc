#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <future>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "proto/snapshot/block_codec.h"
#include "proto/snapshot/block_ledger.h"
#include "proto/snapshot/container.h"
#include "proto/snapshot/container.pb.h"
#include "proto/snapshot/layout.h"
#include "proto/snapshot/memory_reader.h"

namespace gantry::snapshot {

using namespace layout;

namespace {

class Reader {
public:
    Reader(int fd, const std::string& name, SnapshotVisitor& visitor)
        : fd_(fd), name_(name), visitor_(visitor) {}

    Result<void> run() {
        GANTRY_TRY(preamble());
        for (;;) {
            GANTRY_TRY(section_header());
            const Kind kind = kind_;
            if (kind == Kind::kMemory) {
                GANTRY_TRY(memory());
                continue;
            }
            GANTRY_TRY(section_payload());
            GANTRY_TRY(handle());
            if (kind == Kind::kEnd) {
                return at_end();
            }
        }
    }

    [[nodiscard]] std::uint64_t bytes_read() const { return offset_; }

private:
    Error error(const char* reason, std::uint64_t offset, const std::string& what) const {
        return {Code::kDataLoss, reason,
                name_ + ", offset " + std::to_string(offset) + ": " + what +
                    "; take another copy of the snapshot"};
    }
    Error checksum_error(std::uint64_t offset, const char* what) const {
        return error("snapshot.checksum", offset, std::string(what) + " is damaged");
    }
    Error malformed(const std::string& what) const {
        return error("snapshot.malformed", section_at_, what);
    }

    Result<void> sound(const BlockLedger::Problem& problem) const {
        return problem ? Result<void>(malformed(*problem)) : Result<void>();
    }

    Result<void> read(std::byte* to, std::size_t size) {
        while (size > 0) {
            const ssize_t got = ::read(fd_, to, size);
            if (got < 0 && errno == EINTR) {
                continue;
            }
            if (got < 0) {
                return Error{Code::kUnavailable, "snapshot.io",
                             "cannot read " + name_ + " at offset " + std::to_string(offset_) +
                                 ": " + std::strerror(errno) +
                                 "; name a snapshot file, or see to what it lies on"};
            }
            if (got == 0) {
                return error("snapshot.truncated", offset_,
                             "the file ends where " + std::to_string(size) + " more bytes are due");
            }
            to += got;
            size -= static_cast<std::size_t>(got);
            offset_ += static_cast<std::uint64_t>(got);
        }
        return {};
    }

    Result<void> preamble() {
        std::array<std::byte, kPreambleBytes> bytes;
        GANTRY_TRY(read(bytes.data(), bytes.size()));
        if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
            return Error{Code::kInvalidArgument, "snapshot.magic",
                         name_ + ", offset 0: this is no Gantry snapshot; name another file"};
        }
        if (get<std::uint64_t>(bytes.data() + 56) != XXH3_64bits(bytes.data(), 56)) {
            return checksum_error(0, "the preamble");
        }
        const auto version = get<std::uint32_t>(bytes.data() + 8);
        if (version == 0 || version > kContainerVersion) {
            return Error{Code::kUnimplemented, "snapshot.version.newer",
                         name_ + ", offset 8: the format has version " + std::to_string(version) +
                             ", this program reads up to " + std::to_string(kContainerVersion) +
                             "; use the Gantry release that wrote it, or a newer one"};
        }
        visitor_.on_version(version);
        return {};
    }

    static std::uint64_t limit(Kind kind) {
        switch (kind) {
            case Kind::kHeader:
            case Kind::kSummary: return kSmallBytesMax;
            case Kind::kGraph: return kGraphBytesMax;
            case Kind::kImage: return kImageBytesMax;
            case Kind::kBlocks:
                return kBlocksHeaderBytes + kSectionBlocksMax * (kEntryBytes + kBlockBytes);
            case Kind::kEnd: return 16;
            case Kind::kMemory:
                return kMemoryHeadBytes + kMemoryPadMax +
                       kMemoryBlocksMax * (kEntryBytes + kBlockBytes);
        }
        return 0;
    }

    Result<void> section_header() {
        section_at_ = offset_;
        std::byte header[kSectionHeaderBytes];
        GANTRY_TRY(read(header, sizeof header));
        if (get<std::uint64_t>(header + 24) != XXH3_64bits_withSeed(header, 24, section_at_)) {
            return checksum_error(section_at_, "a section header");
        }
        kind_ = static_cast<Kind>(get<std::uint32_t>(header));
        size_ = get<std::uint64_t>(header + 8);
        if (limit(kind_) == 0) {
            return malformed("a section of unknown kind " +
                             std::to_string(static_cast<std::uint32_t>(kind_)));
        }
        if (size_ > limit(kind_)) {
            return malformed("a section of " + std::to_string(size_) +
                             " bytes, more than its "
                             "kind may have (" +
                             std::to_string(limit(kind_)) + ")");
        }
        if (get<std::uint64_t>(header + 16) != checksums_.size()) {
            return malformed("sections are out of order");
        }
        return {};
    }

    Result<void> section_payload() {
        contents_ = {};
        std::uint64_t here = size_;  // What goes to our own memory; entries always do.
        if (kind_ == Kind::kBlocks && size_ >= kBlocksHeaderBytes) {
            GANTRY_TRY(read_payload(0, kBlocksHeaderBytes));
            const std::uint64_t entries =
                std::uint64_t{get<std::uint32_t>(storage_.data())} * kEntryBytes;
            here = entries <= size_ - kBlocksHeaderBytes ? kBlocksHeaderBytes + entries : size_;
            GANTRY_TRY(read_payload(kBlocksHeaderBytes, here));
        } else {
            GANTRY_TRY(read_payload(0, here));
        }
        if (const auto rest = static_cast<std::size_t>(size_ - here); rest != 0) {
            contents_ = own_contents(rest);
            GANTRY_TRY(read(contents_.data(), rest));
        }
        payload_ = std::span(storage_).first(static_cast<std::size_t>(here));
        std::byte checksum[8];
        GANTRY_TRY(read(checksum, sizeof checksum));
        XXH3_state_t state{};
        XXH3_64bits_reset_withSeed(&state, section_at_);
        XXH3_64bits_update(&state, payload_.data(), payload_.size());
        XXH3_64bits_update(&state, contents_.data(), contents_.size());
        const std::uint64_t actual = XXH3_64bits_digest(&state);
        if (get<std::uint64_t>(checksum) != actual) {
            return checksum_error(section_at_, "a section's content");
        }
        checksums_.push_back(actual);
        return {};
    }

    std::span<std::byte> own_contents(std::size_t bytes) {
        own_contents_.resize(std::max(own_contents_.size(), bytes));
        return std::span(own_contents_).first(bytes);
    }

    /// Bytes `from` to `end` of the payload into our own memory, which is grown as they come, so
    /// that a lying length costs no memory that the file does not back.
    Result<void> read_payload(std::uint64_t from, std::uint64_t end) {
        constexpr std::uint64_t kStep = 64U << 20;
        while (from < end) {
            const auto step = static_cast<std::size_t>(std::min(end - from, kStep));
            const auto at = static_cast<std::size_t>(from);
            if (storage_.size() < at + step) {
                storage_.resize(at + step);
            }
            GANTRY_TRY(read(storage_.data() + at, step));
            from += step;
        }
        return {};
    }

    Result<void> handle() {
        const bool first = checksums_.size() == 1;
        if (first != (kind_ == Kind::kHeader)) {
            return malformed("the header section must come first, and once");
        }
        if (summary_seen_ != (kind_ == Kind::kEnd)) {
            return malformed("summary and end must be the last two sections");
        }
        switch (kind_) {
            case Kind::kHeader: return header();
            case Kind::kGraph: return graph();
            case Kind::kImage: return image();
            case Kind::kBlocks: return blocks();
            case Kind::kSummary: return summary();
            case Kind::kEnd: return end();
            case Kind::kMemory: break;  // Went another way: what precedes its contents is enough.
        }
        return {};
    }

    Result<void> memory() {
        if (checksums_.empty() || summary_seen_) {
            return malformed("a memory section before the header or behind the summary");
        }
        const std::uint64_t section_end = section_at_ + kSectionHeaderBytes + size_;
        const auto refuse = [this](const MemoryProblem& problem) {
            return problem.is_damage ? checksum_error(section_at_, problem.what)
                                     : malformed(problem.what);
        };
        std::array<std::byte, kMemoryHeadBytes> bytes;
        if (size_ < bytes.size()) {
            return malformed("a memory section without a head");
        }
        GANTRY_TRY(read(bytes.data(), bytes.size()));
        const std::uint64_t checksum =
            XXH3_64bits_withSeed(bytes.data(), bytes.size(), section_at_);
        MemoryHead head;
        if (auto problem = parse_memory_head(bytes, section_at_, section_end, &head);
            problem.what != nullptr) {
            return refuse(problem);
        }
        MemoryTable table(head, section_at_, *key_, entries_left());
        GANTRY_TRY(memory_table(head, &table));
        if (auto problem = table.end(section_end - head.contents_at); problem.what != nullptr) {
            return refuse(problem);
        }
        GANTRY_TRY(sound(ledger_.add_memory(head.part, table.blocks().size())));
        GANTRY_TRY(skip_zeros(head.contents_at));
        {
            const auto sum = [&] { ledger_.sum_memory(head.part, table.blocks()); };
            std::future<void> summed;
            if (head.count > kStepEntries) {
                // It takes a while, and nobody needs it before the summary.
                summed = std::async(std::launch::async | std::launch::deferred, sum);
            } else {
                sum();
            }
            GANTRY_TRY(memory_contents(head, table.blocks(), section_end));
            if (summed.valid()) {
                summed.get();
            }
        }
        std::byte stored[8];
        GANTRY_TRY(read(stored, sizeof stored));
        if (get<std::uint64_t>(stored) != checksum) {
            return checksum_error(section_at_, "a memory section's end");
        }
        checksums_.push_back(checksum);
        return {};
    }

    /// That the file can hold from here on, as far as can be told.
    [[nodiscard]] std::uint64_t entries_left() const {
        struct stat status {};
        const bool is_known = base_ >= 0 && ::fstat(fd_, &status) == 0 && S_ISREG(status.st_mode);
        const auto bytes = static_cast<std::uint64_t>(is_known ? status.st_size : 0);
        const std::uint64_t here = static_cast<std::uint64_t>(base_) + offset_;
        return is_known && bytes > here ? (bytes - here) / kEntryBytes : 0;
    }

    /// Of a table, that are read, hashed and parsed in one go.
    static constexpr std::uint64_t kStepEntries = 16384;

    /// Piece by piece: one is read and hashed while the one before is parsed.
    Result<void> memory_table(const MemoryHead& head, MemoryTable* table) {
        constexpr std::size_t kStepBytes = kStepEntries * kEntryBytes;
        storage_.resize(std::max<std::size_t>(
            storage_.size(), std::min<std::uint64_t>(head.count, 2 * kStepEntries) * kEntryBytes));
        std::future<void> parsed;  // Waited for before all else goes.
        std::size_t turn = 0;
        const std::uint64_t count = head.count;
        for (std::uint64_t done = 0; done < count; done += kStepEntries, ++turn) {
            const auto bytes = std::span(storage_).subspan(
                turn % 2 * kStepBytes,
                static_cast<std::size_t>(std::min(count - done, kStepEntries)) * kEntryBytes);
            GANTRY_TRY(read(bytes.data(), bytes.size()));
            table->hash(bytes);
            if (parsed.valid()) {
                parsed.wait();
            }
            if (turn == 1 && base_ >= 0 && !table->parsed().empty()) {
                GANTRY_TRY(visitor_.on_first_blocks(stored_memory(head, table->parsed())));
            }
            if (count - done > kStepEntries) {
                parsed = std::async(std::launch::async | std::launch::deferred,
                                    [table, bytes] { table->parse(bytes); });
            } else {
                table->parse(bytes);
            }
        }
        return {};
    }

    /// Of a file that can be read at any offset.
    [[nodiscard]] StoredMemory stored_memory(const MemoryHead& head,
                                             std::span<const StoredBlock> blocks) const {
        return {head.part, blocks, static_cast<std::uint64_t>(base_) + head.contents_at, fd_,
                &name_};
    }

    Result<void> skip_zeros(std::uint64_t end) {
        std::array<std::byte, 4096> bytes;
        while (offset_ < end) {
            const auto step =
                static_cast<std::size_t>(std::min<std::uint64_t>(end - offset_, bytes.size()));
            GANTRY_TRY(read(bytes.data(), step));
            if (std::any_of(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(step),
                            [](std::byte b) { return b != std::byte{0}; })) {
                return checksum_error(section_at_, "what precedes a memory section's contents");
            }
        }
        return {};
    }

    Result<void> memory_contents(const MemoryHead& head, std::span<StoredBlock> blocks,
                                 std::uint64_t end) {
        if (base_ >= 0) {
            GANTRY_ASSIGN(const bool taken, visitor_.on_memory(stored_memory(head, blocks)));
            if (taken) {
                offset_ = end;
                if (::lseek(fd_, base_ + static_cast<off_t>(end), SEEK_SET) < 0) {
                    return error("snapshot.truncated", offset_, "the file ends in its contents");
                }
                return {};
            }
        }
        for (std::size_t at = 0; at < blocks.size(); at += kMemoryBatchBlocks) {
            GANTRY_TRY(
                memory_batch(blocks.subspan(at, std::min(kMemoryBatchBlocks, blocks.size() - at))));
        }
        return {};
    }

    Result<void> memory_batch(std::span<StoredBlock> blocks) {
        std::size_t bytes = 0;
        for (const StoredBlock& block : blocks) {
            bytes += block.stored_bytes;
        }
        const std::span<std::byte> to = own_contents(bytes);
        const std::uint64_t begin = offset_;
        GANTRY_TRY(read(to.data(), bytes));
        std::size_t at = 0;
        for (StoredBlock& block : blocks) {
            if (block.form != StoredForm::kBytes) {
                continue;
            }
            block.bytes = to.subspan(at, kBlockBytes);
            if (fingerprint(*key_, BlockSpan(block.bytes)) != block.fingerprint) {
                return checksum_error(begin + at, "a block");
            }
            at += kBlockBytes;
        }
        return visitor_.on_blocks(blocks);
    }

    Result<void> header() {
        SnapshotHeader header;
        if (!header.ParseFromArray(payload_.data(), static_cast<int>(payload_.size()))) {
            return malformed("the header does not parse");
        }
        key_ = std::make_unique<FingerprintKey>(Seed{header.seed_low(), header.seed_high()});
        return visitor_.on_header(header);
    }

    Result<void> graph() {
        if (payload_.size() < 8) {
            return malformed("a graph section without a part id");
        }
        const auto id = get<std::uint64_t>(payload_.data());
        GANTRY_TRY(sound(ledger_.add_part(id)));
        if (!graphs_.insert(id).second) {
            return malformed("two graphs of part " + std::to_string(id));
        }
        return visitor_.on_graph(
            id, {reinterpret_cast<const char*>(payload_.data()) + 8, payload_.size() - 8});
    }

    Result<void> image() {
        if (payload_.size() < 32) {
            return malformed("an image section without a hash");
        }
        ++image_count_;
        const std::span<const std::byte> bytes(payload_);
        return visitor_.on_image(bytes.first<32>(), bytes.subspan(32));
    }

    Result<void> blocks() {
        if (payload_.size() < kBlocksHeaderBytes) {
            return malformed("a block section without a count");
        }
        const auto count = get<std::uint32_t>(payload_.data());
        if (count > kSectionBlocksMax ||
            payload_.size() != kBlocksHeaderBytes + std::uint64_t{count} * kEntryBytes) {
            return malformed("a block section with a wrong count");
        }
        std::vector<StoredBlock> out;
        out.reserve(count);
        std::size_t contents_at = 0;
        for (std::uint32_t i = 0; i < count; ++i) {
            const std::byte* entry = payload_.data() + kBlocksHeaderBytes + i * kEntryBytes;
            StoredBlock block = parse_entry(entry);
            GANTRY_TRY(sound(ledger_.check_form(block, *key_)));
            if (block.form == StoredForm::kBytes) {
                const auto codec = static_cast<Codec>(get<std::uint32_t>(entry + 60) >> 24);
                if (block.stored_bytes > contents_.size() - contents_at) {
                    return malformed("a block reaches beyond its section");
                }
                const auto stored = contents_.subspan(contents_at, block.stored_bytes);
                contents_at += block.stored_bytes;
                block.bytes = stored;
                if (codec != Codec::kStored || stored.size() != kBlockBytes) {
                    plain_.resize(std::size_t{count} * kBlockBytes);  // Once a section.
                    const auto plain = std::span(plain_).subspan(i * kBlockBytes, kBlockBytes);
                    if (!unpack_block(codec, stored, plain)) {
                        return malformed("a block does not unpack to 65536 bytes");
                    }
                    block.bytes = plain;
                }
                if (fingerprint(*key_, BlockSpan(block.bytes)) != block.fingerprint) {
                    return malformed("a block does not match its fingerprint");
                }
            }
            GANTRY_TRY(sound(ledger_.add(block)));
            out.push_back(block);
        }
        if (contents_at != contents_.size()) {
            return malformed("a block section with bytes left over");
        }
        return visitor_.on_blocks(out);
    }

    Result<void> summary() {
        summary_seen_ = true;
        if (!summary_.ParseFromArray(payload_.data(), static_cast<int>(payload_.size()))) {
            return malformed("the summary does not parse");
        }
        return sound(ledger_.check(summary_, image_count_));
    }

    Result<void> end() {
        const std::uint64_t all =
            XXH3_64bits(checksums_.data(), (checksums_.size() - 1) * sizeof(std::uint64_t));
        if (payload_.size() != 16 || get<std::uint64_t>(payload_.data()) != all) {
            return checksum_error(section_at_, "the end section");
        }
        if (get<std::uint64_t>(payload_.data() + 8) != offset_) {
            return malformed("the end is not where it should be");
        }
        return {};
    }

    Result<void> at_end() {
        std::byte more;
        ssize_t got = 0;
        do {
            got = ::read(fd_, &more, 1);
        } while (got < 0 && errno == EINTR);
        if (got != 0) {
            section_at_ = offset_;
            return malformed("bytes follow the end of the snapshot");
        }
        return visitor_.on_end(summary_);
    }

    /// Blocks of a memory section handed out at once.
    static constexpr std::size_t kMemoryBatchBlocks = 32;

    int fd_;
    const std::string& name_;
    SnapshotVisitor& visitor_;
    off_t base_ = ::lseek(fd_, 0, SEEK_CUR);  ///< Where the file begins; -1: it is a pipe.
    std::uint64_t offset_ = 0;
    std::uint64_t section_at_ = 0;
    Kind kind_ = Kind::kHeader;
    std::uint64_t size_ = 0;
    std::vector<std::byte> storage_;
    std::vector<std::byte> own_contents_;
    std::span<std::byte> payload_;   ///< Of the section in hand, but for its blocks' contents.
    std::span<std::byte> contents_;  ///< In own_contents_.
    std::vector<std::byte> plain_;
    std::vector<std::uint64_t> checksums_;
    std::unique_ptr<FingerprintKey> key_;
    BlockLedger ledger_;
    std::unordered_set<std::uint64_t> graphs_;
    std::uint64_t image_count_ = 0;
    SnapshotSummary summary_;
    bool summary_seen_ = false;
};

}  // namespace

Result<std::uint64_t> read_snapshot(int fd, const std::string& name, SnapshotVisitor& visitor) {
    Reader reader(fd, name, visitor);
    GANTRY_TRY(reader.run());
    return reader.bytes_read();
}

Result<int> open_snapshot(const std::string& path) {
    // A FIFO would be waited for until somebody writes to it. Nothing else of a file changes.
    const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        return Error{errno == ENOENT ? Code::kNotFound : Code::kUnavailable, "snapshot.io",
                     "cannot open " + path + ": " + std::strerror(errno) +
                         "; name a snapshot file that this user may read"};
    }
    struct stat status {};
    if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        ::close(fd);
        return Error{Code::kInvalidArgument, "snapshot.io",
                     path + " is no regular file; name a snapshot file"};
    }
    return fd;
}

Result<std::uint64_t> read_snapshot(const std::string& path, SnapshotVisitor& visitor) {
    GANTRY_ASSIGN(const int fd, open_snapshot(path));
    auto result = read_snapshot(fd, path, visitor);
    ::close(fd);
    return result;
}

}  // namespace gantry::snapshot
