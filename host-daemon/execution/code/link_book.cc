#include "host-daemon/execution/code/link_book.h"

#include "host-daemon/execution/base/log.h"
#include "host-daemon/execution/code/image_check.h"

namespace gantry::worker {
namespace {

/// NULs behind an input.
constexpr std::size_t kTextEndBytes = 8;

}  // namespace

Link::Link(Device& device, std::vector<Option> options, std::uint32_t info_log_bytes,
           std::uint32_t error_log_bytes)
    : device_(device),
      given_(std::move(options)),
      info_log_bytes_(info_log_bytes),
      error_log_bytes_(error_log_bytes),
      jit_(given_, info_log_bytes, error_log_bytes) {}

Link::~Link() {
    if (state_ != nullptr) {
        device_.bind_thread();
        device_.api().cuLinkDestroy(state_);
    }
}

CUresult Link::create() {
    return device_.api().cuLinkCreate_v2(jit_.count(), jit_.names(), jit_.values(), &state_);
}

CUresult Link::add(Input input) {
    const std::vector<std::byte>& all = input.image->bytes;
    if (input.bytes > all.size()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::span<const std::byte> bytes(all.data(), input.bytes);
    if (const auto checked = check_link_input(bytes, input.type, device_.compute_capability());
        !checked.ok()) {
        log_limited("a linker's input of %zu bytes is kept from the driver: %s", bytes.size(),
                    checked.error().to_string().c_str());
        return CUDA_ERROR_INVALID_IMAGE;
    }
    // A driver may read text to its end, and whether its size counts that is up to the program.
    std::vector<std::byte> ended(bytes.begin(), bytes.end());
    ended.resize(bytes.size() + kTextEndBytes);
    JitOptions extra(input.options, 0, 0);
    const CUresult result = device_.api().cuLinkAddData_v2(
        state_, static_cast<CUjitInputType>(input.type), ended.data(), bytes.size(),
        input.name.empty() ? nullptr : input.name.c_str(), extra.count(), extra.names(),
        extra.values());
    if (result == CUDA_SUCCESS) {
        inputs_.push_back(std::move(input));
    }
    return result;
}

CUresult Link::complete() {
    if (!cubin_.empty()) {
        return CUDA_SUCCESS;
    }
    void* cubin = nullptr;
    std::size_t bytes = 0;
    const CUresult result = device_.api().cuLinkComplete(state_, &cubin, &bytes);
    if (result == CUDA_SUCCESS) {
        const auto* from = static_cast<const std::byte*>(cubin);
        cubin_.assign(from, from + bytes);
    }
    return result;
}

void LinkBook::add(std::uint64_t handle, LinkPtr link) {
    MutexLock lock(mutex_);
    links_[handle] = std::move(link);
}

LinkPtr LinkBook::find(std::uint64_t handle) const {
    MutexLock lock(mutex_);
    const auto link = links_.find(handle);
    return link == links_.end() ? nullptr : link->second;
}

void LinkBook::remove(std::uint64_t handle) {
    LinkPtr link;
    {
        const MutexLock lock(mutex_);
        const auto found = links_.find(handle);
        if (found == links_.end()) {
            return;
        }
        link = std::move(found->second);
        links_.erase(found);
    }
    const MutexLock lock(link->mutex);
    link->forget_state();
}

std::map<std::uint64_t, LinkPtr> LinkBook::list() const {
    MutexLock lock(mutex_);
    return links_;
}

}  // namespace gantry::worker
