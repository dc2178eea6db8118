// Device: the GPU a worker serves its guest process with, its primary context and its arena.
//
// Invariant: the arena lies at wire::kArenaBase, whatever the driver would have preferred, and
// holds only memory of this device; every range of it that has memory was mapped by map().
// On a card that is full the context is missing at first: what needs no more than the device is
// answered, as natively after cuInit, and make_context() tries again.
// Owner: the worker, for its whole life. Threads: bind_thread() in each thread that calls the
// driver; map(), unmap() and make_context() lock; the rest is immutable after open(). Failure:
// reasons `device.*`.
// Cost: map() is one allocation of the driver, about 0.1 ms on an H200 whatever the size.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host-daemon/driver/driver_library.h"
#include "host-daemon/execution/base/arena_allocator.h"
#include "host-daemon/execution/device/launch_graphs.h"
#include "proto/base/mutex.h"
#include "proto/control/unique_fd.h"
#include "proto/cuda/soft_extension.h"
#include "proto/wire/control_ops.h"

namespace gantry::worker {

/// What the guest is told instead of the truth, so that it stays true after a move.
using DeviceUuid = std::array<std::uint8_t, 16>;

struct DeviceBaseline {
    std::optional<std::uint32_t> compute_capability_major;
    std::optional<std::uint32_t> compute_capability_minor;
    std::map<std::uint32_t, std::int64_t> attributes;
    std::string device_name;
    std::optional<DeviceUuid> uuid;
    std::uint64_t memory_bytes = 0;  ///< Quota and the size the guest sees; 0: the device's.
};

/// A range that map() was asked for and the physical memory in it. Serials count the ranges that
/// one worker has mapped in its life.
struct MemoryPiece {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::uint64_t serial = 0;
};

/// Over pieces in any order: equal when they are the same.
struct MemorySum {
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
    std::uint64_t mixed = 0;
    void add(const MemoryPiece& piece);
    friend bool operator==(const MemorySum&, const MemorySum&) = default;
};

/// No real card has compute capability 13: programs that were told so must stay on soft GPUs.
[[nodiscard]] inline bool is_soft_only(const wire::DeviceFacts& facts) {
    return facts.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] >= 13;
}

/// What becomes of a device whose kernels reach all memory of the process that owns the context.
enum class PageableAccess : bool { kRefused, kAllowed };

/// By HMM or ATS a kernel's load or store of any address of this process works: a guest would have
/// its worker. Reason `gpu.pageable_access`, with what to do. Makes no context.
Result<void> check_pageable_access(const driver::DriverLibrary& library, int ordinal);

class Device final : public GranuleMapper {
public:
    /// Succeeds without a context where the card has no room for one.
    static Result<std::unique_ptr<Device>> open(driver::DriverLibrary& library, int ordinal,
                                                PageableAccess pageable = PageableAccess::kRefused);
    ~Device() override;

    [[nodiscard]] const driver::DriverApi& api() const { return library_.api(); }
    [[nodiscard]] driver::DriverLibrary& library() const { return library_; }
    [[nodiscard]] CUdevice ordinal() const { return device_; }
    [[nodiscard]] CUcontext context() const { return context_.load(std::memory_order_acquire); }
    [[nodiscard]] bool has_context() const { return context() != nullptr; }
    /// Makes the context and the arena if they are missing; the context is current in the calling
    /// thread then. Code kResourceExhausted: the card is full, and may have room later.
    Result<void> make_context();

    /// What the driver can do beyond the public API; null when it serves no such table.
    [[nodiscard]] const GantrySoftExtension* extension() const { return extension_; }
    /// Device addresses are addresses of this process too.
    [[nodiscard]] bool is_host_addressable() const {
        return extension_ != nullptr && (extension_->traits & GANTRY_SOFT_HOST_ADDRESSABLE) != 0;
    }
    /// The driver can honour facts that no real card has, see is_soft_only().
    [[nodiscard]] bool takes_any_profile() const { return extension_ != nullptr; }
    /// Variables of modules come back where they were.
    [[nodiscard]] bool can_place() const { return extension_ != nullptr; }

    /// None of them where the driver makes none. Made with the context.
    [[nodiscard]] LaunchGraphs& launch_graphs() { return *launch_graphs_; }

    /// Makes the primary context current in the calling thread, none where it is missing.
    void bind_thread() const;

    /// The device as it is; the baseline is laid over it by the caller's Facts.
    [[nodiscard]] Result<wire::DeviceFacts> facts(const DeviceBaseline& baseline) const;
    /// The device's own, whatever the guest is told; zeros where the driver has none.
    [[nodiscard]] DeviceUuid uuid() const;
    /// The guest was told this of its device on another host: a driver that can goes by it where it
    /// limits how many blocks are resident. Reason `device.shown`.
    Result<void> show(const wire::DeviceFacts& facts);
    [[nodiscard]] std::uint64_t memory_bytes() const;
    /// nullopt: the driver does not tell.
    [[nodiscard]] std::optional<std::uint64_t> memory_free_bytes() const;
    /// What one more context is taken to need, until one was made here.
    [[nodiscard]] std::uint64_t context_bytes() const;
    [[nodiscard]] std::optional<std::int32_t> attribute(CUdevice_attribute number) const;
    /// As many as the device can have at a time: each has a stack.
    [[nodiscard]] std::uint64_t resident_threads() const;
    /// 90 for 9.0; 0 when the driver does not tell.
    [[nodiscard]] unsigned compute_capability() const;
    /// What gives device functions their addresses, in words: where it is the same, a function's
    /// address means the same.
    [[nodiscard]] std::string function_addresses() const;

