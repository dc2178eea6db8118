// libnvidia-ml.so.1 for guests: what NVIDIA's nvidia-smi, PyTorch and NCCL ask. The numbers are the
// tenant's (its quota, its use); uuid and PCI ids are those that CUDA shows, constant for the VM's
// life. What a tenant has no say in or no view of (power, fans, clocks in use, other tenants'
// processes) is NVML_ERROR_NOT_SUPPORTED, by name: see refused.cc.
#include <time.h>

#include <atomic>
#include <cstdio>
#include <cstring>

#include "guest-shim/nvml/abi.h"
#include "guest-shim/nvml/facts.h"
#include "proto/base/pthread_mutex.h"

#define GANTRY_NVML extern "C" __attribute__((visibility("default")))

namespace gantry::nvml {

struct Device {
    int index;
};

namespace {

/// What a child was asked is told again for so long.
constexpr long long kFreshNs = 10'000'000'000;

PthreadMutex g_mutex;
std::atomic<int> g_users{0};  // nvmlInit calls that nvmlShutdown has not ended. Changed with it.
bool g_loaded GANTRY_GUARDED_BY(g_mutex) = false;
Facts g_facts;  // What ask_again() changes is used with the mutex; the rest is made once.
Device g_devices[kMaxDevices];

Result begin() {
    const PthreadLock lock(g_mutex);
    if (!g_loaded) {
        g_loaded = load(&g_facts);
        for (int i = 0; i < kMaxDevices; ++i) {
            g_devices[i].index = i;
        }
    }
    g_users += g_loaded ? 1 : 0;
    return g_loaded ? kSuccess : kDriverNotLoaded;
}

bool is_open() { return g_users.load(std::memory_order_acquire) > 0; }

/// The facts behind a handle; null for one that this library never gave.
const DeviceFacts* facts_of(const Device* device) {
    for (int i = 0; i < g_facts.device_count; ++i) {
        if (device == &g_devices[i]) {
            return &g_facts.devices[i];
        }
    }
    return nullptr;
}

Result copy_text(const char* text, char* out, unsigned capacity) {
    if (out == nullptr) {
        return kInvalidArgument;
    }
    const std::size_t bytes = std::strlen(text) + 1;
    if (bytes > capacity) {
        return kInsufficientSize;
    }
    std::memcpy(out, text, bytes);
    return kSuccess;
}

/// `give` runs with the device's facts, when library, handle and output are good.
template <typename Give>
Result with_device(const Device* device, bool outputs_given, Give give) {
    if (!is_open()) {
        return kUninitialized;
    }
    const DeviceFacts* facts = facts_of(device);
    return facts == nullptr || !outputs_given ? kInvalidArgument : give(*facts);
}

/// Answers with what `get` makes of the device's facts.
template <typename T, typename Get>
Result tell(const Device* device, T* out, Get get) {
    return with_device(device, out != nullptr, [&](const DeviceFacts& facts) {
        *out = get(facts);
        return kSuccess;
    });
}

void format_uuid(const DeviceFacts& facts, char (&out)[48]) {
    const unsigned char* u = facts.uuid;
    std::snprintf(out, sizeof(out),
                  "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0],
                  u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13],
                  u[14], u[15]);
}

Result device_at(unsigned index, Device** out) {
    if (!is_open()) {
        return kUninitialized;
    }
    if (out == nullptr || index >= static_cast<unsigned>(g_facts.device_count)) {
        return kInvalidArgument;
    }
    *out = &g_devices[index];
    return kSuccess;
}

Memory memory_of(const Device* device, const DeviceFacts& facts) {
    unsigned long long free_bytes = 0;
    if (!free_memory(device->index, &free_bytes)) {
        const PthreadLock lock(g_mutex);
        ask_again(&g_facts, kFreshNs);
        free_bytes = facts.free_bytes;
    }
    const unsigned long long total = facts.total_bytes;
    free_bytes = free_bytes < total ? free_bytes : total;
    return {total, free_bytes, total - free_bytes};
}

Result pci_info(const Device* device, PciInfo* out) {
    return with_device(device, out != nullptr, [&](const DeviceFacts& facts) {
        std::memset(out, 0, sizeof(*out));
        std::snprintf(out->bus_id_legacy, sizeof(out->bus_id_legacy), "%04X:%02X:%02X.0",
                      facts.pci_domain & 0xffff, facts.pci_bus & 0xff, facts.pci_device & 0xff);
        std::snprintf(out->bus_id, sizeof(out->bus_id), "%08X:%02X:%02X.0", facts.pci_domain,
                      facts.pci_bus & 0xff, facts.pci_device & 0xff);
        out->domain = facts.pci_domain;
        out->bus = facts.pci_bus;
        out->device = facts.pci_device;
        return kSuccess;
    });
}

/// Cards for computing have the brand of their maker alone.
Brand brand_of(const DeviceFacts& facts) {
    const bool is_other = std::strstr(facts.name, "GeForce") != nullptr ||
                          std::strstr(facts.name, "RTX") != nullptr ||
                          std::strstr(facts.name, "TITAN") != nullptr ||
                          std::strstr(facts.name, "Quadro") != nullptr;
    return std::strncmp(facts.name, "NVIDIA ", 7) == 0 && !is_other ? kBrandNvidia : kBrandUnknown;
}

Architecture architecture_of(const DeviceFacts& facts) {
    switch (facts.compute_major) {
        case 5: return kArchitectureMaxwell;
        case 6: return kArchitecturePascal;
        case 7: return facts.compute_minor < 5 ? kArchitectureVolta : kArchitectureTuring;
        case 8: return facts.compute_minor == 9 ? kArchitectureAda : kArchitectureAmpere;
        case 9: return kArchitectureHopper;
        case 10:
        case 12: return kArchitectureBlackwell;
        default: return kArchitectureUnknown;
    }
}

Result by_pci(const char* text, Device** out) {
    if (!is_open()) {
        return kUninitialized;
    }
    unsigned domain = 0;
    unsigned bus = 0;
    unsigned device = 0;
    if (text == nullptr || out == nullptr ||
        (std::sscanf(text, "%x:%x:%x", &domain, &bus, &device) != 3 &&
         (domain = 0, std::sscanf(text, "%x:%x", &bus, &device)) != 2)) {
        return kInvalidArgument;
    }
    for (int i = 0; i < g_facts.device_count; ++i) {
        const DeviceFacts& facts = g_facts.devices[i];
        if (facts.pci_domain == domain && facts.pci_bus == bus && facts.pci_device == device) {
            *out = &g_devices[i];
            return kSuccess;
        }
    }
    return kNotFound;
}

Result max_clock(const Device* device, int type, unsigned* out) {
    return with_device(device, out != nullptr, [&](const DeviceFacts& facts) {
        const int khz = type == kClockMemory ? facts.memory_clock_khz : facts.sm_clock_khz;
        *out = static_cast<unsigned>(khz) / 1000;
        return khz > 0 && type >= kClockGraphics && type <= kClockVideo ? kSuccess : kNotSupported;
    });
}

/// Calls `put(i, program)` for each of the VM's programs. `count` is the room, and then how many
/// there are; that alone where the room is too small.
template <typename Put>
Result list_processes(const Device* device, unsigned* count, Put put) {
    return with_device(device, count != nullptr, [&](const DeviceFacts&) {
        const unsigned room = *count;
        const PthreadLock lock(g_mutex);
        ask_again(&g_facts, kFreshNs);
        leave_out_ended(&g_facts);
        const unsigned found = device->index == 0 ? g_facts.program_count : 0;
        for (unsigned i = 0; i < found && found <= room; ++i) {
            put(i, g_facts.programs[i]);
        }
        *count = found;
        return found <= room ? kSuccess : kInsufficientSize;
    });
}

/// With the layout of versions 2 and 3.
Result compute_processes(const Device* device, unsigned* count, ProcessInfo* out) {
    if (count != nullptr && *count != 0 && out == nullptr) {
        return kInvalidArgument;
    }
    return list_processes(device, count, [&](unsigned i, const Program& program) {
        out[i] = {program.pid, program.device_bytes, ~0u, ~0u};
    });
}

/// A VM has no programs of other kinds.
Result no_processes(const Device* device, unsigned* count) {
    return tell(device, count, [](const DeviceFacts&) { return 0; });
}

}  // namespace
}  // namespace gantry::nvml

