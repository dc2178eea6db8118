#include "host-daemon/execution/device/peer_window.h"

#include <fmt/format.h>

namespace gantry::worker {
namespace {

// Away from the arena and from where drivers place what they allocate for themselves, which has to
// lie where the other worker's does. A driver that places it elsewhere is as good.
#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kWindowHint = 0x70'0000'0000;
constexpr std::uint64_t kWindowBytes = std::uint64_t{32} << 30;
#else
constexpr std::uint64_t kWindowHint = 0x4000'0000'0000;
constexpr std::uint64_t kWindowBytes = wire::kArenaBytes;
#endif

}  // namespace

Result<void> PeerWindow::reserve() {
    if (base_ != 0) {
        return {};
    }
    const CUresult result = device_.api().cuMemAddressReserve(
        &base_, kWindowBytes, ArenaAllocator::kGranuleBytes, kWindowHint, 0);
    if (result != CUDA_SUCCESS) {
        base_ = 0;
        return driver::to_error(device_.api(), result, "handover.window",
                                fmt::format("reserving {:#x} bytes of addresses", kWindowBytes));
    }
    return {};
}

Result<void> PeerWindow::add(const MemoryPiece& piece, control::UniqueFd descriptor) {
    const std::uint64_t offset = piece.address - wire::kArenaBase;
    if (piece.address < wire::kArenaBase || offset >= kWindowBytes ||
        piece.bytes > kWindowBytes - offset || piece.bytes == 0 ||
        piece.bytes % ArenaAllocator::kGranuleBytes != 0 ||
        piece.address % ArenaAllocator::kGranuleBytes != 0) {
        return Error{Code::kInvalidArgument, "handover.window",
                     fmt::format("a piece of {:#x} bytes at {:#x} does not fit the window",
                                 piece.bytes, piece.address)};
    }
    GANTRY_TRY(reserve());
    GANTRY_ASSIGN(const CUmemGenericAllocationHandle handle,
                  device_.import_handle(descriptor.get(), piece));
    remove_overlapping(piece.address, piece.bytes);
    const Mapped mapped{handle, piece.bytes};
    GANTRY_TRY(map(piece.address, mapped));
    pieces_.emplace(piece.address, mapped);
    return {};
}

Result<void> PeerWindow::map(std::uint64_t address, const Mapped& piece) {
    const driver::DriverApi& api = device_.api();
    CUresult result = api.cuMemMap(here(address), piece.bytes, 0, piece.handle, 0);
    if (result != CUDA_SUCCESS) {
        api.cuMemRelease(piece.handle);
        return driver::to_error(api, result, "handover.window",
                                fmt::format("mapping {} bytes of another worker", piece.bytes));
    }
    // CUDA grants a device reading and writing, or nothing. What this worker never does is write.
    result = device_.allow_access(here(address), piece.bytes);
    if (result != CUDA_SUCCESS) {
        let_go(address, piece);
        return driver::to_error(
            api, result, "handover.window",
            fmt::format("reaching {} bytes of another worker from this device", piece.bytes));
    }
    return {};
}

void PeerWindow::let_go(std::uint64_t address, const Mapped& piece) {
    device_.api().cuMemUnmap(here(address), piece.bytes);
    device_.api().cuMemRelease(piece.handle);
}

void PeerWindow::remove_overlapping(std::uint64_t address, std::uint64_t bytes) {
    auto piece = pieces_.lower_bound(address);
    if (piece != pieces_.begin()) {
        if (const auto before = std::prev(piece); before->first + before->second.bytes > address) {
            piece = before;
        }
    }
    while (piece != pieces_.end() && piece->first < address + bytes) {
        let_go(piece->first, piece->second);
        piece = pieces_.erase(piece);
    }
}

void PeerWindow::close() {
    if (base_ == 0) {
        return;
    }
    device_.bind_thread();
    for (const auto& [address, piece] : pieces_) {
        let_go(address, piece);
    }
    pieces_.clear();
    device_.api().cuMemAddressFree(base_, kWindowBytes);
    base_ = 0;
}

std::vector<PeerWindow::Span> PeerWindow::spans() const {
    std::vector<Span> spans;
    for (const auto& [address, piece] : pieces_) {
        if (!spans.empty() && spans.back().address + spans.back().bytes == address) {
            spans.back().bytes += piece.bytes;
        } else {
            spans.push_back({address, piece.bytes});
        }
    }
    return spans;
}

CUdeviceptr PeerWindow::here(std::uint64_t address) const {
    return base_ + (address - wire::kArenaBase);
}

}  // namespace gantry::worker
