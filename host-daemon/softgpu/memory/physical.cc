#include "host-daemon/softgpu/memory/physical.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <utility>

#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/range_allocator.h"

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

/// What marks a file as memory of a soft GPU: nobody can cut it short under a mapping, or grow it.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

int make_file(std::uint64_t bytes) {
    const int descriptor = with_descriptors(
        [] { return memfd_create("gantry-soft-phys", MFD_CLOEXEC | MFD_ALLOW_SEALING); });
    if (descriptor >= 0 && (ftruncate(descriptor, static_cast<off_t>(bytes)) != 0 ||
                            fcntl(descriptor, F_ADD_SEALS, kSeals) != 0)) {
        close(descriptor);
        return -1;
    }
    return descriptor;
}

/// Exportable memory that this process holds, by file: the same memory may be imported where it was
/// made, or twice, and counts once as long as any of these is left.
struct HeldFiles {
    using Id = std::pair<dev_t, ino_t>;
    std::mutex mutex;
    std::map<Id, unsigned> holders;
};

HeldFiles& held_files() {
    static auto* files = new HeldFiles;
    return *files;
}

HeldFiles::Id id_of(int descriptor) {
    struct stat status {};
    fstat(descriptor, &status);
    return {status.st_dev, status.st_ino};
}

/// False when the memory is new to this process and its device has not as much left.
bool hold_file(Device& device, int descriptor, std::uint64_t bytes) {
    HeldFiles& files = held_files();
    const std::lock_guard lock(files.mutex);
    const HeldFiles::Id id = id_of(descriptor);
    if (const auto held = files.holders.find(id); held != files.holders.end()) {
        ++held->second;
        return true;
    }
    return device.charge(bytes) && files.holders.emplace(id, 1).second;
}

void let_file_go(Device& device, int descriptor, std::uint64_t bytes) {
    HeldFiles& files = held_files();
    const std::lock_guard lock(files.mutex);
    const auto held = files.holders.find(id_of(descriptor));
    if (held != files.holders.end() && --held->second == 0) {
        files.holders.erase(held);
        device.refund(bytes);
    }
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
    std::shared_ptr<PhysicalMemory> made(new PhysicalMemory(device, bytes, prop));
    if (prop.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE) {
        GANTRY_CU(made->take_file(make_file(bytes)));
    } else {
        GANTRY_REFUSE_IF(!device.charge(bytes), CUDA_ERROR_OUT_OF_MEMORY);
        made->charged_ = true;
        GANTRY_REFUSE_IF(!take_piece(bytes, made->offset), CUDA_ERROR_OUT_OF_MEMORY);
        made->has_piece_ = true;
    }
    memory = std::move(made);
    return CUDA_SUCCESS;
}

CUresult PhysicalMemory::take_file(int file) {
    GANTRY_REFUSE_IF(file < 0, CUDA_ERROR_OUT_OF_MEMORY);
    if (!hold_file(device, file, bytes)) {
        close(file);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    descriptor = file;
    return CUDA_SUCCESS;
}

CUresult PhysicalMemory::import(Device& device, int descriptor,
                                std::shared_ptr<PhysicalMemory>& memory) {
    struct stat status {};
    const bool is_ours = fcntl(descriptor, F_GET_SEALS) == kSeals &&
                         fstat(descriptor, &status) == 0 && status.st_size > 0 &&
                         static_cast<std::uint64_t>(status.st_size) % kGranule == 0;
    GANTRY_REFUSE_IF(!is_ours, CUDA_ERROR_INVALID_VALUE);
    const int own =
        with_descriptors([descriptor] { return fcntl(descriptor, F_DUPFD_CLOEXEC, 0); });
    GANTRY_REFUSE_IF(own < 0, CUDA_ERROR_OPERATING_SYSTEM);
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device.ordinal};
    std::shared_ptr<PhysicalMemory> taken(
        new PhysicalMemory(device, static_cast<std::uint64_t>(status.st_size), prop));
    GANTRY_CU(taken->take_file(own));
    memory = std::move(taken);
    return CUDA_SUCCESS;
}

int PhysicalMemory::export_descriptor() const {
    return with_descriptors([this] { return fcntl(descriptor, F_DUPFD_CLOEXEC, 0); });
}

PhysicalMemory::~PhysicalMemory() {
    if (descriptor >= 0) {
        let_file_go(device, descriptor, bytes);
        close(descriptor);
        return;
    }
    if (has_piece_) {
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
    // Where the system has large pages for shared memory (shmem_enabled = advise): one fault for
    // each granule instead of 512, for kernels, fingerprints and whoever maps the file after us.
    madvise(got, map_bytes, MADV_HUGEPAGE);
    return true;
}

}  // namespace gantry::softgpu
