#include "host-daemon/execution/ring/output_capture.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "proto/wire/region.h"

namespace gantry::worker {
namespace {

/// The files begin with a byte that means nothing, so that their first page can be mapped.
constexpr std::uint64_t kUnused = 1;
constexpr std::size_t kSeenBytes = 64;
constexpr std::uint32_t kSizesEvery = 64;  // Output that begins with so many NULs is seen later.

}  // namespace

bool OutputCapture::may_have_grown(int i) const {
    if (first_bytes_[i] == nullptr) {
        return true;
    }
    asm volatile("" : : : "memory");  // Written through the descriptors.
    std::uint64_t any = 0;
    for (std::size_t at = 0; at < kSeenBytes; at += sizeof(any)) {
        std::uint64_t word = 0;
        std::memcpy(&word, first_bytes_[i] + at, sizeof(word));
        any |= word;
    }
    return any != 0;
}

Result<int> OutputCapture::redirect() {
    const int saved = fcntl(2, F_DUPFD_CLOEXEC, 3);
    for (int i = 0; i < 2; ++i) {
        files_[i] = memfd_create(i == 0 ? "gantry-stdout" : "gantry-stderr", MFD_CLOEXEC);
        if (saved < 0 || files_[i] < 0 || ftruncate(files_[i], kUnused) != 0 ||
            fcntl(files_[i], F_SETFL, O_APPEND) != 0 || dup2(files_[i], i + 1) < 0) {
            return Error{Code::kInternal, "worker.output",
                         std::string("cannot redirect the output: ") + std::strerror(errno)};
        }
    }
    for (int i = 0; i < 2; ++i) {
        // Not where drivers take device addresses from (channel_memory.cc).
        void* const hint = reinterpret_cast<void*>(0x6f00'0000'0000 + i * wire::kPageBytes);
        void* const page = mmap(hint, kSeenBytes, PROT_READ, MAP_SHARED, files_[i], 0);
        first_bytes_[i] = page == MAP_FAILED ? nullptr : static_cast<const std::byte*>(page);
    }
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    return saved;
}

void OutputCapture::attach(const GantrySoftExtension* extension) {
    if (extension == nullptr) {
        return;
    }
    extension->set_output(
        [](void* user, int channel, const char* text, std::size_t bytes) {
            auto* self = static_cast<OutputCapture*>(user);
            const auto raw = std::as_bytes(std::span(text, bytes));
            self->push(channel == 1 ? 1u : 2u, raw);
        },
        this);
}

void OutputCapture::push(std::uint32_t descriptor, std::span<const std::byte> bytes) {
    MutexLock lock(mutex_);
    push_locked(descriptor, bytes);
}

void OutputCapture::push_locked(std::uint32_t descriptor, std::span<const std::byte> bytes) {
    if (bytes.empty()) {
        return;
    }
    while (!pieces_.empty() && pending_bytes_ + bytes.size() > kPendingBytesMax) {
        pending_bytes_ -= pieces_.front().bytes.size();
        pieces_.erase(pieces_.begin());
    }
    bytes = bytes.last(std::min(bytes.size(), kPendingBytesMax));
    if (pieces_.empty() || pieces_.back().descriptor != descriptor) {
        pieces_.push_back({descriptor, {}});
    }
    pieces_.back().bytes.insert(pieces_.back().bytes.end(), bytes.begin(), bytes.end());
    pending_bytes_ += bytes.size();
}

void OutputCapture::collect() {
    MutexLock lock(mutex_);
    const bool asks_sizes = ++collections_ % kSizesEvery == 0;
    for (std::uint32_t i = 0; i < 2; ++i) {
        struct stat status {};
        if (files_[i] < 0 || !(asks_sizes || may_have_grown(i)) || fstat(files_[i], &status) != 0 ||
            static_cast<std::uint64_t>(status.st_size) <= kUnused) {
            continue;
        }
        std::vector<std::byte> bytes(static_cast<std::size_t>(status.st_size) - kUnused);
        const ssize_t got = pread(files_[i], bytes.data(), bytes.size(), kUnused);
        if (got <= 0 || ftruncate(files_[i], kUnused) != 0) {
            continue;
        }
        push_locked(i + 1, std::span(bytes).first(static_cast<std::size_t>(got)));
    }
}

std::size_t OutputCapture::take(std::span<std::byte> out) {
    MutexLock lock(mutex_);
    std::size_t used = 0;
    constexpr std::size_t kHeaderBytes = 8;
    while (!pieces_.empty() && out.size() - used > kHeaderBytes) {
        Piece& piece = pieces_.front();
        const std::size_t bytes = std::min(piece.bytes.size(), out.size() - used - kHeaderBytes);
        const std::uint32_t header[2] = {piece.descriptor, static_cast<std::uint32_t>(bytes)};
        std::memcpy(out.data() + used, header, kHeaderBytes);
        std::memcpy(out.data() + used + kHeaderBytes, piece.bytes.data(), bytes);
        used += kHeaderBytes + bytes;
        pending_bytes_ -= bytes;
        if (bytes == piece.bytes.size()) {
            pieces_.erase(pieces_.begin());
        } else {
            piece.bytes.erase(piece.bytes.begin(),
                              piece.bytes.begin() + static_cast<std::ptrdiff_t>(bytes));
        }
    }
    return used;
}

std::vector<std::byte> OutputCapture::save() const {
    MutexLock lock(mutex_);
    std::vector<std::byte> out;
    for (const Piece& piece : pieces_) {
        const std::uint32_t header[2] = {piece.descriptor,
                                         static_cast<std::uint32_t>(piece.bytes.size())};
        const auto* raw = reinterpret_cast<const std::byte*>(header);
        out.insert(out.end(), raw, raw + sizeof(header));
        out.insert(out.end(), piece.bytes.begin(), piece.bytes.end());
    }
    return out;
}

void OutputCapture::load(std::span<const std::byte> pieces) {
    while (pieces.size() > 8) {
        std::uint32_t header[2];
        std::memcpy(header, pieces.data(), sizeof(header));
        pieces = pieces.subspan(sizeof(header));
        const std::size_t bytes = std::min<std::size_t>(header[1], pieces.size());
        push(header[0] == 2 ? 2 : 1, pieces.first(bytes));
        pieces = pieces.subspan(bytes);
    }
}

}  // namespace gantry::worker
