// Physical memory for the virtual memory management calls: bytes without an address.
//
// Exportable memory is a memory file of its own, whose descriptor is what other processes get;
// other memory is a piece of one shared file, so that thousands of small pieces cost no
// descriptors. A mapping keeps its memory alive after the handle is released, and so does a
// descriptor, a handle or a mapping in any other process. Imported memory counts against the
// device's quota as made memory does, but once however often this process holds it.
#pragma once

#include <cstdint>
#include <memory>

#include "host-daemon/softgpu/core/device.h"
#include "host-daemon/softgpu/core/objects.h"
#include "proto/cuda/abi.h"

namespace gantry::softgpu {

class PhysicalMemory : public Object {
public:
    static constexpr ObjectKind kKind = ObjectKind::kPhysicalMemory;
    ~PhysicalMemory() override;

    static CUresult create(Device& device, std::uint64_t bytes, const CUmemAllocationProp& prop,
                           std::shared_ptr<PhysicalMemory>& memory);
    /// Takes over memory that another process exported; keeps its own copy of the descriptor.
    /// CUDA_ERROR_INVALID_VALUE for a descriptor of anything else.
    static CUresult import(Device& device, int descriptor, std::shared_ptr<PhysicalMemory>& memory);

    /// Maps [offset, offset + bytes) at the address, without access. False when it fails.
    [[nodiscard]] bool map_at(std::uint64_t address, std::uint64_t bytes,
                              std::uint64_t offset) const;

    /// A new descriptor of its file, or -1. Only for exportable memory.
    [[nodiscard]] int export_descriptor() const;

    Device& device;
    const std::uint64_t bytes;
    const CUmemAllocationProp prop;
    int descriptor = -1;  ///< The own file, or -1 for a piece of the shared one.
    std::uint64_t offset = 0;
    std::atomic<int> handles{1};  ///< cuMemRetainAllocationHandle counts up, cuMemRelease down.

private:
    PhysicalMemory(Device& device_in, std::uint64_t bytes_in, const CUmemAllocationProp& prop_in)
        : Object(kKind), device(device_in), bytes(bytes_in), prop(prop_in) {}
    /// Owns the file from here on, also when it fails.
    CUresult take_file(int file);

    bool charged_ = false;
    bool has_piece_ = false;
};

}  // namespace gantry::softgpu
