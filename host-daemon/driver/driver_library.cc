#include "host-daemon/driver/driver_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

namespace gantry::driver {
namespace {

/// Names and presence of the entry points that the worker calls without asking first.
struct Required {
    const char* name;
    bool present;
};

}  // namespace

Result<std::unique_ptr<DriverLibrary>> DriverLibrary::load(const std::string& path) {
    std::unique_ptr<DriverLibrary> library(new DriverLibrary());
    library->path_ = path.empty() ? "libcuda.so.1" : path;
    // RTLD_LOCAL: the guest-facing shim has the same symbol names; nothing may bind to these.
    void* handle = dlopen(library->path_.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        const char* why = dlerror();
        return Error{Code::kNotFound, "driver.absent",
                     "no CUDA driver at " + library->path_ + ": " +
                         (why != nullptr ? why : "unknown reason") +
                         "; name one with --driver (NVIDIA's libcuda.so.1 or libcuda-soft.so.1)"};
    }
    library->api_.load(handle);
    GANTRY_TRY(library->check_symbols());
    GANTRY_TRY(library->initialise());
    return library;
}

Result<void> DriverLibrary::check_symbols() const {
    const DriverApi& a = api_;
#define GANTRY_REQUIRED(symbol) \
    { #symbol, a.symbol != nullptr }
    const Required required[] = {
        GANTRY_REQUIRED(cuInit),
        GANTRY_REQUIRED(cuDriverGetVersion),
        GANTRY_REQUIRED(cuDeviceGetCount),
        GANTRY_REQUIRED(cuDeviceGet),
        GANTRY_REQUIRED(cuDeviceGetName),
        GANTRY_REQUIRED(cuDeviceGetAttribute),
        GANTRY_REQUIRED(cuDeviceTotalMem_v2),
        GANTRY_REQUIRED(cuDevicePrimaryCtxRetain),
        GANTRY_REQUIRED(cuDevicePrimaryCtxRelease_v2),
        GANTRY_REQUIRED(cuCtxSetCurrent),
        GANTRY_REQUIRED(cuCtxSynchronize),
        GANTRY_REQUIRED(cuGetErrorName),
        GANTRY_REQUIRED(cuGetErrorString),
        GANTRY_REQUIRED(cuMemAddressReserve),
        GANTRY_REQUIRED(cuMemAddressFree),
        GANTRY_REQUIRED(cuMemCreate),
        GANTRY_REQUIRED(cuMemRelease),
        GANTRY_REQUIRED(cuMemMap),
        GANTRY_REQUIRED(cuMemUnmap),
        GANTRY_REQUIRED(cuMemSetAccess),
        GANTRY_REQUIRED(cuMemGetAllocationGranularity),
        GANTRY_REQUIRED(cuMemHostRegister_v2),
        GANTRY_REQUIRED(cuMemHostUnregister),
        GANTRY_REQUIRED(cuMemcpyAsync),
        GANTRY_REQUIRED(cuMemcpyHtoDAsync_v2),
        GANTRY_REQUIRED(cuMemcpyDtoHAsync_v2),
        GANTRY_REQUIRED(cuMemcpyHtoD_v2),
        GANTRY_REQUIRED(cuMemcpyDtoH_v2),
        GANTRY_REQUIRED(cuMemsetD8_v2),
        GANTRY_REQUIRED(cuMemsetD8Async),
        GANTRY_REQUIRED(cuStreamCreateWithPriority),
        GANTRY_REQUIRED(cuStreamDestroy_v2),
        GANTRY_REQUIRED(cuStreamSynchronize),
        GANTRY_REQUIRED(cuStreamQuery),
        GANTRY_REQUIRED(cuEventCreate),
        GANTRY_REQUIRED(cuEventRecord),
        GANTRY_REQUIRED(cuEventQuery),
        GANTRY_REQUIRED(cuEventDestroy_v2),
        GANTRY_REQUIRED(cuModuleLoadDataEx),
        GANTRY_REQUIRED(cuModuleGetFunction),
        GANTRY_REQUIRED(cuLibraryLoadData),
        GANTRY_REQUIRED(cuLibraryGetKernel),
        GANTRY_REQUIRED(cuLaunchKernel),
        GANTRY_REQUIRED(cuLaunchKernelEx),
        GANTRY_REQUIRED(cuLaunchHostFunc),
    };
#undef GANTRY_REQUIRED
    for (const Required& symbol : required) {
        if (!symbol.present) {
            return Error{Code::kFailedPrecondition, "driver.symbol_missing",
                         path_ + " lacks " + symbol.name +
                             "; Gantry needs a CUDA driver of release 535 or newer"};
        }
    }
    return {};
}

Result<void> DriverLibrary::initialise() {
    const CUresult started = api_.cuInit(0);
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    if (started == CUDA_ERROR_NO_DEVICE && visible != nullptr) {
        return Error{Code::kNotFound, "driver.device",
                     path_ + " sees no CUDA device: CUDA_VISIBLE_DEVICES is " + visible +
                         " here, which gantryd takes from worker.device or from `gantry "
                         "reassign`"};
    }
    if (started != CUDA_SUCCESS) {
        return to_error(api_, started, "driver.init", "cuInit of " + path_);
    }
    if (const CUresult result = api_.cuDriverGetVersion(&version_); result != CUDA_SUCCESS) {
        return to_error(api_, result, "driver.init", "cuDriverGetVersion of " + path_);
    }
    if (version_ < kDriverVersionMin) {
        return Error{Code::kFailedPrecondition, "driver.too_old",
                     path_ + " is for CUDA " + std::to_string(version_ / 1000) + "." +
                         std::to_string(version_ % 1000 / 10) +
                         "; Gantry needs release 535 (CUDA 12.2) or newer"};
    }
    if (const CUresult result = api_.cuDeviceGetCount(&device_count_); result != CUDA_SUCCESS) {
        return to_error(api_, result, "driver.init", "cuDeviceGetCount of " + path_);
    }
    if (device_count_ == 0) {
        return Error{Code::kNotFound, "driver.device", path_ + " sees no CUDA device"};
    }
    return {};
}

const void* DriverLibrary::export_table(const unsigned char id[16]) const {
    if (api_.cuGetExportTable == nullptr) {
        return nullptr;
    }
    const void* table = nullptr;
    CUuuid uuid;
    static_assert(sizeof(uuid) == 16);
    __builtin_memcpy(&uuid, id, sizeof(uuid));
    return api_.cuGetExportTable(&table, &uuid) == CUDA_SUCCESS ? table : nullptr;
}

std::string describe(const DriverApi& api, CUresult result) {
    const char* name = nullptr;
    const char* text = nullptr;
    if (api.cuGetErrorName == nullptr || api.cuGetErrorName(result, &name) != CUDA_SUCCESS ||
        name == nullptr) {
        name = "CUDA error";
    }
    std::string line = std::string(name) + " (" + std::to_string(static_cast<int>(result)) + ")";
    if (api.cuGetErrorString != nullptr && api.cuGetErrorString(result, &text) == CUDA_SUCCESS &&
        text != nullptr) {
        line += std::string(": ") + text;
    }
    return line;
}

Error to_error(const DriverApi& api, CUresult result, const char* reason, const std::string& what) {
    const Code code =
        result == CUDA_ERROR_OUT_OF_MEMORY ? Code::kResourceExhausted : Code::kInternal;
    return Error{code, reason, what + " failed: " + describe(api, result)};
}

bool is_sticky(CUresult result) {
    switch (static_cast<int>(result)) {
        case 700:  // illegal address
        case 702:  // launch timeout
        case 710:  // device-side assert
        case 714:  // hardware stack error
        case 715:  // illegal instruction
        case 716:  // misaligned address
        case 717:  // invalid address space
        case 718:  // invalid program counter
        case 719:  // launch failure
        case 721:  // tensor memory leak
        case 214:  // uncorrectable ECC error
        case 220:  // NVLink error
            return true;
        default: return false;
    }
}

}  // namespace gantry::driver
