#include "host-daemon/supervisor/workers/staging.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace gantry::supervisor {

StagingSlot::~StagingSlot() {
    if (staging_) {
        staging_->give_back(index_);
    }
}

std::span<std::byte> StagingSlot::bytes() const {
    return {staging_->base_ + offset(), staging_->slot_bytes_};
}

std::uint64_t StagingSlot::offset() const {
    return static_cast<std::uint64_t>(index_) * staging_->slot_bytes_;
}

Result<std::shared_ptr<Staging>> Staging::create(std::size_t slot_bytes, std::uint32_t slot_count) {
    const std::size_t bytes = slot_bytes * slot_count;
    control::UniqueFd fd{::memfd_create("gantry-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    // Sealed against shrinking: else a worker could cut it under our mapping.
    if (!fd.valid() || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
        ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        return Error{Code::kResourceExhausted, "staging.create",
                     std::string("cannot make a staging area: ") + std::strerror(errno)};
    }
    void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (base == MAP_FAILED) {
        return Error{Code::kResourceExhausted, "staging.create",
                     std::string("cannot map a staging area: ") + std::strerror(errno)};
    }
    return std::shared_ptr<Staging>(
        new Staging(std::move(fd), static_cast<std::byte*>(base), slot_bytes, slot_count));
}

Staging::~Staging() { ::munmap(base_, bytes()); }

StagingSlot Staging::acquire() {
    MutexLock lock(mutex_);
    for (;;) {
        const auto found = std::find(free_.begin(), free_.end(), true);
        if (found != free_.end()) {
            *found = false;
            return StagingSlot{shared_from_this(),
                               static_cast<std::uint32_t>(found - free_.begin())};
        }
        changed_.wait(lock);
    }
}

void Staging::give_back(std::uint32_t index) {
    const MutexLock lock(mutex_);
    free_[index] = true;
    changed_.notify_one();
}

}  // namespace gantry::supervisor