using namespace gantry::nvml;

GANTRY_NVML int nvmlInit_v2() { return begin(); }
GANTRY_NVML int nvmlInit() { return begin(); }
GANTRY_NVML int nvmlInitWithFlags(unsigned) { return begin(); }

GANTRY_NVML int nvmlShutdown() {
    const gantry::PthreadLock lock(g_mutex);
    const Result result = g_users > 0 ? kSuccess : kUninitialized;
    g_users -= g_users > 0 ? 1 : 0;
    return result;
}

GANTRY_NVML const char* nvmlErrorString(int result) {
    switch (result) {
        case kSuccess: return "Success";
        case kUninitialized: return "Uninitialized";
        case kInvalidArgument: return "Invalid Argument";
        case kNotSupported: return "Not Supported";
        case kNotFound: return "Not Found";
        case kInsufficientSize: return "Insufficient Size";
        case kDriverNotLoaded: return "Driver Not Loaded";
        case kTimeout: return "Timeout";
        case kVersionMismatch: return "Argument Version Mismatch";
        default: return "Unknown Error";
    }
}

GANTRY_NVML int nvmlSystemGetDriverVersion(char* version, unsigned length) {
    // The release that brought the CUDA version whose driver API is served.
    return is_open() ? copy_text("580.00", version, length) : kUninitialized;
}

