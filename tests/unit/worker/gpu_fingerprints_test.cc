// The fingerprint kernel: the same bits as the CPU's, block for block. On the soft GPU's driver, or
// on another one: --driver=libcuda.so.1.
#include "host-daemon/state/blocks/gpu_fingerprints.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <string_view>

namespace gantry::state {
namespace {

using snapshot::BlockSpan;
using snapshot::Fingerprint;
using snapshot::FingerprintKey;
using snapshot::kBlockBytes;

std::string driver_path = GANTRY_TEST_SOFT_DRIVER;

struct Gpu {
    std::unique_ptr<driver::DriverLibrary> library;
    std::unique_ptr<worker::Device> device;
    std::unique_ptr<GpuFingerprints> fingerprints;

    Gpu() {
        library = driver::DriverLibrary::load(driver_path).value();
        device = worker::Device::open(*library, 0).value();
        // A soft GPU under ThreadSanitizer takes seconds for a stage.
        fingerprints = GpuFingerprints::make(*device, std::chrono::seconds(60)).value();
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
        // The call may return before the bytes have landed, for streams that wait for no other.
        EXPECT_EQ(gpu().device->api().cuCtxSynchronize(), CUDA_SUCCESS);
    }
    Fingerprint on_cpu(const FingerprintKey& key, std::size_t i) {
        const std::byte* const at = block(i).data();
        Fingerprint fingerprint;
        snapshot::fingerprints_with(snapshot::FingerprintKind::kScalar, key, {&at, 1},
                                    {&fingerprint, 1});
        return fingerprint;
    }

private:
    std::vector<std::byte> bytes_;
    CUdeviceptr base_ = 0;
    std::uint64_t first_ = 0;
};

void expect_equal_fingerprints(Memory& memory, const FingerprintKey& key,
                               const std::vector<std::size_t>& blocks) {
    std::vector<std::uint64_t> addresses;
    for (const std::size_t block : blocks) {
        addresses.push_back(memory.address(block));
    }
    std::vector<Fingerprint> found(blocks.size());
    const auto done = gpu().fingerprints->look(key, addresses, found);
    ASSERT_TRUE(done.ok()) << done.error().text;
    ASSERT_TRUE(*done);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        EXPECT_EQ(found[i], memory.on_cpu(key, blocks[i])) << "block " << blocks[i];
    }
}

TEST(GpuFingerprints, AreThoseOfTheCpuOnRandomBytesAnyCountAndOrder) {
    const FingerprintKey key({0x1122334455667788, 0x99aabbccddeeff00});
    Memory memory(13);
    memory.randomise(1);
    memory.write();
    for (std::size_t count = 1; count <= 13; ++count) {
        std::vector<std::size_t> blocks(count);
        for (std::size_t i = 0; i < count; ++i) {
            blocks[i] = (i * 5 + count) % 13;
        }
        expect_equal_fingerprints(memory, key, blocks);
    }
}

TEST(GpuFingerprints, AreThoseOfTheCpuAtTheEdges) {
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
    expect_equal_fingerprints(memory, key, {0, 1, 2, 3, 4, 5});
    std::vector<Fingerprint> zero(1);
    ASSERT_TRUE(*gpu().fingerprints->look(key, std::vector{memory.address(0)}, zero));
    EXPECT_EQ(zero[0], key.zero_block());
}

TEST(GpuFingerprints, FollowANewKey) {
    Memory memory(2);
    memory.randomise(3);
    memory.write();
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
        expect_equal_fingerprints(memory, FingerprintKey({seed, seed * 3}), {0, 1});
    }
}

/// A key that is still on its way when its first launch begins is seen on a real device only, and
/// only now and then.
TEST(GpuFingerprints, FollowEveryOneOfManyNewKeys) {
    Memory memory(4);
    memory.randomise(5);
    memory.write();
    std::size_t wrong = 0;
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
        const FingerprintKey key({seed, ~seed});
        const std::vector addresses{memory.address(0), memory.address(1), memory.address(2),
                                    memory.address(3)};
        std::vector<Fingerprint> found(addresses.size());
        ASSERT_TRUE(*gpu().fingerprints->look(key, addresses, found));
        const auto on_cpu = [&](std::size_t i) {
            return snapshot::fingerprint(key, BlockSpan(memory.block(i)));
        };
        wrong += found != std::vector{on_cpu(0), on_cpu(1), on_cpu(2), on_cpu(3)};
    }
    EXPECT_EQ(wrong, 0U) << "of 300 keys";
}

