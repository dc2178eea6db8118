#include "host-daemon/worker/output_capture.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace gantry::worker {

Result<int> OutputCapture::redirect() {
    const int saved = fcntl(2, F_DUPFD_CLOEXEC, 3);
    for (int i = 0; i < 2; ++i) {
        files_[i] = memfd_create(i == 0 ? "gantry-stdout" : "gantry-stderr", MFD_CLOEXEC);
        if (saved < 0 || files_[i] < 0 || fcntl(files_[i], F_SETFL, O_APPEND) != 0 ||
            dup2(files_[i], i + 1) < 0) {
            return Error{Code::kInternal, "worker.output",
                         std::string("cannot redirect the output: ") + std::strerror(errno)};
        }
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
    std::lock_guard lock(mutex_);
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
    std::lock_guard lock(mutex_);
    for (std::uint32_t i = 0; i < 2; ++i) {
        struct stat status{};
        if (files_[i] < 0 || fstat(files_[i], &status) != 0 || status.st_size == 0) {
            continue;
        }
        std::vector<std::byte> bytes(static_cast<std::size_t>(status.st_size));
        const ssize_t got = pread(files_[i], bytes.data(), bytes.size(), 0);
        if (got <= 0 || ftruncate(files_[i], 0) != 0) {
            continue;
        }
        push_locked(i + 1, std::span(bytes).first(static_cast<std::size_t>(got)));
    }
}

std::size_t OutputCapture::take(std::span<std::byte> out) {
    std::lock_guard lock(mutex_);
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
    std::lock_guard lock(mutex_);
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
