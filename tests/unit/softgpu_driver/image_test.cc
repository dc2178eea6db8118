#include "host-daemon/softgpu/image/image.h"

#include <gtest/gtest.h>
#include <lz4.h>
#include <sys/mman.h>
#include <zstd.h>

#include <cstring>

#include "host-daemon/softgpu/image/fatbin.h"
#include "host-daemon/softgpu/image/readable.h"

namespace gantry::softgpu::image {
namespace {

constexpr std::size_t kPage = 4096;

/// A page whose neighbour behind cannot be touched; the bytes are put at its very end.
class EndOfMemory {
public:
    explicit EndOfMemory(const std::string& bytes) : pages_(bytes.size() / kPage + 1) {
        base_ = static_cast<char*>(mmap(nullptr, (pages_ + 1) * kPage, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        mprotect(base_ + pages_ * kPage, kPage, PROT_NONE);
        at_ = base_ + pages_ * kPage - bytes.size();
        std::memcpy(at_, bytes.data(), bytes.size());
    }
    ~EndOfMemory() { munmap(base_, (pages_ + 1) * kPage); }
    EndOfMemory(const EndOfMemory&) = delete;
    EndOfMemory& operator=(const EndOfMemory&) = delete;
    [[nodiscard]] const void* get() const { return at_; }

private:
    std::size_t pages_;
    char* base_;
    char* at_;
};

enum class Packing { kStored, kZstd, kLz4 };

std::string ptx(unsigned target) {
    return "//\n.version 9.0\n.target sm_" + std::to_string(target) + "\n.address_size 64\n" +
           std::string(200, ' ');
}

std::string entry(const std::string& text, unsigned target, Packing packing) {
    std::string payload = text;
    std::uint64_t flags = 0x11;
    if (packing == Packing::kZstd) {
        payload.resize(ZSTD_compressBound(text.size()));
        payload.resize(ZSTD_compress(payload.data(), payload.size(), text.data(), text.size(), 3));
        flags |= 0x8000;
    } else if (packing == Packing::kLz4) {
        payload.resize(static_cast<std::size_t>(LZ4_compressBound(static_cast<int>(text.size()))));
        payload.resize(static_cast<std::size_t>(
            LZ4_compress_default(text.data(), payload.data(), static_cast<int>(text.size()),
                                 static_cast<int>(payload.size()))));
        flags |= 0x2000;
    }
    const std::size_t padded = (payload.size() + 7) / 8 * 8;
    std::string bytes(0x40 + padded, '\0');
    const auto put = [&bytes](std::size_t at, auto value) {
        std::memcpy(bytes.data() + at, &value, sizeof value);
    };
    put(0x00, std::uint16_t{1});
    put(0x02, std::uint16_t{0x101});
    put(0x04, std::uint32_t{0x40});
    put(0x08, static_cast<std::uint64_t>(padded));
    put(0x10, packing == Packing::kStored ? 0U : static_cast<std::uint32_t>(payload.size()));
    put(0x1c, static_cast<std::uint32_t>(target));
    put(0x28, flags);
    put(0x38, packing == Packing::kStored ? std::uint64_t{0} : std::uint64_t{text.size()});
    std::memcpy(bytes.data() + 0x40, payload.data(), payload.size());
    return bytes;
}

std::string fatbin(const std::string& entries) {
    std::string bytes(16, '\0');
    const std::uint32_t magic = kFatbinMagic;
    const std::uint16_t version = 1;
    const std::uint16_t header = 16;
    const std::uint64_t size = entries.size();
    std::memcpy(bytes.data(), &magic, 4);
    std::memcpy(bytes.data() + 4, &version, 2);
    std::memcpy(bytes.data() + 6, &header, 2);
    std::memcpy(bytes.data() + 8, &size, 8);
    return bytes + entries;
}

TEST(ImageTest, EveryPackingAtTheEndOfMemory) {
    for (const Packing packing : {Packing::kStored, Packing::kZstd, Packing::kLz4}) {
        const EndOfMemory image(fatbin(entry(ptx(75), 75, packing)));
        const auto contents = read_image(image.get(), 90);
        ASSERT_TRUE(contents.ok()) << contents.error().text;
        ASSERT_EQ(contents->units.size(), 1U);
        EXPECT_EQ(contents->units[0].text, ptx(75));
    }
}

TEST(ImageTest, ChoosesTheHighestNotAboveElseTheLowestAbove) {
    const std::string all = fatbin(entry(ptx(75), 75, Packing::kZstd) +
                                   entry(ptx(90), 90, Packing::kZstd) +
                                   entry(ptx(120), 120, Packing::kZstd));
    for (const auto& [capability, chosen] :
         {std::pair{90U, 90U}, {89U, 75U}, {130U, 120U}, {70U, 75U}}) {
        const auto contents = read_image(all.data(), capability);
        ASSERT_TRUE(contents.ok());
        EXPECT_EQ(contents->units[0].target, chosen) << capability;
    }
}

TEST(ImageTest, WrapperWithRelocatableInputsGivesAllUnits) {
    const std::string one = fatbin(entry(ptx(75), 75, Packing::kZstd));
    const std::string two = fatbin(entry(ptx(80), 80, Packing::kLz4));
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

TEST(ImageTest, PtxTextEndsAtItsNul) {
    const EndOfMemory image("\n        " + ptx(80) + std::string(1, '\0'));
    const auto contents = read_image(image.get(), 90);
    ASSERT_TRUE(contents.ok()) << contents.error().text;
    EXPECT_EQ(contents->units[0].target, 80U);
    const EndOfMemory endless(ptx(80));
    EXPECT_FALSE(read_image(endless.get(), 90).ok());
    EXPECT_EQ(read_image("garbage", 90).error().reason, "image.format");
}

TEST(ImageTest, LinkedImageKeepsItsUnits) {
    const std::string image = pack_linked({{"a", ptx(75), 75}, {"b", ptx(90), 90}});
    const EndOfMemory placed(image);
    const auto contents = read_image(placed.get(), 90);
    ASSERT_TRUE(contents.ok()) << contents.error().text;
    ASSERT_EQ(contents->units.size(), 2U);
    EXPECT_EQ(contents->units[0].text, ptx(75));
    EXPECT_EQ(contents->units[1].name, "b");
}

TEST(ImageTest, WithoutPtxTheSentenceNamesWhatHelps) {
    std::string cubin_only = entry("not really an ELF", 90, Packing::kStored);
    cubin_only[0] = 2;
    const std::string image = fatbin(cubin_only);
    const auto contents = read_image(image.data(), 90);
    ASSERT_FALSE(contents.ok());
    EXPECT_EQ(contents.error().reason, "image.no_ptx");
    EXPECT_NE(contents.error().text.find("-gencode arch=compute_90"), std::string::npos);
}

TEST(ImageTest, DamagedImagesNeverCrash) {
    const std::string good = fatbin(entry(ptx(75), 75, Packing::kZstd) +
                                    entry(ptx(90), 90, Packing::kLz4));
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
