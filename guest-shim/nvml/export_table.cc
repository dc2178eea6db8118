// The table of inner functions that NVIDIA's nvidia-smi asks NVML for, by the slots that it calls.
//
// The first word is the table's size in bytes. Slots and their arguments are those that nvidia-smi
// 535.261, 550.163 and 555.58 were seen to call; those of 580.65 are the same in NVIDIA's own mock
// of NVML (github.com/NVIDIA/k8s-test-infra, pkg/gpu/mocknvml). What a slot that is not served
// answers nvidia-smi shows as N/A.
#include <pthread.h>

#include <cstddef>
#include <cstring>

#include "guest-shim/nvml/abi.h"
#include "guest-shim/nvml/facts.h"

extern "C" int nvmlDeviceGetHandleByIndex_v2(unsigned index, gantry::nvml::Device** device);
extern "C" int nvmlDeviceGetComputeRunningProcesses_v3(gantry::nvml::Device* device,
                                                       unsigned* count,
                                                       gantry::nvml::ProcessInfo* processes);
extern "C" int nvmlDeviceGetGraphicsRunningProcesses_v3(gantry::nvml::Device* device,
                                                        unsigned* count, void* processes);

namespace gantry::nvml {
namespace {

constexpr std::size_t kSlots = 512;
constexpr std::size_t kDeviceByIndex = 81;
constexpr std::size_t kComputeProcesses = 213;
constexpr std::size_t kOtherProcesses[] = {214, 215};  // Of graphics, of MPS.
/// 6c3efec4-8fc9-4e6c-a327-ee696e12f7c4, as GUIDs lie in memory.
constexpr unsigned char kTable[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                      0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};

/// A process as these slots list it, of nvidia-smi 535 to 580: what each field is was seen in what
/// they print of it.
struct NamedProcess {
    unsigned pid;
    unsigned unknown;
    unsigned long long used_bytes;
    unsigned gpu_instance;
    unsigned compute_instance;
    unsigned unknown_too[2];
    char name[kProcessNameBytes];  ///< One without a name is not shown.
};
static_assert(sizeof(NamedProcess) == 4128);

int not_served() { return kNotSupported; }

int compute_processes(Device* device, unsigned* count, NamedProcess* out) {
    if (count == nullptr || (*count != 0 && out == nullptr)) {
        return kInvalidArgument;
    }
    ProcessInfo found[kMaxPrograms];
    unsigned known = *count < kMaxPrograms ? *count : kMaxPrograms;
    const int result = nvmlDeviceGetComputeRunningProcesses_v3(device, &known, found);
    if (result != kSuccess) {
        *count = known;
        return result;
    }
    unsigned listed = 0;
    for (unsigned i = 0; i < known; ++i) {
        NamedProcess& process = out[listed];
        std::memset(&process, 0, sizeof(process));
        process.pid = found[i].pid;
        process.used_bytes = found[i].used_bytes;
        process.gpu_instance = found[i].gpu_instance;
        process.compute_instance = found[i].compute_instance;
        const NameIs name = process_name(found[i].pid, process.name);
        if (name == NameIs::kHidden) {
            std::strcpy(process.name, "[Not Found]");
        }
        listed += name == NameIs::kGone ? 0 : 1;
    }
    *count = listed;
    return kSuccess;
}

const void* g_table[kSlots];
pthread_once_t g_is_made = PTHREAD_ONCE_INIT;

void make_table() {
    for (const void*& slot : g_table) {
        slot = reinterpret_cast<const void*>(&not_served);
    }
    g_table[kDeviceByIndex] = reinterpret_cast<const void*>(&nvmlDeviceGetHandleByIndex_v2);
    g_table[kComputeProcesses] = reinterpret_cast<const void*>(&compute_processes);
    for (const std::size_t slot : kOtherProcesses) {
        g_table[slot] = reinterpret_cast<const void*>(&nvmlDeviceGetGraphicsRunningProcesses_v3);
    }
    g_table[0] = reinterpret_cast<const void*>(sizeof(g_table));
}

}  // namespace
}  // namespace gantry::nvml

extern "C" __attribute__((visibility("default"))) int nvmlInternalGetExportTable(const void** out,
                                                                                 const void* id) {
    using namespace gantry::nvml;
    if (out == nullptr || id == nullptr) {
        return kInvalidArgument;
    }
    if (std::memcmp(id, kTable, sizeof(kTable)) != 0) {
        return kNotFound;
    }
    pthread_once(&g_is_made, make_table);
    *out = g_table;
    return kSuccess;
}
