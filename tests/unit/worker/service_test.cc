// A guest process on a real ring against the soft GPU's driver: control commands, memory, kernels,
// hostile commands, and a restore into another process that takes the same shared memory over.
//
// Each part of a test runs in a child process of its own, since a worker holds fixed addresses.
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include "host-daemon/state/part_state.h"
#include "tests/unit/worker/guest_fixture.h"

namespace gantry::worker {
namespace {

TEST(Service, ServesMemoryKernelsAndStreams) {
    EXPECT_TRUE(in_child([] {
        const auto region = ChannelMemory::create_region(kRegionBytes);
        Host host;
        host.process->serve(map_region(region->get()), 1);
        Guest guest(*host.process->channel(), 1ull << wire::kGenerationShift);
        const auto hello = guest.control(ControlOp::kHello,
                                         wire::HelloCall{wire::kWireVersion, 77, cuda::kTableHash});
        EXPECT_EQ(hello.status, 0u);
        EXPECT_EQ(hello.as<wire::HelloReply>().device_count, 1u);
        EXPECT_GE(hello.as<wire::HelloReply>().driver_version, 13000u);
        const auto facts = guest.control(
            ControlOp::kDeviceFacts,
            wire::DeviceFactsCall{0, 0, 4096, sizeof(wire::DeviceFacts)});
        EXPECT_EQ(facts.status, 0u);
        EXPECT_EQ(facts.bulk_bytes, sizeof(wire::DeviceFacts));
        guest.retain();
        guest.load_module();
        guest.send(Op::cuStreamCreate, payload::cuStreamCreate_call{kStream, 1, 0});
        const std::uint64_t data = guest.allocate(256);
        EXPECT_EQ(data, wire::kArenaBase);
        guest.write(data, std::vector<std::byte>(256));
        for (int i = 0; i < 100; ++i) {
            guest.add(data, 3, 0);
        }
        EXPECT_EQ(guest.synchronise(kStream), 0u);
        EXPECT_EQ(guest.read(data, 64), std::vector<std::uint32_t>(64, 300));
        EXPECT_EQ(guest.read(guest.total_address(), 1)[0], 300u * 64);
        guest.send(Op::cuMemFree_v2, payload::cuMemFree_v2_call{data});
        guest.send(Op::cuStreamDestroy_v2, payload::cuStreamDestroy_v2_call{kStream});
        const auto info = guest.call(Op::cuMemGetInfo_v2, payload::cuMemGetInfo_v2_call{});
        EXPECT_EQ(info.as<payload::cuMemGetInfo_v2_reply>().total, 256ull << 20);
    }));
}

TEST(Service, ShowsCompletedEventsButNotWhileAMigrationIsAnnounced) {
    EXPECT_TRUE(in_child([] {
        const auto region = ChannelMemory::create_region(kRegionBytes);
        Host host;
        host.process->serve(map_region(region->get()), 1);
        Guest guest(*host.process->channel(), 1ull << wire::kGenerationShift);
        const wire::HostWords& words = host.process->channel()->host_words();
        const auto& shown = words.event_done[cuda::handle_slot(kEvent) % wire::kEventWords];
        const auto record = [&] {
            const payload::cuEventRecord_call call{kEvent, kStream};
            return guest.post(static_cast<std::uint16_t>(Op::cuEventRecord),
                              std::as_bytes(std::span(&call, 1)), {});
        };
        const auto reaches = [](const std::atomic<std::uint64_t>& word, std::uint64_t value) {
            for (int i = 0; i < 20'000 && word.load() != value; ++i) {
                std::this_thread::sleep_for(500us);
            }
            return word.load() == value;
        };
        guest.retain();
        EXPECT_EQ(words.shows_events.load(), 1u);
        guest.send(Op::cuStreamCreate, payload::cuStreamCreate_call{kStream, 1, 0});
        guest.send(Op::cuEventCreate, payload::cuEventCreate_call{kEvent, 0, 0});
        EXPECT_TRUE(reaches(shown, record() + 1)) << "without being asked";
        const std::uint64_t second = record();
        EXPECT_EQ(guest.synchronise(kStream), 0u);
        EXPECT_EQ(shown.load(), second + 1) << "before the answer";
        host.process->announce(true);
        const std::uint64_t third = record();
        EXPECT_EQ(guest.synchronise(kStream), 0u);
        const wire::LookAtEventCall look{kEvent, third};
        const auto look_at = [&] {
            return guest.post(static_cast<std::uint16_t>(ControlOp::kLookAtEvent),
                              std::as_bytes(std::span(&look, 1)), {});
        };
        EXPECT_TRUE(reaches(words.looked, look_at() + 1));
        EXPECT_EQ(shown.load(), second + 1);
        host.process->announce(false);
        EXPECT_TRUE(reaches(words.looked, look_at() + 1));
        EXPECT_EQ(shown.load(), third + 1);
        // A record that fails is told by the next answer, and the count says that there is one.
        const std::uint32_t errors = words.late_errors.load();
        guest.send(Op::cuEventRecord, payload::cuEventRecord_call{kEvent, kStream + 1});
        EXPECT_EQ(guest.synchronise(kStream),
                  static_cast<std::uint32_t>(CUDA_ERROR_INVALID_HANDLE));
        EXPECT_EQ(words.late_errors.load(), errors + 1);
    }));
}

TEST(Service, ShowsTheEndsOfBulkCopies) {
    EXPECT_TRUE(in_child([] {
        const auto region = ChannelMemory::create_region(kRegionBytes);
        Host host;
        host.process->serve(map_region(region->get()), 1);
        ChannelMemory& channel = *host.process->channel();
        Guest guest(channel, 1ull << wire::kGenerationShift);
        const wire::HostWords& words = channel.host_words();
        const auto reaches = [&](std::uint32_t word, std::uint64_t value) {
            for (int i = 0; i < 20'000 && words.bulk_done[word].load() != value; ++i) {
                std::this_thread::sleep_for(500us);
            }
            return words.bulk_done[word].load() == value;
        };
        const auto copy = [&](ControlOp op, const wire::BulkCopyCall& args) {
            return guest.post(static_cast<std::uint16_t>(op), std::as_bytes(std::span(&args, 1)),
                              {});
        };
        guest.retain();
        guest.send(Op::cuStreamCreate, payload::cuStreamCreate_call{kStream, 1, 0});
        const std::uint64_t data = guest.allocate(1 << 20);
        const std::uint64_t out = wire::outbox_bytes(channel.layout()) * 3;
        const auto outbox = channel.bulk(out, 1 << 20);
        const auto inbox = channel.bulk(1 << 20, 1 << 20);
        for (std::size_t i = 0; i < outbox.size(); ++i) {
            outbox[i] = static_cast<std::byte>(i * 7 >> 3);
        }
        EXPECT_EQ(words.bulk_locked.load(), 0u);
        const std::uint64_t there =
            copy(ControlOp::kWriteFromBulk, {data, 1 << 20, kStream, out, 5, 0});
        EXPECT_TRUE(reaches(5, there + 1)) << "without being asked";
        EXPECT_EQ(words.bulk_locked.load(), 1u);
        const std::uint64_t back =
            copy(ControlOp::kReadToBulk, {data, 1 << 20, kStream, 1 << 20, 127, 0});
        EXPECT_TRUE(reaches(127, back + 1));
        EXPECT_EQ(std::memcmp(inbox.data(), outbox.data(), inbox.size()), 0);
        // It tells that all work before it has ended, and so must the events.
        constexpr std::size_t kEvents = 12;
        std::uint64_t recorded[kEvents] = {};
        for (std::size_t i = 0; i < kEvents; ++i) {
            guest.send(Op::cuEventCreate, payload::cuEventCreate_call{kEvent + i, 0, 0});
        }
        for (std::size_t i = 0; i < kEvents; ++i) {
            const payload::cuEventRecord_call record{kEvent + i, kStream};
            recorded[i] = guest.post(static_cast<std::uint16_t>(Op::cuEventRecord),
                                     std::as_bytes(std::span(&record, 1)), {});
        }
        const std::uint64_t behind =
            copy(ControlOp::kReadToBulk, {data, 4096, kStream, 1 << 20, 125, 0});
        while (words.bulk_done[125].load(std::memory_order_acquire) != behind + 1) {
        }
        for (std::size_t i = 0; i < kEvents; ++i) {
            const auto slot = cuda::handle_slot(kEvent + i) % wire::kEventWords;
            EXPECT_EQ(words.event_done[slot].load(), recorded[i] + 1) << i;
        }
        // A copy that fails frees its extent all the same, and its error is told.
        const std::uint64_t failed =
            copy(ControlOp::kWriteFromBulk, {data, 4096, kStream + 1, out, 6, 0});
        EXPECT_TRUE(reaches(6, failed + 1));
        EXPECT_EQ(guest.synchronise(kStream),
                  static_cast<std::uint32_t>(CUDA_ERROR_INVALID_HANDLE));
        // While a migration is announced a copy to the guest is not shown; one from it is.
        host.process->announce(true);
        copy(ControlOp::kReadToBulk, {data, 4096, kStream, 1 << 20, 126, 0});
        const std::uint64_t written =
            copy(ControlOp::kWriteFromBulk, {data, 4096, kStream, out, 7, 0});
        EXPECT_EQ(guest.synchronise(kStream), 0u);
        EXPECT_TRUE(reaches(7, written + 1));
        EXPECT_EQ(words.bulk_done[126].load(), 0u);
        host.process->announce(false);
        // The end of a copy that is not in flight any more was shown to other memory.
        const wire::LookAtBulkCall look{12345, 8, 0};
        guest.post(static_cast<std::uint16_t>(ControlOp::kLookAtBulk),
                   std::as_bytes(std::span(&look, 1)), {});
        EXPECT_TRUE(reaches(8, 12346));
        // What makes no sense is refused, and harms nobody.
        for (const wire::BulkCopyCall& bad :
             {wire::BulkCopyCall{data, 8192, kStream, channel.layout().bulk_bytes - 4096, 9, 0},
              wire::BulkCopyCall{data, ~0ull, kStream, 4096, 9, 0},
              wire::BulkCopyCall{data, 0, kStream, 0, 9, 0},
              wire::BulkCopyCall{data, 4096, kStream, 0, wire::kBulkWords, 0},
              wire::BulkCopyCall{data, 4096, kStream, 0, ~0u, 0}}) {
            for (const ControlOp op : {ControlOp::kWriteFromBulk, ControlOp::kReadToBulk}) {
                copy(op, bad);
                EXPECT_NE(guest.synchronise(kStream), 0u);
            }
        }
        EXPECT_EQ(words.bulk_done[9].load(), 0u);
        EXPECT_EQ(guest.synchronise(kStream), 0u);
    }));
}

TEST(Service, HoldsTheQuotaAndWaitsForPendingFrees) {
    EXPECT_TRUE(in_child([] {
        const auto region = ChannelMemory::create_region(kRegionBytes);
        Host host(64ull << 20);
        host.process->serve(map_region(region->get()), 1);
        Guest guest(*host.process->channel(), 1ull << wire::kGenerationShift);
        guest.retain();
        const auto refused =
            guest.call(Op::cuMemAlloc_v2, payload::cuMemAlloc_v2_call{65ull << 20});
        EXPECT_EQ(refused.status, static_cast<std::uint32_t>(CUDA_ERROR_OUT_OF_MEMORY));
        for (int i = 0; i < 20; ++i) {
            const auto made =
                guest.call(Op::cuMemAlloc_v2, payload::cuMemAlloc_v2_call{60ull << 20});
            ASSERT_EQ(made.status, 0u);
            guest.send(Op::cuMemFree_v2,
                       payload::cuMemFree_v2_call{made.as<payload::cuMemAlloc_v2_reply>().dptr});
        }
    }));
}

/// Makes, changes and ends one of everything that a program may do any number of times.
void do_a_round(Guest& guest, std::uint64_t round, std::uint64_t exec, std::uint64_t graph,
                std::uint64_t node, std::uint64_t data) {
    const std::uint64_t serial = (1ull << 24) + 100 + round;
    const std::uint64_t clone = cuda::make_handle(HandleKind::kGraph, serial);
    const std::uint64_t memory = cuda::make_handle(HandleKind::kVmmAllocation, serial);
    const std::uint64_t pool = cuda::make_handle(HandleKind::kMemPool, serial);
    guest.send(Op::cuEventRecord, payload::cuEventRecord_call{kEvent, kStream});
    hand::GraphKernelNodeCall change{};
    change.graph = exec;
    change.node = node;
    change.launch.kernel = kKernel;
    change.launch.grid[0] = change.launch.grid[1] = change.launch.grid[2] = 1;
    change.launch.block[0] = change.launch.block[1] = change.launch.block[2] = 1;
    change.launch.param_bytes = 12;
    std::byte params[12] = {};
    std::memcpy(params, &data, 8);
    EXPECT_EQ(guest.call(Op::cuGraphExecKernelNodeSetParams_v2, change, params).status, 0u);
    EXPECT_EQ(guest.call(Op::cuGraphClone, payload::cuGraphClone_call{clone, graph}).status, 0u);
    EXPECT_EQ(guest.call(Op::cuGraphExecUpdate_v2, payload::cuGraphExecUpdate_v2_call{exec, clone})
                  .status,
              0u);
    guest.send(Op::cuGraphLaunch, payload::cuGraphLaunch_call{exec, kStream});
    guest.send(Op::cuGraphDestroy, payload::cuGraphDestroy_call{clone});
    payload::cuMemCreate_call create{};
    create.handle = memory;
    create.size = 2u << 20;
    create.prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    create.prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    EXPECT_EQ(guest.call(Op::cuMemCreate, create).status, 0u);
    const auto range = guest.call(Op::cuMemAddressReserve,
                                  payload::cuMemAddressReserve_call{2u << 20, 0, 0, 0})
                           .as<payload::cuMemAddressReserve_reply>()
                           .ptr;
    EXPECT_EQ(
        guest.call(Op::cuMemMap, payload::cuMemMap_call{range, 2u << 20, 0, memory, 0}).status, 0u);
    EXPECT_EQ(guest.call(Op::cuMemUnmap, payload::cuMemUnmap_call{range, 2u << 20}).status, 0u);
    EXPECT_EQ(guest.call(Op::cuMemRelease, payload::cuMemRelease_call{memory}).status, 0u);
    EXPECT_EQ(
        guest.call(Op::cuMemAddressFree, payload::cuMemAddressFree_call{range, 2u << 20}).status,
        0u);
    payload::cuMemPoolCreate_call make_pool{};
    make_pool.pool = pool;
    make_pool.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    make_pool.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    EXPECT_EQ(guest.call(Op::cuMemPoolCreate, make_pool).status, 0u);
    const auto piece = guest.call(Op::cuMemAllocFromPoolAsync,
                                  payload::cuMemAllocFromPoolAsync_call{4096, pool, kStream})
                           .as<payload::cuMemAllocFromPoolAsync_reply>()
                           .dptr;
    guest.send(Op::cuMemFreeAsync, payload::cuMemFreeAsync_call{piece, kStream});
    EXPECT_EQ(guest.call(Op::cuMemPoolDestroy, payload::cuMemPoolDestroy_call{pool}).status, 0u);
    EXPECT_EQ(guest.synchronise(kStream), 0u);
}

TEST(Service, TheGraphFollowsWhatLivesAndNotHowLongItRan) {
    EXPECT_TRUE(in_child([] {
        const auto region = ChannelMemory::create_region(kRegionBytes);
        Host host;
        host.process->serve(map_region(region->get()), 1);
        Guest guest(*host.process->channel(), 1ull << wire::kGenerationShift);
        guest.retain();
        guest.load_module();
        guest.send(Op::cuStreamCreate, payload::cuStreamCreate_call{kStream, 1, 0});
        guest.send(Op::cuEventCreate, payload::cuEventCreate_call{kEvent, 0, 0});
        const std::uint64_t data = guest.allocate(256);
        const std::uint64_t graph = cuda::make_handle(HandleKind::kGraph, 1ull << 24);
        const std::uint64_t node = cuda::make_handle(HandleKind::kGraphNode, 1ull << 24);
        const std::uint64_t exec = cuda::make_handle(HandleKind::kGraphExec, 1ull << 24);
        guest.send(Op::cuGraphCreate, payload::cuGraphCreate_call{graph, 0, 0});
        hand::GraphKernelNodeCall add{};
        add.graph = graph;
        add.node = node;
        add.launch.kernel = kKernel;
        add.launch.grid[0] = add.launch.grid[1] = add.launch.grid[2] = 1;
        add.launch.block[0] = add.launch.block[1] = add.launch.block[2] = 1;
        add.launch.param_bytes = 12;
        std::byte params[12] = {};
        std::memcpy(params, &data, 8);
        ASSERT_EQ(guest.call(Op::cuGraphAddKernelNode_v2, add, params).status, 0u);
        ASSERT_EQ(guest.call(Op::cuGraphInstantiateWithFlags,
                             payload::cuGraphInstantiateWithFlags_call{exec, graph, 0})
                      .status,
                  0u);
        std::uint64_t rounds = 0;
        auto size_after = [&](std::uint64_t count) {
            for (; count != 0; --count) {
                do_a_round(guest, ++rounds, exec, graph, node, data);
            }
            EXPECT_TRUE(host.process->freeze(5s).ok());
            const auto encoded = state::PartState(*host.process, 1).final_graph();
            EXPECT_TRUE(encoded.ok()) << encoded.error().text;
            host.process->thaw();
            return encoded->size();
        };
        const std::size_t early = size_after(2);
        const std::size_t late = size_after(200);
        constexpr std::size_t kLongerNumbers = 64;  // Positions and orders take more bytes.
        EXPECT_LE(late, early + kLongerNumbers);
    }));
}

TEST(Service, RefusesHostileCommandsAndGoesOn) {
    EXPECT_TRUE(in_child([] {
        const auto region = ChannelMemory::create_region(kRegionBytes);
        Host host;
        host.process->serve(map_region(region->get()), 1);
        Guest guest(*host.process->channel(), 1ull << wire::kGenerationShift);
        guest.retain();
        const std::uint64_t nothing = 0;
        const auto raw = std::as_bytes(std::span(&nothing, 1));
        for (std::uint16_t op = 0; op < cuda::kOpEnd + 20; ++op) {
            if (op == static_cast<std::uint16_t>(ControlOp::kPad) ||
                op == static_cast<std::uint16_t>(ControlOp::kConfirm) ||
                op == static_cast<std::uint16_t>(ControlOp::kWaitCallback) ||
                op == static_cast<std::uint16_t>(Op::cuDevicePrimaryCtxReset_v2)) {
                continue;
            }
            const auto reply = guest.wait(guest.post(op, raw, raw, true));
            EXPECT_NE(reply.status, ~0u) << "no answer to command " << op;
        }
        const std::uint64_t data = guest.allocate(4096);
        EXPECT_NE(data, 0u);
        // Addresses of the worker itself must not be read by a unified copy.
        const std::uint64_t secret = 0x1122334455667788;
        payload::cuMemcpyAsync_call copy{data, reinterpret_cast<std::uint64_t>(&secret), 8, 0};
        EXPECT_EQ(guest.call(Op::cuMemcpyAsync, copy).status,
                  static_cast<std::uint32_t>(CUDA_ERROR_INVALID_VALUE));
        // Bulk extents beyond the area.
        EXPECT_NE(guest.control(ControlOp::kReadDevice,
                                wire::ReadDeviceCall{data, 4096, 0, ~0ull}).status, 0u);
        EXPECT_NE(guest.control(ControlOp::kReadDevice,
                                wire::ReadDeviceCall{data, ~0ull, 0, 0}).status, 0u);
        EXPECT_NE(guest.control(ControlOp::kHello, wire::HelloCall{99, 1, 2}).status, 0u);
        guest.write(data, std::vector<std::byte>(64, std::byte{7}));
        EXPECT_EQ(guest.read(data, 16), std::vector<std::uint32_t>(16, 0x07070707));
        EXPECT_GT(host.process->counters.refused.load(), 50u);
    }));
}

TEST(Service, ReportsALateErrorWithTheNextAnswerOfTheLane) {
    EXPECT_TRUE(in_child([] {
        const auto region = ChannelMemory::create_region(kRegionBytes);
        Host host;
        host.process->serve(map_region(region->get()), 1);
        Guest guest(*host.process->channel(), 1ull << wire::kGenerationShift);
        guest.retain();
        guest.send(Op::cuMemFree_v2, payload::cuMemFree_v2_call{wire::kArenaBase + 512});
        EXPECT_EQ(guest.synchronise(0), static_cast<std::uint32_t>(CUDA_ERROR_INVALID_VALUE));
        EXPECT_EQ(guest.synchronise(0), 0u);
    }));
}

/// What one worker hands to the next, in memory that both children share.
struct Shared {
    std::uint64_t tail = 0;
    std::uint64_t data = 0;
    std::uint64_t total = 0;
    std::uint64_t last_position = 0;
    std::uint64_t graph_bytes = 0;
    std::uint64_t block_count = 0;
    engine::BlockSetDigest digest;
    char graph[1 << 20];
    engine::BlockAddress addresses[1024];
    std::byte blocks[1024][engine::kBlockBytes];
};

constexpr snapshot::Seed kSeed{11, 22};
constexpr std::size_t kSentPtxBytes = 100;  // Of an image that is on its way when all stops.

void run_source(int region, Shared* shared) {
    Host host;
    host.process->serve(map_region(region), 1);
    Guest guest(*host.process->channel(), 1ull << wire::kGenerationShift);
    guest.retain();
    guest.load_module();
    guest.send(Op::cuStreamCreate, payload::cuStreamCreate_call{kStream, 1, 0});
    guest.send(Op::cuEventCreate, payload::cuEventCreate_call{kEvent, 0, 0});
    guest.allocate(3ull << 20);
    // A freed allocation leaves an empty slab behind, which must not be part of the image.
    const std::uint64_t passing = guest.allocate(1ull << 20);
    const std::uint64_t passing_too = guest.allocate(1ull << 20);
    const std::uint64_t in_second_slab = guest.allocate(1ull << 20);
    guest.send(Op::cuMemFree_v2, payload::cuMemFree_v2_call{passing});
    guest.send(Op::cuMemFree_v2, payload::cuMemFree_v2_call{passing_too});
    guest.send(Op::cuMemFree_v2, payload::cuMemFree_v2_call{in_second_slab});
    EXPECT_EQ(guest.synchronise(0), 0u);
    shared->data = guest.allocate(256);
    shared->total = guest.total_address();
    guest.write(shared->data, std::vector<std::byte>(256));
    guest.add(shared->data, 5, 0);
    guest.send(Op::cuEventRecord, payload::cuEventRecord_call{kEvent, 0});
    guest.stage_piece(2, 0, kSentPtxBytes);
    EXPECT_EQ(guest.synchronise(0), 0u);
    ASSERT_TRUE(host.process->freeze(5s).ok());
    // Posted while frozen: the next worker has to execute these, once.
    shared->last_position =
        guest.post(static_cast<std::uint16_t>(Op::cuStreamSynchronize),
                   std::as_bytes(std::span(&kStream, 1)), {}, true);
    guest.add(shared->data, 7, 0);
    shared->tail = guest.tail();
    state::PartState part(*host.process, 1);
    part.begin_precopy(kSeed);
    auto scan = part.scan();
    ASSERT_TRUE(scan.ok());
    ASSERT_LE(scan->changed.size(), std::size(shared->addresses));
    for (const engine::BlockAddress& block : scan->changed) {
        auto copied = part.read_blocks(std::span(&block, 1), shared->blocks[shared->block_count]);
        ASSERT_TRUE(copied.ok());
        shared->addresses[shared->block_count++] = block;
    }
    EXPECT_TRUE(part.scan()->changed.empty());
    EXPECT_EQ(part.images().size(), 2u);
    const std::string graph = part.final_graph().value();
    ASSERT_LE(graph.size(), sizeof(shared->graph));
    std::memcpy(shared->graph, graph.data(), graph.size());
    shared->graph_bytes = graph.size();
    shared->digest = part.digest().value();
}

void run_target(int region, Shared* shared) {
    Host host;
    state::PartState part(*host.process, 1);
    const std::string_view graph(shared->graph, shared->graph_bytes);
    auto missing = part.prepare(kSeed, graph);
    ASSERT_TRUE(missing.ok());
    EXPECT_EQ(missing->size(), 2u);
    const auto* ptx = reinterpret_cast<const std::byte*>(kPtx);
    part.keep_image(std::vector<std::byte>(ptx, ptx + sizeof(kPtx)));
    part.keep_image(std::vector<std::byte>(ptx, ptx + kSentPtxBytes));
    // Blocks may come before their memory is known.
    for (std::uint64_t i = 0; i < shared->block_count; ++i) {
        ASSERT_TRUE(part.apply_block(shared->addresses[i], shared->blocks[i]).ok());
    }
    missing = part.apply_final(graph);
    ASSERT_TRUE(missing.ok()) << missing.error().text;
    ASSERT_TRUE(missing->empty());
    EXPECT_EQ(part.digest().value(), shared->digest);
    auto memory = map_region(region);
    // The hypervisor lost the host's writes: answers must come from the log.
    memory->reply(kLane).seq.store(0);
    memory->host_words().head.store(0);
    host.process->memory.set_pinned_pool(memory->layout().pinned_bytes);
    ASSERT_TRUE(part.register_pinned().ok());
    ASSERT_TRUE(host.process->take_over(std::move(memory), *part.channel_state(), 2).ok());
    Guest guest(*host.process->channel(), shared->tail);
    EXPECT_EQ(guest.wait(shared->last_position).status, 0u);
    EXPECT_EQ(guest.read(shared->data, 64), std::vector<std::uint32_t>(64, 12));
    EXPECT_EQ(guest.total_address(), shared->total);
    EXPECT_EQ(guest.read(shared->total, 1)[0], 12u * 64);
    guest.add(shared->data, 1, kStream);
    EXPECT_EQ(guest.synchronise(kStream), 0u);
    EXPECT_EQ(guest.read(shared->data, 64), std::vector<std::uint32_t>(64, 13));
    EXPECT_EQ(guest.call(Op::cuEventQuery, payload::cuEventQuery_call{kEvent}).status, 0u);
    guest.stage_piece(2, kSentPtxBytes, sizeof(kPtx));
    EXPECT_EQ(guest.load(kModule + 1, 2), 0u);
}

TEST(Service, AnotherWorkerTakesTheGuestOverWhereItStood) {
    const auto region = ChannelMemory::create_region(kRegionBytes);
    void* mapped = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    auto* shared = new (mapped) Shared;
    ASSERT_TRUE(in_child([&] { run_source(region->get(), shared); }));
    EXPECT_TRUE(in_child([&] { run_target(region->get(), shared); }));
    munmap(mapped, sizeof(Shared));
}

/// The pinned pool in the test of moved pinned bytes; every buffer has a page of its own.
struct PinnedBuffer {
    std::uint64_t offset;
    std::uint32_t before;  ///< What the guest had written itself.
    std::uint32_t copied;  ///< What a copy then wrote; 0: none did.
    bool is_carried;
};
constexpr PinnedBuffer kBeforeAnnounce{0, 0x11111111, 0x01010101, false};
constexpr PinnedBuffer kConfirmed{4096, 0x22222222, 0x02020202, false};
constexpr PinnedBuffer kUnconfirmed{8192, 0x33333333, 0x03030303, true};
constexpr PinnedBuffer kUnanswered{12288, 0x44444444, 0x04040404, true};
constexpr PinnedBuffer kRows{16384, 0x55555555, 0x05050505, true};
constexpr PinnedBuffer kUntouched{24576, 0x66666666, 0, false};
// Written by what has no known extent: a memset and a kernel that adds 3 to 64 words.
constexpr PinnedBuffer kSet{28672, 0x77777777, 0x07070707, true};
constexpr PinnedBuffer kAdded{32768, 0x00000080, 0x00000083, true};
constexpr PinnedBuffer kAddedConfirmed{36864, 0x00000090, 0x00000093, false};
constexpr std::array kPinnedBuffers = {kBeforeAnnounce, kConfirmed, kUnconfirmed,
                                       kUnanswered,     kRows,      kUntouched,
                                       kSet,            kAdded,     kAddedConfirmed};
constexpr std::uint64_t kCopyBytes = 512;

std::uint32_t pinned_word(const ChannelMemory& memory, std::uint64_t offset) {
    std::uint32_t word = 0;
    std::memcpy(&word, memory.pinned().data() + offset, sizeof(word));
    return word;
}

void copy_down(Guest& guest, std::uint64_t data, const PinnedBuffer& to) {
    const std::vector<std::byte> bytes(kCopyBytes, static_cast<std::byte>(to.copied & 0xff));
    guest.write(data, bytes);
    guest.send(Op::cuMemcpyAsync, payload::cuMemcpyAsync_call{wire::kPinnedBase + to.offset, data,
                                                              kCopyBytes, 0});
}

void confirm(Guest& guest, const ChannelMemory& memory) {
    const std::uint64_t position =
        guest.post(static_cast<std::uint16_t>(ControlOp::kConfirm), {}, {});
    const auto& word = memory.host_words().confirm_seq[kLane];
    for (int i = 0; i < 20'000 && word.load() != position + 1; ++i) {
        std::this_thread::sleep_for(500us);
    }
    EXPECT_EQ(word.load(), position + 1);
}

void run_pinned_source(int region, Shared* shared) {
    Host host;
    host.process->serve(map_guest_memory(region), 1);
    const ChannelMemory& memory = *host.process->channel();
    Guest guest(*host.process->channel(), 1ull << wire::kGenerationShift);
    guest.retain();
    ASSERT_EQ(guest.call(Op::cuMemHostAlloc,
                         payload::cuMemHostAlloc_call{wire::kPinnedBase, 1 << 16, 0, 0}).status,
              0u);
    const std::uint64_t data = guest.allocate(kCopyBytes);
    guest.load_module();
    for (const auto& buffer : kPinnedBuffers) {
        std::memcpy(memory.pinned().data() + buffer.offset, &buffer.before, 4);
    }
    copy_down(guest, data, kBeforeAnnounce);
    EXPECT_EQ(guest.synchronise(0), 0u);
    host.process->announce(true);
    copy_down(guest, data, kConfirmed);
    guest.add(wire::kPinnedBase + kAddedConfirmed.offset, 3, 0);
    EXPECT_EQ(guest.synchronise(0), 0u);
    confirm(guest, memory);
    // A confirm says nothing about a copy that may have ended after the answer it belongs to.
    copy_down(guest, data, kUnanswered);
    confirm(guest, memory);
    hand::Copy3DCall rows{};
    rows.source.address = data;
    rows.source.pitch = 64;
    rows.target.address = wire::kPinnedBase + kRows.offset;
    rows.target.pitch = 1024;
    rows.width_bytes = 64;
    rows.height = 4;
    rows.depth = 1;
    guest.write(data, std::vector<std::byte>(kCopyBytes, std::byte{5}));
    guest.send(Op::cuMemcpy3DAsync_v2, rows);
    // Answered and not confirmed: the guest has not touched these yet.
    guest.add(wire::kPinnedBase + kAdded.offset, 3, 0);
    guest.send(Op::cuMemsetD8Async,
               payload::cuMemsetD8Async_call{wire::kPinnedBase + kSet.offset,
                                             static_cast<std::uint8_t>(kSet.copied & 0xff), 0, 0,
                                             0, 0, kCopyBytes, 0});
    copy_down(guest, data, kUnconfirmed);
    EXPECT_EQ(guest.synchronise(0), 0u);
    ASSERT_TRUE(host.process->freeze(5s).ok());
    EXPECT_EQ(pinned_word(memory, kRows.offset + 3 * 1024), kRows.copied);
    shared->tail = guest.tail();
    state::PartState part(*host.process, 1);
    part.begin_precopy(kSeed);
    auto scan = part.scan();
    ASSERT_TRUE(scan.ok());
    for (const engine::BlockAddress& block : scan->changed) {
        auto copied = part.read_blocks(std::span(&block, 1), shared->blocks[shared->block_count]);
        ASSERT_TRUE(copied.ok());
        shared->addresses[shared->block_count++] = block;
    }
    const std::string graph = part.final_graph().value();
    ASSERT_LE(graph.size(), sizeof(shared->graph));
    std::memcpy(shared->graph, graph.data(), graph.size());
    shared->graph_bytes = graph.size();
}

std::vector<std::byte> ptx_image() {
    const auto text = std::as_bytes(std::span(kPtx));
    return {text.begin(), text.end()};
}

/// What the target's pool holds after its takeover, from a graph with or without the carried bytes.
void run_pinned_target(int region, Shared* shared, bool with_pinned_writes) {
    Host host;
    state::PartState part(*host.process, 1);
    std::string graph(shared->graph, shared->graph_bytes);
    if (!with_pinned_writes) {
        snapshot::ObjectGraph without;
        ASSERT_TRUE(without.ParseFromString(graph));
        without.mutable_execution()->clear_pinned_writes();
        graph = without.SerializeAsString();
    }
    part.keep_image(ptx_image());
    ASSERT_TRUE(part.prepare(kSeed, graph).ok());
    for (std::uint64_t i = 0; i < shared->block_count; ++i) {
        ASSERT_TRUE(part.apply_block(shared->addresses[i], shared->blocks[i]).ok());
    }
    const auto missing = part.apply_final(graph);
    ASSERT_TRUE(missing.ok()) << missing.error().text;
    auto memory = map_guest_memory(region);
    // The hypervisor carried what the guest wrote last, and nothing that the host wrote.
    std::memset(memory->pinned().data(), 0xee, 1 << 16);
    host.process->memory.set_pinned_pool(memory->layout().pinned_bytes);
    ASSERT_TRUE(part.register_pinned().ok());
    ASSERT_TRUE(host.process->take_over(std::move(memory), *part.channel_state(), 2).ok());
    const ChannelMemory& taken = *host.process->channel();
    EXPECT_EQ(taken.host_words().announce.load() & 1, 0u);
    for (const auto& buffer : kPinnedBuffers) {
        EXPECT_EQ(pinned_word(taken, buffer.offset),
                  buffer.is_carried && with_pinned_writes ? buffer.copied : 0xeeeeeeeeu)
            << "the buffer at " << buffer.offset;
    }
    if (!with_pinned_writes) {
        return;
    }
    // The end of what was carried, and the gaps between rows, to the byte.
    EXPECT_EQ(pinned_word(taken, kUnconfirmed.offset + kCopyBytes - 4), kUnconfirmed.copied);
    EXPECT_EQ(pinned_word(taken, kUnconfirmed.offset + kCopyBytes), 0xeeeeeeeeu);
    EXPECT_EQ(pinned_word(taken, kRows.offset + 60), kRows.copied);
    EXPECT_EQ(pinned_word(taken, kRows.offset + 64), 0xeeeeeeeeu);
    EXPECT_EQ(pinned_word(taken, kRows.offset + 3 * 1024), kRows.copied);
    EXPECT_EQ(pinned_word(taken, kSet.offset + kCopyBytes - 4), kSet.copied);
    EXPECT_EQ(pinned_word(taken, kSet.offset + kCopyBytes), 0xeeeeeeeeu);
    EXPECT_EQ(pinned_word(taken, kAdded.offset + 63 * 4), 3u);
    EXPECT_EQ(pinned_word(taken, kAdded.offset + 64 * 4), 0xeeeeeeeeu);
    Guest guest(*host.process->channel(), shared->tail);
    EXPECT_EQ(guest.synchronise(0), 0u);
}

/// A graph from elsewhere may name bytes beyond the pool, or nonsense.
void refuse_damaged_pinned(int region, Shared* shared) {
    Host host;
    state::PartState part(*host.process, 1);
    const std::string graph(shared->graph, shared->graph_bytes);
    part.keep_image(ptx_image());
    ASSERT_TRUE(part.prepare(kSeed, graph).ok());
    ASSERT_TRUE(part.apply_final(graph).ok());
    snapshot::ObjectGraph damaged;
    ASSERT_TRUE(damaged.ParseFromString(graph));
    ASSERT_NE(damaged.execution().pinned_writes_size(), 0);
    damaged.mutable_execution()->mutable_pinned_writes(0)->set_pool_offset(~0ull);
    EXPECT_FALSE(state::decode(damaged.SerializeAsString()).ok());
    ChannelState hostile = *part.channel_state();
    auto memory = map_guest_memory(region);
    hostile.pinned.push_back({memory->layout().pinned_bytes - 1, std::vector<std::byte>(2)});
    EXPECT_FALSE(host.process->take_over(std::move(memory), hostile, 2).ok());
}

TEST(Service, PinnedBytesThatNoHypervisorSawMoveWithTheChannel) {
    const auto region = ChannelMemory::create_region(kRegionBytes);
    void* mapped = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    auto* shared = new (mapped) Shared;
    ASSERT_TRUE(in_child([&] { run_pinned_source(region->get(), shared); }));
    EXPECT_TRUE(in_child([&] { refuse_damaged_pinned(region->get(), shared); }));
    // The rule taken out: every such buffer is stale.
    EXPECT_TRUE(in_child([&] { run_pinned_target(region->get(), shared, false); }));
    EXPECT_TRUE(in_child([&] { run_pinned_target(region->get(), shared, true); }));
    munmap(mapped, sizeof(Shared));
}

TEST(Service, EveryDamagedGraphIsRefusedOrHarmless) {
    const auto region = ChannelMemory::create_region(kRegionBytes);
    void* mapped = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    auto* shared = new (mapped) Shared;
    ASSERT_TRUE(in_child([&] { run_source(region->get(), shared); }));
    // Decoding alone: building from a damaged graph is the digest's and the driver's to refuse.
    EXPECT_TRUE(in_child([&] {
        const std::string graph(shared->graph, shared->graph_bytes);
        google::protobuf::SetLogHandler(nullptr);
        EXPECT_TRUE(state::decode(graph).ok());
        for (std::size_t i = 0; i < graph.size(); ++i) {
            std::string damaged = graph;
            damaged[i] = static_cast<char>(damaged[i] ^ 0xff);
            (void)state::decode(damaged);
            (void)state::decode(std::string_view(graph).substr(0, i));
        }
        snapshot::ObjectGraph newer;
        newer.set_version(state::kGraphVersion + 1);
        EXPECT_EQ(state::decode(newer.SerializeAsString()).error().reason, "snapshot.version");
    }));
    munmap(mapped, sizeof(Shared));
}

TEST(Driver, SaysWhatIsWrongWithADriver) {
    auto absent = driver::DriverLibrary::load("/nonexistent/libcuda.so.1");
    ASSERT_FALSE(absent.ok());
    EXPECT_EQ(absent.error().reason, "driver.absent");
    auto other = driver::DriverLibrary::load("libc.so.6");
    ASSERT_FALSE(other.ok());
    EXPECT_EQ(other.error().reason, "driver.symbol_missing");
    EXPECT_NE(other.error().text.find("cuInit"), std::string::npos);
}

}  // namespace
}  // namespace gantry::worker