TEST(GpuFingerprints, CopiesCarryTheirOwnFingerprintsDirectlyOrNot) {
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
    ASSERT_EQ(gpu().device->api().cuMemHostAlloc(&locked, kBlocks * kBlockBytes, 0), CUDA_SUCCESS);
    for (const bool direct : {true, false}) {
        const std::span to(static_cast<std::byte*>(locked), kBlocks * kBlockBytes);
        std::ranges::fill(to, std::byte{0x5a});
        std::vector<Fingerprint> found(kBlocks);
        const auto done = gpu().fingerprints->copy(key, addresses, to, direct, found);
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

/// The kernels alone: what is written when the launch's gate says `gate` and the host's word
/// `cancel`.
class Kernels {
public:
    Kernels() {
        const driver::DriverApi& api = gpu().device->api();
        EXPECT_EQ(api.cuModuleLoadData(&module_, kFingerprintPtx), CUDA_SUCCESS);
        EXPECT_EQ(api.cuModuleGetFunction(&sum_, module_, "gantry_fingerprint"), CUDA_SUCCESS);
        EXPECT_EQ(api.cuModuleGetFunction(&ask_, module_, "gantry_fingerprint_gate"), CUDA_SUCCESS);
        EXPECT_EQ(api.cuMemAlloc_v2(&device_, 4 * kBlockBytes), CUDA_SUCCESS);
        void* host = nullptr;
        EXPECT_EQ(api.cuMemHostAlloc(&host, sizeof(*cancel_), 0), CUDA_SUCCESS);
        cancel_ = static_cast<std::uint32_t*>(host);
    }
    ~Kernels() {
        const driver::DriverApi& api = gpu().device->api();
        api.cuMemFreeHost(cancel_);
        api.cuMemFree_v2(device_);
        api.cuModuleUnload(module_);
    }

    std::uint64_t ask(std::uint32_t cancel) {
        *cancel_ = cancel;
        std::uint64_t cancel_at = reinterpret_cast<std::uint64_t>(cancel_);
        CUdeviceptr gate = device_;
        void* arguments[] = {&cancel_at, &gate};
        launch(ask_, arguments, 1);
        return read(device_);
    }
    /// Whether the block of threads summed.
    bool sums(std::uint64_t gate, std::uint32_t cancel, std::uint64_t late_ns) {
        const driver::DriverApi& api = gpu().device->api();
        *cancel_ = cancel;
        // One after the other: gate, list of one block, fingerprints, key, the block itself.
        const std::uint64_t words[] = {gate, 0, device_ + 3 * kBlockBytes, kUntouched, kUntouched};
        EXPECT_EQ(api.cuMemsetD32_v2(device_, 7, 4 * kBlockBytes / 4), CUDA_SUCCESS);
        EXPECT_EQ(api.cuMemcpyHtoD_v2(device_, words, sizeof(words)), CUDA_SUCCESS);
        CUdeviceptr gate_at = device_, list = device_ + 16, fingerprint = device_ + 24;
        CUdeviceptr key = device_ + kBlockBytes, copies = 0;
        std::uint64_t cancel_at = reinterpret_cast<std::uint64_t>(cancel_);
        std::uint32_t count = 1;
        void* arguments[] = {&list,      &key,     &fingerprint, &copies,
                             &cancel_at, &gate_at, &late_ns,     &count};
        launch(sum_, arguments, 256);
        gate_ = read(device_);
        asking_ = read(device_ + 8);
        return read(device_ + 24) != kUntouched;
    }

    /// After the last sums().
    [[nodiscard]] std::uint64_t gate() const { return gate_; }
    [[nodiscard]] std::uint64_t asking() const { return asking_; }

private:
    static constexpr std::uint64_t kUntouched = 0x0123456789abcdef;
    void launch(CUfunction function, void** arguments, unsigned threads) {
        const driver::DriverApi& api = gpu().device->api();
        EXPECT_EQ(
            api.cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, nullptr, arguments, nullptr),
            CUDA_SUCCESS);
        EXPECT_EQ(api.cuCtxSynchronize(), CUDA_SUCCESS);
    }
    static std::uint64_t read(CUdeviceptr from) {
        std::uint64_t word = 0;
        EXPECT_EQ(gpu().device->api().cuMemcpyDtoH_v2(&word, from, sizeof(word)), CUDA_SUCCESS);
        return word;
    }

    CUmodule module_ = nullptr;
    CUfunction sum_ = nullptr;
    CUfunction ask_ = nullptr;
    CUdeviceptr device_ = 0;
    std::uint64_t gate_ = 0;
    std::uint64_t asking_ = 0;
    std::uint32_t* cancel_ = nullptr;
};

TEST(GpuFingerprints, ALaunchThatWasCalledOffTouchesNothing) {
    Kernels kernels;
    EXPECT_EQ(kernels.ask(1), 0U);
    const std::uint64_t now = kernels.ask(0);
    EXPECT_NE(now, 0U);
    constexpr std::uint64_t kHour = 3'600'000'000'000;
    EXPECT_TRUE(kernels.sums(now, 0, kHour));
    EXPECT_EQ(kernels.gate(), now) << "it was in time: nobody asked again";
    EXPECT_FALSE(kernels.sums(0, 0, kHour)) << "its gate was closed";
    EXPECT_FALSE(kernels.sums(1, 1, 0)) << "it began late, and the word says no";
    EXPECT_EQ(kernels.gate(), 0U) << "so it is said to all";
    EXPECT_EQ(kernels.asking(), 0U);
    EXPECT_TRUE(kernels.sums(1, 0, 0)) << "it began late, and the word says yes";
    EXPECT_GE(kernels.gate(), now) << "so it is said to all, with the time";
    EXPECT_EQ(kernels.asking(), 0U);
}

TEST(GpuFingerprints, OfNothingAreNothing) {
    const FingerprintKey key({1, 1});
    EXPECT_TRUE(*gpu().fingerprints->look(key, {}, std::span<Fingerprint>()));
    EXPECT_TRUE(*gpu().fingerprints->copy(key, {}, {}, true, {}));
}

}  // namespace
}  // namespace gantry::state

int main(int argument_count, char** arguments) {
    ::testing::InitGoogleTest(&argument_count, arguments);
    const std::string_view option = "--driver=";
    for (int i = 1; i < argument_count; ++i) {
        if (std::string_view(arguments[i]).starts_with(option)) {
            gantry::state::driver_path = std::string_view(arguments[i]).substr(option.size());
        }
    }
    return RUN_ALL_TESTS();
}
