#include "host-daemon/softgpu/api/export_tables.h"

#include <cstring>
#include <mutex>

#include "host-daemon/softgpu/api/extension.h"
#include "host-daemon/softgpu/code/module.h"
#include "host-daemon/softgpu/core/driver.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "proto/cuda/dark/dark.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::softgpu {
namespace {

int device_count() {
    return check_ready() == CUDA_SUCCESS ? static_cast<int>(driver().devices.size()) : 0;
}

int device_identity(int ordinal, dark::DeviceIdentity* out) {
    const Device* device = check_ready() == CUDA_SUCCESS ? device_of(ordinal) : nullptr;
    GANTRY_REFUSE_IF(device == nullptr, CUDA_ERROR_INVALID_DEVICE);
    std::memcpy(out->uuid, device->profile.uuid.data(), sizeof out->uuid);
    out->pci_domain = device->profile.pci_domain;
    out->pci_bus = device->profile.pci_bus;
    out->pci_device = device->profile.pci_device;
    return CUDA_SUCCESS;
}

int primary_context(void** context, int ordinal) {
    if (const CUresult error = check_ready(); error != CUDA_SUCCESS) {
        return error;
    }
    const Device* device = device_of(ordinal);
    GANTRY_REFUSE_IF(device == nullptr, CUDA_ERROR_INVALID_DEVICE);
    *context = device->primary->handle();
    return CUDA_SUCCESS;
}

int current_context_handle(void** context) {
    *context = nullptr;
    if (const CUresult error = check_ready(); error != CUDA_SUCCESS) {
        return error;
    }
    const auto& stack = thread_state().stack;
    *context = stack.empty() || stack.back() == nullptr ? nullptr : stack.back()->handle();
    return CUDA_SUCCESS;
}

int load_module(void** module, const void* image) {
    return module == nullptr
               ? CUDA_ERROR_INVALID_VALUE
               : cuda_impl::cuModuleLoadData(reinterpret_cast<CUmodule*>(module), image);
}

int visit_functions(void* module, dark::FunctionVisitor visitor, void* user) {
    const auto found = find<Module>(module);
    if (found == nullptr) {
        return 0;
    }
    int count = 0;
    for (const auto& function : found->functions()) {
        visitor(user, function->handle(), 0);
        ++count;
    }
    return count;
}

int create_context(void** context, unsigned flags, int ordinal) {
    return cuda_impl::cuCtxCreate_v2(reinterpret_cast<CUcontext*>(context), flags, ordinal);
}

}  // namespace

void prepare_export_tables() {
    static std::once_flag once;
    std::call_once(once, [] {
        dark::Callbacks callbacks{};
        callbacks.driver_version = [] { return static_cast<std::uint32_t>(CUDA_VERSION); };
        callbacks.device_count = device_count;
        callbacks.device_identity = device_identity;
        callbacks.primary_context = primary_context;
        callbacks.current_context = current_context_handle;
        callbacks.load_module = load_module;
        callbacks.visit_functions = visit_functions;
        callbacks.create_context = create_context;
        callbacks.own_table = extension_table;
        dark::configure(callbacks);
    });
}

}  // namespace gantry::softgpu
