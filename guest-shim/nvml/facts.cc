#include "guest-shim/nvml/facts.h"

#include <dirent.h>
#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "guest-shim/driver/context/own_table.h"
#include "proto/cuda/abi.h"

namespace gantry::nvml {
namespace {

/// The few calls that are needed, looked up by name: this library links libc only.
struct Driver {
    CUresult (*init)(unsigned);
    CUresult (*version)(int*);
    CUresult (*count)(int*);
    CUresult (*name)(char*, int, CUdevice);
    CUresult (*uuid)(CUuuid*, CUdevice);
    CUresult (*total)(std::size_t*, CUdevice);
    CUresult (*attribute)(int*, CUdevice_attribute, CUdevice);
    CUresult (*primary_state)(CUdevice, unsigned*, int*);
    CUresult (*retain)(CUcontext*, CUdevice);
    CUresult (*release)(CUdevice);
    CUresult (*push)(CUcontext);
    CUresult (*pop)(CUcontext*);
    CUresult (*memory)(std::size_t*, std::size_t*);
    CUresult (*export_table)(const void**, const CUuuid*);
};

template <typename Function>
bool find(void* library, const char* name, Function* out) {
    *out = reinterpret_cast<Function>(dlsym(library, name));
    return *out != nullptr;
}

bool open_driver(int flags, Driver* out) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | flags);
    return library != nullptr && find(library, "cuInit", &out->init) &&
           find(library, "cuDriverGetVersion", &out->version) &&
           find(library, "cuDeviceGetCount", &out->count) &&
           find(library, "cuDeviceGetName", &out->name) &&
           find(library, "cuDeviceGetUuid", &out->uuid) &&
           find(library, "cuDeviceTotalMem_v2", &out->total) &&
           find(library, "cuDeviceGetAttribute", &out->attribute) &&
           find(library, "cuDevicePrimaryCtxGetState", &out->primary_state) &&
           find(library, "cuDevicePrimaryCtxRetain", &out->retain) &&
           find(library, "cuDevicePrimaryCtxRelease_v2", &out->release) &&
           find(library, "cuCtxPushCurrent_v2", &out->push) &&
           find(library, "cuCtxPopCurrent_v2", &out->pop) &&
           find(library, "cuMemGetInfo_v2", &out->memory) &&
           find(library, "cuGetExportTable", &out->export_table);
}

