#include "host-daemon/softgpu/image/readable.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace gantry::softgpu::image {
namespace {

constexpr std::size_t kPage = 4096;

int probe_descriptor() {
    static const int descriptor = memfd_create("gantry-probe", MFD_CLOEXEC);
    return descriptor;
}

// By number: a sanitizer's wrapper of pwrite() would look at the byte itself, and fault.
bool page_readable(const void* address) {
    return syscall(SYS_pwrite64, probe_descriptor(), address, std::size_t{1}, off_t{0}) == 1;
}

}  // namespace

std::size_t readable_bytes(const void* address, std::size_t wanted) {
    const auto start = reinterpret_cast<std::uintptr_t>(address);
    if (start + wanted < start) {
        wanted = static_cast<std::size_t>(~start);
    }
    std::uintptr_t at = start;
    const std::uintptr_t end = start + wanted;
    while (at < end) {
        if (!page_readable(reinterpret_cast<const void*>(at))) {
            return at - start;
        }
        at = (at / kPage + 1) * kPage;
    }
    return wanted;
}

std::size_t text_bytes(const char* address, std::size_t limit) {
    std::size_t length = 0;
    while (length < limit) {
        const auto at = reinterpret_cast<std::uintptr_t>(address + length);
        const std::size_t in_page = kPage - at % kPage;
        if (!page_readable(address + length)) {
            return limit;
        }
        for (std::size_t i = 0; i < in_page && length < limit; ++i, ++length) {
            if (address[length] == '\0') {
                return length;
            }
        }
    }
    return limit;
}

}  // namespace gantry::softgpu::image
