#include "host-daemon/execution/device/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace gantry::worker {
namespace {

/// Attributes that are untrue through a worker whatever the device can do: pageable host memory is
/// not reachable by kernels, and managed memory is moved at launch and synchronisation.
constexpr std::uint32_t kUntrueAttributes[] = {
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
    CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
};

/// Of every card since compute capability 3.5; only a context tells it.
constexpr int kUsualGreatestPriority = -5;

void lay_baseline(const DeviceBaseline& baseline, wire::DeviceFacts& facts) {
    auto set = [&facts](std::uint32_t number, std::int64_t value) {
        if (number < wire::kMaxDeviceAttributes) {
            facts.attributes[number] = static_cast<std::int32_t>(value);
            facts.attribute_status[number] = CUDA_SUCCESS;
        }
    };
    for (const std::uint32_t number : kUntrueAttributes) {
        set(number, 0);
    }
    if (baseline.compute_capability_major) {
        set(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, *baseline.compute_capability_major);
        set(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            baseline.compute_capability_minor.value_or(0));
    }
    for (const auto& [number, value] : baseline.attributes) {
        set(number, value);
    }
    if (baseline.attributes.contains(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)) {
        std::snprintf(facts.pci_bus_id, sizeof(facts.pci_bus_id), "%04X:%02X:%02X.0",
                      facts.attributes[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID] & 0xffff,
                      facts.attributes[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID] & 0xff,
                      facts.attributes[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID] & 0xff);
    }
    if (baseline.uuid) {
        std::memcpy(facts.uuid, baseline.uuid->data(), sizeof(facts.uuid));
    }
    if (!baseline.device_name.empty()) {
        std::memset(facts.name, 0, sizeof(facts.name));
        baseline.device_name.copy(facts.name, sizeof(facts.name) - 1);
    }
    if (baseline.memory_bytes != 0 && baseline.memory_bytes < facts.total_memory_bytes) {
        facts.total_memory_bytes = baseline.memory_bytes;
    }
}

}  // namespace

Result<void> check_pageable_access(const driver::DriverLibrary& library, int ordinal) {
    const driver::DriverApi& api = library.api();
    CUdevice device = 0;
    if (api.cuDeviceGet(&device, ordinal) != CUDA_SUCCESS) {
        return {};  // Whoever opens it says what is wrong.
    }
    const auto has = [&](CUdevice_attribute attribute) {
        int value = 0;
        return api.cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS && value != 0;
    };
    const bool by_ats = has(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
    if (!by_ats && !has(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS)) {
        return {};
    }
    return Error{
        Code::kFailedPrecondition, "gpu.pageable_access",
        fmt::format("kernels on device {} of {} reach all memory of the process that runs them, so "
                    "a program could read and change its worker: {}; or, where one tenant alone "
                    "uses this host, set worker.pageable_access = true",
                    ordinal, library.path(),
                    by_ats ? "the device uses the host's page tables (ATS), which cannot be "
                             "switched off: use another GPU"
                           : "switch HMM off, by a line `options nvidia_uvm uvm_disable_hmm=1` in "
                             "/etc/modprobe.d/gantry.conf, and load nvidia_uvm anew")};
}

Result<std::unique_ptr<Device>> Device::open(driver::DriverLibrary& library, int ordinal,
                                             PageableAccess pageable) {
    const driver::DriverApi& api = library.api();
    CUdevice handle = 0;
    if (ordinal < 0 || ordinal >= library.device_count()) {
        return Error{Code::kNotFound, "device.ordinal",
                     fmt::format("{} has {} devices, number {} was asked for", library.path(),
                                 library.device_count(), ordinal)};
    }
    if (const CUresult result = api.cuDeviceGet(&handle, ordinal); result != CUDA_SUCCESS) {
        return driver::to_error(api, result, "device.open",
                                fmt::format("cuDeviceGet({})", ordinal));
    }
    if (pageable == PageableAccess::kRefused) {
        GANTRY_TRY(check_pageable_access(library, ordinal));
    }
    std::unique_ptr<Device> device(new Device(library, handle));
    const auto made = device->make_context();
    if (!made.ok() && made.error().code != Code::kResourceExhausted) {
        return made.error();
    }
    const auto* extension = static_cast<const GantrySoftExtension*>(
        library.export_table(reinterpret_cast<const unsigned char*>(&kGantrySoftExtensionId)));
    if (extension != nullptr && extension->size_bytes >= sizeof(GantrySoftExtension)) {
        device->extension_ = extension;
    }
    device->exportable_ =
        device->attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) == 1 &&
        api.cuMemExportToShareableHandle != nullptr &&
        api.cuMemImportFromShareableHandle != nullptr;
    return device;
}

Result<void> Device::make_context() {
    MutexLock lock(making_mutex_);
    if (has_context()) {
        return {};
    }
    CUcontext context = nullptr;
    if (const CUresult result = api().cuDevicePrimaryCtxRetain(&context, device_);
        result != CUDA_SUCCESS) {
        return driver::to_error(api(), result, "device.context", "making the context");
    }
    api().cuCtxSetCurrent(context);
    if (auto reserved = reserve_arena(); !reserved.ok()) {
        api().cuDevicePrimaryCtxRelease_v2(device_);
        return reserved;
    }
    launch_graphs_ = std::make_unique<LaunchGraphs>(api());
    context_.store(context, std::memory_order_release);
    return {};
}

