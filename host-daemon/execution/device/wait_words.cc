#include "host-daemon/execution/device/wait_words.h"

#include <sys/mman.h>

#include <cstring>

namespace gantry::worker {
namespace {

constexpr std::size_t kWordBytes = 4096;
/// Away from where a driver takes device addresses: see channel_memory.cc.
void* const kPageHint = reinterpret_cast<void*>(0x6900'0000'0000);

}  // namespace

WaitWords::WaitWords(Device& device) : device_(device) {
    static_assert(kWords * kStepBytes == kWordBytes);
    device_.bind_thread();
    const driver::DriverApi& api = device_.api();
    if (api.cuStreamWriteValue32_v2 == nullptr || api.cuMemHostGetDevicePointer_v2 == nullptr) {
        return;
    }
    void* page =
        mmap(kPageHint, kWordBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        return;
    }
    std::memset(page, 0, kWordBytes);
    constexpr unsigned kFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    if (api.cuMemHostRegister_v2(page, kWordBytes, kFlags) != CUDA_SUCCESS) {
        munmap(page, kWordBytes);
        return;
    }
    page_ = static_cast<std::byte*>(page);
    if (api.cuMemHostGetDevicePointer_v2(&address_, page, 0) != CUDA_SUCCESS) {
        address_ = 0;
    }
}

WaitWords::~WaitWords() {
    if (page_ != nullptr && device_.api().cuMemHostUnregister(page_) == CUDA_SUCCESS) {
        munmap(page_, kWordBytes);  // Else the device may still write it.
    }
}

std::optional<WaitWords::Ticket> WaitWords::queue(CUstream stream) {
    const MutexLock lock(mutex_);
    if (address_ == 0) {
        return std::nullopt;
    }
    for (std::size_t index = 0; index < kWords; ++index) {
        Ticket ticket{index, queued_[index]};
        if (!has_landed(ticket)) {
            continue;
        }
        ++ticket.value;
        const CUresult result = device_.api().cuStreamWriteValue32_v2(
            stream, address_ + index * kStepBytes, ticket.value, CU_STREAM_WRITE_VALUE_DEFAULT);
        if (result != CUDA_SUCCESS) {
            // Of no use on this device; an error of the guest's work is told by what asks next.
            address_ = 0;
            return std::nullopt;
        }
        queued_[index] = ticket.value;
        return ticket;
    }
    return std::nullopt;
}

}  // namespace gantry::worker
