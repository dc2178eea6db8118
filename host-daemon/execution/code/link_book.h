// LinkBook: the guest's cuLink states, with what was put into them, so that one under way can be
// made again in another worker.
//
// The driver writes logs into buffers that live as long as its link state; they are the link's own.
// Threads: the book locks; one link is used by one call at a time (its own mutex).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "host-daemon/execution/code/image_store.h"
#include "host-daemon/execution/code/jit_options.h"
#include "host-daemon/execution/device/device.h"
#include "proto/base/mutex.h"

namespace gantry::worker {

class Link {
public:
    using Option = cuda::wire_hand::ImageOption;
    struct Input {
        std::uint32_t type = 0;  ///< CUjitInputType.
        std::string name;
        std::vector<Option> options;
        ImagePtr image;
        std::uint64_t bytes = 0;  ///< Of the image, which may be padded.
    };

    Link(Device& device, std::vector<Option> options, std::uint32_t info_log_bytes,
         std::uint32_t error_log_bytes);
    ~Link();
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    CUresult create() GANTRY_REQUIRES(mutex);
    /// CUDA_ERROR_INVALID_IMAGE, and the reason in the log, when no driver may have it
    /// (image_check.h).
    CUresult add(Input input) GANTRY_REQUIRES(mutex);
    /// Once; afterwards cubin() has the result.
    CUresult complete() GANTRY_REQUIRES(mutex);

    [[nodiscard]] CUlinkState state() const GANTRY_REQUIRES(mutex) { return state_; }
    [[nodiscard]] const std::vector<std::byte>& cubin() const GANTRY_REQUIRES(mutex) {
        return cubin_;
    }
    [[nodiscard]] const std::vector<Option>& options() const { return given_; }
    [[nodiscard]] const std::vector<Input>& inputs() const GANTRY_REQUIRES(mutex) {
        return inputs_;
    }
    [[nodiscard]] const JitOptions& jit() const GANTRY_REQUIRES(mutex) { return jit_; }
    [[nodiscard]] std::uint32_t info_log_bytes() const { return info_log_bytes_; }
    [[nodiscard]] std::uint32_t error_log_bytes() const { return error_log_bytes_; }
    /// The driver has destroyed it.
    void forget_state() GANTRY_REQUIRES(mutex) { state_ = nullptr; }

    mutable Mutex mutex;

private:
    Device& device_;
    std::vector<Option> given_;
    std::uint32_t info_log_bytes_;
    std::uint32_t error_log_bytes_;
    JitOptions jit_ GANTRY_GUARDED_BY(mutex);  ///< The driver writes its logs.
    CUlinkState state_ GANTRY_GUARDED_BY(mutex) = nullptr;
    std::vector<Input> inputs_ GANTRY_GUARDED_BY(mutex);
    std::vector<std::byte> cubin_ GANTRY_GUARDED_BY(mutex);
};

using LinkPtr = std::shared_ptr<Link>;

class LinkBook {
public:
    void add(std::uint64_t handle, LinkPtr link);
    [[nodiscard]] LinkPtr find(std::uint64_t handle) const;
    /// The driver's state is gone.
    void remove(std::uint64_t handle);
    [[nodiscard]] std::map<std::uint64_t, LinkPtr> list() const;

private:
    mutable Mutex mutex_;
    std::map<std::uint64_t, LinkPtr> links_ GANTRY_GUARDED_BY(mutex_);
};

}  // namespace gantry::worker