Device::~Device() {
    if (!has_context()) {
        return;
    }
    bind_thread();
    launch_graphs_.reset();
    while (!physical_.empty()) {
        const auto first = physical_.begin();
        api().cuMemUnmap(first->first, first->second.bytes);
        api().cuMemRelease(first->second.handle);
        physical_.erase(first);
    }
    end_offers();
    if (arena_reserved_) {
        api().cuMemAddressFree(wire::kArenaBase, wire::kArenaBytes);
    }
    api().cuDevicePrimaryCtxRelease_v2(device_);
}

void Device::bind_thread() const {
    const CUresult result = api().cuCtxSetCurrent(context());
    GANTRY_ASSERT(result == CUDA_SUCCESS, "cuCtxSetCurrent: %d", static_cast<int>(result));
}

Result<void> Device::reserve_arena() {
    CUdeviceptr address = 0;
    const CUresult result = api().cuMemAddressReserve(
        &address, wire::kArenaBytes, ArenaAllocator::kGranuleBytes, wire::kArenaBase, 0);
    if (result == CUDA_SUCCESS && address == wire::kArenaBase) {
        arena_reserved_ = true;
        return {};
    }
    std::string why = driver::describe(api(), result);
    if (result == CUDA_SUCCESS) {
        api().cuMemAddressFree(address, wire::kArenaBytes);
        why = fmt::format("the driver gave {:#x}", address);
    }
    return Error{Code::kFailedPrecondition, "device.arena",
                 fmt::format("the device addresses {:#x} to {:#x}, at which programs have their "
                             "memory on every host, cannot be had ({}): something else lies there "
                             "in the worker; start gantryd without libraries that map memory, such "
                             "as those of LD_PRELOAD",
                             wire::kArenaBase, wire::kArenaBase + wire::kArenaBytes, why)};
}

Result<Device::Physical> Device::create_physical(std::uint64_t bytes) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device_;
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
    if (exportable_) {
        properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        result = api().cuMemCreate(&handle, bytes, &properties, 0);
    }
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
        properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
        exportable_ = false;
        result = api().cuMemCreate(&handle, bytes, &properties, 0);
    }
    if (result != CUDA_SUCCESS) {
        return driver::to_error(api(), result, "device.memory",
                                fmt::format("allocating {} bytes of device memory", bytes));
    }
    Physical made;
    made.handle = handle;
    made.bytes = bytes;
    made.exportable = exportable_;
    return made;
}

Result<void> Device::map(DeviceVa address, std::uint64_t bytes) {
    MutexLock lock(mutex_);
    GANTRY_ASSIGN(Physical piece, take_offer(address, bytes));
    if (piece.handle == 0) {
        GANTRY_ASSIGN(piece, create_physical(bytes));
    }
    CUresult result = api().cuMemMap(address.value, bytes, 0, piece.handle, 0);
    if (result != CUDA_SUCCESS) {
        api().cuMemRelease(piece.handle);
        return driver::to_error(api(), result, "device.memory",
                                fmt::format("mapping {} bytes at {:#x}", bytes, address.value));
    }
    result = allow_access(address.value, bytes);
    if (result != CUDA_SUCCESS) {
        api().cuMemUnmap(address.value, bytes);
        api().cuMemRelease(piece.handle);
        return driver::to_error(api(), result, "device.memory",
                                fmt::format("opening {} bytes at {:#x}", bytes, address.value));
    }
    piece.serial = next_serial_++;
    physical_.emplace(address.value, std::move(piece));
    return {};
}

CUresult Device::allow_access(std::uint64_t address, std::uint64_t bytes,
                              CUmemAccess_flags flags) const {
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device_;
    access.flags = flags;
    return api().cuMemSetAccess(address, bytes, &access, 1);
}

void Device::unmap(DeviceVa address, std::uint64_t bytes) {
    MutexLock lock(mutex_);
    const auto entry = physical_.find(address.value);
    GANTRY_ASSERT(entry != physical_.end(), "nothing is mapped at %#llx",
                  static_cast<unsigned long long>(address.value));
    // After a sticky error both fail; the process's end gives the memory back then.
    api().cuMemUnmap(address.value, bytes);
    api().cuMemRelease(entry->second.handle);
    physical_.erase(entry);
}

std::optional<CUmemGenericAllocationHandle> Device::physical_at(DeviceVa address) {
    MutexLock lock(mutex_);
    const auto entry = physical_.find(address.value);
    return entry == physical_.end()
               ? std::nullopt
               : std::optional<CUmemGenericAllocationHandle>(entry->second.handle);
}

unsigned Device::compute_capability() const {
    const auto major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    const auto minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    return static_cast<unsigned>(major.value_or(0) * 10 + minor.value_or(0));
}

