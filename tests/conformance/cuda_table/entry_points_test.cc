// The generated entry points: exactly the CUDA ABI is exported, twins and same_as rows arrive where
// they should, what has no implementation is refused by name, and the lookup behind
// cuGetProcAddress follows the rule of versions and flags.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "proto/cuda/gen/driver_api_table.h"
#include "proto/cuda/gen/op_table.h"
#include "tests/conformance/cuda_table/probe.h"

namespace {

class EntryPoints : public testing::Test {
protected:
    static void SetUpTestSuite() { library_ = dlopen(GANTRY_PROBE_LIBRARY, RTLD_NOW | RTLD_LOCAL); }

    void SetUp() override {
        ASSERT_NE(library_, nullptr) << dlerror();
        ASSERT_GT(api_.load(library_), 500u);
        ProbeQuery query;
        ASSERT_EQ(api_.cuDriverGetVersion(&query.version), CUDA_SUCCESS);
        probe_ = query.probe;
        *probe_ = Probe{};
    }

    template <typename Function>
    Function* symbol(const char* name) {
        return reinterpret_cast<Function*>(dlsym(library_, name));
    }

    void* proc(const char* name, int version, std::uint64_t flags = 0) {
        void* entry = nullptr;
        status_ = CU_GET_PROC_ADDRESS_SUCCESS;
        api_.cuGetProcAddress_v2(name, &entry, version, flags, &status_);
        return entry;
    }

