// Values, sizes and offsets of proto/cuda/abi.h against those of the installed toolkit.
#include <gtest/gtest.h>

#include "tests/conformance/cuda_abi/facts.h"

TEST(CudaAbi, ValuesSizesAndOffsetsEqualTheToolkits) {
    const AbiFacts ours = facts_ours();
    const AbiFacts toolkit = facts_toolkit();
    ASSERT_EQ(ours.count, toolkit.count);
    ASSERT_GT(ours.count, 2000u);
    for (std::size_t i = 0; i < ours.count; ++i) {
        ASSERT_STREQ(ours.facts[i].name, toolkit.facts[i].name);
        EXPECT_EQ(ours.facts[i].value, toolkit.facts[i].value) << ours.facts[i].name;
    }
}
