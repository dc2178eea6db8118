// PeerWindow: another worker's device memory, mapped beside this worker's own arena.
//
// The other worker goes on using its memory; its device may be another one of this host, which this
// device then reads over NVLink or PCIe (proto/decisions/0002-worker-replacement.md). A byte that
// lies at address A for the other worker lies at A - wire::kArenaBase + base here, so neighbours
// there are neighbours here and one copy may span many pieces.
//
// Invariant: a piece stays alive, for both, until close(). A piece that comes for addresses which
// others have takes their place: those are gone at the other worker.
// Threads: the worker's control thread, with the context bound; nothing copies from the window
// while it changes. Failure: reasons `handover.not_exportable`, `.import` and `.window`. Cost: a
// handle and a mapping of the driver for each piece; no memory of this device.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "host-daemon/execution/device/device.h"

namespace gantry::worker {

class PeerWindow {
public:
    explicit PeerWindow(Device& device) : device_(device) {}
    ~PeerWindow() { close(); }
    PeerWindow(const PeerWindow&) = delete;
    PeerWindow& operator=(const PeerWindow&) = delete;

    Result<void> add(const MemoryPiece& piece, control::UniqueFd descriptor);
    /// Unmaps all of it and lets the addresses go.
    void close();

    struct Span {
        std::uint64_t address = 0;  ///< As the other worker has it.
        std::uint64_t bytes = 0;
    };
    /// What is mapped, ascending; neighbours are one.
    [[nodiscard]] std::vector<Span> spans() const;
    /// Where a byte of the other worker's arena lies here.
    [[nodiscard]] CUdeviceptr here(std::uint64_t address) const;

private:
    struct Mapped {
        CUmemGenericAllocationHandle handle = 0;
        std::uint64_t bytes = 0;
    };
    Result<void> reserve();
    Result<void> map(std::uint64_t address, const Mapped& piece);
    void remove_overlapping(std::uint64_t address, std::uint64_t bytes);
    void let_go(std::uint64_t address, const Mapped& piece);

    Device& device_;
    CUdeviceptr base_ = 0;                    ///< 0: nothing is reserved.
    std::map<std::uint64_t, Mapped> pieces_;  ///< By the other worker's address.
};

}  // namespace gantry::worker
