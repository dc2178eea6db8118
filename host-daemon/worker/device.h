// Device: the GPU a worker serves its guest process with, its primary context and its arena.
//
// Invariant: the arena lies at wire::kArenaBase, whatever the driver would have preferred, and
// holds only memory of this device; every range of it that has memory was mapped by map().
// Owner: the worker, for its whole life. Threads: bind_thread() in each thread that calls the
// driver; map() and unmap() lock; the rest is immutable after open(). Failure: reasons `device.*`.
// Cost: map() is one allocation of the driver, about 0.1 ms on an H200 whatever the size.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "host-daemon/driver/driver_library.h"
#include "host-daemon/worker/arena_allocator.h"
#include "proto/cuda/soft_extension.h"
#include "proto/wire/control_ops.h"

namespace gantry::worker {

/// What the guest is told instead of the truth, so that it stays true after a move.
struct DeviceBaseline {
    std::optional<std::uint32_t> compute_capability_major;
    std::optional<std::uint32_t> compute_capability_minor;
    std::map<std::uint32_t, std::int64_t> attributes;
    std::string device_name;
    std::uint64_t memory_bytes = 0;  ///< Quota and the size the guest sees; 0: the device's.
};

class Device final : public GranuleMapper {
public:
    static Result<std::unique_ptr<Device>> open(driver::DriverLibrary& library, int ordinal);
    ~Device() override;

    [[nodiscard]] const driver::DriverApi& api() const { return library_.api(); }
    [[nodiscard]] driver::DriverLibrary& library() const { return library_; }
    [[nodiscard]] CUdevice ordinal() const { return device_; }
    [[nodiscard]] CUcontext context() const { return context_; }

    /// What the driver can do beyond the public API; null when it serves no such table.
    [[nodiscard]] const GantrySoftExtension* extension() const { return extension_; }
    /// Device addresses are addresses of this process too.
    [[nodiscard]] bool is_host_addressable() const {
        return extension_ != nullptr && (extension_->traits & GANTRY_SOFT_HOST_ADDRESSABLE) != 0;
    }
    /// Variables of modules come back where they were.
    [[nodiscard]] bool can_place() const { return extension_ != nullptr; }

    /// Makes the primary context current in the calling thread.
    void bind_thread() const;

    /// The device as it is; the baseline is laid over it by the caller's Facts.
    [[nodiscard]] Result<wire::DeviceFacts> facts(const DeviceBaseline& baseline) const;
    [[nodiscard]] std::uint64_t memory_bytes() const;
    [[nodiscard]] std::uint64_t memory_free_bytes() const;
    [[nodiscard]] std::optional<std::int32_t> attribute(CUdevice_attribute number) const;

    Result<void> map(DeviceVa address, std::uint64_t bytes) override;
    void unmap(DeviceVa address, std::uint64_t bytes) override;
    /// The memory that map() put at this address, for mapping it elsewhere as well.
    [[nodiscard]] std::optional<CUmemGenericAllocationHandle> physical_at(DeviceVa address);

private:
    Device(driver::DriverLibrary& library, CUdevice device) : library_(library), device_(device) {}
    Result<void> reserve_arena();
    Result<CUmemGenericAllocationHandle> create_physical(std::uint64_t bytes);

    driver::DriverLibrary& library_;
    CUdevice device_;
    CUcontext context_ = nullptr;
    const GantrySoftExtension* extension_ = nullptr;
    bool arena_reserved_ = false;
    bool exportable_ = true;  ///< Physical memory gets a file descriptor type; off if refused once.
    std::mutex mutex_;
    struct Physical {
        CUmemGenericAllocationHandle handle = 0;
        std::uint64_t bytes = 0;
    };
    std::map<std::uint64_t, Physical> physical_;  ///< By mapped address.
};

}  // namespace gantry::worker
