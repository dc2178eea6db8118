// Trap: the driver's linker: PTX units that call each other, logs, a link under way during a move,
// and the linked image used after the link state is gone.
#include "driver_entry.h"

static const char kCaller[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n"
    ".extern .func (.param .u32 out) helper(.param .u32 in);\n"
    ".visible .entry run(.param .u64 where, .param .u32 value)\n{\n"
    "  .reg .u64 %a; .reg .u32 %x;\n"
    "  ld.param.u64 %a, [where]; ld.param.u32 %x, [value];\n"
    "  { .param .u32 p; .param .u32 r; st.param.u32 [p], %x;\n"
    "    call.uni (r), helper, (p); ld.param.u32 %x, [r]; }\n"
    "  st.global.u32 [%a], %x; ret;\n}\n";

static const char kHelper[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n"
    ".visible .func (.param .u32 out) helper(.param .u32 in)\n{\n"
    "  .reg .u32 %x;\n"
    "  ld.param.u32 %x, [in]; mul.lo.u32 %x, %x, 3; add.u32 %x, %x, 1;\n"
    "  st.param.u32 [out], %x; ret;\n}\n";

int main() {
    CHECK(cudaFree(nullptr));
    ENTRY(cuLinkCreate, 6050);
    ENTRY(cuLinkAddData, 6050);
    ENTRY(cuLinkComplete, 5050);
    ENTRY(cuLinkDestroy, 5050);
    ENTRY(cuModuleLoadData, 2000);
    ENTRY(cuModuleGetFunction, 2000);
    ENTRY(cuModuleUnload, 2000);
    ENTRY(cuLaunchKernel, 4000);

    char info[512] = "", error[512] = "";
    CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                              CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[] = {info, (void*)sizeof info, error, (void*)sizeof error};
    CUlinkState bad, link;
    OK(cuLinkCreate_(4, options, values, &bad));
    int failed = cuLinkAddData_(bad, CU_JIT_INPUT_PTX, (void*)"rubbish", 8, "rubbish.ptx", 0,
                                nullptr, nullptr);
    void* cubin = nullptr;
    size_t bytes = 0;
    if (failed == CUDA_SUCCESS) {
        failed = cuLinkComplete_(bad, &cubin, &bytes);
    }
    EXPECT(failed != CUDA_SUCCESS && strlen(error) > 0);
    EXPECT((size_t)values[3] >= strlen(error) && (size_t)values[3] <= sizeof error);
    OK(cuLinkDestroy_(bad));

    // What a verbose linker says arrives when the link is complete, in the program's own buffers.
    CUjit_option verbose[] = {CU_JIT_WALL_TIME,
                              CU_JIT_INFO_LOG_BUFFER,
                              CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                              CU_JIT_ERROR_LOG_BUFFER,
                              CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                              CU_JIT_LOG_VERBOSE};
    static char told[8192], wrong[64];
    void* given[] = {nullptr, told, (void*)sizeof told, wrong, (void*)sizeof wrong, (void*)1};
    OK(cuLinkCreate_(6, verbose, given, &link));
    OK(cuLinkAddData_(link, CU_JIT_INPUT_PTX, (void*)kCaller, sizeof kCaller, "caller.ptx", 0,
                      nullptr, nullptr));

    midpoint();  // Half of it is there.

    OK(cuLinkAddData_(link, CU_JIT_INPUT_PTX, (void*)kHelper, sizeof kHelper, "helper.ptx", 0,
                      nullptr, nullptr));
    OK(cuLinkComplete_(link, &cubin, &bytes));
    EXPECT(cubin != nullptr && bytes > 0);
    // Sizes count the text, with or without its NUL.
    EXPECT(strstr(told, "'run'") != nullptr && wrong[0] == '\0');
    EXPECT((size_t)given[2] >= strlen(told) && (size_t)given[2] <= strlen(told) + 1);
    EXPECT((size_t)given[4] <= 1);
    EXPECT((size_t)(void*)given[1] == (size_t)told && given[5] == (void*)1);
    void* copy = malloc(bytes);
    memcpy(copy, cubin, bytes);
    OK(cuLinkDestroy_(link));
    CUmodule module;
    CUfunction function;
    OK(cuModuleLoadData_(&module, copy));
    OK(cuModuleGetFunction_(&function, module, "run"));
    unsigned* out = nullptr;
    unsigned back = 0, value = 14;
    CHECK(cudaMalloc((void**)&out, 4));
    void* params[] = {&out, &value};
    OK(cuLaunchKernel_(function, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
    CHECK(cudaMemcpy(&back, out, 4, cudaMemcpyDeviceToHost));
    EXPECT(back == 43);
    OK(cuModuleUnload_(module));
    free(copy);
    return pass("linker");
}