    Result<void> map(DeviceVa address, std::uint64_t bytes) override;
    void unmap(DeviceVa address, std::uint64_t bytes) override;
    /// Lets this device reach what is mapped there.
    CUresult allow_access(std::uint64_t address, std::uint64_t bytes,
                          CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) const;
    /// The memory that map() put at this address, for mapping it elsewhere as well.
    [[nodiscard]] std::optional<CUmemGenericAllocationHandle> physical_at(DeviceVa address);

    // ---- memory that changes hands: hand_over.cc, proto/decisions/0002-worker-replacement.md
    struct Exported {
        MemoryPiece piece;
        control::UniqueFd descriptor;
    };
    /// Pieces made after `after_serial`, ascending by serial, at most `count_max`; `more`: there
    /// are others. `handover.not_exportable` when the driver made one that cannot be shared.
    Result<std::vector<Exported>> export_pieces(std::uint64_t after_serial, std::size_t count_max,
                                                bool* more);
    /// The piece that map() put at this address. Reasons `handover.not_exportable`, `.export`.
    Result<control::UniqueFd> export_at(DeviceVa address);
    [[nodiscard]] MemorySum piece_sum() const;
    /// Of the pieces made so far; 0: there were none.
    [[nodiscard]] std::uint64_t last_serial() const;
    /// The driver's handle of another worker's piece. Reasons `handover.not_exportable`, `.import`.
    Result<CUmemGenericAllocationHandle> import_handle(int descriptor, const MemoryPiece& piece);
    /// Keeps another worker's piece, by that worker's serial, until map() comes to its address.
    Result<void> offer(const MemoryPiece& piece, control::UniqueFd descriptor);
    [[nodiscard]] bool is_current(DeviceVa address) const override;
    /// From here on map() takes what was offered and makes no memory of its own.
    void require_offers() { offers_required_ = true; }
    /// As the other worker's piece_sum(), of all that is mapped now.
    [[nodiscard]] MemorySum origin_sum() const;
    /// Lets go what was offered and not mapped; map() makes memory again.
    void end_offers();

private:
    Device(driver::DriverLibrary& library, CUdevice device) : library_(library), device_(device) {}
    Result<void> reserve_arena();
    struct Physical {
        CUmemGenericAllocationHandle handle = 0;
        std::uint64_t bytes = 0;
        std::uint64_t serial = 0;
        std::uint64_t origin = 0;  ///< Imported: the serial at the other worker.
        bool exportable = false;
        control::UniqueFd descriptor;  ///< Imported, where the driver exports no imported memory.
    };
    Result<Physical> create_physical(std::uint64_t bytes);
    Result<Physical> take_offer(DeviceVa address, std::uint64_t bytes) GANTRY_REQUIRES(mutex_);
    Result<control::UniqueFd> export_piece(std::uint64_t address, const Physical& piece);

    driver::DriverLibrary& library_;
    CUdevice device_;
    Mutex making_mutex_;                       ///< Held while the context is made.
    std::atomic<CUcontext> context_{nullptr};  ///< Set when all that is made with it is there.
    const GantrySoftExtension* extension_ = nullptr;
    std::unique_ptr<LaunchGraphs> launch_graphs_;
    bool arena_reserved_ = false;
    bool exportable_ = true;  ///< Physical memory gets a file descriptor type; off if refused once.
    mutable Mutex mutex_;
    std::uint64_t next_serial_ GANTRY_GUARDED_BY(mutex_) = 1;
    std::map<std::uint64_t, Physical> physical_ GANTRY_GUARDED_BY(mutex_);  ///< By mapped address.
    /// Imported, not mapped yet.
    std::map<std::uint64_t, Physical> offers_ GANTRY_GUARDED_BY(mutex_);
    std::atomic<bool> offers_required_{false};
};

/// While it lives, the primary context is current in the calling thread: what is page-locked then
/// stays so when a context of the program's own ends.
class PrimaryContext {
public:
    explicit PrimaryContext(const Device& device) : device_(device) {
        device_.api().cuCtxPushCurrent_v2(device_.context());
    }
    ~PrimaryContext() {
        CUcontext primary = nullptr;
        device_.api().cuCtxPopCurrent_v2(&primary);
    }
    PrimaryContext(const PrimaryContext&) = delete;
    PrimaryContext& operator=(const PrimaryContext&) = delete;

private:
    const Device& device_;
};

}  // namespace gantry::worker