    static void* library_;
    gantry::driver::DriverApi api_;
    Probe* probe_ = nullptr;
    CUdriverProcAddressQueryResult status_ = CU_GET_PROC_ADDRESS_SUCCESS;
};

void* EntryPoints::library_ = nullptr;

TEST_F(EntryPoints, PlainCallKeepsTheLegacyStream) {
    api_.cuStreamSynchronize(nullptr);
    EXPECT_EQ(probe_->stream, nullptr);
    api_.cuMemsetD8_v2(0x1000, 7, 64);
    EXPECT_EQ(probe_->stream, nullptr);
    EXPECT_EQ(probe_->address, 0x1000u);
    EXPECT_EQ(probe_->value, 7u);
    EXPECT_EQ(probe_->count, 64u);
}

TEST_F(EntryPoints, PerThreadTwinTurnsNullIntoThePerThreadStream) {
    symbol<CUresult(CUstream)>("cuStreamSynchronize_ptsz")(nullptr);
    EXPECT_EQ(probe_->stream, CU_STREAM_PER_THREAD);
    symbol<CUresult(CUstream)>("cuStreamSynchronize_ptsz")(CU_STREAM_LEGACY);
    EXPECT_EQ(probe_->stream, CU_STREAM_LEGACY);
    symbol<CUresult(CUdeviceptr, unsigned char, size_t)>("cuMemsetD8_v2_ptds")(0x1000, 7, 64);
    EXPECT_EQ(probe_->stream, CU_STREAM_PER_THREAD);
    symbol<CUresult(CUstream, CUstream)>("cuStreamCopyAttributes_ptsz")(nullptr, nullptr);
    EXPECT_EQ(probe_->stream, CU_STREAM_PER_THREAD);
    EXPECT_EQ(probe_->other_stream, CU_STREAM_PER_THREAD);
}

TEST_F(EntryPoints, PerThreadTwinReachesStreamsInsideStructures) {
    CUlaunchConfig config{};
    using LaunchEx = CUresult(const CUlaunchConfig*, CUfunction, void**, void**);
    symbol<LaunchEx>("cuLaunchKernelEx_ptsz")(&config, nullptr, nullptr, nullptr);
    EXPECT_EQ(probe_->stream, CU_STREAM_PER_THREAD);
    EXPECT_EQ(config.hStream, nullptr) << "the caller's structure must not change";

    CUDA_GRAPH_INSTANTIATE_PARAMS params{};
    params.result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
    using Instantiate = CUresult(CUgraphExec*, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS*);
    symbol<Instantiate>("cuGraphInstantiateWithParams_ptsz")(nullptr, nullptr, &params);
    EXPECT_EQ(probe_->stream, CU_STREAM_PER_THREAD);
    EXPECT_EQ(params.hUploadStream, nullptr);
    EXPECT_EQ(params.result_out, CUDA_GRAPH_INSTANTIATE_SUCCESS);
}

TEST_F(EntryPoints, SameAsRowsArriveAtTheirTarget) {
    auto* const stream = reinterpret_cast<CUstream>(0x77);
    EXPECT_EQ(symbol<CUresult(CUstream)>("cuStreamDestroy")(stream), CUDA_SUCCESS);
    EXPECT_EQ(probe_->stream, stream);
}

TEST_F(EntryPoints, WhatHasNoImplementationIsRefusedByName) {
    int value = 0;
    EXPECT_EQ(api_.cuDeviceGetCount(&value), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(probe_->refused_op, static_cast<unsigned>(gantry::cuda::Op::cuDeviceGetCount));
    EXPECT_STREQ(gantry::cuda::op_name(gantry::cuda::Op::cuDeviceGetCount), "cuDeviceGetCount");
}

TEST_F(EntryPoints, EveryCallPassesTheCheckFirst) {
    int value = kProbeRefuse;
    api_.cuDriverGetVersion(&value);
    EXPECT_EQ(api_.cuStreamSynchronize(CU_STREAM_LEGACY), CUDA_ERROR_NOT_INITIALIZED);
    EXPECT_EQ(probe_->stream, nullptr) << "the implementation must not have run";
    // The refusal holds for the way back too, so the library is reloaded by hand: its state is one
    // variable, which a fresh copy has in its first state.
    dlclose(library_);
    library_ = dlopen(GANTRY_PROBE_LIBRARY, RTLD_NOW | RTLD_LOCAL);
}

TEST_F(EntryPoints, LookupTakesTheHighestVersionNotAboveTheAsked) {
    const auto expect = [&](const char* name, int version, std::uint64_t flags,
                            const char* target) {
        void* const entry = proc(name, version, flags);
        EXPECT_EQ(entry, dlsym(library_, target)) << name << " " << version << " " << flags;
        EXPECT_EQ(status_, CU_GET_PROC_ADDRESS_SUCCESS) << name;
    };
    expect("cuMemAlloc", 2000, 0, "cuMemAlloc");
    expect("cuMemAlloc", 3010, 0, "cuMemAlloc");
    expect("cuMemAlloc", 3020, 0, "cuMemAlloc_v2");
    expect("cuMemAlloc", 13000, 2, "cuMemAlloc_v2");
    expect("cuCtxGetDevice", 12090, 0, "cuCtxGetDevice");
    expect("cuCtxGetDevice", 13000, 0, "cuCtxGetDevice_v2");
    expect("cuStreamGetCaptureInfo", 10010, 0, "cuStreamGetCaptureInfo");
    expect("cuStreamGetCaptureInfo", 11030, 0, "cuStreamGetCaptureInfo_v2");
    expect("cuStreamGetCaptureInfo", 12030, 2, "cuStreamGetCaptureInfo_v3_ptsz");
    expect("cuLinkCreate", 5050, 0, "cuLinkCreate");
    expect("cuLinkCreate", 13000, 0, "cuLinkCreate_v2");
    expect("cuMemcpyHtoD", 7000, 2, "cuMemcpyHtoD_v2_ptds");
    expect("cuMemcpyHtoD", 7000, 1, "cuMemcpyHtoD_v2");
    expect("cuTexRefSetAddress2D", 4010, 0, "cuTexRefSetAddress2D_v3");
    expect("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2");
    expect("cuVDPAUGetDevice", 3010, 0, "cuVDPAUGetDevice");
}

TEST_F(EntryPoints, LookupSaysWhyItFails) {
    EXPECT_EQ(proc("", 0), nullptr);
    EXPECT_EQ(status_, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    EXPECT_EQ(proc("cuNoSuchCall", 13000), nullptr);
    EXPECT_EQ(status_, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    EXPECT_EQ(proc("cuLibraryLoadData", 11080), nullptr);
    EXPECT_EQ(status_, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    EXPECT_EQ(proc("cuMemAlloc_v2", 13000), nullptr) << "names are those without suffix";
    EXPECT_EQ(proc("cuMemcpyHtoD", 3020, 2), nullptr) << "its per-thread twin came with 7000";
    EXPECT_EQ(status_, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

TEST_F(EntryPoints, LookupAnswersAsADriverDoes) {
    void* entry = &status_;
    status_ = CU_GET_PROC_ADDRESS_SUCCESS;
    EXPECT_EQ(api_.cuGetProcAddress_v2("cuNoSuchCall", &entry, 13000, 0, &status_), CUDA_SUCCESS);
    EXPECT_EQ(entry, nullptr);
    EXPECT_EQ(api_.cuGetProcAddress_v2("cuMemAlloc", &entry, 1000, 0, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(entry, nullptr);
    entry = &status_;
    EXPECT_EQ(api_.cuGetProcAddress_v2("cuMemAlloc", &entry, 13001, 0, &status_),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(entry, &status_) << "a version above the driver's changes nothing";
    EXPECT_EQ(api_.cuGetProcAddress_v2("cuMemAlloc", &entry, 13000, 4, &status_),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(api_.cuGetProcAddress_v2("cuMemcpyHtoD", &entry, 13000, 3, &status_), CUDA_SUCCESS);
    EXPECT_EQ(entry, dlsym(library_, "cuMemcpyHtoD_v2_ptds"));
}

TEST_F(EntryPoints, FirstLookupAbiReportsByResultAlone) {
    void* entry = &status_;
    EXPECT_EQ(api_.cuGetProcAddress("cuNoSuchCall", &entry, 13000, 0), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(api_.cuGetProcAddress("cuMemAlloc", &entry, 1000, 0), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(api_.cuGetProcAddress("cuMemAlloc", &entry, 13010, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(entry, &status_) << "nothing was stored";
    EXPECT_EQ(api_.cuGetProcAddress("cuMemAlloc", &entry, 3020, 0), CUDA_SUCCESS);
    EXPECT_EQ(entry, dlsym(library_, "cuMemAlloc_v2"));
}

}  // namespace
