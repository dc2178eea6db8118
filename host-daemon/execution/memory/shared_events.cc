#include "host-daemon/execution/memory/shared_events.h"

#include <cstring>

#include "host-daemon/execution/base/log.h"

namespace gantry::worker {

using control::ShareKind;
using control::ShareOp;
using control::ShareRequest;
using control::ShareStatus;
using control::ShareToken;

static_assert(sizeof(CUipcEventHandle_v1) == sizeof(control::ShareWord));

CUresult SharedEvents::offer(std::uint64_t event, CUevent native, Handle* handle) {
    if (device_.api().cuIpcGetEventHandle == nullptr) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    MutexLock lock(mutex_);
    const std::uint64_t connection = link_.connection();
    if (connection == 0) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    Offered& offered = offered_[event];
    note_count();
    CUresult result = CUDA_SUCCESS;
    if (offered.connection != connection) {
        CUipcEventHandle_v1 word{};
        result = device_.api().cuIpcGetEventHandle(&word, native);
        ShareRequest request;
        request.op = ShareOp::kOffer;
        request.kind = ShareKind::kEvent;
        std::memcpy(&request.word, &word, sizeof(word));
        if (result == CUDA_SUCCESS) {
            const auto answer = link_.ask(request);
            if (!answer.ok()) {
                log_limited("events of this process cannot be shared: %s",
                            answer.error().to_string().c_str());
                result = CUDA_ERROR_NOT_SUPPORTED;
            } else if (answer->reply.status != ShareStatus::kDone) {
                result = CUDA_ERROR_OUT_OF_MEMORY;
            } else {
                offered = {answer->reply.token, answer->connection};
            }
        }
    } else {
        link_.tell(ShareOp::kAgain, offered.token);
    }
    if (result != CUDA_SUCCESS) {
        offered_.erase(event);
        note_count();
        return result;
    }
    *handle = {};
    handle->magic = Handle::kMagic;
    handle->kind = static_cast<std::uint32_t>(ShareKind::kEvent);
    handle->token_low = offered.token.low;
    handle->token_high = offered.token.high;
    return CUDA_SUCCESS;
}

CUresult SharedEvents::open(const Handle& handle, std::uint64_t event, CUevent* native) {
    if (handle.magic != Handle::kMagic ||
        handle.kind != static_cast<std::uint32_t>(ShareKind::kEvent)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (device_.api().cuIpcOpenEventHandle == nullptr) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    ShareRequest request;
    request.op = ShareOp::kOpen;
    request.kind = ShareKind::kEvent;
    request.token = {handle.token_low, handle.token_high};
    MutexLock lock(mutex_);
    const auto answer = link_.ask(request);
    if (!answer.ok()) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (answer->reply.status == ShareStatus::kOwn) {
        return CUDA_ERROR_INVALID_CONTEXT;  // As natively: a process has its own event already.
    }
    if (answer->reply.status != ShareStatus::kDone) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUipcEventHandle_v1 word{};
    std::memcpy(&word, &answer->reply.word, sizeof(word));
    const CUresult result = device_.api().cuIpcOpenEventHandle(native, word);
    if (result != CUDA_SUCCESS) {
        link_.tell(ShareOp::kClose, request.token);
        return result;
    }
    opened_[event] = request.token;
    note_count();
    return CUDA_SUCCESS;
}

void SharedEvents::forget(std::uint64_t event) {
    MutexLock lock(mutex_);
    if (const auto offered = offered_.find(event); offered != offered_.end()) {
        link_.withdraw(offered->second.token);
        offered_.erase(offered);
    }
    if (const auto opened = opened_.find(event); opened != opened_.end()) {
        link_.tell(ShareOp::kClose, opened->second);
        opened_.erase(opened);
    }
    note_count();
}

bool SharedEvents::is_shared(std::uint64_t event) {
    if (count_.load(std::memory_order_acquire) == 0) {
        return false;
    }
    MutexLock lock(mutex_);
    return offered_.contains(event) || opened_.contains(event);
}

std::uint64_t SharedEvents::open_count() {
    MutexLock lock(mutex_);
    return opened_.size() + (offered_.empty() ? 0 : link_.open_elsewhere(ShareKind::kEvent));
}

}  // namespace gantry::worker
