// ivshmem: and file: regions: memory that another kernel, or another process, maps as well.
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "guest-shim/session/transport/transport.h"
#include "proto/cuda/abi.h"

namespace gantry::session {
namespace {

constexpr char kPciDevices[] = "/sys/bus/pci/devices";

bool file_says(const char* directory, const char* name, const char* wanted) {
    char path[320];
    std::snprintf(path, sizeof(path), "%s/%s/%s", kPciDevices, directory, name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    char text[32] = {};
    const ssize_t got = read(fd, text, sizeof(text) - 1);
    close(fd);
    return got > 0 && std::strncmp(text, wanted, std::strlen(wanted)) == 0;
}

bool map_file(const char* scheme, const char* path, wire::Sleep sleep, Attachment* out,
              AttachProblem* problem) {
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        return fail(problem, CUDA_ERROR_NO_DEVICE,
                    "%s%s: %s; the process must be allowed to read and write it", scheme, path,
                    std::strerror(errno));
    }
    struct stat status {};
    if (fstat(fd, &status) != 0 || status.st_size <= 0) {
        close(fd);
        return fail(problem, CUDA_ERROR_NO_DEVICE, "%s%s: has no size to map", scheme, path);
    }
    const auto bytes = static_cast<std::uint64_t>(status.st_size);
    void* region = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (region == MAP_FAILED) {
        const int error = errno;
        close(fd);
        return fail(problem, CUDA_ERROR_OPERATING_SYSTEM, "%s%s: mapping %llu bytes: %s", scheme,
                    path, static_cast<unsigned long long>(bytes), std::strerror(error));
    }
    *out = Attachment{static_cast<std::byte*>(region), bytes, fd, -1, sleep, false};
    return true;
}

}  // namespace

bool find_ivshmem(char* path, std::size_t path_bytes) {
    DIR* devices = opendir(kPciDevices);
    if (devices == nullptr) {
        return false;
    }
    bool found = false;
    while (const dirent* entry = readdir(devices)) {
        if (entry->d_name[0] == '.' || !file_says(entry->d_name, "vendor", "0x1af4") ||
            !file_says(entry->d_name, "device", "0x1110")) {
            continue;
        }
        std::snprintf(path, path_bytes, "%s/%.200s/resource2", kPciDevices, entry->d_name);
        found = true;
        break;
    }
    closedir(devices);
    return found;
}

bool attach_file(const char* path, Attachment* out, AttachProblem* problem) {
    return map_file("file:", path, wire::Sleep::kFutex, out, problem);
}

bool attach_ivshmem(const char* path, Attachment* out, AttachProblem* problem) {
    char found[256];
    if (*path == '\0') {
        if (!find_ivshmem(found, sizeof(found))) {
            return fail(problem, CUDA_ERROR_NO_DEVICE,
                        "ivshmem: no PCI device 1af4:1110 in this VM; add an <shmem> device to the "
                        "domain");
        }
        path = found;
    }
    return map_file("ivshmem:", path, wire::Sleep::kPoll, out, problem);
}

}  // namespace gantry::session
