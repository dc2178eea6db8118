// Trap: the driver API itself: PTX text at the end of a page, contexts, both kinds of kernel
// handle, error logs. Everything is fetched as a library would: by
// cudaGetDriverEntryPointByVersion.
#include <sys/mman.h>
#include <unistd.h>

#include "driver_entry.h"

static const char kText[] =
    "\n        .version 7.0\n.target sm_75\n.address_size 64\n"
    ".visible .global .align 4 .u32 cell = 11;\n"
    ".visible .entry bump(.param .u64 where, .param .u32 by)\n{\n"
    "  .reg .u64 %a; .reg .u32 %x, %y;\n"
    "  ld.param.u64 %a, [where]; ld.param.u32 %y, [by];\n"
    "  ld.global.u32 %x, [cell]; add.u32 %x, %x, %y; st.global.u32 [cell], %x;\n"
    "  st.global.u32 [%a], %x; ret;\n}\n";

/// Of code that is no good the log tells, with the line, and nobody else: a driver is silent.
static void refuse_silently() {
    ENTRY(cuModuleLoadDataEx, 2010);
    ENTRY(cuLibraryLoadData, 12000);
    ENTRY(cuLibraryGetKernel, 12000);
    ENTRY(cuLibraryUnload, 12000);
    ENTRY(cuLinkCreate, 5050);
    ENTRY(cuLinkAddData, 6050);
    ENTRY(cuLinkComplete, 5050);
    ENTRY(cuLinkDestroy, 5050);
    static const char kWrong[] =
        ".version 7.0\n.target sm_75\n.address_size 64\n"
        ".visible .entry wrong()\n{\n    bogus.u32 %r1;\n    ret;\n}\n";
    static char why[3][1024];
    CUjit_option wanted[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* slots[3][2];
    for (int i = 0; i < 3; ++i) {
        slots[i][0] = why[i], slots[i][1] = (void*)sizeof why[i];
    }
    int results[3];
    CUmodule wrong;
    CUlibrary library = nullptr;
    CUkernel kernel_of_it;
    CUlinkState link;
    void* image;
    size_t image_bytes;
    OK(cuLinkCreate_(2, wanted, slots[2], &link));
    FILE* const heard = tmpfile();
    const int true_stderr = dup(2);
    EXPECT(heard != nullptr && true_stderr >= 0 && dup2(fileno(heard), 2) == 2);
    results[0] = (int)cuModuleLoadDataEx_(&wrong, kWrong, 2, wanted, slots[0]);
    results[1] =
        (int)cuLibraryLoadData_(&library, kWrong, wanted, slots[1], 2, nullptr, nullptr, 0);
    const bool at_once = why[1][0] != 0;  // Its result comes with its first use.
    if (results[1] == CUDA_SUCCESS) {
        results[1] = (int)cuLibraryGetKernel_(&kernel_of_it, library, "wrong");
    }
    results[2] = (int)cuLinkAddData_(link, CU_JIT_INPUT_PTX, (void*)kWrong, sizeof kWrong,
                                     "wrong.ptx", 0, nullptr, nullptr);
    if (results[2] == CUDA_SUCCESS) {
        results[2] = (int)cuLinkComplete_(link, &image, &image_bytes);
    }
    const cudaError_t synchronised = cudaDeviceSynchronize();
    EXPECT(dup2(true_stderr, 2) == 2);
    EXPECT(lseek(fileno(heard), 0, SEEK_END) == 0);
    CHECK(synchronised);
    EXPECT(at_once);
    for (int i = 0; i < 3; ++i) {
        EXPECT_STATUS(results[i], CUDA_ERROR_INVALID_PTX);
        EXPECT(strstr(why[i], "line 6") != nullptr || strstr(why[i], "6:") != nullptr);
    }
    OK(cuLinkDestroy_(link));
    if (library != nullptr) {
        OK(cuLibraryUnload_(library));
    }
}

int main() {
    CHECK(cudaFree(nullptr));
    ENTRY(cuModuleLoadData, 2000);
    ENTRY(cuModuleLoadDataEx, 2010);
    ENTRY(cuModuleGetFunction, 2000);
    ENTRY(cuModuleGetGlobal, 3020);
    ENTRY(cuModuleUnload, 2000);
    ENTRY(cuLaunchKernel, 4000);
    ENTRY(cuLibraryLoadData, 12000);
    ENTRY(cuLibraryGetKernel, 12000);
    ENTRY(cuKernelGetFunction, 12000);
    ENTRY(cuCtxGetCurrent, 4000);
    ENTRY(cuCtxPushCurrent, 4000);
    ENTRY(cuCtxPopCurrent, 4000);

    const size_t page = 4096;
    char* pages =
        (char*)mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(pages != MAP_FAILED);
    EXPECT(mprotect(pages + page, page, PROT_NONE) == 0);
    char* text = pages + page - sizeof kText;
    memcpy(text, kText, sizeof kText);

    CUmodule module;
    CUfunction function;
    EXPECT_STATUS(cuModuleLoadData_(&module, text), CUDA_SUCCESS);
    EXPECT_STATUS(cuModuleGetFunction_(&function, module, "bump"), CUDA_SUCCESS);
    EXPECT_STATUS(cuModuleGetFunction_(&function, module, "no such kernel"), CUDA_ERROR_NOT_FOUND);
    EXPECT_STATUS(cuModuleGetFunction_(&function, module, "bump"), CUDA_SUCCESS);
    CUdeviceptr cell = 0;
    size_t bytes = 0;
    EXPECT_STATUS(cuModuleGetGlobal_(&cell, &bytes, module, "cell"), CUDA_SUCCESS);
    EXPECT(bytes == 4);
    CUlibrary library;
    CUkernel kernel;
    CUfunction twin;
    EXPECT_STATUS(cuLibraryLoadData_(&library, text, nullptr, nullptr, 0, nullptr, nullptr, 0),
                  CUDA_SUCCESS);
    EXPECT_STATUS(cuLibraryGetKernel_(&kernel, library, "bump"), CUDA_SUCCESS);
    EXPECT_STATUS(cuKernelGetFunction_(&twin, kernel), CUDA_SUCCESS);

    unsigned* out = nullptr;
    unsigned back = 0;
    CHECK(cudaMalloc((void**)&out, 4));
    unsigned by = 4;
    void* params[] = {&out, &by};
    EXPECT_STATUS(cuLaunchKernel_(function, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr),
                  CUDA_SUCCESS);
    midpoint();
    EXPECT_STATUS(cuLaunchKernel_(function, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr),
                  CUDA_SUCCESS);
    CHECK(cudaMemcpy(&back, out, 4, cudaMemcpyDeviceToHost));
    EXPECT(back == 19);
    CHECK(cudaMemcpy(&back, (void*)cell, 4, cudaMemcpyDeviceToHost));
    EXPECT(back == 19);
    EXPECT_STATUS(
        cuLaunchKernel_((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr),
        CUDA_SUCCESS);
    struct {
        unsigned* where;
        unsigned by;
    } packed = {out, 100};
    // Exactly the bytes of the parameters: the driver refuses more with 701.
    size_t packed_bytes = sizeof packed.where + sizeof packed.by;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE,
                     &packed_bytes, CU_LAUNCH_PARAM_END};
    EXPECT_STATUS(cuLaunchKernel_(twin, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra),
                  CUDA_SUCCESS);
    CHECK(cudaMemcpy(&back, out, 4, cudaMemcpyDeviceToHost));
    EXPECT(back == 115);

    refuse_silently();
    char log[1024] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[] = {log, (void*)sizeof log};
    CUmodule bad;
    EXPECT_STATUS(
        cuModuleLoadDataEx_(&bad, ".version 7.0\n.target sm_75\n.address_size 64\nrubbish", 2,
                            options, values),
        CUDA_ERROR_INVALID_PTX);
    EXPECT(strlen(log) > 0);
    EXPECT((size_t)values[1] >= strlen(log) && (size_t)values[1] <= strlen(log) + 1);

    // A load that succeeds tells as well, if it was asked to.
    // The text is one that no cache of the driver's has seen.
    static char told[4096], fresh[sizeof kText + 32];
    snprintf(fresh, sizeof fresh, "%s// %d\n", kText, (int)getpid());
    CUjit_option verbose[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                              CU_JIT_LOG_VERBOSE};
    void* given[] = {told, (void*)sizeof told, (void*)1};
    CUmodule good;
    EXPECT_STATUS(cuModuleLoadDataEx_(&good, fresh, 3, verbose, given), CUDA_SUCCESS);
    EXPECT(strstr(told, "'bump'") != nullptr);
    EXPECT((size_t)given[1] >= strlen(told) && (size_t)given[1] <= strlen(told) + 1);
    EXPECT_STATUS(cuModuleUnload_(good), CUDA_SUCCESS);

    CUcontext current = nullptr, popped = nullptr;
    EXPECT_STATUS(cuCtxGetCurrent_(&current), CUDA_SUCCESS);
    EXPECT(current != nullptr);
    EXPECT_STATUS(cuCtxPushCurrent_(current), CUDA_SUCCESS);
    EXPECT_STATUS(cuCtxPopCurrent_(&popped), CUDA_SUCCESS);
    EXPECT(popped == current);
    EXPECT_STATUS(cuModuleUnload_(module), CUDA_SUCCESS);
    return pass("driver_modules");
}
