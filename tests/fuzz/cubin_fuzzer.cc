// Hostile ELF cubins: read with their size, and without it as cuModuleLoadData does.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "host-daemon/softgpu/image/cubin.h"
#include "host-daemon/softgpu/image/image.h"
#include "proto/base/assert.h"

namespace {

/// The bytes at the end of a page whose neighbour behind cannot be touched.
class EndOfMemory {
public:
    EndOfMemory(const std::uint8_t* data, std::size_t size)
        : bytes_((size / kPage + 2) * kPage),
          base_(static_cast<std::uint8_t*>(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
        GANTRY_ASSERT(base_ != MAP_FAILED, "mmap of %zu bytes", bytes_);
        GANTRY_ASSERT(::mprotect(base_ + bytes_ - kPage, kPage, PROT_NONE) == 0, "mprotect");
        at_ = base_ + bytes_ - kPage - size;
        std::memcpy(at_, data, size);
    }
    ~EndOfMemory() { ::munmap(base_, bytes_); }
    EndOfMemory(const EndOfMemory&) = delete;
    EndOfMemory& operator=(const EndOfMemory&) = delete;
    [[nodiscard]] const std::uint8_t* get() const { return at_; }

private:
    static constexpr std::size_t kPage = 4096;
    std::size_t bytes_;
    std::uint8_t* base_;
    std::uint8_t* at_ = nullptr;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace gantry::softgpu;
    const std::vector<std::uint8_t> exact(data, data + size);
    const auto cubin = image::read_cubin(std::as_bytes(std::span(exact)));
    if (!cubin.ok()) {
        GANTRY_ASSERT(!cubin.error().text.empty(), "a refusal without a text");
    }
    const EndOfMemory placed(data, size);
    if (size >= 4 && std::memcmp(data,
                                 "\x7f"
                                 "ELF",
                                 4) == 0) {
        (void)image::elf_bytes(placed.get());
        (void)image::read_image(placed.get(), 90);
    }
    return 0;
}
