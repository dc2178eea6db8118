// Memory pools as the guest sees them.
#include "host-daemon/execution/memory/pool_book.h"

#include <gtest/gtest.h>

namespace gantry::worker {
namespace {

PoolBook::Pool pool_of_at_most(std::uint64_t handle, std::uint64_t bytes) {
    PoolBook::Pool pool;
    pool.handle = handle;
    pool.properties.maxSize = bytes;
    return pool;
}

TEST(PoolBook, WhatIsInUseCountsAgainstTheLargestSize) {
    PoolBook pools;
    pools.add(pool_of_at_most(7, 1000));
    EXPECT_TRUE(pools.has_room(7, 1000));
    EXPECT_FALSE(pools.has_room(7, 1001));
    pools.allocated(7, 0x10, 600);
    EXPECT_TRUE(pools.has_room(7, 400));
    EXPECT_FALSE(pools.has_room(7, 401));
    pools.allocated(7, 0x20, 400);
    EXPECT_FALSE(pools.has_room(7, 1));
    pools.freed(0x10);
    EXPECT_TRUE(pools.has_room(7, 600));
    EXPECT_FALSE(pools.has_room(7, 601));
    pools.freed(0x10);  // Once.
    EXPECT_FALSE(pools.has_room(7, 601));
    EXPECT_FALSE(pools.has_room(7, ~std::uint64_t{0}));
}

TEST(PoolBook, NoLargestSizeIsNoLimitAndEachPoolHasItsOwn) {
    PoolBook pools;
    pools.add(pool_of_at_most(7, 100));
    pools.add(pool_of_at_most(8, 0));
    pools.allocated(8, 0x10, 1ULL << 40);
    EXPECT_TRUE(pools.has_room(8, 1ULL << 40));
    EXPECT_TRUE(pools.has_room(7, 100));
    EXPECT_EQ(pools.pool_of(0x10), 8U);
    ASSERT_TRUE(pools.set_current(7));
    EXPECT_FALSE(pools.has_room(0, 101)) << "0 is the current pool";
}

}  // namespace
}  // namespace gantry::worker
