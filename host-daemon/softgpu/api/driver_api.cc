// Start-up and discovery: cuInit, version, entry points, export tables, refusals.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "host-daemon/softgpu/api/export_tables.h"
#include "host-daemon/softgpu/code/module.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/runtime/start.h"
#include "proto/cuda/dark/dark.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/op_table.h"
#include "proto/cuda/gen/proc_table.h"

namespace gantry::cuda_impl {

CUresult refused(cuda::Op op) noexcept {
    softgpu::report_refusal(std::string("refused call ") + cuda::op_info(op).name);
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuInit(unsigned int Flags) noexcept {
    return Flags != 0 ? CUDA_ERROR_INVALID_VALUE : softgpu::initialise();
}

CUresult cuDriverGetVersion(int* driverVersion) noexcept {
    GANTRY_REFUSE_IF(driverVersion == nullptr, CUDA_ERROR_INVALID_VALUE);
    *driverVersion = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int driverVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* symbolFound) noexcept {
    cuda::ProcStatus status = cuda::ProcStatus::kFound;
    const int result =
        cuda::get_proc_address(symbol, pfn, driverVersion, flags, &status, CUDA_VERSION);
    if (result == CUDA_SUCCESS && symbolFound != nullptr) {
        *symbolFound = static_cast<CUdriverProcAddressQueryResult>(status);
    }
    return static_cast<CUresult>(result);
}

CUresult cuGetProcAddress(const char* symbol, void** pfn, int driverVersion,
                          cuuint64_t flags) noexcept {
    return static_cast<CUresult>(
        cuda::get_proc_address_v1(symbol, pfn, driverVersion, flags, CUDA_VERSION));
}

CUresult cuGetExportTable(const void** ppExportTable, const CUuuid* pExportTableId) noexcept {
    softgpu::prepare_export_tables();
    return static_cast<CUresult>(dark::get_export_table(ppExportTable, pExportTableId));
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) noexcept {
    GANTRY_REFUSE_IF(mode == nullptr, CUDA_ERROR_INVALID_VALUE);
    *mode = softgpu::eager_loading() ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

CUresult cuProfilerInitialize(const char*, const char*, CUoutput_mode) noexcept {
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuProfilerStart() noexcept {
    GANTRY_CURRENT(context);
    return CUDA_SUCCESS;
}

CUresult cuProfilerStop() noexcept {
    GANTRY_CURRENT(context);
    return CUDA_SUCCESS;
}

}  // namespace gantry::cuda_impl
