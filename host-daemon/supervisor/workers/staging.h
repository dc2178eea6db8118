// Staging: a memfd in equal slots through which blocks pass between gantryd and one worker.
//
// Both map it shared (worker.proto: AttachArena); a slot belongs to one exchange at a time. The
// worker may write to any slot at any moment, so what lies in one is copied or hashed once and
// never trusted to stay. Thread-safe. Cost: a mutex per acquire; acquire() waits while all slots
// are in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "proto/base/mutex.h"
#include "proto/base/result.h"
#include "proto/control/unique_fd.h"

namespace gantry::supervisor {

class Staging;

/// One slot, given back at destruction. Keeps its Staging alive.
class StagingSlot {
public:
    StagingSlot(std::shared_ptr<Staging> staging, std::uint32_t index)
        : staging_(std::move(staging)), index_(index) {}
    StagingSlot(StagingSlot&&) noexcept = default;
    StagingSlot& operator=(StagingSlot&&) = delete;
    ~StagingSlot();

    [[nodiscard]] std::span<std::byte> bytes() const;
    [[nodiscard]] std::uint64_t offset() const;

private:
    std::shared_ptr<Staging> staging_;
    std::uint32_t index_;
};

class Staging : public std::enable_shared_from_this<Staging> {
public:
    static Result<std::shared_ptr<Staging>> create(std::size_t slot_bytes,
                                                   std::uint32_t slot_count);
    ~Staging();
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;

    [[nodiscard]] int fd() const { return fd_.get(); }
    [[nodiscard]] std::uint64_t bytes() const { return slot_bytes_ * slot_count_; }
    [[nodiscard]] std::size_t slot_bytes() const { return slot_bytes_; }
    StagingSlot acquire();

private:
    friend class StagingSlot;
    Staging(control::UniqueFd fd, std::byte* base, std::size_t slot_bytes, std::uint32_t count)
        : fd_(std::move(fd)),
          base_(base),
          slot_bytes_(slot_bytes),
          slot_count_(count),
          free_(count, true) {}
    void give_back(std::uint32_t index);

    control::UniqueFd fd_;
    std::byte* base_;
    std::size_t slot_bytes_;
    std::size_t slot_count_;
    Mutex mutex_;
    CondVar changed_;
    std::vector<bool> free_ GANTRY_GUARDED_BY(mutex_);
};

}  // namespace gantry::supervisor