GANTRY_NVML int nvmlSystemGetNVMLVersion(char* version, unsigned length) {
    return is_open() ? copy_text("13.580.00", version, length) : kUninitialized;
}

GANTRY_NVML int nvmlSystemGetCudaDriverVersion_v2(int* version) {
    if (version == nullptr) {
        return kInvalidArgument;
    }
    if (!is_open()) {
        return kUninitialized;
    }
    *version = g_facts.cuda_version;
    return kSuccess;
}

GANTRY_NVML int nvmlSystemGetCudaDriverVersion(int* version) {
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

GANTRY_NVML int nvmlSystemGetConfComputeState(ConfidentialState* state) {
    if (state == nullptr) {
        return kInvalidArgument;
    }
    *state = {};
    return is_open() ? kSuccess : kUninitialized;
}

GANTRY_NVML int nvmlSystemGetConfComputeSettings(ConfidentialSettings* settings) {
    if (settings == nullptr) {
        return kInvalidArgument;
    }
    if (settings->version != (sizeof(*settings) | 1u << 24)) {
        return kVersionMismatch;
    }
    *settings = {settings->version, 0, 0, 0, 0};
    return is_open() ? kSuccess : kUninitialized;
}

GANTRY_NVML int nvmlDeviceGetCount_v2(unsigned* count) {
    if (count == nullptr) {
        return kInvalidArgument;
    }
    *count = is_open() ? static_cast<unsigned>(g_facts.device_count) : 0;
    return is_open() ? kSuccess : kUninitialized;
}

GANTRY_NVML int nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }

GANTRY_NVML int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device** device) {
    return device_at(index, device);
}

GANTRY_NVML int nvmlDeviceGetHandleByIndex(unsigned index, Device** device) {
    return device_at(index, device);
}

GANTRY_NVML int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, Device** device) {
    return by_pci(bus_id, device);
}

GANTRY_NVML int nvmlDeviceGetHandleByPciBusId(const char* bus_id, Device** device) {
    return by_pci(bus_id, device);
}

GANTRY_NVML int nvmlDeviceGetHandleByUUID(const char* uuid, Device** device) {
    if (!is_open()) {
        return kUninitialized;
    }
    if (uuid == nullptr || device == nullptr) {
        return kInvalidArgument;
    }
    for (int i = 0; i < g_facts.device_count; ++i) {
        char text[48];
        format_uuid(g_facts.devices[i], text);
        if (std::strcmp(text, uuid) == 0) {
            *device = &g_devices[i];
            return kSuccess;
        }
    }
    return kNotFound;
}

GANTRY_NVML int nvmlDeviceGetIndex(Device* device, unsigned* index) {
    return tell(device, index,
                [&](const DeviceFacts&) { return static_cast<unsigned>(device->index); });
}

GANTRY_NVML int nvmlDeviceGetMinorNumber(Device* device, unsigned* number) {
    return nvmlDeviceGetIndex(device, number);
}

GANTRY_NVML int nvmlDeviceGetName(Device* device, char* name, unsigned length) {
    return with_device(device, name != nullptr, [&](const DeviceFacts& facts) {
        return copy_text(facts.name, name, length);
    });
}

