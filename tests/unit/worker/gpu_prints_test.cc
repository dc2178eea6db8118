// The fingerprint kernel, on the soft GPU's driver: the same bits as the CPU's, block for block.
#include "host-daemon/state/gpu_prints.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

namespace gantry::state {
namespace {

using snapshot::BlockSpan;
using snapshot::Fingerprint;
using snapshot::FingerprintKey;
using snapshot::kBlockBytes;

struct Gpu {
    std::unique_ptr<driver::DriverLibrary> library;
    std::unique_ptr<worker::Device> device;
    std::unique_ptr<GpuPrints> prints;

    Gpu() {
        library = driver::DriverLibrary::load(GANTRY_TEST_SOFT_DRIVER).value();
        device = worker::Device::open(*library, 0).value();
        prints = GpuPrints::make(*device).value();
    }
};

Gpu& gpu() {
    static Gpu one;
    return one;
}

/// Blocks of device memory with known bytes.
class Memory {
public:
    explicit Memory(std::size_t blocks) : bytes_(blocks * kBlockBytes) {
        const driver::DriverApi& api = gpu().device->api();
        EXPECT_EQ(api.cuMemAlloc_v2(&base_, bytes_.size() + kBlockBytes), CUDA_SUCCESS);
        first_ = (base_ + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    }
    ~Memory() { gpu().device->api().cuMemFree_v2(base_); }
    std::span<std::byte> block(std::size_t i) {
        return std::span(bytes_).subspan(i * kBlockBytes, kBlockBytes);
    }
    std::uint64_t address(std::size_t i) const { return first_ + i * kBlockBytes; }
    void randomise(unsigned seed) {
        std::mt19937_64 random(seed);
        for (std::size_t i = 0; i < bytes_.size(); i += 8) {
            const std::uint64_t word = random();
            std::memcpy(&bytes_[i], &word, 8);
        }
    }
    void write() {
        EXPECT_EQ(gpu().device->api().cuMemcpyHtoD_v2(first_, bytes_.data(), bytes_.size()),
                  CUDA_SUCCESS);
    }
    Fingerprint on_cpu(const FingerprintKey& key, std::size_t i) {
        return snapshot::fingerprint_with(snapshot::FingerprintKind::kScalar, key,
                                          BlockSpan(block(i)));
    }

private:
    std::vector<std::byte> bytes_;
    CUdeviceptr base_ = 0;
    std::uint64_t first_ = 0;
};

void expect_equal_prints(Memory& memory, const FingerprintKey& key,
                         const std::vector<std::size_t>& blocks) {
    std::vector<std::uint64_t> addresses;
    for (const std::size_t block : blocks) {
        addresses.push_back(memory.address(block));
    }
    std::vector<Fingerprint> found(blocks.size());
    const auto done = gpu().prints->look(key, addresses, found);
    ASSERT_TRUE(done.ok()) << done.error().text;
    ASSERT_TRUE(*done);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        EXPECT_EQ(found[i], memory.on_cpu(key, blocks[i])) << "block " << blocks[i];
    }
}

TEST(GpuPrints, AreThoseOfTheCpuOnRandomBytesAnyCountAndOrder) {
    const FingerprintKey key({0x1122334455667788, 0x99aabbccddeeff00});
    Memory memory(13);
    memory.randomise(1);
    memory.write();
    for (std::size_t count = 1; count <= 13; ++count) {
        std::vector<std::size_t> blocks(count);
        for (std::size_t i = 0; i < count; ++i) {
            blocks[i] = (i * 5 + count) % 13;
        }
        expect_equal_prints(memory, key, blocks);
    }
}

TEST(GpuPrints, AreThoseOfTheCpuAtTheEdges) {
    const FingerprintKey key({7, 0});
    Memory memory(6);
    memory.randomise(2);
    std::ranges::fill(memory.block(0), std::byte{0});
    std::ranges::fill(memory.block(1), std::byte{0xff});  // carries out of every sum
    std::ranges::fill(memory.block(2), std::byte{0});
    memory.block(2).front() = std::byte{1};
    std::ranges::fill(memory.block(3), std::byte{0});
    memory.block(3).back() = std::byte{0x80};
    std::ranges::fill(memory.block(4), std::byte{0x80});
    memory.write();
    expect_equal_prints(memory, key, {0, 1, 2, 3, 4, 5});
    std::vector<Fingerprint> zero(1);
    ASSERT_TRUE(*gpu().prints->look(key, std::vector{memory.address(0)}, zero));
    EXPECT_EQ(zero[0], key.zero_block());
}

TEST(GpuPrints, FollowANewKey) {
    Memory memory(2);
    memory.randomise(3);
    memory.write();
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
        expect_equal_prints(memory, FingerprintKey({seed, seed * 3}), {0, 1});
    }
}

TEST(GpuPrints, CopiesCarryTheirOwnFingerprintsDirectlyOrNot) {
    const FingerprintKey key({5, 6});
    constexpr std::size_t kBlocks = 300;  // More than two stages, and not a whole number of them.
    Memory memory(kBlocks);
    memory.randomise(4);
    memory.write();
    std::vector<std::uint64_t> addresses;
    std::vector<std::size_t> blocks;
    for (std::size_t i = 0; i < kBlocks; ++i) {
        blocks.push_back(i % 3 == 0 ? i : kBlocks - 1 - i);
        addresses.push_back(memory.address(blocks.back()));
    }
    void* locked = nullptr;
    ASSERT_EQ(gpu().device->api().cuMemHostAlloc(&locked, kBlocks * kBlockBytes, 0),
              CUDA_SUCCESS);
    for (const bool direct : {true, false}) {
        const std::span to(static_cast<std::byte*>(locked), kBlocks * kBlockBytes);
        std::ranges::fill(to, std::byte{0x5a});
        std::vector<Fingerprint> found(kBlocks);
        const auto done = gpu().prints->copy(key, addresses, to, direct, found);
        ASSERT_TRUE(done.ok()) << done.error().text;
        ASSERT_TRUE(*done);
        for (std::size_t i = 0; i < kBlocks; ++i) {
            const auto copy = to.subspan(i * kBlockBytes, kBlockBytes);
            ASSERT_TRUE(std::ranges::equal(copy, memory.block(blocks[i]))) << i;
            ASSERT_EQ(found[i], memory.on_cpu(key, blocks[i])) << i;
        }
    }
    gpu().device->api().cuMemFreeHost(locked);
}

TEST(GpuPrints, OfNothingAreNothing) {
    const FingerprintKey key({1, 1});
    EXPECT_TRUE(*gpu().prints->look(key, {}, {}));
    EXPECT_TRUE(*gpu().prints->copy(key, {}, {}, true, {}));
}

}  // namespace
}  // namespace gantry::state
