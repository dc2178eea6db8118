#include "host-daemon/execution/base/arena_allocator.h"

#include <gtest/gtest.h>

#include <random>

namespace gantry::worker {
namespace {

constexpr std::uint64_t kBase = 0x3000'0000'0000;
constexpr std::uint64_t kGranule = ArenaAllocator::kGranuleBytes;

/// Notes which granules are mapped and refuses what a driver would refuse.
class FakeMapper : public GranuleMapper {
public:
    Result<void> map(DeviceVa address, std::uint64_t bytes) override {
        if (fail_next) {
            fail_next = false;
            return Error{Code::kResourceExhausted, "test", "told to fail"};
        }
        EXPECT_EQ(address.value % kGranule, 0u);
        EXPECT_EQ(bytes % kGranule, 0u);
        for (const auto& [start, length] : mapped) {
            EXPECT_TRUE(address.value + bytes <= start || start + length <= address.value);
        }
        mapped.emplace(address.value, bytes);
        return {};
    }
    void unmap(DeviceVa address, std::uint64_t bytes) override {
        ASSERT_TRUE(mapped.contains(address.value));
        EXPECT_EQ(mapped.at(address.value), bytes);
        mapped.erase(address.value);
    }
    [[nodiscard]] bool covers(std::uint64_t address, std::uint64_t bytes) const {
        auto extent = mapped.upper_bound(address);
        if (extent == mapped.begin()) {
            return false;
        }
        --extent;
        return address + bytes <= extent->first + extent->second;
    }
    std::map<std::uint64_t, std::uint64_t> mapped;
    bool fail_next = false;
};

struct Arena {
    explicit Arena(std::uint64_t quota = 1ull << 30)
        : allocator(DeviceVa{kBase}, 64ull << 30, quota, mapper) {}
    FakeMapper mapper;
    ArenaAllocator allocator;
};

TEST(ArenaAllocator, GivesAlignedAddressesFromTheBase) {
    Arena arena;
    auto first = arena.allocator.allocate(1);
    auto second = arena.allocator.allocate(1000);
    auto large = arena.allocator.allocate(3 << 20);
    ASSERT_TRUE(first.ok() && second.ok() && large.ok());
    EXPECT_EQ(first->value, kBase);
    EXPECT_EQ(second->value, kBase + ArenaAllocator::kAlignBytes);
    EXPECT_EQ(large->value, kBase + kGranule);
    EXPECT_EQ(arena.allocator.mapped_bytes(), 3 * kGranule);
    EXPECT_EQ(arena.allocator.requested_bytes(), 1001u + (3u << 20));
}

TEST(ArenaAllocator, FindsTheAllocationAroundAnAddress) {
    Arena arena;
    const DeviceVa va = *arena.allocator.allocate(1000);
    EXPECT_EQ(arena.allocator.find(DeviceVa{va.value + 999})->address, va);
    EXPECT_FALSE(arena.allocator.find(DeviceVa{va.value + 1000}).has_value());
    EXPECT_FALSE(arena.allocator.find(DeviceVa{va.value - 1}).has_value());
    EXPECT_FALSE(arena.allocator.free(DeviceVa{va.value + 1}));
    EXPECT_TRUE(arena.allocator.free(va));
    EXPECT_FALSE(arena.allocator.free(va));
}

TEST(ArenaAllocator, HoldsTheQuotaToTheByteAndSaysSo) {
    Arena arena(8 * kGranule);
    auto large = arena.allocator.allocate(7 * kGranule);
    ASSERT_TRUE(large.ok());
    ASSERT_TRUE(arena.allocator.allocate(100).ok());
    auto refused = arena.allocator.allocate(2 << 20);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().reason, "memory.quota");
    EXPECT_EQ(refused.error().code, Code::kResourceExhausted);
    EXPECT_TRUE(arena.allocator.free(*large));
    EXPECT_TRUE(arena.allocator.allocate(2 << 20).ok());
}

TEST(ArenaAllocator, GivesUpItsSpareSlabBeforeRefusing) {
    Arena arena(2 * kGranule);
    const DeviceVa small = *arena.allocator.allocate(100);
    arena.allocator.free(small);
    EXPECT_EQ(arena.allocator.mapped_bytes(), kGranule);  // The spare.
    EXPECT_TRUE(arena.allocator.allocate(2 * kGranule).ok());
    EXPECT_EQ(arena.allocator.mapped_bytes(), 2 * kGranule);
}

TEST(ArenaAllocator, SurvivesADriverThatRefuses) {
    Arena arena;
    arena.mapper.fail_next = true;
    EXPECT_FALSE(arena.allocator.allocate(5 << 20).ok());
    EXPECT_EQ(arena.allocator.mapped_bytes(), 0u);
    EXPECT_EQ(arena.allocator.allocate(5 << 20)->value, kBase);
}

TEST(ArenaAllocator, RefusesSizesThatOverflow) {
    Arena arena;
    EXPECT_FALSE(arena.allocator.allocate(0).ok());
    EXPECT_FALSE(arena.allocator.allocate(~0ull).ok());
    EXPECT_FALSE(arena.allocator.allocate(~0ull - kGranule).ok());
    EXPECT_FALSE(arena.allocator.reserve(~0ull, 0).ok());
}

TEST(ArenaAllocator, ReservesWholeGranulesAtAPowerOfTwo) {
    Arena arena;
    for (const auto& [bytes, alignment] :
         {std::pair<std::uint64_t, std::uint64_t>{0, 0}, {kGranule + 1, 0}, {kGranule, 3}}) {
        const auto refused = arena.allocator.reserve(bytes, alignment);
        ASSERT_FALSE(refused.ok()) << bytes << " at " << alignment;
        EXPECT_EQ(refused.error().reason, "memory.size");
    }
    const auto at = arena.allocator.reserve(kGranule, 4 * kGranule);
    ASSERT_TRUE(at.ok());
    EXPECT_EQ(at->value % (4 * kGranule), 0u);
}

TEST(ArenaAllocator, ReshapeRefusesImpossibleLayouts) {
    Arena arena;
    const std::vector<ExtentRecord> slab{{DeviceVa{kBase}, kGranule, true}};
    const std::vector<ExtentRecord> whole{{DeviceVa{kBase}, 4 * kGranule, false}};
    auto reshape = [&](const std::vector<ExtentRecord>& extents,
                       const std::vector<AllocationRecord>& allocations) {
        return arena.allocator.reshape(extents, allocations, {}).ok();
    };
    EXPECT_FALSE(reshape({{DeviceVa{kBase - kGranule}, kGranule, true}}, {}));
    EXPECT_FALSE(reshape({{DeviceVa{kBase}, ~0ull / kGranule * kGranule, false}}, {}));
    EXPECT_FALSE(reshape({slab[0], slab[0]}, {}));
    EXPECT_FALSE(reshape(slab, {{DeviceVa{kBase + kGranule - 512}, 1024}}));
    EXPECT_FALSE(reshape(slab, {{DeviceVa{kBase}, 1024}, {DeviceVa{kBase + 512}, 512}}));
    EXPECT_FALSE(reshape(whole, {{DeviceVa{kBase}, 2 * kGranule}}));
    EXPECT_FALSE(reshape(whole, {{DeviceVa{kBase}, 512}}));
    EXPECT_TRUE(reshape(whole, {{DeviceVa{kBase}, 4 * kGranule - 5}}));
    EXPECT_TRUE(reshape(slab, {{DeviceVa{kBase}, 1024}, {DeviceVa{kBase + 1024}, 512}}));
    EXPECT_EQ(arena.mapper.mapped.size(), 1u);
}

/// Random traffic against a plain model; then the layout is rebuilt in a second arena and both must
/// go on giving the same addresses.
TEST(ArenaAllocator, PropertiesHoldUnderRandomTraffic) {
    for (std::uint32_t seed = 0; seed < 30; ++seed) {
        std::mt19937_64 random(seed);
        Arena arena(256ull << 20);
        std::map<std::uint64_t, std::uint64_t> model;
        auto step = [&](Arena& where, std::uint64_t roll, std::uint64_t bytes,
                        std::map<std::uint64_t, std::uint64_t>& live) -> std::uint64_t {
            if (roll % 5 < 3 || live.empty()) {
                auto va = where.allocator.allocate(bytes);
                if (!va.ok()) {
                    EXPECT_EQ(va.error().reason, "memory.quota");
                    return 0;
                }
                live.emplace(va->value, bytes);
                return va->value;
            }
            auto victim = std::next(live.begin(), static_cast<long>(roll / 5 % live.size()));
            EXPECT_TRUE(where.allocator.free(DeviceVa{victim->first}));
            live.erase(victim);
            return 1;
        };
        auto size_of = [&random] {
            return random() % 4 == 0 ? 1 + random() % (20ull << 20) : 1 + random() % 5000;
        };
        for (int i = 0; i < 600; ++i) {
            step(arena, random(), size_of(), model);
            std::uint64_t previous_end = 0;
            for (const auto& [start, bytes] : model) {
                ASSERT_GE(start, previous_end);
                ASSERT_EQ(start % ArenaAllocator::kAlignBytes, 0u);
                ASSERT_TRUE(arena.mapper.covers(start, bytes));
                previous_end = start + bytes;
            }
            ASSERT_LE(arena.allocator.mapped_bytes(), 256ull << 20);
        }
        Arena copy(256ull << 20);
        ASSERT_TRUE(copy.allocator.allocate(7777).ok());
        ASSERT_TRUE(
            copy.allocator.reshape(arena.allocator.extents(), arena.allocator.allocations(), {})
                .ok());
        EXPECT_EQ(copy.mapper.mapped, arena.mapper.mapped);
        EXPECT_EQ(copy.allocator.allocations(), arena.allocator.allocations());
        auto model_copy = model;
        for (int i = 0; i < 200; ++i) {
            const std::uint64_t roll = random();
            const std::uint64_t bytes = size_of();
            ASSERT_EQ(step(arena, roll, bytes, model), step(copy, roll, bytes, model_copy));
        }
    }
}

}  // namespace
}  // namespace gantry::worker
