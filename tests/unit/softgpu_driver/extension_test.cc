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
    ASSERT_CU(cuLaunchKernel(function(module, "count"), 1, 1, 1, 1, 1, 1, 0, nullptr, params,
                             nullptr));
    unsigned value = 0;
    ASSERT_CU(cuMemcpyDtoH_v2(&value, counter, 4));
    EXPECT_EQ(value, 6U);
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