std::uint64_t Device::resident_threads() const {
    const auto processors = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT).value_or(0);
    const auto each = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR).value_or(0);
    return static_cast<std::uint64_t>(std::max(processors, 0)) *
           static_cast<std::uint64_t>(std::max(each, 0));
}

std::string Device::function_addresses() const {
    return extension_ != nullptr ? fmt::format("soft GPU, version {}", extension_->version)
                                 : fmt::format("driver for CUDA {}, compute capability {}",
                                               library_.version(), compute_capability());
}

std::optional<std::int32_t> Device::attribute(CUdevice_attribute number) const {
    int value = 0;
    if (api().cuDeviceGetAttribute(&value, number, device_) != CUDA_SUCCESS) {
        return std::nullopt;
    }
    return value;
}

std::uint64_t Device::memory_bytes() const {
    std::size_t bytes = 0;
    return api().cuDeviceTotalMem_v2(&bytes, device_) == CUDA_SUCCESS ? bytes : 0;
}

Result<void> Device::show(const wire::DeviceFacts& facts) {
    std::vector<CUdevice_attribute> numbers;
    std::vector<int> values;
    for (std::uint32_t i = 0; i < wire::kMaxDeviceAttributes; ++i) {
        if (facts.attribute_status[i] == CUDA_SUCCESS) {
            numbers.push_back(static_cast<CUdevice_attribute>(i));
            values.push_back(facts.attributes[i]);
        }
    }
    if (extension_ != nullptr && extension_->show_attributes(device_, numbers.data(), values.data(),
                                                             numbers.size()) != CUDA_SUCCESS) {
        return Error{Code::kInvalidArgument, "device.shown",
                     "the guest was told of a device that this driver cannot stand in for"};
    }
    return {};
}

std::optional<std::uint64_t> Device::memory_free_bytes() const {
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    if (api().cuMemGetInfo_v2 == nullptr ||
        api().cuMemGetInfo_v2(&free_bytes, &total_bytes) != CUDA_SUCCESS) {
        return std::nullopt;
    }
    return free_bytes;
}

std::uint64_t Device::context_bytes() const {
    constexpr std::uint64_t kSoft = std::uint64_t{2} << 20;
    constexpr std::uint64_t kCard = std::uint64_t{544} << 20;  // 524 MiB on an H100, driver 580.
    return extension_ != nullptr ? kSoft : kCard;
}

DeviceUuid Device::uuid() const {
    DeviceUuid bytes{};
    if (CUuuid told{}; api().cuDeviceGetUuid_v2 != nullptr &&
                       api().cuDeviceGetUuid_v2(&told, device_) == CUDA_SUCCESS) {
        static_assert(sizeof(told) == sizeof(bytes));
        std::memcpy(bytes.data(), &told, sizeof(bytes));
    }
    return bytes;
}

Result<wire::DeviceFacts> Device::facts(const DeviceBaseline& baseline) const {
    const driver::DriverApi& a = api();
    wire::DeviceFacts facts{};
    if (const CUresult result =
            a.cuDeviceGetName(facts.name, static_cast<int>(sizeof(facts.name)), device_);
        result != CUDA_SUCCESS) {
        return driver::to_error(a, result, "device.facts", "cuDeviceGetName");
    }
    facts.name[sizeof(facts.name) - 1] = '\0';
    const DeviceUuid own = uuid();
    static_assert(sizeof(own) == sizeof(facts.uuid));
    std::memcpy(facts.uuid, own.data(), sizeof(facts.uuid));
    if (a.cuDeviceGetPCIBusId != nullptr) {
        a.cuDeviceGetPCIBusId(facts.pci_bus_id, static_cast<int>(sizeof(facts.pci_bus_id)),
                              device_);
    }
    facts.total_memory_bytes = memory_bytes();
    for (std::uint32_t i = 0; i < wire::kMaxDeviceAttributes; ++i) {
        int value = 0;
        facts.attribute_status[i] = static_cast<std::uint32_t>(
            a.cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(i), device_));
        facts.attributes[i] = value;
    }
    for (std::uint32_t i = 0; i < wire::kMaxLimits; ++i) {
        std::size_t value = 0;
        facts.limit_status[i] = static_cast<std::uint32_t>(
            a.cuCtxGetLimit != nullptr ? a.cuCtxGetLimit(&value, static_cast<CUlimit>(i))
                                       : CUDA_ERROR_NOT_SUPPORTED);
        facts.limits[i] = value;
    }
    int least = 0;
    int greatest = has_context() ? 0 : kUsualGreatestPriority;
    facts.greatest_stream_priority = greatest;
    if (a.cuCtxGetStreamPriorityRange != nullptr &&
        a.cuCtxGetStreamPriorityRange(&least, &greatest) == CUDA_SUCCESS) {
        facts.least_stream_priority = least;
        facts.greatest_stream_priority = greatest;
    }
    unsigned int version = 0;
    if (a.cuCtxGetApiVersion != nullptr && has_context() &&
        a.cuCtxGetApiVersion(context(), &version) == CUDA_SUCCESS) {
        facts.context_api_version = version;
    }
    lay_baseline(baseline, facts);
    return facts;
}

}  // namespace gantry::worker