GANTRY_NVML int nvmlDeviceGetUUID(Device* device, char* uuid, unsigned length) {
    return with_device(device, uuid != nullptr, [&](const DeviceFacts& facts) {
        char text[48];
        format_uuid(facts, text);
        return copy_text(text, uuid, length);
    });
}

GANTRY_NVML int nvmlDeviceGetPciInfo_v3(Device* device, PciInfo* pci) {
    return pci_info(device, pci);
}

GANTRY_NVML int nvmlDeviceGetPciInfo_v2(Device* device, PciInfo* pci) {
    return pci_info(device, pci);
}

GANTRY_NVML int nvmlDeviceGetPciInfoExt(Device* device, PciInfoExt* pci) {
    constexpr unsigned kDisplayController = 3;
    constexpr unsigned k3dController = 2;
    return with_device(device, pci != nullptr, [&](const DeviceFacts&) {
        if (pci->version != (sizeof(*pci) | 1u << 24)) {
            return kVersionMismatch;
        }
        PciInfo known;
        const Result result = pci_info(device, &known);
        *pci = {pci->version,       known.domain,        known.bus,
                known.device,       known.pci_device_id, known.pci_subsystem_id,
                kDisplayController, k3dController,       {}};
        std::memcpy(pci->bus_id, known.bus_id, sizeof(pci->bus_id));
        return result;
    });
}

GANTRY_NVML int nvmlDeviceGetBrand(Device* device, Brand* brand) {
    return tell(device, brand, [&](const DeviceFacts& facts) { return brand_of(facts); });
}

GANTRY_NVML int nvmlDeviceGetArchitecture(Device* device, Architecture* architecture) {
    return tell(device, architecture,
                [&](const DeviceFacts& facts) { return architecture_of(facts); });
}

GANTRY_NVML int nvmlDeviceGetMemoryInfo(Device* device, Memory* memory) {
    return tell(device, memory, [&](const DeviceFacts& facts) { return memory_of(device, facts); });
}

GANTRY_NVML int nvmlDeviceGetMemoryInfo_v2(Device* device, MemoryV2* memory) {
    return with_device(device, memory != nullptr, [&](const DeviceFacts& facts) {
        if (memory->version != (sizeof(*memory) | 2u << 24)) {
            return kVersionMismatch;
        }
        const Memory now = memory_of(device, facts);
        *memory = {memory->version, now.total, 0, now.free, now.used};
        return kSuccess;
    });
}

GANTRY_NVML int nvmlDeviceGetCudaComputeCapability(Device* device, int* major, int* minor) {
    const bool given = major != nullptr && minor != nullptr;
    return with_device(device, given, [&](const DeviceFacts& facts) {
        *major = facts.compute_major;
        *minor = facts.compute_minor;
        return kSuccess;
    });
}

GANTRY_NVML int nvmlDeviceGetMemoryBusWidth(Device* device, unsigned* bits) {
    return tell(device, bits, [&](const DeviceFacts& facts) {
        return static_cast<unsigned>(facts.bus_width_bits);
    });
}

GANTRY_NVML int nvmlDeviceGetEccMode(Device* device, unsigned* current, unsigned* pending) {
    const bool given = current != nullptr && pending != nullptr;
    return with_device(device, given, [&](const DeviceFacts& facts) {
        *current = *pending = facts.ecc_enabled != 0 ? 1 : 0;
        return kSuccess;
    });
}

GANTRY_NVML int nvmlDeviceGetComputeMode(Device* device, int* mode) {
    return tell(device, mode, [&](const DeviceFacts& facts) { return facts.compute_mode; });
}

GANTRY_NVML int nvmlDeviceGetPersistenceMode(Device* device, unsigned* mode) {
    // The GPU stays initialised whether or not a tenant's process lives.
    return tell(device, mode, [](const DeviceFacts&) { return 1; });
}

GANTRY_NVML int nvmlDeviceGetDisplayMode(Device* device, unsigned* mode) {
    return tell(device, mode, [](const DeviceFacts&) { return 0; });
}

GANTRY_NVML int nvmlDeviceGetDisplayActive(Device* device, unsigned* active) {
    return nvmlDeviceGetDisplayMode(device, active);
}

GANTRY_NVML int nvmlDeviceGetMaxClockInfo(Device* device, int type, unsigned* mhz) {
    return max_clock(device, type, mhz);
}

