// Modules and functions.
#include <cstring>
#include <fstream>
#include <sstream>

#include "host-daemon/softgpu/code/jit_options.h"
#include "host-daemon/softgpu/code/module.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/graph/capture.h"
#include "host-daemon/softgpu/streams/device_output.h"
#include "host-daemon/softgpu/streams/stream.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {
namespace {

using softgpu::Context;
using softgpu::Function;
using softgpu::JitOptions;
using softgpu::Module;
using softgpu::Scheduler;

CUresult load(CUmodule* module, const void* image, JitOptions* options) {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(module == nullptr || image == nullptr, CUDA_ERROR_INVALID_VALUE);
    softgpu::DeviceOutput::instance().flush();
    std::string log;
    const CUresult error = softgpu::load_module_image(context, image, module, &log);
    if (options != nullptr) {
        const auto made = error == CUDA_SUCCESS ? softgpu::find<Module>(*module) : nullptr;
        options->finish(log, made != nullptr && options->is_verbose()
                                 ? softgpu::describe_kernels(made->program())
                                 : "");
    }
    return error;
}

CUresult find_module(CUmodule handle, std::shared_ptr<Module>& module) {
    GANTRY_CURRENT(context);
    module = softgpu::find<Module>(handle);
    return module != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult find_function(CUfunction handle, std::shared_ptr<Function>& function) {
    GANTRY_CURRENT(context);
    return softgpu::resolve_function(context, handle, function);
}

CUresult parameter_info(const softgpu::KernelInfo& kernel, size_t index, size_t* offset,
                        size_t* size) {
    GANTRY_REFUSE_IF(offset == nullptr || index >= kernel.parameters.size(),
                     CUDA_ERROR_INVALID_VALUE);
    *offset = kernel.parameters[index].offset_bytes;
    if (size != nullptr) {
        *size = kernel.parameters[index].size_bytes;
    }
    return CUDA_SUCCESS;
}

}  // namespace

CUresult cuModuleLoadData(CUmodule* module, const void* image) noexcept {
    return load(module, image, nullptr);
}

CUresult cuModuleLoadFatBinary(CUmodule* module, const void* fatCubin) noexcept {
    return load(module, fatCubin, nullptr);
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int numOptions,
                            CUjit_option* options, void** optionValues) noexcept {
    JitOptions jit;
    GANTRY_CU(jit.read(numOptions, options, optionValues));
    return load(module, image, &jit);
}

CUresult cuModuleLoad(CUmodule* module, const char* fname) noexcept {
    GANTRY_REFUSE_IF(module == nullptr || fname == nullptr, CUDA_ERROR_INVALID_VALUE);
    std::string bytes;
    GANTRY_CU(softgpu::read_image_file(fname, bytes));
    return load(module, bytes.data(), nullptr);
}

CUresult cuModuleUnload(CUmodule hmod) noexcept {
    GANTRY_CURRENT(context);
    const auto module = softgpu::find<Module>(hmod);
    GANTRY_REFUSE_IF(module == nullptr, CUDA_ERROR_INVALID_HANDLE);
    const auto owner = module->context();
    if (owner != nullptr) {
        Scheduler::instance().wait(Scheduler::instance().points_of(*owner));
        const std::lock_guard lock(owner->mutex);
        owner->modules.erase(hmod);
    }
    softgpu::DeviceOutput::instance().flush();
    module->retire();
    softgpu::retract(*module);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* hfunc, CUmodule hmod, const char* name) noexcept {
    std::shared_ptr<Module> module;
    GANTRY_CU(find_module(hmod, module));
    GANTRY_REFUSE_IF(hfunc == nullptr || name == nullptr, CUDA_ERROR_INVALID_VALUE);
    const auto function = module->function(name);
    GANTRY_REFUSE_IF(function == nullptr, CUDA_ERROR_NOT_FOUND);
    *hfunc = function->as<CUfunction>();
    return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* dptr, size_t* bytes, CUmodule hmod,
                              const char* name) noexcept {
    std::shared_ptr<Module> module;
    GANTRY_CU(find_module(hmod, module));
    GANTRY_REFUSE_IF(name == nullptr || (dptr == nullptr && bytes == nullptr),
                     CUDA_ERROR_INVALID_VALUE);
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

CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule hmod) noexcept {
    std::shared_ptr<Module> module;
    GANTRY_CU(find_module(hmod, module));
    GANTRY_REFUSE_IF(count == nullptr, CUDA_ERROR_INVALID_VALUE);
    *count = static_cast<unsigned>(module->program().kernels().size());
    return CUDA_SUCCESS;
}

CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned int numFunctions,
                                    CUmodule mod) noexcept {
    std::shared_ptr<Module> module;
    GANTRY_CU(find_module(mod, module));
    GANTRY_REFUSE_IF(functions == nullptr || numFunctions == 0, CUDA_ERROR_INVALID_VALUE);
    unsigned count = 0;
    for (const auto& function : module->functions()) {
        if (count == numFunctions) {
            break;
        }
        functions[count++] = function->as<CUfunction>();
    }
    return CUDA_SUCCESS;
}

CUresult cuFuncGetModule(CUmodule* hmod, CUfunction hfunc) noexcept {
    std::shared_ptr<Function> function;
    GANTRY_CU(find_function(hfunc, function));
    const auto module = function->module.lock();
    if (hmod == nullptr || module == nullptr) {
        return hmod == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    }
    *hmod = module->as<CUmodule>();
    return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char** name, CUfunction hfunc) noexcept {
    std::shared_ptr<Function> function;
    GANTRY_REFUSE_IF(name == nullptr || hfunc == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_CU(find_function(hfunc, function));
    *name = function->info().name.c_str();
    return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t* paramOffset,
                            size_t* paramSize) noexcept {
    std::shared_ptr<Function> function;
    GANTRY_CU(find_function(func, function));
    return parameter_info(function->info(), paramIndex, paramOffset, paramSize);
}

CUresult cuFuncGetAttribute(int* pi, CUfunction_attribute attrib, CUfunction hfunc) noexcept {
    std::shared_ptr<Function> function;
    GANTRY_CU(find_function(hfunc, function));
    GANTRY_REFUSE_IF(pi == nullptr || !function->attribute(attrib, *pi), CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) noexcept {
    std::shared_ptr<Function> function;
    GANTRY_CU(find_function(hfunc, function));
    return function->set_attribute(attrib, value);
}

CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config) noexcept {
    std::shared_ptr<Function> function;
    GANTRY_CU(find_function(hfunc, function));
    return config < 0 || config > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE
                                                             : CUDA_SUCCESS;
}

CUresult cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config) noexcept {
    std::shared_ptr<Function> function;
    GANTRY_CU(find_function(hfunc, function));
    return config < 0 || config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE
               ? CUDA_ERROR_INVALID_VALUE
               : CUDA_SUCCESS;
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction hfunc) noexcept {
    std::shared_ptr<Function> function;
    GANTRY_CU(find_function(hfunc, function));
    GANTRY_REFUSE_IF(state == nullptr, CUDA_ERROR_INVALID_VALUE);
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction hfunc) noexcept {
    std::shared_ptr<Function> function;
    return find_function(hfunc, function);
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t* paramOffset,
                              size_t* paramSize) noexcept {
    return cuFuncGetParamInfo(reinterpret_cast<CUfunction>(kernel), paramIndex, paramOffset,
                              paramSize);
}

}  // namespace gantry::cuda_impl
