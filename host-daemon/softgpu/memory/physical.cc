#include "host-daemon/softgpu/memory/physical.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>

#include "host-daemon/softgpu/memory/range_allocator.h"

namespace gantry::softgpu {
namespace {

constexpr std::uint64_t kFileBytes = std::uint64_t{16} << 40;
constexpr std::uint64_t kGranule = std::uint64_t{2} << 20;

struct SharedFile {
    std::mutex mutex;
    int descriptor = -1;
    RangeAllocator space{0, kFileBytes};
};

SharedFile& shared_file() {
    static auto* file = new SharedFile;
    return *file;
}

/// Calls `open`; when the soft limit on descriptors is reached, lifts it and calls again.
template <typename Open>
int with_descriptors(Open open) {
    int descriptor = open();
    if (descriptor < 0 && errno == EMFILE) {
        rlimit limit{};
        getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
        descriptor = open();
    }
    return descriptor;
}

int make_file(std::uint64_t bytes) {
    const int descriptor =
        with_descriptors([] { return memfd_create("gantry-soft-phys", MFD_CLOEXEC); });
    if (descriptor >= 0 && ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
        close(descriptor);
        return -1;
    }
    return descriptor;
}

bool take_piece(std::uint64_t bytes, std::uint64_t& offset) {
    SharedFile& file = shared_file();
    const std::lock_guard lock(file.mutex);
    if (file.descriptor < 0 && (file.descriptor = make_file(kFileBytes)) < 0) {
        return false;
    }
    const auto got = file.space.allocate(bytes, kGranule);
    offset = got.value_or(0);
    return got.has_value();
}

}  // namespace

CUresult PhysicalMemory::create(Device& device, std::uint64_t bytes,
                                const CUmemAllocationProp& prop,
                                std::shared_ptr<PhysicalMemory>& memory) {
    if (!device.charge(bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    std::shared_ptr<PhysicalMemory> made(new PhysicalMemory(device, bytes, prop));
    made->charged_ = true;
    const bool exportable = prop.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE;
    if (exportable) {
        made->descriptor = make_file(bytes);
    }
    if (exportable ? made->descriptor < 0 : !take_piece(bytes, made->offset)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory = std::move(made);
    return CUDA_SUCCESS;
}

CUresult PhysicalMemory::import(Device& device, int descriptor,
                                std::shared_ptr<PhysicalMemory>& memory) {
    struct stat status {};
    if (fstat(descriptor, &status) != 0 || status.st_size <= 0 ||
        static_cast<std::uint64_t>(status.st_size) % kGranule != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const int own =
        with_descriptors([descriptor] { return fcntl(descriptor, F_DUPFD_CLOEXEC, 0); });
    if (own < 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device.ordinal};
    memory.reset(new PhysicalMemory(device, static_cast<std::uint64_t>(status.st_size), prop));
    memory->descriptor = own;
    return CUDA_SUCCESS;
}

int PhysicalMemory::export_descriptor() const {
    return with_descriptors([this] { return fcntl(descriptor, F_DUPFD_CLOEXEC, 0); });
}

PhysicalMemory::~PhysicalMemory() {
    if (descriptor >= 0) {
        close(descriptor);
    } else if (charged_ && prop.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE) {
        SharedFile& file = shared_file();
        const std::lock_guard lock(file.mutex);
        fallocate(file.descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(offset), static_cast<off_t>(bytes));
        file.space.free(offset, bytes);
    }
    if (charged_) {
        device.refund(bytes);
    }
}

bool PhysicalMemory::map_at(std::uint64_t address, std::uint64_t map_bytes,
                            std::uint64_t map_offset) const {
    const int file = descriptor >= 0 ? descriptor : shared_file().descriptor;
    void* got = mmap(reinterpret_cast<void*>(address), map_bytes, PROT_NONE,
                     MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file,
                     static_cast<off_t>((descriptor >= 0 ? 0 : offset) + map_offset));
    if (got == MAP_FAILED) {
        return false;
    }
    madvise(got, map_bytes, MADV_DONTFORK);
    return true;
}

}  // namespace gantry::softgpu
