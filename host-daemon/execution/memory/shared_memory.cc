#include "host-daemon/execution/memory/shared_memory.h"

#include <algorithm>
#include <cstring>

#include "host-daemon/execution/base/log.h"

namespace gantry::worker {

using control::ShareKind;
using control::ShareOp;
using control::ShareRequest;
using control::ShareStatus;
using control::ShareToken;

namespace {

constexpr std::uint64_t kShareGranule = ArenaAllocator::kGranuleBytes;

}  // namespace

CUresult SharedMemory::offer(std::uint64_t address, Handle* handle) {
    MutexLock lock(mutex_);
    const auto allocation = memory_.find(DeviceVa{address});
    if (!allocation || !memory_.is_live(allocation->address)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::uint64_t connection = link_.connection();
    if (connection == 0) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    const std::uint64_t base = allocation->address.value;
    auto known = offered_.find(base);
    if (known != offered_.end() && known->second.connection != connection) {
        offered_.erase(known);
        known = offered_.end();
    }
    if (known == offered_.end()) {
        const auto extents = memory_.extents_in(base, 1);
        if (extents.empty()) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        const auto piece = device_.export_at(extents.front().address);
        ShareRequest request;
        request.op = ShareOp::kOffer;
        request.kind = ShareKind::kDeviceMemory;
        request.bytes = extents.front().bytes;
        const auto answer =
            piece.ok() ? link_.ask(request, piece->get()) : Result<Answer>(piece.error());
        if (!answer.ok()) {
            log_limited("memory of this process cannot be shared: %s",
                        answer.error().to_string().c_str());
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        if (answer->reply.status != ShareStatus::kDone) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        known = offered_
                    .emplace(base, Offered{answer->reply.token, answer->connection,
                                           base - extents.front().address.value, allocation->bytes})
                    .first;
        offer_count_ = offered_.size();
        // Freed meanwhile: whoever freed it may not have seen the offer.
        if (!memory_.is_live(DeviceVa{base})) {
            withdraw_locked(base);
            return CUDA_ERROR_INVALID_VALUE;
        }
    } else {
        link_.tell(ShareOp::kAgain, known->second.token);
    }
    *handle = {};
    handle->magic = Handle::kMagic;
    handle->kind = static_cast<std::uint32_t>(ShareKind::kDeviceMemory);
    handle->token_low = known->second.token.low;
    handle->token_high = known->second.token.high;
    handle->offset = known->second.offset;
    handle->bytes = known->second.bytes;
    return CUDA_SUCCESS;
}

void SharedMemory::withdraw(std::uint64_t address) {
    MutexLock lock(mutex_);
    withdraw_locked(address);
}

void SharedMemory::withdraw_locked(std::uint64_t address) {
    const auto known = offered_.find(address);
    if (known != offered_.end()) {
        link_.withdraw(known->second.token);
        offered_.erase(known);
        offer_count_ = offered_.size();
    }
}

CUresult SharedMemory::map(const Answer& piece, Opened* opened) {
    const std::uint64_t bytes = piece.reply.bytes;
    opened->charge = memory_.share().charge(bytes);
    if (opened->charge == nullptr) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    opened->bytes = bytes;
    const auto imported = device_.import_handle(piece.descriptor.get(), {0, bytes, 0});
    const auto base =
        imported.ok() ? memory_.reserve(bytes, kShareGranule) : Result<DeviceVa>(imported.error());
    if (!base.ok()) {
        log_limited("opening another process's memory: %s", base.error().to_string().c_str());
        if (imported.ok()) {
            device_.api().cuMemRelease(*imported);
        }
        return CUDA_ERROR_INVALID_VALUE;
    }
    opened->base = base->value;
    opened->handle = *imported;
    CUresult result = device_.api().cuMemMap(opened->base, bytes, 0, opened->handle, 0);
    if (result == CUDA_SUCCESS) {
        result = device_.allow_access(opened->base, bytes);
    }
    if (result != CUDA_SUCCESS) {
        unmap(*opened);
    }
    return result;
}

void SharedMemory::unmap(const Opened& opened) {
    device_.api().cuMemUnmap(opened.base, opened.bytes);
    device_.api().cuMemRelease(opened.handle);
    memory_.release_reservation(DeviceVa{opened.base}, opened.bytes);
}

CUresult SharedMemory::open(const Handle& handle, std::uint64_t* address) {
    const ShareToken token{handle.token_low, handle.token_high};
    if (handle.magic != Handle::kMagic || handle.bytes == 0 ||
        handle.kind != static_cast<std::uint32_t>(ShareKind::kDeviceMemory)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    MutexLock lock(mutex_);
    if (link_.connection() == 0) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    for (auto& [start, opened] : opened_) {
        if (opened.token == token) {
            ++opened.uses;
            *address = start;
            return CUDA_SUCCESS;
        }
    }
    ShareRequest request;
    request.op = ShareOp::kOpen;
    request.kind = ShareKind::kDeviceMemory;
    request.token = token;
    const auto answer = link_.ask(request);
    if (!answer.ok()) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (answer->reply.status == ShareStatus::kOwn) {
        return CUDA_ERROR_INVALID_CONTEXT;  // As natively: a process has its own memory already.
    }
    if (answer->reply.status != ShareStatus::kDone) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::uint64_t bytes = answer->reply.bytes;
    Opened opened;
    opened.token = token;
    opened.uses = 1;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (answer->descriptor.valid() && bytes % kShareGranule == 0 && handle.offset < bytes &&
        handle.bytes <= bytes - handle.offset) {
        result = map(*answer, &opened);
    }
    if (result != CUDA_SUCCESS) {
        link_.tell(ShareOp::kClose, token);
        return result;
    }
    *address = opened.base + handle.offset;
    memory_.add_window(*address, handle.bytes);
    opened_.emplace(*address, opened);
    return CUDA_SUCCESS;
}

CUresult SharedMemory::close(std::uint64_t address, bool* is_last) {
    MutexLock lock(mutex_);
    const auto opened = opened_.find(address);
    if (opened == opened_.end()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *is_last = --opened->second.uses == 0;
    if (*is_last) {
        memory_.remove_window(address);
        unmap(opened->second);
        link_.tell(ShareOp::kClose, opened->second.token);
        opened_.erase(opened);
    }
    return CUDA_SUCCESS;
}

void SharedMemory::close_all() {
    MutexLock lock(mutex_);
    if (!opened_.empty()) {
        device_.bind_thread();
    }
    for (const auto& [address, opened] : opened_) {
        memory_.remove_window(address);
        unmap(opened);
        link_.tell(ShareOp::kClose, opened.token);
    }
    opened_.clear();
    for (const auto& [address, offered] : offered_) {
        link_.tell(ShareOp::kWithdraw, offered.token);
    }
    offered_.clear();
    offer_count_ = 0;
}

std::uint64_t SharedMemory::open_count() {
    MutexLock lock(mutex_);
    return opened_.size() + (offered_.empty() ? 0 : link_.open_elsewhere(ShareKind::kDeviceMemory));
}

}  // namespace gantry::worker