GANTRY_NVML int nvmlDeviceGetP2PStatus(Device* one, Device* other, int, int* status) {
    return with_device(one, facts_of(other) != nullptr && status != nullptr,
                       [&](const DeviceFacts&) {
                           *status = one == other ? kP2pOk : kP2pNotSupported;
                           return kSuccess;
                       });
}

GANTRY_NVML int nvmlDeviceGetNvLinkState(Device* device, unsigned, unsigned* active) {
    // Links between GPUs are the host's.
    return tell(device, active, [](const DeviceFacts&) { return 0; });
}

GANTRY_NVML int nvmlDeviceGetFieldValues(Device* device, int count, FieldValue* values) {
    return with_device(device, values != nullptr && count > 0, [&](const DeviceFacts&) {
        for (int i = 0; i < count; ++i) {
            values[i].result = kNotSupported;
        }
        return kSuccess;
    });
}

GANTRY_NVML int nvmlDeviceGetComputeRunningProcesses_v3(Device* device, unsigned* count,
                                                        ProcessInfo* processes) {
    return compute_processes(device, count, processes);
}

GANTRY_NVML int nvmlDeviceGetComputeRunningProcesses_v2(Device* device, unsigned* count,
                                                        ProcessInfo* processes) {
    return compute_processes(device, count, processes);
}

GANTRY_NVML int nvmlDeviceGetComputeRunningProcesses(Device* device, unsigned* count,
                                                     ProcessInfoV1* processes) {
    if (count != nullptr && *count != 0 && processes == nullptr) {
        return kInvalidArgument;
    }
    return list_processes(device, count, [&](unsigned i, const Program& program) {
        processes[i] = {program.pid, program.device_bytes};
    });
}

GANTRY_NVML int nvmlSystemGetProcessName(unsigned pid, char* name, unsigned length) {
    if (!is_open()) {
        return kUninitialized;
    }
    char path[kProcessNameBytes];
    return process_name(pid, path) == NameIs::kKnown ? copy_text(path, name, length) : kNotFound;
}

GANTRY_NVML int nvmlDeviceGetGraphicsRunningProcesses_v3(Device* device, unsigned* count, void*) {
    return no_processes(device, count);
}

GANTRY_NVML int nvmlDeviceGetMPSComputeRunningProcesses_v3(Device* device, unsigned* count, void*) {
    return no_processes(device, count);
}

GANTRY_NVML int nvmlDeviceOnSameBoard(Device* one, Device* other, int* same) {
    return with_device(one, facts_of(other) != nullptr && same != nullptr, [&](const DeviceFacts&) {
        *same = one == other ? 1 : 0;
        return kSuccess;
    });
}

// No GPU of a tenant is an instance of one. nvidia-smi 580 ends with what it is answered here.

GANTRY_NVML int nvmlDeviceGetMaxMigDeviceCount(Device* device, unsigned* count) {
    return tell(device, count, [](const DeviceFacts&) { return 0; });
}

GANTRY_NVML int nvmlDeviceIsMigDeviceHandle(Device* device, unsigned* is_instance) {
    return nvmlDeviceGetMaxMigDeviceCount(device, is_instance);
}

// ---- events: none ever comes, but nvidia-smi ends where it may not wait for them ----------------

GANTRY_NVML int nvmlEventSetCreate(const void** set) {
    if (set == nullptr) {
        return kInvalidArgument;
    }
    *set = &g_users;  // Any address of the library's own.
    return is_open() ? kSuccess : kUninitialized;
}

GANTRY_NVML int nvmlEventSetFree(const void* set) {
    return set == &g_users ? kSuccess : kInvalidArgument;
}

GANTRY_NVML int nvmlEventSetWait_v2(const void* set, void*, unsigned timeout_ms) {
    if (set != &g_users) {
        return kInvalidArgument;
    }
    const timespec wait{timeout_ms / 1000, static_cast<long>(timeout_ms % 1000) * 1'000'000};
    nanosleep(&wait, nullptr);
    return is_open() ? kTimeout : kUninitialized;
}

GANTRY_NVML int nvmlDeviceRegisterEvents(Device* device, unsigned long long, const void* set) {
    return with_device(device, set == &g_users, [](const DeviceFacts&) { return kSuccess; });
}

GANTRY_NVML int nvmlDeviceGetSupportedEventTypes(Device* device, unsigned long long* types) {
    return tell(device, types, [](const DeviceFacts&) { return 0; });
}