int attribute(const Driver& driver, CUdevice_attribute which, CUdevice device) {
    int value = 0;
    return driver.attribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

/// nullptr where the driver is not Gantry's, or is of an older Gantry.
const shim::OwnTable* own_table(const Driver& driver) {
    const void* found = nullptr;
    CUuuid id{};
    static_assert(sizeof(id) == sizeof(shim::kOwnTableId));
    std::memcpy(&id, shim::kOwnTableId, sizeof(id));
    if (driver.export_table(&found, &id) != CUDA_SUCCESS) {
        return nullptr;
    }
    const auto* table = static_cast<const shim::OwnTable*>(found);
    return table->bytes >= sizeof(*table) ? table : nullptr;
}

void gather_programs(const Driver& driver, Facts* out) {
    out->program_count = 0;
    if (const shim::OwnTable* table = own_table(driver)) {
        const unsigned found = table->programs(out->programs, kMaxPrograms);
        out->program_count = found < kMaxPrograms ? found : kMaxPrograms;
    }
}

bool gather(const Driver& driver, Facts* out) {
    std::memset(out, 0, sizeof(*out));
    int count = 0;
    if (driver.version(&out->cuda_version) != CUDA_SUCCESS ||
        driver.count(&count) != CUDA_SUCCESS || count <= 0) {
        return false;
    }
    out->device_count = count < kMaxDevices ? count : kMaxDevices;
    for (int i = 0; i < out->device_count; ++i) {
        DeviceFacts& facts = out->devices[i];
        CUuuid uuid{};
        std::size_t total = 0;
        if (driver.name(facts.name, static_cast<int>(sizeof(facts.name)), i) != CUDA_SUCCESS ||
            driver.uuid(&uuid, i) != CUDA_SUCCESS || driver.total(&total, i) != CUDA_SUCCESS) {
            return false;
        }
        static_assert(sizeof(uuid) == sizeof(facts.uuid));
        std::memcpy(facts.uuid, &uuid, sizeof(uuid));
        facts.total_bytes = total;
        facts.free_bytes = total;
        const auto number = [&](CUdevice_attribute which) { return attribute(driver, which, i); };
        facts.pci_domain = static_cast<unsigned>(number(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID));
        facts.pci_bus = static_cast<unsigned>(number(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID));
        facts.pci_device = static_cast<unsigned>(number(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID));
        facts.compute_major = number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
        facts.compute_minor = number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
        facts.sm_clock_khz = number(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
        facts.memory_clock_khz = number(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
        facts.bus_width_bits = number(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
        facts.ecc_enabled = number(CU_DEVICE_ATTRIBUTE_ECC_ENABLED);
        facts.compute_mode = number(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
    }
    return true;
}

/// Does this process use CUDA already? Then it may be asked without changing anything.
bool is_begun(Driver* driver) {
    int count = 0;
    return open_driver(RTLD_NOLOAD, driver) && driver->count(&count) == CUDA_SUCCESS;
}

/// In the device's primary context, which is as it was afterwards.
bool ask_free(const Driver& driver, CUdevice device, unsigned long long* bytes) {
    CUcontext context = nullptr;
    if (driver.retain(&context, device) != CUDA_SUCCESS) {
        return false;
    }
    std::size_t free_bytes = 0;
    std::size_t total = 0;
    bool known = false;
    if (driver.push(context) == CUDA_SUCCESS) {
        known = driver.memory(&free_bytes, &total) == CUDA_SUCCESS;
        driver.pop(&context);
    }
    driver.release(device);
    *bytes = known ? free_bytes : *bytes;
    return known;
}

long long monotonic_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

template <typename Condition>
void leave_out(Facts* facts, Condition&& condition) {
    unsigned kept = 0;
    for (unsigned i = 0; i < facts->program_count; ++i) {
        if (!condition(facts->programs[i])) {
            facts->programs[kept++] = facts->programs[i];
        }
    }
    facts->program_count = kept;
}

[[noreturn]] void ask_and_tell(int pipe_end) {
    Driver driver{};
    Facts facts;
    unsetenv("CUDA_VISIBLE_DEVICES");  // NVML shows all devices, whatever CUDA may.
    if (open_driver(0, &driver) && driver.init(0) == CUDA_SUCCESS && gather(driver, &facts)) {
        for (int i = 0; i < facts.device_count; ++i) {
            ask_free(driver, i, &facts.devices[i].free_bytes);
        }
        gather_programs(driver, &facts);
        leave_out(&facts, [own = getpid()](const Program& program) {
            return program.pid == static_cast<std::uint32_t>(own);
        });
        if (const shim::OwnTable* table = own_table(driver)) {
            table->end();  // Which the library does at an exit that is not this one.
        }
        facts.asked_ns = monotonic_ns();
        const auto* bytes = reinterpret_cast<const char*>(&facts);
        for (std::size_t sent = 0; sent < sizeof(facts);) {
            const ssize_t piece = write(pipe_end, bytes + sent, sizeof(facts) - sent);
            if (piece <= 0 && errno != EINTR) {
                break;
            }
            sent += piece > 0 ? static_cast<std::size_t>(piece) : 0;
        }
    }
    _exit(0);  // Not the parent's exit handlers.
}

bool gather_in_child(Facts* out) {
    int ends[2];
    if (pipe(ends) != 0) {
        return false;
    }
    const pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        ask_and_tell(ends[1]);
    }
    close(ends[1]);
    std::size_t got = 0;
    while (child > 0 && got < sizeof(*out)) {
        const ssize_t piece = read(ends[0], reinterpret_cast<char*>(out) + got, sizeof(*out) - got);
        if (piece == 0 || (piece < 0 && errno != EINTR)) {
            break;
        }
        got += piece > 0 ? static_cast<std::size_t>(piece) : 0;
    }
    close(ends[0]);
    while (child > 0 && waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
    return got == sizeof(*out);
}

}  // namespace

bool load(Facts* out) noexcept {
    Driver driver{};
    return is_begun(&driver) ? gather(driver, out) : gather_in_child(out);
}

bool free_memory(int device, unsigned long long* bytes) noexcept {
    Driver driver{};
    unsigned flags = 0;
    int active = 0;
    return is_begun(&driver) && driver.primary_state(device, &flags, &active) == CUDA_SUCCESS &&
           active != 0 && ask_free(driver, device, bytes);
}

NameIs process_name(unsigned pid, char (&out)[kProcessNameBytes]) noexcept {
    char path[64];
    const auto is_known = [&] {
        const ssize_t bytes = readlink(path, out, sizeof(out) - 1);
        out[bytes > 0 ? bytes : 0] = 0;
        return bytes > 0;
    };
    std::snprintf(path, sizeof(path), "/proc/%u/exe", pid);
    if (is_known()) {
        return NameIs::kKnown;
    }
    if (errno != ENOENT && errno != ESRCH) {
        return NameIs::kHidden;
    }
    std::snprintf(path, sizeof(path), "/proc/%u/task", pid);
    DIR* threads = opendir(path);
    if (threads == nullptr) {  // Or /proc does not show other users' processes.
        const bool is_gone = kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH;
        return is_gone ? NameIs::kGone : NameIs::kHidden;
    }
    bool found = false;
    while (const dirent* entry = found ? nullptr : readdir(threads)) {  // The first may have ended.
        std::snprintf(path, sizeof(path), "/proc/%u/task/%.20s/exe", pid, entry->d_name);
        found = is_known();
    }
    closedir(threads);
    return found ? NameIs::kKnown : NameIs::kGone;
}

void leave_out_ended(Facts* facts) noexcept {
    leave_out(facts, [](const Program& program) {
        char name[kProcessNameBytes];
        return process_name(program.pid, name) == NameIs::kGone;
    });
}

void ask_again(Facts* facts, long long most_ns) noexcept {
    Driver driver{};
    if (is_begun(&driver)) {
        gather_programs(driver, facts);
        return;
    }
    const long long now = monotonic_ns();
    if (now - facts->asked_ns < most_ns) {
        return;
    }
    facts->asked_ns = now;
    Facts fresh;
    if (gather_in_child(&fresh)) {
        for (int i = 0; i < facts->device_count; ++i) {
            facts->devices[i].free_bytes = fresh.devices[i].free_bytes;
        }
        facts->program_count = fresh.program_count;
        std::memcpy(facts->programs, fresh.programs, sizeof(facts->programs));
    }
}

}  // namespace gantry::nvml
