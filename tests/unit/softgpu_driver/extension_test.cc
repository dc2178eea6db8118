#include <cstring>
#include <string>
#include <vector>

#include "driver_fixture.h"
#include "proto/cuda/soft_extension.h"

namespace gantry::softgpu::test {
namespace {

class ExtensionTest : public DriverTest {
protected:
    void SetUp() override {
        DriverTest::SetUp();
        const void* table = nullptr;
        ASSERT_CU(cuGetExportTable(&table, &kGantrySoftExtensionId));
        soft_ = static_cast<const GantrySoftExtension*>(table);
        ASSERT_GE(soft_->size_bytes, sizeof(GantrySoftExtension));
    }
    const GantrySoftExtension* soft_ = nullptr;
};

TEST_F(ExtensionTest, ModuleGlobalsComeBackWhereTheyWere) {
    CUmodule module = load();
    std::size_t count = 0;
    ASSERT_CU(soft_->list_variables(module, nullptr, &count));
    std::vector<GantrySoftVariable> variables(count);
    ASSERT_CU(soft_->list_variables(module, variables.data(), &count));
    EXPECT_EQ(count, 3U);
    std::vector<std::string> names;
    std::vector<GantrySoftPlacement> places;
    for (const GantrySoftVariable& variable : variables) {
        names.emplace_back(variable.name);
    }
    for (std::size_t i = 0; i < count; ++i) {
        places.push_back({names[i].c_str(), variables[i].address});
    }
    // Taken: the first module is still there.
    ASSERT_CU(soft_->place_next_load(places.data(), places.size()));
    CUmodule again = nullptr;
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(&again, kPtx));
    CUmodule other = load();
    ASSERT_CU(cuModuleUnload(module));
    ASSERT_CU(soft_->place_next_load(places.data(), places.size()));
    ASSERT_CU(cuModuleLoadData(&again, kPtx));
    CUdeviceptr counter = 0;
    CUdeviceptr elsewhere = 0;
    ASSERT_CU(cuModuleGetGlobal_v2(&counter, nullptr, again, "counter"));
    ASSERT_CU(cuModuleGetGlobal_v2(&elsewhere, nullptr, other, "counter"));
    EXPECT_NE(counter, elsewhere);
    for (const GantrySoftPlacement& place : places) {
        if (std::string(place.name) == "counter") {
            EXPECT_EQ(counter, place.address);
        }
    }
}

TEST_F(ExtensionTest, GlobalsMayLieWhereAnotherDriverHadThem) {
#if defined(__SANITIZE_THREAD__)  // Leaves a program little but the first 512 GiB.
    constexpr CUdeviceptr kForeign = 0x7a'0000'1200;
#else
    constexpr CUdeviceptr kForeign = 0x7a00'0000'1200;
#endif
    const GantrySoftPlacement places[] = {{"counter", kForeign}, {"pointer", kForeign + 0x100}};
    ASSERT_CU(soft_->place_next_load(places, 2));
    CUmodule module = load();
    CUdeviceptr counter = 0;
    ASSERT_CU(cuModuleGetGlobal_v2(&counter, nullptr, module, "counter"));
    EXPECT_EQ(counter, kForeign);
    CUdeviceptr stored = 0;
    ASSERT_CU(cuMemcpyDtoH_v2(&stored, kForeign + 0x100, sizeof stored));
    EXPECT_EQ(stored, kForeign);
    unsigned n = 1;
    void* params[] = {&n};
    ASSERT_CU(
        cuLaunchKernel(function(module, "count"), 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
    unsigned value = 0;
    ASSERT_CU(cuMemcpyDtoH_v2(&value, counter, 4));
    EXPECT_EQ(value, 6U);
}

TEST_F(ExtensionTest, ManagedVariablesMayLieInMemoryOfTheCallers) {
    static const char kManaged[] =
        ".version 7.0\n.target sm_75\n.address_size 64\n"
        ".visible .global .attribute(.managed) .align 4 .u32 shared_word = 9;\n"
        ".visible .entry raise()\n{\n  .reg .u32 %x;\n  ld.global.u32 %x, [shared_word];\n"
        "  add.u32 %x, %x, 1;\n  st.global.u32 [shared_word], %x;\n  ret;\n}\n";
    CUlibrary library = nullptr;
    ASSERT_CU(cuLibraryLoadData(&library, kManaged, nullptr, nullptr, 0, nullptr, nullptr, 0));
    GantrySoftVariable listed[4];
    std::size_t count = 4;
    ASSERT_CU(soft_->list_managed(library, listed, &count));
    ASSERT_EQ(count, 1U);
    EXPECT_STREQ(listed[0].name, "shared_word");
    EXPECT_EQ(listed[0].bytes, 4U);
    ASSERT_CU(cuLibraryUnload(library));

    alignas(4096) static unsigned page[1024];
    page[8] = 77;
    ASSERT_CU(cuMemHostRegister_v2(page, sizeof page, CU_MEMHOSTREGISTER_PORTABLE));
    const GantrySoftPlacement place = {"shared_word", reinterpret_cast<CUdeviceptr>(&page[8])};
    for (const int initialise : {1, 0}) {
        ASSERT_CU(soft_->place_next_load_in(&place, 1, initialise));
        ASSERT_CU(cuLibraryLoadData(&library, kManaged, nullptr, nullptr, 0, nullptr, nullptr, 0));
        CUkernel kernel = nullptr;
        CUdeviceptr address = 0;
        ASSERT_CU(cuLibraryGetKernel(&kernel, library, "raise"));
        ASSERT_CU(cuLibraryGetManaged(&address, nullptr, library, "shared_word"));
        EXPECT_EQ(address, place.address);
        // The second load finds what the first has left.
        EXPECT_EQ(page[8], initialise == 1 ? 9U : 10U);
        ASSERT_CU(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, nullptr,
                                 nullptr, nullptr));
        ASSERT_CU(cuCtxSynchronize());
        EXPECT_EQ(page[8], initialise == 1 ? 10U : 11U);
        ASSERT_CU(cuLibraryUnload(library));
    }
    EXPECT_EQ(page[8], 11U);  // Nothing of the caller's was freed.
    ASSERT_CU(cuMemHostUnregister(page));
    CUmodule plain = load();
    EXPECT_NE(plain, nullptr);
}

TEST_F(ExtensionTest, TextureHandlesCanBeChosen) {
    const CUDA_ARRAY_DESCRIPTOR descriptor = {4, 4, CU_AD_FORMAT_FLOAT, 1};
    CUarray array = nullptr;
    ASSERT_CU(cuArrayCreate_v2(&array, &descriptor));
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = array;
    const CUDA_TEXTURE_DESC texture{};
    ASSERT_CU(soft_->create_texture_at(4242, &resource, &texture, nullptr));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
              soft_->create_texture_at(4242, &resource, &texture, nullptr));
    CUDA_TEXTURE_DESC back{};
    ASSERT_CU(cuTexObjectGetTextureDesc(&back, 4242));
    ASSERT_CU(cuTexObjectDestroy(4242));
}

TEST_F(ExtensionTest, RoomForBlocksIsThatOfTheDeviceShown) {
    CUfunction poke = function(load(), "poke");
    CUdeviceptr p = 0;
    unsigned value = 7;
    ASSERT_CU(cuMemAlloc_v2(&p, 4));
    void* params[] = {&p, &value};
    const auto launch = [&](int blocks) {
        const CUresult result = cuLaunchCooperativeKernel(poke, static_cast<unsigned>(blocks), 1, 1,
                                                          32, 1, 1, 0, nullptr, params);
        return result == CUDA_SUCCESS ? cuCtxSynchronize() : result;
    };
    const auto each = [&] {
        int blocks = 0;
        EXPECT_CU(CUDA_SUCCESS, cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, poke, 32, 0));
        return blocks;
    };
    EXPECT_EQ(each(), 32);
    EXPECT_CU(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, launch(132 * 32 + 1));
    const CUdevice_attribute numbers[] = {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                          CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR,
                                          CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN};
    const int larger[] = {160, 40, 1 << 20};
    ASSERT_CU(soft_->show_attributes(0, numbers, larger, 3));
    EXPECT_EQ(each(), 40);
    ASSERT_CU(launch(160 * 40));
    EXPECT_CU(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, launch(160 * 40 + 1));
    // What a block may have stays this device's.
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
              cuFuncSetAttribute(poke, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232449));
    const int smaller[] = {2, 1, 0};
    ASSERT_CU(soft_->show_attributes(0, numbers, smaller, 3));
    EXPECT_CU(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, launch(3));
    ASSERT_CU(launch(2));
    const int wrong[] = {0, 1, 0};
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, soft_->show_attributes(0, numbers, wrong, 3));
    EXPECT_CU(CUDA_ERROR_INVALID_DEVICE, soft_->show_attributes(9, numbers, larger, 3));
    ASSERT_CU(soft_->show_attributes(0, nullptr, nullptr, 0));  // Itself again.
    EXPECT_EQ(each(), 32);
    ASSERT_CU(cuMemFree_v2(p));
}

TEST_F(ExtensionTest, StateRoundTripsAndDamagedStateIsRefused) {
    std::size_t bytes = 0;
    ASSERT_CU(soft_->save_private_state(context_, nullptr, &bytes));
    std::vector<char> state(bytes);
    ASSERT_CU(soft_->save_private_state(context_, state.data(), &bytes));
    ASSERT_CU(soft_->restore_private_state(context_, state.data(), bytes));
    for (std::size_t cut = 0; cut < bytes; ++cut) {
        EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
                  soft_->restore_private_state(context_, state.data(), cut));
    }
    state[0] = static_cast<char>(state[0] ^ 1);
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
              soft_->restore_private_state(context_, state.data(), bytes));
}

}  // namespace
}  // namespace gantry::softgpu::test
