#include "host-daemon/softgpu/image/image.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cstring>

#include "host-daemon/softgpu/image/cubin.h"
#include "host-daemon/softgpu/image/fatbin.h"
#include "host-daemon/softgpu/image/readable.h"
#include "image_writer.h"

namespace gantry::softgpu::image {
namespace {

constexpr std::size_t kPageBytes = 4096;

/// A page whose neighbour behind cannot be touched; the bytes are put at its very end.
class EndOfMemory {
public:
    explicit EndOfMemory(const std::string& bytes) : pages_(bytes.size() / kPageBytes + 1) {
        base_ = static_cast<char*>(mmap(nullptr, (pages_ + 1) * kPageBytes, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        mprotect(base_ + pages_ * kPageBytes, kPageBytes, PROT_NONE);
        at_ = base_ + pages_ * kPageBytes - bytes.size();
        std::memcpy(at_, bytes.data(), bytes.size());
    }
    ~EndOfMemory() { munmap(base_, (pages_ + 1) * kPageBytes); }
    EndOfMemory(const EndOfMemory&) = delete;
    EndOfMemory& operator=(const EndOfMemory&) = delete;
    [[nodiscard]] const void* get() const { return at_; }

private:
    std::size_t pages_;
    char* base_;
    char* at_;
};

TEST(ImageTest, EveryPackingAtTheEndOfMemory) {
    for (const Packing packing : {Packing::kStored, Packing::kZstd, Packing::kLz4}) {
        const EndOfMemory image(fatbin_of(fatbin_entry(sample_ptx(75), 75, packing)));
        const auto contents = read_image(image.get(), 90);
        ASSERT_TRUE(contents.ok()) << contents.error().text;
        ASSERT_EQ(contents->units.size(), 1U);
        EXPECT_EQ(contents->units[0].text, sample_ptx(75));
    }
}

TEST(ImageTest, ChoosesTheHighestNotAboveElseTheLowestAbove) {
    const std::string all = fatbin_of(fatbin_entry(sample_ptx(75), 75, Packing::kZstd) +
                                      fatbin_entry(sample_ptx(90), 90, Packing::kZstd) +
                                      fatbin_entry(sample_ptx(120), 120, Packing::kZstd));
    for (const auto& [capability, chosen] :
         {std::pair{90U, 90U}, {89U, 75U}, {130U, 120U}, {70U, 75U}}) {
        const auto contents = read_image(all.data(), capability);
        ASSERT_TRUE(contents.ok());
        EXPECT_EQ(contents->units[0].target, chosen) << capability;
    }
}

TEST(ImageTest, WrapperWithRelocatableInputsGivesAllUnits) {
    const std::string one = fatbin_of(fatbin_entry(sample_ptx(75), 75, Packing::kZstd));
    const std::string two = fatbin_of(fatbin_entry(sample_ptx(80), 80, Packing::kLz4));
    const void* inputs[] = {one.data(), two.data(), nullptr};
    struct {
        std::uint32_t magic;
        std::uint32_t version;
        const void* data;
        const void* inputs;
    } wrapper = {kWrapperMagic, 2, one.data(), inputs};
    const auto contents = read_image(&wrapper, 90);
    ASSERT_TRUE(contents.ok()) << contents.error().text;
    EXPECT_EQ(contents->units.size(), 2U);
    wrapper.version = 7;
    EXPECT_EQ(read_image(&wrapper, 90).error().reason, "image.format");
    wrapper.version = 1;
    wrapper.data = reinterpret_cast<const void*>(0x1000);
    EXPECT_EQ(read_image(&wrapper, 90).error().reason, "image.truncated");
}

// Found by fuzzing: bytes with a size were followed through the pointers that they held.
TEST(ImageTest, SizedBytesAreReadAloneAndMayBeNone) {
    const std::string fatbin = fatbin_of(fatbin_entry(sample_ptx(75), 75, Packing::kStored));
    struct {
        std::uint32_t magic;
        std::uint32_t version;
        const void* data;
        const void* inputs;
    } const wrapper = {kWrapperMagic, 1, fatbin.data(), nullptr};
    const auto followed = read_image(&wrapper, sizeof wrapper, 90);
    ASSERT_FALSE(followed.ok());
    EXPECT_NE(followed.error().text.find("pass the fatbin"), std::string::npos);
    EXPECT_EQ(read_image(nullptr, 0, 90).error().reason, "image.format");
    EXPECT_TRUE(read_image(fatbin.data(), fatbin.size(), 90).ok());
}

TEST(ImageTest, PtxTextEndsAtItsNul) {
    const EndOfMemory image("\n        " + sample_ptx(80) + std::string(1, '\0'));
    const auto contents = read_image(image.get(), 90);
    ASSERT_TRUE(contents.ok()) << contents.error().text;
    EXPECT_EQ(contents->units[0].target, 80U);
    const EndOfMemory endless(sample_ptx(80));
    EXPECT_FALSE(read_image(endless.get(), 90).ok());
    EXPECT_EQ(read_image("garbage", 90).error().reason, "image.format");
}

TEST(ImageTest, LinkedImageKeepsItsUnits) {
    const std::string image = pack_linked({{"a", sample_ptx(75), 75}, {"b", sample_ptx(90), 90}});
    const EndOfMemory placed(image);
    const auto contents = read_image(placed.get(), 90);
    ASSERT_TRUE(contents.ok()) << contents.error().text;
    ASSERT_EQ(contents->units.size(), 2U);
    EXPECT_EQ(contents->units[0].text, sample_ptx(75));
    EXPECT_EQ(contents->units[1].name, "b");
}

TEST(ImageTest, WithoutPtxTheSentenceNamesWhatHelps) {
    const std::string image = fatbin_of(
        fatbin_entry(sample_cubin(90, {"step"}, true), 90, Packing::kZstd, EntryKind::kElf));
    const auto contents = read_image(image.data(), 90);
    ASSERT_FALSE(contents.ok());
    EXPECT_EQ(contents.error().reason, "image.no_ptx");
    EXPECT_NE(contents.error().text.find("cubin for sm_90 (kernel step)"), std::string::npos)
        << contents.error().text;
    EXPECT_NE(contents.error().text.find("-gencode arch=compute_90"), std::string::npos);
}

TEST(ImageTest, CubinsAreReadOfBothAbis) {
    for (const bool new_abi : {false, true}) {
        const std::string file = sample_cubin(89, {"first", "second"}, new_abi);
        const EndOfMemory image(file);
        EXPECT_EQ(elf_bytes(image.get()), file.size());
        const auto cubin = read_cubin(std::as_bytes(std::span(file)));
        ASSERT_TRUE(cubin.ok()) << cubin.error().text;
        EXPECT_EQ(cubin->target, 89U);
        EXPECT_EQ(cubin->kernels, (std::vector<std::string>{"first", "second"}));
        for (std::size_t cut = 4; cut < file.size(); ++cut) {
            const EndOfMemory shorter(file.substr(0, cut));
            EXPECT_FALSE(read_image(shorter.get(), 90).ok()) << cut;
        }
    }
}

// Sections may overlap, so a small file can name the same symbols many times over.
TEST(ImageTest, CubinWithManySymbolTablesIsReadOnce) {
    std::string file = sample_cubin(90, std::vector<std::string>(200, "k"), true);
    Elf64_Ehdr header;
    std::memcpy(&header, file.data(), sizeof header);
    const std::string symbols =
        file.substr(header.e_shoff + sizeof(Elf64_Shdr), sizeof(Elf64_Shdr));
    header.e_shnum = 60'000;
    std::memcpy(file.data(), &header, sizeof header);
    for (unsigned i = 3; i < header.e_shnum; ++i) {
        file += symbols;
    }
    const auto cubin = read_cubin(std::as_bytes(std::span(file)));
    ASSERT_TRUE(cubin.ok()) << cubin.error().text;
    EXPECT_EQ(cubin->kernels.size(), 200U);
}

TEST(ImageTest, PlainSizeThatCannotBeIsRefusedBeforeItIsAllocated) {
    for (const Packing packing : {Packing::kZstd, Packing::kLz4}) {
        std::string image = fatbin_of(fatbin_entry(sample_ptx(75), 75, packing));
        const std::uint64_t claimed = std::uint64_t{2} << 30;
        std::memcpy(image.data() + kFatbinHeaderBytes + 0x38, &claimed, sizeof claimed);
        rusage before{};
        getrusage(RUSAGE_SELF, &before);
        EXPECT_EQ(read_image(image.data(), 90).error().reason, "image.compression");
        rusage after{};
        getrusage(RUSAGE_SELF, &after);
        EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 1 << 20);  // KiB
    }
}

TEST(ImageTest, DamagedImagesNeverCrash) {
    const std::string good = fatbin_of(fatbin_entry(sample_ptx(75), 75, Packing::kZstd) +
                                       fatbin_entry(sample_ptx(90), 90, Packing::kLz4));
    for (std::size_t cut = 4; cut < good.size(); cut += 3) {
        const EndOfMemory image(good.substr(0, cut));
        EXPECT_FALSE(read_image(image.get(), 90).ok()) << cut;
    }
    for (std::size_t at = 0; at < good.size(); ++at) {
        std::string damaged = good;
        damaged[at] = static_cast<char>(damaged[at] ^ 0x80);
        const EndOfMemory image(damaged);
        (void)read_image(image.get(), 90).ok();  // Either answer, but no fault.
    }
}

}  // namespace
}  // namespace gantry::softgpu::image
