#include <vector>

#include "driver_fixture.h"

namespace gantry::softgpu::test {
namespace {

// sample(tex, out): out[0..1] = tex2D(tex, 1.5, 0.5) as floats {x, y}.
constexpr const char* kSample = R"(
.version 8.0
.target sm_75
.address_size 64
.visible .entry sample(.param .u64 tex, .param .u64 out)
{
    .reg .b64 %d<3>;
    .reg .f32 %f<8>;
    ld.param.u64 %d0, [tex];
    ld.param.u64 %d1, [out];
    mov.f32 %f0, 0f3FC00000;
    mov.f32 %f1, 0f3F000000;
    tex.2d.v4.f32.f32 {%f2, %f3, %f4, %f5}, [%d0, {%f0, %f1}];
    st.global.f32 [%d1], %f2;
    st.global.f32 [%d1+4], %f3;
    ret;
}
)";

class TextureTest : public DriverTest {
protected:
    CUarray make_array(CUarray_format format, unsigned channels, std::size_t width,
                       std::size_t height) {
        const CUDA_ARRAY_DESCRIPTOR descriptor = {width, height, format, channels};
        CUarray array = nullptr;
        EXPECT_CU(CUDA_SUCCESS, cuArrayCreate_v2(&array, &descriptor));
        return array;
    }
};

TEST_F(TextureTest, ArrayTexelsReachTheKernel) {
    CUarray array = make_array(CU_AD_FORMAT_FLOAT, 2, 4, 2);
    const float texels[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = texels;
    copy.srcPitch = sizeof texels;
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = array;
    copy.WidthInBytes = sizeof texels;
    copy.Height = 1;
    ASSERT_CU(cuMemcpy2D_v2(&copy));
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = array;
    CUDA_TEXTURE_DESC texture{};
    texture.filterMode = CU_TR_FILTER_MODE_POINT;
    CUtexObject object = 0;
    ASSERT_CU(cuTexObjectCreate(&object, &resource, &texture, nullptr));
    CUmodule module = nullptr;
    ASSERT_CU(cuModuleLoadData(&module, kSample));
    CUdeviceptr out = 0;
    ASSERT_CU(cuMemAlloc_v2(&out, 8));
    void* params[] = {&object, &out};
    ASSERT_CU(
        cuLaunchKernel(function(module, "sample"), 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
    float seen[2] = {};
    ASSERT_CU(cuMemcpyDtoH_v2(seen, out, sizeof seen));
    EXPECT_EQ(seen[0], 3.0F);
    EXPECT_EQ(seen[1], 4.0F);
    CUDA_RESOURCE_DESC back{};
    ASSERT_CU(cuTexObjectGetResourceDesc(&back, object));
    EXPECT_EQ(back.res.array.hArray, array);
    ASSERT_CU(cuTexObjectDestroy(object));
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuTexObjectDestroy(object));
    ASSERT_CU(cuArrayDestroy(array));
    EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(array));
}

TEST_F(TextureTest, BadDescriptionsAreRefused) {
    CUDA_ARRAY_DESCRIPTOR descriptor = {4, 4, CU_AD_FORMAT_FLOAT, 3};
    CUarray array = nullptr;
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuArrayCreate_v2(&array, &descriptor));
    array = make_array(CU_AD_FORMAT_UNSIGNED_INT32, 1, 4, 4);
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = array;
    CUDA_TEXTURE_DESC texture{};
    texture.filterMode = CU_TR_FILTER_MODE_LINEAR;
    CUtexObject object = 0;
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &resource, &texture, nullptr));
    CUsurfObject surface = 0;
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuSurfObjectCreate(&surface, &resource));
}

}  // namespace
}  // namespace gantry::softgpu::test
