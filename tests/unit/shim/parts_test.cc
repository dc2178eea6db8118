// Parts of the shim's driver that need no worker: handles, address ranges, images, option lists.
#include <elf.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <string_view>
#include <thread>
#include <vector>

#include "guest-shim/driver/code/image.h"
#include "guest-shim/driver/code/jit_options.h"
#include "guest-shim/driver/core/ranges.h"
#include "guest-shim/driver/core/slot_table.h"
#include "guest-shim/session/connection.h"

namespace gantry::session {
std::uint64_t table_hash() noexcept { return 0; }
}  // namespace gantry::session

namespace gantry::shim {
namespace {

using cuda::HandleKind;
using cuda::wire_hand::ImageKind;

struct Thing {
    int value = 7;
};

TEST(SlotTable, ForgedAndStaleHandlesAreNotFound) {
    static SlotTable<Thing> table;
    std::uint64_t first = 0;
    Thing* thing = table.create(HandleKind::kStream, &first);
    ASSERT_NE(thing, nullptr);
    EXPECT_EQ(thing->value, 7);
    EXPECT_EQ(cuda::handle_kind(first), HandleKind::kStream);
    EXPECT_EQ(table.find(first), thing);
    const std::vector<std::uint64_t> forgeries = {
        0, 1, ~0ull, first ^ (1ull << 48), first + 1, first ^ (1ull << 30), first & 0xffffff};
    for (const std::uint64_t forged : forgeries) {
        EXPECT_EQ(table.find(forged), nullptr) << std::hex << forged;
        EXPECT_FALSE(table.destroy(forged));
    }
    EXPECT_TRUE(table.destroy(first));
    EXPECT_FALSE(table.destroy(first));
    std::uint64_t second = 0;
    EXPECT_EQ(table.create(HandleKind::kStream, &second), thing);  // The slot is used again...
    EXPECT_NE(first, second);                                      // ...under another name.
    EXPECT_EQ(table.find(first), nullptr);
}

TEST(SlotTable, HandlesLeaveTheLowestBitsClear) {
    static SlotTable<Thing> table;
    std::uint64_t handles[3] = {};
    for (std::uint64_t& handle : handles) {
        ASSERT_NE(table.create(HandleKind::kStream, &handle), nullptr);
        EXPECT_EQ(handle % 64, 0u) << std::hex << handle;
        EXPECT_EQ(table.find(handle + 1), nullptr);
    }
    EXPECT_NE(handles[0], handles[1]);
    for (std::uint64_t generation = 0; generation < cuda::kHandleGenerations; ++generation) {
        std::uint64_t next = 0;
        ASSERT_TRUE(table.destroy(handles[1]));
        ASSERT_NE(table.create(HandleKind::kStream, &next), nullptr);
        ASSERT_NE(next, handles[1]);
        ASSERT_EQ(next & 1ull << 47, 0u);  // Counted handles have this bit.
        handles[1] = next;
    }
    EXPECT_EQ(cuda::counted_handle(HandleKind::kGraph, 5) % 64, 0u);
    EXPECT_EQ(cuda::handle_number(cuda::counted_handle(HandleKind::kGraph, 5)), 5u);
}

TEST(SlotTable, ManyThreads) {
    static SlotTable<Thing> table;
    std::vector<std::thread> threads;
    std::atomic<int> faults{0};
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&faults] {
            for (int round = 0; round < 5000; ++round) {
                std::uint64_t handle = 0;
                Thing* thing = table.create(HandleKind::kEvent, &handle);
                faults += table.find(handle) != thing ? 1 : 0;
                faults += table.destroy(handle) ? 0 : 1;
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(faults, 0);
}

Range make_range(std::uint64_t address, std::uint64_t bytes, RangeKind kind) {
    Range range{};
    range.address = address;
    range.bytes = bytes;
    range.kind = kind;
    return range;
}

TEST(Ranges, FindByInnerAddressAndForget) {
    const std::uint64_t base = wire::kArenaBase;
    for (const std::uint64_t i : std::vector<std::uint64_t>{3, 1, 2, 0}) {
        Range range = make_range(base + i * 0x1000, 0x800, RangeKind::kDevice);
        ASSERT_TRUE(add_range(&range));
    }
    Range found{};
    EXPECT_TRUE(find_range(base + 0x17ff, &found));
    EXPECT_EQ(found.address, base + 0x1000);
    EXPECT_FALSE(find_range(base + 0x1800, &found));
    EXPECT_FALSE(find_range(base - 1, &found));
    EXPECT_FALSE(remove_range(base + 1, &found));
    EXPECT_TRUE(remove_range(base + 0x1000, &found));
    EXPECT_FALSE(find_range(base + 0x17ff, &found));
    for (const std::uint64_t i : std::vector<std::uint64_t>{0, 2, 3}) {
        EXPECT_TRUE(remove_range(base + i * 0x1000, &found));
    }
}

TEST(Ranges, MappingsLieInReservedAddresses) {
    const std::uint64_t base = wire::kArenaBase + (2ull << 30);
    Range reserved = make_range(base, 0x10000, RangeKind::kReserved);
    ASSERT_TRUE(add_range(&reserved));
    for (const std::uint64_t at : {0x4000, 0x0, 0x2000}) {
        Range mapping = make_range(base + at, 0x1000, RangeKind::kReserved);
        ASSERT_TRUE(add_mapping(&mapping));
    }
    Range found{};
    Memory memory{};
    EXPECT_TRUE(find_range(base + 0x1000, &found));
    EXPECT_EQ(found.bytes, 0x10000u);
    EXPECT_FALSE(find_memory(base + 0x1000, &memory));
    ASSERT_TRUE(find_memory(base + 0x2fff, &memory));
    EXPECT_EQ(memory.range.address, base);
    EXPECT_EQ(memory.mapping.address, base + 0x2000);
    EXPECT_NE(memory.mapping.id, reserved.id);
    remove_mappings(base + 0x1000, 0x1000);
    EXPECT_TRUE(find_memory(base + 0x2000, &memory));
    remove_mappings(base + 0x2000, 0x3000);
    EXPECT_TRUE(find_memory(base + 0xfff, &memory));
    EXPECT_FALSE(find_memory(base + 0x2000, &memory));
    EXPECT_FALSE(find_memory(base + 0x4000, &memory));
    remove_mappings(0, ~std::uint64_t{0});
    EXPECT_FALSE(find_memory(base, &memory));
    EXPECT_TRUE(remove_range(base, &found));
    EXPECT_EQ(found.bytes, 0x10000u);
}

TEST(Ranges, MemoryThatWasAllocatedIsAMappingOfItsOwn) {
    const std::uint64_t base = wire::kArenaBase + (4ull << 30);
    Range range = make_range(base, 0x3000, RangeKind::kDevice);
    ASSERT_TRUE(add_range(&range));
    Memory memory{};
    ASSERT_TRUE(find_memory(base + 0x2fff, &memory));
    EXPECT_EQ(memory.mapping.address, base);
    EXPECT_EQ(memory.mapping.bytes, 0x3000u);
    EXPECT_EQ(memory.mapping.id, memory.range.id);
    Range next{};
    ASSERT_TRUE(next_range(base - 0x1000, &next));
    EXPECT_EQ(next.address, base);
    ASSERT_TRUE(next_range(base, &next));
    EXPECT_EQ(next.address, base);
    EXPECT_FALSE(next_range(base + 1, &next)) << "it begins before";
    remove_range(base, &range);
}

TEST(Ranges, CopiesBeyondAnAllocationAreRefused) {
    const std::uint64_t base = wire::kArenaBase + (1ull << 30);
    Range range = make_range(base, 1000, RangeKind::kDevice);
    ASSERT_TRUE(add_range(&range));
    Place place{};
    EXPECT_TRUE(place_of(base, 1000, &place));
    EXPECT_FALSE(place.host_side);
    EXPECT_TRUE(place_of(base + 999, 1, &place));
    EXPECT_FALSE(place_of(base, 1001, &place));
    EXPECT_FALSE(place_of(base + 999, 2, &place));
    int local = 0;
    EXPECT_TRUE(place_of(reinterpret_cast<std::uint64_t>(&local), 4, &place));
    EXPECT_TRUE(place.host_side);
    remove_range(base, &range);
}

TEST(Ranges, WhatMustBeTheDevicesIsNoPageableMemory) {
    const std::uint64_t base = wire::kArenaBase + (5ull << 30);
    Range range = make_range(base, 1000, RangeKind::kDevice);
    ASSERT_TRUE(add_range(&range));
    Place place{};
    EXPECT_TRUE(place_on_device(base + 10, 990, &place));
    EXPECT_FALSE(place.host_side);
    EXPECT_EQ(place.address, base + 10);
    EXPECT_FALSE(place_on_device(base + 10, 991, &place));
    int local = 0;
    EXPECT_FALSE(place_on_device(reinterpret_cast<std::uint64_t>(&local), sizeof(local), &place));
    remove_range(base, &range);
    EXPECT_FALSE(place_on_device(0x1000, 4, &place))
        << "nobody has it, and there is no host to ask";
}

/// What a graph had is free when the graph is gone, and nobody tells the guest.
TEST(Ranges, WhatIsGivenOutAnewTakesThePlaceOfWhatLayThere) {
    const std::uint64_t base = wire::kArenaBase + (3ull << 30);
    for (const std::uint64_t at : {0x0, 0x1000, 0x2000, 0x3000}) {
        Range range = make_range(base + at, 0x800, RangeKind::kDeviceAsync);
        ASSERT_TRUE(add_range(&range));
    }
    Range wide = make_range(base + 0x400, 0x2c00, RangeKind::kDevice);  // Touches three of them.
    ASSERT_TRUE(add_range(&wide));
    Place place{};
    EXPECT_TRUE(place_of(base + 0x400, 0x2c00, &place));
    EXPECT_TRUE(place_of(base + 0x1000, 0x1000, &place));
    Range found{};
    EXPECT_FALSE(find_range(base, &found));
    EXPECT_TRUE(find_range(base + 0x3000, &found));
    EXPECT_EQ(found.address, base + 0x3000);
    remove_range(base + 0x400, &found);
    remove_range(base + 0x3000, &found);
}

TEST(Ranges, RegisteredPagesAreKnownByTheirAlias) {
    static char pages[8192];
    const auto address = reinterpret_cast<std::uint64_t>(pages);
    Range range = make_range(address, sizeof(pages), RangeKind::kRegistered);
    range.alias = wire::kPinnedBase + 0x5000;
    ASSERT_TRUE(add_range(&range));
    Place place{};
    EXPECT_TRUE(place_of(address + 16, 8, &place));
    EXPECT_FALSE(place.host_side);
    EXPECT_EQ(place.address, wire::kPinnedBase + 0x5010);
    EXPECT_TRUE(place_of(address + 8000, 400, &place));  // Runs past the registration.
    EXPECT_TRUE(place.host_side);
    remove_range(address, &range);
}

TEST(BulkArea, GivesAnExtentOnlyWhereOneFits) {
    static std::byte pages[4 * wire::kPageBytes];
    static session::BulkArea area;
    area.attach(pages, sizeof(pages));
    std::uint32_t first = 99;
    ASSERT_TRUE(area.try_allocate(3, &first));
    EXPECT_EQ(first, 0u);
    EXPECT_FALSE(area.try_allocate(2, &first));
    ASSERT_TRUE(area.try_allocate(1, &first));
    EXPECT_EQ(first, 3u);
    EXPECT_FALSE(area.try_allocate(1, &first));
    area.free(1, 2);
    ASSERT_TRUE(area.try_allocate(2, &first));
    EXPECT_EQ(first, 1u);
    EXPECT_FALSE(area.allocate(5, &first)) << "it can never fit";
}

/// Memory whose last byte is followed by a page that may not be read.
class EndOfPage {
public:
    explicit EndOfPage(std::size_t bytes) {
        pages_ = static_cast<std::byte*>(mmap(nullptr, kPages * 4096, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        mprotect(pages_ + (kPages - 1) * 4096, 4096, PROT_NONE);
        data_ = pages_ + (kPages - 1) * 4096 - bytes;
    }
    ~EndOfPage() { munmap(pages_, kPages * 4096); }
    EndOfPage(const EndOfPage&) = delete;
    EndOfPage& operator=(const EndOfPage&) = delete;
    [[nodiscard]] std::byte* data() const { return data_; }

private:
    static constexpr std::size_t kPages = 4;
    std::byte* pages_;
    std::byte* data_;
};

TEST(Image, TextAtTheEndOfAMapping) {
    for (const char* text : {"\n        .version 5.0", "x", ""}) {
        const std::size_t bytes = std::strlen(text) + 1;
        const EndOfPage memory(bytes);
        std::memcpy(memory.data(), text, bytes);
        ImageList list;
        ASSERT_EQ(list_image(memory.data(), &list), CUDA_SUCCESS);
        ASSERT_EQ(list.count, 1u);
        EXPECT_EQ(list.items[0].part.kind, ImageKind::kPtx);
        EXPECT_EQ(list.items[0].part.bytes, bytes);
    }
}

std::vector<std::byte> fatbin(std::uint64_t payload) {
    std::vector<std::byte> bytes(16 + payload);
    const std::uint32_t magic = 0xba55ed50;
    const std::uint16_t version = 1;
    const std::uint16_t header = 16;
    std::memcpy(bytes.data(), &magic, 4);
    std::memcpy(bytes.data() + 4, &version, 2);
    std::memcpy(bytes.data() + 6, &header, 2);
    std::memcpy(bytes.data() + 8, &payload, 8);
    return bytes;
}

struct ImageWrapper {
    std::uint32_t magic = 0x466243b1;
    std::uint32_t version = 1;
    const void* data = nullptr;
    const void* const* inputs = nullptr;
};

TEST(Image, WrapperOfAFatbinAtTheEndOfAMapping) {
    const std::vector<std::byte> bytes = fatbin(100);
    const EndOfPage memory(bytes.size());
    std::memcpy(memory.data(), bytes.data(), bytes.size());
    ImageWrapper wrapper;
    wrapper.data = memory.data();
    ImageList list;
    ASSERT_EQ(list_image(&wrapper, &list), CUDA_SUCCESS);
    ASSERT_EQ(list.count, 1u);
    EXPECT_EQ(list.items[0].part.bytes, 116u);
    EXPECT_EQ(list.total_bytes, 120u);
}

TEST(Image, PrelinkedWrapperKeepsItsInputs) {
    const std::vector<std::byte> linked = fatbin(16);
    const std::vector<std::byte> one = fatbin(8);
    const std::vector<std::byte> two = fatbin(24);
    const void* inputs[] = {one.data(), two.data(), nullptr};
    ImageWrapper wrapper;
    wrapper.version = 2;
    wrapper.data = linked.data();
    wrapper.inputs = inputs;
    ImageList list;
    ASSERT_EQ(list_image(&wrapper, &list), CUDA_SUCCESS);
    ASSERT_EQ(list.count, 3u);
    EXPECT_EQ(list.items[2].part.bytes, 40u);
    EXPECT_EQ(list.items[2].part.offset, 32u + 24u);
}

TEST(Image, ElfEndsWhereItsHeadersSay) {
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_shoff = 256;
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = 2;
    Elf64_Shdr sections[2] = {};
    sections[1].sh_type = SHT_PROGBITS;
    sections[1].sh_offset = 600;
    sections[1].sh_size = 50;
    const EndOfPage memory(650);
    std::memcpy(memory.data(), &header, sizeof(header));
    std::memcpy(memory.data() + 256, sections, sizeof(sections));
    ImageList list;
    ASSERT_EQ(list_image(memory.data(), &list), CUDA_SUCCESS);
    EXPECT_EQ(list.items[0].part.kind, ImageKind::kElf);
    EXPECT_EQ(list.items[0].part.bytes, 650u);
}

TEST(Image, HostileSizesAreRefused) {
    std::vector<std::byte> bytes = fatbin(0);
    const std::uint64_t huge = 1ull << 60;
    std::memcpy(bytes.data() + 8, &huge, 8);
    ImageList list;
    EXPECT_EQ(list_image(bytes.data(), &list), CUDA_ERROR_INVALID_IMAGE);
    EXPECT_EQ(list_image(nullptr, &list), CUDA_ERROR_INVALID_VALUE);
    const ImageWrapper empty;
    EXPECT_EQ(list_image(&empty, &list), CUDA_ERROR_INVALID_IMAGE);
}

TEST(JitOptions, LogsComeBackIntoTheApplicationsBuffers) {
    char error_log[8] = "unset";
    float time = 0;
    CUjit_option names[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_WALL_TIME, CU_JIT_MAX_REGISTERS};
    void* values[] = {error_log, reinterpret_cast<void*>(sizeof(error_log)), nullptr,
                      reinterpret_cast<void*>(32)};
    JitOptions options;
    ASSERT_EQ(options.read(4, names, values), CUDA_SUCCESS);
    ASSERT_EQ(options.sent_count(), 1u);
    EXPECT_EQ(options.sent()[0].value, 32u);
    EXPECT_EQ(options.error_capacity(), sizeof(error_log));
    EXPECT_TRUE(options.has_outputs());
    cuda::wire_hand::JitLogs logs{};
    logs.wall_time_ms = 1.5f;
    options.put_back(logs, "", 0);  // The driver wrote neither log.
    EXPECT_STREQ(error_log, "unset");
    EXPECT_EQ(reinterpret_cast<std::uint64_t>(values[1]), sizeof(error_log));
    logs.error_log_bytes = 6;
    logs.error_size = 7;
    logs.written = cuda::wire_hand::kErrorLogWritten;
    options.put_back(logs, "line 3", 6);
    EXPECT_STREQ(error_log, "line 3");
    EXPECT_EQ(reinterpret_cast<std::uint64_t>(values[1]), 7u);
    // More than the buffer holds, from a host that is not to be trusted with its end.
    logs.error_log_bytes = 16;
    options.put_back(logs, "line 3, column 9", 16);
    EXPECT_EQ(std::string_view(error_log, 8), "line 3, ");
    std::memcpy(&time, &values[2], sizeof(time));
    EXPECT_EQ(time, 1.5f);
}

TEST(JitOptions, ALogHasRoomOnlyWithABuffer) {
    char info_log[16] = "unset";
    CUjit_option names[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[] = {info_log, reinterpret_cast<void*>(sizeof(info_log)),
                      reinterpret_cast<void*>(64)};
    JitOptions options;
    ASSERT_EQ(options.read(3, names, values), CUDA_SUCCESS);
    EXPECT_EQ(options.info_capacity(), sizeof(info_log));
    EXPECT_EQ(options.error_capacity(), 0u) << "no buffer was given";
    EXPECT_TRUE(options.has_outputs());
    cuda::wire_hand::JitLogs logs{};
    logs.info_log_bytes = 4;
    logs.info_size = 5;
    logs.written = cuda::wire_hand::kInfoLogWritten;
    options.put_back(logs, "said", 4);
    EXPECT_STREQ(info_log, "said");
    EXPECT_EQ(reinterpret_cast<std::uint64_t>(values[1]), 5u);
}

}  // namespace
}  // namespace gantry::shim
