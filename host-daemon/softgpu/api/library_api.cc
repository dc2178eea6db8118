// Libraries and kernels: how CUDA runtimes since 12 load code.
#include "host-daemon/softgpu/code/jit_options.h"
#include "host-daemon/softgpu/code/module.h"
#include "host-daemon/softgpu/core/driver.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/streams/device_output.h"
#include "host-daemon/softgpu/streams/stream.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {
namespace {

using softgpu::Context;
using softgpu::Function;
using softgpu::Kernel;
using softgpu::Library;
using softgpu::Module;
using softgpu::Scheduler;

/// The context a library call means: the current one, else the first device's.
std::shared_ptr<Context> context_for_library() {
    const auto& stack = softgpu::thread_state().stack;
    return stack.empty() || stack.back() == nullptr ? softgpu::driver().devices[0]->primary
                                                    : stack.back();
}

CUresult find_library(CUlibrary handle, std::shared_ptr<Library>& library) {
    GANTRY_CU(softgpu::poison());
    library = softgpu::find<Library>(handle);
    return library != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult load_library(CUlibrary* out, const void* code, softgpu::JitOptions& jit) {
    GANTRY_CU(softgpu::poison());
    GANTRY_REFUSE_IF(softgpu::thread_state().in_host_callback, CUDA_ERROR_NOT_PERMITTED);
    const auto context = context_for_library();
    const auto library = std::make_shared<Library>(
        softgpu::image::read_image(code, context->device.profile.capability()));
    const auto handle = softgpu::publish<CUlibrary>(library);
    // As on an H100, a lazily loaded image that is no good says so with its result when it is first
    // used, and in an error log at once.
    std::string log;
    if (softgpu::eager_loading() || jit.wants_errors()) {
        std::shared_ptr<Module> module;
        const CUresult error = library->module_in(context, module, &log);
        if (error != CUDA_SUCCESS && softgpu::eager_loading()) {
            jit.finish(log);
            softgpu::retract(*library);
            return error;
        }
    }
    jit.finish(log);
    *out = handle;
    return CUDA_SUCCESS;
}

/// A kernel's function on the device, whichever context is current.
CUresult function_on(CUkernel handle, CUdevice dev, std::shared_ptr<Function>& function) {
    GANTRY_CU(softgpu::poison());
    softgpu::Device* device = softgpu::device_of(dev);
    GANTRY_REFUSE_IF(device == nullptr, CUDA_ERROR_INVALID_DEVICE);
    const auto kernel = softgpu::find<Kernel>(handle);
    GANTRY_REFUSE_IF(kernel == nullptr, CUDA_ERROR_INVALID_HANDLE);
    const auto current = context_for_library();
    return kernel->function_in(&current->device == device ? current : device->primary, function);
}

}  // namespace

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jitOptions,
                           void** jitOptionsValues, unsigned int numJitOptions,
                           CUlibraryOption* libraryOptions, void**,
                           unsigned int numLibraryOptions) noexcept {
    if (library == nullptr || code == nullptr ||
        (numLibraryOptions != 0 && libraryOptions == nullptr)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    softgpu::JitOptions jit;
    GANTRY_CU(jit.read(numJitOptions, jitOptions, jitOptionsValues));
    return load_library(library, code, jit);
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* fileName, CUjit_option* jitOptions,
                               void** jitOptionsValues, unsigned int numJitOptions,
                               CUlibraryOption*, void**, unsigned int) noexcept {
    GANTRY_REFUSE_IF(library == nullptr || fileName == nullptr, CUDA_ERROR_INVALID_VALUE);
    softgpu::JitOptions jit;
    GANTRY_CU(jit.read(numJitOptions, jitOptions, jitOptionsValues));
    std::string bytes;
    GANTRY_CU(softgpu::read_image_file(fileName, bytes));
    return load_library(library, bytes.data(), jit);
}

CUresult cuLibraryUnload(CUlibrary library) noexcept {
    const auto found = softgpu::find<Library>(library);
    GANTRY_REFUSE_IF(found == nullptr, CUDA_ERROR_INVALID_HANDLE);
    for (const auto& device : softgpu::driver().devices) {
        Scheduler::instance().wait(Scheduler::instance().points_of(*device->primary));
    }
    if (const auto& stack = softgpu::thread_state().stack;
        !stack.empty() && stack.back() != nullptr) {
        Scheduler::instance().wait(Scheduler::instance().points_of(*stack.back()));
    }
    softgpu::DeviceOutput::instance().flush();
    found->unload();
    softgpu::retract(*found);
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel* pKernel, CUlibrary library, const char* name) noexcept {
    std::shared_ptr<Library> found;
    GANTRY_CU(find_library(library, found));
    GANTRY_REFUSE_IF(pKernel == nullptr || name == nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<Kernel> kernel;
    GANTRY_CU(found->kernel(name, kernel));
    *pKernel = kernel->as<CUkernel>();
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule* pMod, CUlibrary library) noexcept {
    GANTRY_CURRENT(context);
    std::shared_ptr<Library> found;
    GANTRY_CU(find_library(library, found));
    GANTRY_REFUSE_IF(pMod == nullptr, CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<Module> module;
    GANTRY_CU(found->module_in(context, module));
    *pMod = module->as<CUmodule>();
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary lib) noexcept {
    std::shared_ptr<Library> found;
    GANTRY_CU(find_library(lib, found));
    GANTRY_REFUSE_IF(count == nullptr, CUDA_ERROR_INVALID_VALUE);
    std::vector<std::shared_ptr<Kernel>> kernels;
    GANTRY_CU(found->kernels(kernels));
    *count = static_cast<unsigned>(kernels.size());
    return CUDA_SUCCESS;
}

CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int numKernels,
                                   CUlibrary lib) noexcept {
    std::shared_ptr<Library> found;
    GANTRY_CU(find_library(lib, found));
    GANTRY_REFUSE_IF(kernels == nullptr || numKernels == 0, CUDA_ERROR_INVALID_VALUE);
    std::vector<std::shared_ptr<Kernel>> all;
    GANTRY_CU(found->kernels(all));
    for (unsigned i = 0; i < numKernels && i < all.size(); ++i) {
        kernels[i] = all[i]->as<CUkernel>();
    }
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetGlobal(CUdeviceptr* dptr, size_t* bytes, CUlibrary library,
                            const char* name) noexcept {
    GANTRY_CURRENT(context);
    std::shared_ptr<Library> found;
    GANTRY_CU(find_library(library, found));
    GANTRY_REFUSE_IF(name == nullptr || (dptr == nullptr && bytes == nullptr),
                     CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<Module> module;
    GANTRY_CU(found->module_in(context, module));
    const softgpu::PlacedGlobal* global = module->global(name);
    GANTRY_REFUSE_IF(global == nullptr, CUDA_ERROR_NOT_FOUND);
    if (dptr != nullptr) {
        *dptr = global->address;
    }
    if (bytes != nullptr) {
        *bytes = global->bytes;
    }
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetManaged(CUdeviceptr* dptr, size_t* bytes, CUlibrary library,
                             const char* name) noexcept {
    std::shared_ptr<Library> found;
    GANTRY_CU(find_library(library, found));
    GANTRY_REFUSE_IF(name == nullptr || (dptr == nullptr && bytes == nullptr),
                     CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<Module> module;
    GANTRY_CU(found->module_in(context_for_library(), module));
    const softgpu::PlacedGlobal* global = module->global(name);
    GANTRY_REFUSE_IF(global == nullptr || !global->managed, CUDA_ERROR_NOT_FOUND);
    if (dptr != nullptr) {
        *dptr = global->address;
    }
    if (bytes != nullptr) {
        *bytes = global->bytes;
    }
    return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction* pFunc, CUkernel kernel) noexcept {
    GANTRY_CURRENT(context);
    const auto found = softgpu::find<Kernel>(kernel);
    if (pFunc == nullptr || found == nullptr) {
        return pFunc == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    }
    std::shared_ptr<Function> function;
    GANTRY_CU(found->function_in(context, function));
    *pFunc = function->as<CUfunction>();
    return CUDA_SUCCESS;
}

CUresult cuKernelGetLibrary(CUlibrary* pLib, CUkernel kernel) noexcept {
    const auto found = softgpu::find<Kernel>(kernel);
    const auto library = found != nullptr ? found->library.lock() : nullptr;
    if (pLib == nullptr || library == nullptr) {
        return pLib == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    }
    *pLib = library->as<CUlibrary>();
    return CUDA_SUCCESS;
}

CUresult cuKernelGetAttribute(int* pi, CUfunction_attribute attrib, CUkernel kernel,
                              CUdevice dev) noexcept {
    std::shared_ptr<Function> function;
    GANTRY_CU(function_on(kernel, dev, function));
    return pi != nullptr && function->attribute(attrib, *pi) ? CUDA_SUCCESS
                                                             : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel,
                              CUdevice dev) noexcept {
    std::shared_ptr<Function> function;
    GANTRY_CU(function_on(kernel, dev, function));
    return function->set_attribute(attrib, val);
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev) noexcept {
    std::shared_ptr<Function> function;
    GANTRY_CU(function_on(kernel, dev, function));
    return config < 0 || config > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE
                                                             : CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char** name, CUkernel hfunc) noexcept {
    GANTRY_REFUSE_IF(name == nullptr || hfunc == nullptr, CUDA_ERROR_INVALID_VALUE);
    const auto found = softgpu::find<Kernel>(hfunc);
    GANTRY_REFUSE_IF(found == nullptr, CUDA_ERROR_INVALID_HANDLE);
    *name = found->name.c_str();
    return CUDA_SUCCESS;
}

}  // namespace gantry::cuda_impl
