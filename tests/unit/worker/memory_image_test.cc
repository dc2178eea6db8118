// What the reader of a guest's memory takes of the driver, and gives back.
#include "host-daemon/state/blocks/memory_image.h"

#include <gtest/gtest.h>

#include "tests/unit/worker/guest_fixture.h"

namespace gantry::worker {
namespace {

using state::MemoryImage;

/// What the driver says of memory of this process.
CUresult is_page_locked(const driver::DriverApi& api, const void* at) {
    CUmemorytype type{};
    const CUresult known = api.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                     reinterpret_cast<CUdeviceptr>(at));
    EXPECT_TRUE(known != CUDA_SUCCESS || type == CU_MEMORYTYPE_HOST);
    return known;
}

TEST(MemoryImage, ItsBufferIsPageLockedAndItsStreamItsOwnUntilItEnds) {
    EXPECT_TRUE(in_child([] {
        const Host host;
        const driver::DriverApi& api = host.device->api();
        host.device->bind_thread();
        auto image = std::make_unique<MemoryImage>(*host.process);
        const void* const buffer = image->buffer().data();
        const CUstream stream = image->stream();
        ASSERT_NE(stream, nullptr);
        EXPECT_EQ(is_page_locked(api, buffer), CUDA_SUCCESS) << "copies to it take a detour";
        EXPECT_EQ(api.cuStreamQuery(stream), CUDA_SUCCESS);
        image.reset();
        EXPECT_NE(is_page_locked(api, buffer), CUDA_SUCCESS);
        EXPECT_NE(api.cuStreamQuery(stream), CUDA_SUCCESS);
    }));
}

}  // namespace
}  // namespace gantry::worker
