// The quota of device memory holds for all that takes it: arrays, contexts, limits, variables,
// graphs and memory, each refused at its call, told by cuMemGetInfo, given back when it ends, and
// counted alike after a move.
//
// Each test runs in child processes of its own, since a worker holds fixed addresses.
#include <gtest/gtest.h>

#include "host-daemon/execution/code/variable_bytes.h"
#include "host-daemon/execution/memory/charged_bytes.h"
#include "host-daemon/state/parts/part.h"
#include "tests/unit/worker/guest_fixture.h"

namespace gantry::worker {
namespace {

constexpr std::uint64_t kMib = 1ull << 20;
constexpr std::uint64_t kSmallQuota = 64 * kMib;
constexpr snapshot::Seed kMoveSeed{11, 22};

std::uint64_t handle(HandleKind kind, std::uint64_t number) {
    return cuda::make_handle(kind, (1ull << 24) + number);
}

payload::cuMemGetInfo_v2_reply info_of(Guest& guest) {
    const auto reply = guest.call(Op::cuMemGetInfo_v2, payload::cuMemGetInfo_v2_call{});
    EXPECT_EQ(reply.status, 0u);
    return reply.as<payload::cuMemGetInfo_v2_reply>();
}

std::uint64_t free_mib(Guest& guest) { return info_of(guest).free / kMib; }

/// Of single bytes: rows of 1 MiB.
CUDA_ARRAY3D_DESCRIPTOR_v2 rows_of_mib(std::uint64_t mib, std::uint64_t layers = 0) {
    CUDA_ARRAY3D_DESCRIPTOR_v2 descriptor{};
    descriptor.Width = 64 << 10;
    descriptor.Height = 16 * mib;
    descriptor.Depth = layers;
    descriptor.Format = CU_AD_FORMAT_UNSIGNED_INT8;
    descriptor.NumChannels = 1;
    return descriptor;
}

std::uint32_t make_array(Guest& guest, std::uint64_t number, std::uint64_t mib) {
    payload::cuArrayCreate_v2_call create{};
    create.pHandle = handle(HandleKind::kArray, number);
    const auto descriptor = rows_of_mib(mib);
    create.pAllocateArray.Width = descriptor.Width;
    create.pAllocateArray.Height = descriptor.Height;
    create.pAllocateArray.Format = descriptor.Format;
    create.pAllocateArray.NumChannels = descriptor.NumChannels;
    return guest.call(Op::cuArrayCreate_v2, create).status;
}

std::uint32_t end_array(Guest& guest, std::uint64_t number) {
    return guest
        .call(Op::cuArrayDestroy, payload::cuArrayDestroy_call{handle(HandleKind::kArray, number)})
        .status;
}

std::uint32_t make_context(Guest& guest, std::uint64_t number) {
    return guest
        .call(Op::cuCtxCreate_v2, hand::ContextCall{handle(HandleKind::kContext, number), 0, 0})
        .status;
}

std::uint32_t set_limit(Guest& guest, CUlimit limit, std::uint64_t value) {
    return guest
        .call(Op::cuCtxSetLimit,
              payload::cuCtxSetLimit_call{static_cast<std::uint32_t>(limit), 0, value})
        .status;
}

/// Loads a module with a variable of so many bytes.
std::uint32_t load_variable(Guest& guest, std::uint64_t number, std::uint64_t bytes) {
    const std::string ptx =
        ".version 8.0\n.target sm_75\n.address_size 64\n"
        ".visible .global .align 4 .b8 big[" +
        std::to_string(bytes) + "];\n.visible .entry nothing()\n{\n    ret;\n}\n";
    const std::span<const char> text(ptx.c_str(), ptx.size() + 1);
    guest.stage_piece(number, 0, text.size(), text);
    return guest.load(handle(HandleKind::kModule, number), number, text.size());
}

std::uint64_t context_mib(const Serving& serving) {
    return serving.host.device->context_bytes() / kMib;
}

TEST(Quota, CountsArrays) {
    EXPECT_TRUE(in_child([] {
        Serving serving(kSmallQuota);
        Guest& guest = serving.guest;
        guest.retain();
        EXPECT_EQ(free_mib(guest), 64u);
        std::uint64_t made = 0;
        while (made < 32 && make_array(guest, made, 8) == CUDA_SUCCESS) {
            ++made;
            EXPECT_EQ(free_mib(guest), 64 - 8 * made);
        }
        EXPECT_EQ(made, 8u);
        EXPECT_EQ(make_array(guest, 99, 8), static_cast<std::uint32_t>(CUDA_ERROR_OUT_OF_MEMORY));
        EXPECT_EQ(guest.allocate(2 * kMib), 0u);  // Nor is there memory beside them.
        EXPECT_EQ(end_array(guest, 0), 0u);
        EXPECT_EQ(free_mib(guest), 8u);
        EXPECT_NE(guest.allocate(8 * kMib), 0u);
        EXPECT_EQ(make_array(guest, 98, 1), static_cast<std::uint32_t>(CUDA_ERROR_OUT_OF_MEMORY));
    }));
}

TEST(Quota, CountsLayersAndLevelsOfArrays) {
    EXPECT_TRUE(in_child([] {
        Serving serving(kSmallQuota);
        Guest& guest = serving.guest;
        guest.retain();
        payload::cuArray3DCreate_v2_call solid{};
        solid.pHandle = handle(HandleKind::kArray, 1);
        solid.pAllocateArray = rows_of_mib(2, 33);
        EXPECT_EQ(guest.call(Op::cuArray3DCreate_v2, solid).status,
                  static_cast<std::uint32_t>(CUDA_ERROR_OUT_OF_MEMORY));
        solid.pAllocateArray = rows_of_mib(2, 4);
        EXPECT_EQ(guest.call(Op::cuArray3DCreate_v2, solid).status, 0u);
        EXPECT_EQ(free_mib(guest), 56u);
        payload::cuMipmappedArrayCreate_call levels{};
        levels.pHandle = handle(HandleKind::kMipmappedArray, 1);
        levels.pMipmappedArrayDesc = rows_of_mib(48);
        levels.numMipmapLevels = 3;  // 48 + 12 + 3 MiB.
        EXPECT_EQ(guest.call(Op::cuMipmappedArrayCreate, levels).status,
                  static_cast<std::uint32_t>(CUDA_ERROR_OUT_OF_MEMORY));
        levels.pMipmappedArrayDesc = rows_of_mib(32);
        EXPECT_EQ(guest.call(Op::cuMipmappedArrayCreate, levels).status, 0u);
        EXPECT_EQ(free_mib(guest), 14u);
        guest.call(Op::cuMipmappedArrayDestroy,
                   payload::cuMipmappedArrayDestroy_call{levels.pHandle});
        EXPECT_EQ(free_mib(guest), 56u);
    }));
}

TEST(Quota, WaitsForWhatWasFreedBeforeItRefusesAnArray) {
    EXPECT_TRUE(in_child([] {
        Serving serving(kSmallQuota);
        Guest& guest = serving.guest;
        guest.retain();
        for (int round = 0; round < 20; ++round) {
            const std::uint64_t data = guest.allocate(60 * kMib);
            EXPECT_NE(data, 0u);
            guest.send(Op::cuMemFree_v2, payload::cuMemFree_v2_call{data});
            EXPECT_EQ(make_array(guest, 1, 60), 0u);
            EXPECT_EQ(end_array(guest, 1), 0u);
        }
    }));
}

TEST(Quota, CountsAndBoundsContexts) {
    EXPECT_TRUE(in_child([] {
        Serving serving(kSmallQuota);
        Guest& guest = serving.guest;
        guest.retain();
        const std::uint64_t each = context_mib(serving);
        ASSERT_NE(each, 0u);
        for (std::uint64_t i = 1; i <= kMostContexts; ++i) {
            EXPECT_EQ(make_context(guest, i), 0u);
            EXPECT_EQ(free_mib(guest), 64 - i * each);
        }
        EXPECT_EQ(make_context(guest, 99), static_cast<std::uint32_t>(CUDA_ERROR_OUT_OF_MEMORY));
        guest.call(Op::cuCtxDestroy_v2,
                   hand::ContextEndCall{handle(HandleKind::kContext, 1), 0, 0});
        EXPECT_EQ(free_mib(guest), 64 - (kMostContexts - 1) * each);
        EXPECT_NE(guest.allocate(info_of(guest).free), 0u);
        EXPECT_EQ(make_context(guest, 98), static_cast<std::uint32_t>(CUDA_ERROR_OUT_OF_MEMORY));
    }));
}

TEST(Quota, CountsHeapsAndStacks) {
    EXPECT_TRUE(in_child([] {
        Serving serving(kSmallQuota);
        Guest& guest = serving.guest;
        const auto refused = static_cast<std::uint32_t>(CUDA_ERROR_OUT_OF_MEMORY);
        EXPECT_EQ(set_limit(guest, CU_LIMIT_MALLOC_HEAP_SIZE, 40 * kMib),
                  static_cast<std::uint32_t>(CUDA_ERROR_INVALID_CONTEXT));
        guest.retain();
        const std::uint64_t heap = serving.host.process->facts.limits[CU_LIMIT_MALLOC_HEAP_SIZE];
        const std::uint64_t stack = serving.host.process->facts.limits[CU_LIMIT_STACK_SIZE];
        EXPECT_EQ(set_limit(guest, CU_LIMIT_MALLOC_HEAP_SIZE, heap + 40 * kMib), 0u);
        EXPECT_EQ(free_mib(guest), 24u);
        EXPECT_EQ(set_limit(guest, CU_LIMIT_MALLOC_HEAP_SIZE, heap + 65 * kMib), refused);
        EXPECT_EQ(free_mib(guest), 24u);
        // It is one heap: more of it takes the difference.
        EXPECT_EQ(set_limit(guest, CU_LIMIT_MALLOC_HEAP_SIZE, heap + 60 * kMib), 0u);
        EXPECT_EQ(free_mib(guest), 4u);
        EXPECT_EQ(set_limit(guest, CU_LIMIT_MALLOC_HEAP_SIZE, heap + 16 * kMib), 0u);
        EXPECT_EQ(free_mib(guest), 48u);
        const std::uint64_t threads = serving.host.device->resident_threads();
        ASSERT_NE(threads, 0u);
        const std::uint64_t fits = (48 * kMib / threads) / 16 * 16;
        EXPECT_EQ(set_limit(guest, CU_LIMIT_STACK_SIZE, stack + 49 * kMib / threads + 1), refused);
        EXPECT_EQ(set_limit(guest, CU_LIMIT_STACK_SIZE, stack + fits), 0u);
        EXPECT_EQ(info_of(guest).free, 48 * kMib - fits * threads);
        // The context's end gives both back.
        guest.call(Op::cuDevicePrimaryCtxReset_v2, hand::ContextEndCall{kContext, 0, 0});
        EXPECT_EQ(free_mib(guest), 64u);
    }));
}

TEST(Quota, CountsVariablesOfModules) {
    EXPECT_TRUE(in_child([] {
        Serving serving(kSmallQuota);
        Guest& guest = serving.guest;
        guest.retain();
        EXPECT_EQ(load_variable(guest, 1, 65 * kMib),
                  static_cast<std::uint32_t>(CUDA_ERROR_OUT_OF_MEMORY));
        EXPECT_EQ(load_variable(guest, 2, 40 * kMib), 0u);
        EXPECT_EQ(free_mib(guest), 24u);
        EXPECT_EQ(load_variable(guest, 3, 40 * kMib),
                  static_cast<std::uint32_t>(CUDA_ERROR_OUT_OF_MEMORY));
        guest.call(Op::cuModuleUnload,
                   payload::cuModuleUnload_call{handle(HandleKind::kModule, 2)});
        EXPECT_EQ(free_mib(guest), 64u);
    }));
}

TEST(Quota, BoundsStreamsAndEvents) {
    EXPECT_TRUE(in_child([] {
        Serving serving(kSmallQuota);
        Guest& guest = serving.guest;
        guest.retain();
        for (std::uint64_t i = 0; i <= kMostStreams; ++i) {
            guest.send(Op::cuStreamCreate,
                       payload::cuStreamCreate_call{handle(HandleKind::kStream, i), 1, 0});
        }
        EXPECT_EQ(guest.synchronise(0), static_cast<std::uint32_t>(CUDA_ERROR_OUT_OF_MEMORY));
        const ObjectTable& objects = serving.host.process->objects;
        EXPECT_EQ(objects.count_kind(HandleKind::kStream), kMostStreams);
    }));
}

TEST(Quota, BoundsPinnedMemoryByThePool) {
    EXPECT_TRUE(in_child([] {
        Serving serving(kSmallQuota);
        Guest& guest = serving.guest;
        guest.retain();
        const std::uint64_t pool = serving.channel.layout().pinned_bytes;
        const auto pin = [&](std::uint64_t offset, std::uint64_t bytes) {
            return guest
                .call(Op::cuMemHostAlloc,
                      payload::cuMemHostAlloc_call{wire::kPinnedBase + offset, bytes, 0, 0})
                .status;
        };
        EXPECT_NE(pin(0, pool + 1), 0u);
        EXPECT_NE(pin(pool, 4096), 0u);
        EXPECT_EQ(pin(0, pool / 2), 0u);
        EXPECT_NE(pin(4096, 4096), 0u);  // Nor twice.
        EXPECT_NE(pin(pool / 2 - 4096, 8192), 0u);
        std::uint64_t total = 0;
        for (const PinnedRange& range : serving.host.process->memory.device.pinned_ranges()) {
            total += range.bytes;
        }
        EXPECT_EQ(total, pool / 2);
    }));
}

void take_much(Serving& serving) {
    Guest& guest = serving.guest;
    guest.retain();
    EXPECT_EQ(make_array(guest, 1, 8), 0u);
    EXPECT_EQ(make_context(guest, 1), 0u);
    const std::uint64_t heap = serving.host.process->facts.limits[CU_LIMIT_MALLOC_HEAP_SIZE];
    EXPECT_EQ(set_limit(guest, CU_LIMIT_MALLOC_HEAP_SIZE, heap + 16 * kMib), 0u);
    EXPECT_EQ(load_variable(guest, 1, 4 * kMib), 0u);
    EXPECT_NE(guest.allocate(6 * kMib), 0u);
    EXPECT_EQ(free_mib(guest), 64 - 8 - context_mib(serving) - 16 - 4 - 6);
}

TEST(Quota, IsTheSameAfterAMove) {
    struct Shared {
        std::uint64_t free_bytes = 0;
        std::uint64_t image_bytes = 0;
        std::uint64_t graph_bytes = 0;
        char image[4096];
        char graph[1 << 20];
    };
    void* mapped =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    auto* const shared = new (mapped) Shared;
    EXPECT_TRUE(in_child([shared] {
        Serving serving(kSmallQuota);
        take_much(serving);
        shared->free_bytes = info_of(serving.guest).free;
        ASSERT_TRUE(serving.host.execution->freeze(5s).ok());
        state::Part part(*serving.host.execution, 1);
        EXPECT_EQ(part.source.describe().beside_bytes, (context_mib(serving) + 16) * kMib);
        part.source.begin_precopy(kMoveSeed);
        ASSERT_TRUE(part.source.scan().ok());
        const std::string graph = part.source.final_graph().value();
        ASSERT_LE(graph.size(), sizeof(shared->graph));
        graph.copy(shared->graph, graph.size());
        shared->graph_bytes = graph.size();
        const auto image = serving.host.process->code.modules.list().at(0).image;
        ASSERT_LE(image->bytes.size(), sizeof(shared->image));
        std::memcpy(shared->image, image->bytes.data(), image->bytes.size());
        shared->image_bytes = image->bytes.size();
    }));
    EXPECT_TRUE(in_child([shared] {
        Host host(kSmallQuota);
        state::Part part(*host.execution, 1);
        const auto bytes = std::as_bytes(std::span(shared->image, shared->image_bytes));
        part.content.keep_image({bytes.begin(), bytes.end()});
        const std::string_view graph(shared->graph, shared->graph_bytes);
        ASSERT_TRUE(part.target.prepare(kMoveSeed, graph).ok());
        const auto missing = part.target.apply_final(graph);
        ASSERT_TRUE(missing.ok()) << missing.error().text;
        EXPECT_TRUE(missing->empty());
        host.device->bind_thread();
        EXPECT_EQ(host.process->memory.device.free_bytes(kSmallQuota), shared->free_bytes);
    }));
    munmap(mapped, sizeof(Shared));
}

TEST(ChargedBytes, AreNeverLessThanTheTexels) {
    CUDA_ARRAY3D_DESCRIPTOR_v2 array{};
    array.Width = 10;
    array.Format = CU_AD_FORMAT_FLOAT;
    array.NumChannels = 4;
    EXPECT_EQ(array_bytes(array), 160u);
    array.Height = 3;
    EXPECT_EQ(array_bytes(array), 480u);
    array.Depth = 2;
    EXPECT_EQ(array_bytes(array), 960u);
    array.Format = CU_AD_FORMAT_BC1_UNORM;
    EXPECT_EQ(array_bytes(array), 3u * 8 * 2);  // Blocks of 4 * 4 texels.
    array.Width = ~0ull;
    array.Height = ~0ull;
    EXPECT_EQ(array_bytes(array), ~0ull);
    EXPECT_EQ(mipmapped_array_bytes(array, 32), ~0ull);
}

TEST(ChargedBytes, OfAContextAreWhatTheDeviceLostWithinReason) {
    EXPECT_EQ(context_bytes_seen(512 * kMib, 8000 * kMib, 7500 * kMib), 500 * kMib);
    EXPECT_EQ(context_bytes_seen(512 * kMib, 8000 * kMib, 9000 * kMib), 64 * kMib);
    EXPECT_EQ(context_bytes_seen(512 * kMib, 8000 * kMib, 0), 1024 * kMib);
    EXPECT_EQ(context_bytes_seen(512 * kMib, std::nullopt, 7500 * kMib), 512 * kMib);
}

TEST(VariableBytes, AreReadFromTextAsACompilerReadsIt) {
    EXPECT_EQ(ptx_variable_bytes(".global .align 4 .b8 big[4096];"), 4096u);
    EXPECT_EQ(ptx_variable_bytes(".visible .global.v4 .f32 a[0x10][2], b;"), 16u * 32 + 16);
    EXPECT_EQ(ptx_variable_bytes(".const .u16 table[] = {1, 2, 3};.global .b64 c = 1, d[2];"),
              6u + 8 + 16);
    EXPECT_EQ(ptx_variable_bytes(".extern .global .b8 other[4096]; ld.global.u32 %r1, [a];"), 0u);
    EXPECT_EQ(ptx_variable_bytes("/* .global .b8 x = */ .global /* ; */ .b8 big // [1]\n[64];"),
              64u);
    EXPECT_EQ(ptx_variable_bytes(".file 1 \"// .global .b8 x = \" .global .b8 big[64];"), 64u);
    EXPECT_EQ(ptx_variable_bytes(".global .attribute(.managed) .f64 m[8];"), 64u);
    EXPECT_EQ(ptx_variable_bytes(".global .b8 a[99999999999][99999999999];"), ~0ull);
}

}  // namespace
}  // namespace gantry::worker
