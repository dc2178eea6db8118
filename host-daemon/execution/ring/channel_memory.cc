#include "host-daemon/execution/ring/channel_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace gantry::worker {
namespace {

/// Away from where the kernel places mappings without a hint: NVIDIA's driver takes device
/// addresses from there, first fit, and a module's variables must come to lie where they lay in the
/// worker that this one replaces, whose region was mapped at another time.
void* const kRegionHint = reinterpret_cast<void*>(0x6000'0000'0000);

Error os_error(const char* what) {
    return Error{Code::kInternal, "region.map", fmt::format("{}: {}", what, std::strerror(errno))};
}

}  // namespace

Result<control::UniqueFd> ChannelMemory::create_region(std::uint64_t region_bytes) {
    control::UniqueFd file(memfd_create("gantry-region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!file.valid() || ftruncate(file.get(), static_cast<off_t>(region_bytes)) != 0 ||
        fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        return os_error("cannot create the region");
    }
    return file;
}

Result<std::unique_ptr<ChannelMemory>> ChannelMemory::map(control::UniqueFd file,
                                                          const Where& where) {
    wire::ChannelLayout layout{};
    if (!wire::compute_layout(where.region_bytes, where.channel_count, where.channel_index,
                              &layout)) {
        return Error{Code::kInvalidArgument, "region.layout",
                     fmt::format("a region of {} bytes has no channel {} of {}", where.region_bytes,
                                 where.channel_index, where.channel_count)};
    }
    struct stat status {};
    if (fstat(file.get(), &status) != 0) {
        return os_error("cannot read the size of the region");
    }
    // A character or block device (a PCI resource file) reports no size; mmap checks it then.
    if (S_ISREG(status.st_mode) &&
        (where.file_offset > static_cast<std::uint64_t>(status.st_size) ||
         where.region_bytes > static_cast<std::uint64_t>(status.st_size) - where.file_offset)) {
        return Error{Code::kInvalidArgument, "region.size",
                     fmt::format("the region's file has {} bytes, {} at {} were announced",
                                 status.st_size, where.region_bytes, where.file_offset)};
    }
    std::unique_ptr<ChannelMemory> memory(new ChannelMemory(std::move(file), where, layout));
    GANTRY_TRY(memory->map_parts());
    return memory;
}

Result<void> ChannelMemory::map_parts() {
    void* base = mmap(kRegionHint, where_.region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                      file_.get(), static_cast<off_t>(where_.file_offset));
    if (base == MAP_FAILED) {
        return os_error("cannot map the region");
    }
    base_ = static_cast<std::byte*>(base);
    void* const wanted = reinterpret_cast<void*>(wire::kPinnedBase);
    void* pinned =
        mmap(wanted, layout_.pinned_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE,
             file_.get(), static_cast<off_t>(where_.file_offset + layout_.pinned));
    if (pinned == MAP_FAILED) {
        return os_error("cannot map the pinned pool at its address");
    }
    pinned_mapped_ = true;
    return {};
}

ChannelMemory::~ChannelMemory() {
    if (pinned_mapped_) {
        munmap(reinterpret_cast<void*>(wire::kPinnedBase), layout_.pinned_bytes);
    }
    if (base_ != nullptr) {
        munmap(base_, where_.region_bytes);
    }
}

}  // namespace gantry::worker
