#include "host-daemon/supervisor/parts/direct_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "proto/snapshot/file_pages.h"
#include "proto/snapshot/large_pages.h"

namespace gantry::supervisor {
namespace {

/// Memory of this size that stays so, whatever its other holders do. Not of hugetlbfs, whose pages
/// may be missing when they are touched.
bool is_fixed_file(int file, std::uint64_t bytes) {
    struct stat status {};
    const int seals = ::fcntl(file, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && snapshot::is_on_tmpfs(file) &&
           ::fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
           static_cast<std::uint64_t>(status.st_size) == bytes;
}

/// What of a file is not hole; all of it where the file system does not tell.
std::map<std::uint64_t, std::uint64_t> data_of(int file, std::uint64_t bytes) {
    std::map<std::uint64_t, std::uint64_t> data;
    for (off_t at = 0; static_cast<std::uint64_t>(at) < bytes;) {
        const off_t begin = ::lseek(file, at, SEEK_DATA);
        if (begin < 0) {
            if (errno != ENXIO) {  // ENXIO: nothing but hole follows.
                data = {{0, bytes}};
            }
            break;
        }
        const off_t end = ::lseek(file, begin, SEEK_HOLE);
        if (end <= begin) {
            return {{0, bytes}};
        }
        data[static_cast<std::uint64_t>(begin)] = static_cast<std::uint64_t>(end);
        at = end;
    }
    return data;
}

}  // namespace

DirectMemory DirectMemory::map(Worker& worker, For purpose) {
    DirectMemory memory;
    if (!worker.device().is_soft()) {
        return memory;  // To make descriptors of a card's memory takes it milliseconds.
    }
    std::uint64_t last_serial = 0;
    for (bool more = true; more;) {
        control::ToWorker request;
        request.mutable_export_memory()->set_after_serial(last_serial);
        auto reply = worker.call(std::move(request), kLongCall);
        if (!reply) {
            break;  // It has memory that it cannot share: its own way is always open.
        }
        const control::ExportMemoryReply& got = reply->message.export_memory();
        const auto count = std::min<std::size_t>(static_cast<std::size_t>(got.pieces_size()),
                                                 reply->descriptors.size());
        for (std::size_t i = 0; i < count; ++i) {
            const control::MemoryPiece& piece = got.pieces(static_cast<int>(i));
            last_serial = std::max(last_serial, piece.serial());
            if (!memory.add(piece.address(), piece.bytes(), reply->descriptors[i].get(), purpose)) {
                return memory;  // The others will be no files either.
            }
        }
        more = got.more() && count != 0;
    }
    return memory;
}

bool DirectMemory::add(std::uint64_t address, std::uint64_t bytes, int file, For purpose) {
    if (bytes == 0 || address % engine::kBlockBytes != 0 || address > ~bytes ||
        !is_fixed_file(file, bytes)) {
        return false;
    }
    const auto next = pieces_.lower_bound(address);
    if ((next != pieces_.end() && next->first - address < bytes) ||
        (next != pieces_.begin() &&
         address - std::prev(next)->first < std::prev(next)->second.bytes)) {
        return false;
    }
    Piece piece;
    piece.bytes = bytes;
    const bool writes = purpose == For::kWriting;
    void* got = snapshot::map_aligned(file, 0, bytes, writes ? PROT_READ | PROT_WRITE : PROT_READ);
    if (got == MAP_FAILED) {
        return false;
    }
    piece.base = static_cast<std::byte*>(got);
    ::madvise(got, bytes, MADV_HUGEPAGE);  // A hint, as the driver gives it for its own mapping.
    if (!writes) {
        piece.data = data_of(file, bytes);
    }
    pieces_.emplace(address, std::move(piece));
    return true;
}

DirectMemory::~DirectMemory() {
    for (const auto& [address, piece] : pieces_) {
        ::munmap(piece.base, piece.bytes);
    }
}

std::map<std::uint64_t, DirectMemory::Piece>::const_iterator DirectMemory::piece_at(
    std::uint64_t address, std::uint64_t bytes) const {
    auto piece = pieces_.upper_bound(address);
    if (piece == pieces_.begin()) {
        return pieces_.end();
    }
    --piece;
    const std::uint64_t inside = address - piece->first;
    return inside <= piece->second.bytes && bytes <= piece->second.bytes - inside ? piece
                                                                                  : pieces_.end();
}

std::span<std::byte> DirectMemory::find(std::uint64_t address, std::uint64_t bytes) const {
    const auto piece = piece_at(address, bytes);
    return piece == pieces_.end() ? std::span<std::byte>()
                                  : std::span(piece->second.base + (address - piece->first), bytes);
}

std::uint64_t DirectMemory::bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& [address, piece] : pieces_) {
        bytes += piece.bytes;
    }
    return bytes;
}

bool DirectMemory::is_hole(std::uint64_t address, std::uint64_t bytes) const {
    const auto piece = piece_at(address, bytes);
    if (piece == pieces_.end()) {
        return false;
    }
    const std::uint64_t begin = address - piece->first;
    const auto& data = piece->second.data;
    auto next = data.upper_bound(begin);
    if (next != data.end() && next->first < begin + bytes) {
        return false;
    }
    return next == data.begin() || std::prev(next)->second <= begin;
}

}  // namespace gantry::supervisor
