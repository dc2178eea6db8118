// A guest process on a real ring against the soft GPU's driver: control commands, memory, kernels,
// hostile commands.
//
// Each test runs in a child process of its own, since a worker holds fixed addresses.
#include <gtest/gtest.h>

#include "host-daemon/state/parts/device_needs.h"
#include "host-daemon/state/parts/part.h"
#include "proto/snapshot/object_graph.pb.h"
#include "tests/unit/worker/guest_fixture.h"

namespace gantry::worker {
namespace {

TEST(Service, ServesMemoryKernelsAndStreams) {
    EXPECT_TRUE(in_child([] {
        Serving serving;
        Guest& guest = serving.guest;
        const auto hello =
            guest.control(ControlOp::kHello,
                          wire::HelloCall{wire::kWireVersion, 77, cuda::kTableHash, "train\n.py"});
        EXPECT_EQ(hello.status, 0u);
        EXPECT_EQ(hello.as<wire::HelloReply>().device_count, 1u);
        EXPECT_GE(hello.as<wire::HelloReply>().driver_version, 13000u);
        EXPECT_EQ(serving.host.process->channel.program().pid, 77u);
        EXPECT_EQ(serving.host.process->channel.program().name, "train?.py");
        const auto facts = guest.control(
            ControlOp::kDeviceFacts, wire::DeviceFactsCall{0, 0, 4096, sizeof(wire::DeviceFacts)});
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

TEST(Service, AChannelThatIsUsedAgainSaysNothingOfItsLastProgram) {
    EXPECT_TRUE(in_child([] {
        const auto region = ChannelMemory::create_region(kRegionBytes);
        {
            const auto last = map_region(region->get());
            last->host_words().sticky_error = CUDA_ERROR_ILLEGAL_ADDRESS;
            last->host_words().announce = 5;  // Its move had not ended when it did.
            last->host_words().late_errors = 3;
            last->host_words().looked = ~0ull;
            last->host_words().event_done[7] = ~0ull;
            last->reply(3).seq = ~0ull;
        }
        Serving serving(map_region(region->get()));
        const wire::HostWords& words = serving.channel.host_words();
        EXPECT_EQ(words.sticky_error, 0u);
        EXPECT_EQ(words.announce, 0u);
        EXPECT_EQ(words.late_errors, 0u);
        EXPECT_EQ(words.looked, 1ull << wire::kGenerationShift);
        EXPECT_EQ(words.event_done[7], 0u);
        EXPECT_EQ(serving.channel.reply(3).seq, 0u);
        serving.guest.retain();
        EXPECT_EQ(serving.guest.synchronise(0), 0u);
    }));
}

// A program whose worker has ended is never served again: nobody knows what that had executed.
TEST(Service, SeesThatAProgramHasBegun) {
    EXPECT_TRUE(in_child([] {
        const auto region = ChannelMemory::create_region(kRegionBytes);
        Serving serving(map_region(region->get()));
        EXPECT_FALSE(serving.channel.has_begun(1));
        serving.guest.retain();
        EXPECT_TRUE(serving.channel.has_begun(1));
        EXPECT_FALSE(serving.channel.has_begun(2));
        const std::vector<std::byte> text(serving.channel.layout().ring_bytes / 16);
        const std::uint64_t data = serving.guest.allocate(text.size());
        for (int i = 0; i < 100; ++i) {  // Some laps on.
            serving.guest.write(data, text);
        }
        EXPECT_EQ(serving.guest.synchronise(0), 0u);
        EXPECT_TRUE(serving.channel.has_begun(1));
        EXPECT_FALSE(serving.channel.has_begun(2));
        EXPECT_TRUE(serving.host.execution->freeze(5s).ok());
        const auto refused = serving.host.execution->serve(serving.host.execution->detach(), 1);
        ASSERT_FALSE(refused.ok());
        EXPECT_EQ(refused.error().reason, "guest.worker_lost");
        EXPECT_EQ(map_region(region->get())->host_words().worker_state, wire::WorkerState::kDead);
    }));
}

// What the guest is told of the device, and what the device says for itself.
TEST(Device, AGuestIsToldOfTheDeviceByTheNamesOfItsVm) {
    EXPECT_TRUE(in_child([] {
        Serving serving;
        const Device& device = *serving.host.device;
        const wire::DeviceFacts own = device.facts({}).value();
        EXPECT_EQ(std::memcmp(own.uuid, device.uuid().data(), sizeof(own.uuid)), 0);
        DeviceBaseline baseline;
        baseline.uuid.emplace().fill(0x5a);
        baseline.attributes[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID] = 0;
        baseline.attributes[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID] = 0xf0;
        baseline.attributes[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID] = 2;
        const wire::DeviceFacts told = device.facts(baseline).value();
        EXPECT_EQ(std::memcmp(told.uuid, baseline.uuid->data(), sizeof(told.uuid)), 0);
        EXPECT_STREQ(told.pci_bus_id, "0000:F0:02.0");
        EXPECT_STREQ(told.name, own.name);
        EXPECT_EQ(device.facts({}).value().attributes[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID],
                  own.attributes[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID]);
    }));
}

TEST(Service, HoldsTheQuotaAndWaitsForPendingFrees) {
    EXPECT_TRUE(in_child([] {
        Serving serving(64ull << 20);
        Guest& guest = serving.guest;
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

/// Adds or changes a node that adds nothing to the word at `data`.
std::uint32_t set_node(Guest& guest, Op op, std::uint64_t graph, std::uint64_t node,
                       std::uint64_t data) {
    hand::GraphKernelNodeCall call{};
    call.graph = graph;
    call.node = node;
    call.launch = one_thread(kKernel, 0);
    call.launch.param_bytes = 12;
    std::byte params[12] = {};
    std::memcpy(params, &data, 8);
    return guest.call(op, call, params).status;
}

/// Makes, changes and ends one of everything that a program may do any number of times.
void do_a_round(Guest& guest, std::uint64_t round, std::uint64_t exec, std::uint64_t graph,
                std::uint64_t node, std::uint64_t data) {
    const std::uint64_t serial = (1ull << 24) + 100 + round;
    const std::uint64_t clone = cuda::make_handle(HandleKind::kGraph, serial);
    const std::uint64_t memory = cuda::make_handle(HandleKind::kVmmAllocation, serial);
    const std::uint64_t pool = cuda::make_handle(HandleKind::kMemPool, serial);
    guest.send(Op::cuEventRecord, payload::cuEventRecord_call{kEvent, kStream});
    EXPECT_EQ(set_node(guest, Op::cuGraphExecKernelNodeSetParams_v2, exec, node, data), 0u);
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
    const auto range =
        guest.call(Op::cuMemAddressReserve, payload::cuMemAddressReserve_call{2u << 20, 0, 0, 0})
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
    const auto piece = guest
                           .call(Op::cuMemAllocFromPoolAsync,
                                 payload::cuMemAllocFromPoolAsync_call{4096, pool, kStream})
                           .as<payload::cuMemAllocFromPoolAsync_reply>()
                           .dptr;
    guest.send(Op::cuMemFreeAsync, payload::cuMemFreeAsync_call{piece, kStream});
    EXPECT_EQ(guest.call(Op::cuMemPoolDestroy, payload::cuMemPoolDestroy_call{pool}).status, 0u);
    EXPECT_EQ(guest.synchronise(kStream), 0u);
}

TEST(Service, TheGraphFollowsWhatLivesAndNotHowLongItRan) {
    EXPECT_TRUE(in_child([] {
        Serving serving;
        Host& host = serving.host;
        Guest& guest = serving.guest;
        guest.retain();
        guest.load_module();
        guest.send(Op::cuStreamCreate, payload::cuStreamCreate_call{kStream, 1, 0});
        guest.send(Op::cuEventCreate, payload::cuEventCreate_call{kEvent, 0, 0});
        const std::uint64_t data = guest.allocate(256);
        const std::uint64_t graph = cuda::make_handle(HandleKind::kGraph, 1ull << 24);
        const std::uint64_t node = cuda::make_handle(HandleKind::kGraphNode, 1ull << 24);
        const std::uint64_t exec = cuda::make_handle(HandleKind::kGraphExec, 1ull << 24);
        guest.send(Op::cuGraphCreate, payload::cuGraphCreate_call{graph, 0, 0});
        ASSERT_EQ(set_node(guest, Op::cuGraphAddKernelNode_v2, graph, node, data), 0u);
        ASSERT_EQ(guest
                      .call(Op::cuGraphInstantiateWithFlags,
                            payload::cuGraphInstantiateWithFlags_call{exec, graph, 0})
                      .status,
                  0u);
        std::uint64_t rounds = 0;
        auto size_after = [&](std::uint64_t count) {
            for (; count != 0; --count) {
                do_a_round(guest, ++rounds, exec, graph, node, data);
            }
            EXPECT_TRUE(host.execution->freeze(5s).ok());
            const auto encoded = state::Part(*host.execution, 1).source.final_graph();
            EXPECT_TRUE(encoded.ok()) << encoded.error().text;
            host.execution->thaw();
            return encoded->size();
        };
        const std::size_t early = size_after(2);
        const std::size_t late = size_after(200);
        constexpr std::size_t kLongerNumbers = 64;  // Positions and orders take more bytes.
        EXPECT_LE(late, early + kLongerNumbers);
    }));
}

TEST(Service, TheGraphTellsWhatOnlyTheNextWorkerAsks) {
    EXPECT_TRUE(in_child([] {
        Serving serving;
        Host& host = serving.host;
        Guest& guest = serving.guest;
        guest.retain();
        guest.retain();  // Again, as another library of the program's does.
        guest.load_module();
        EXPECT_TRUE(state::attribute_needs(*host.process).empty());
        constexpr std::int32_t kDynamicBytes = 64 << 10;
        // What another attribute is set to says nothing of shared memory.
        guest.send(Op::cuFuncSetAttribute,
                   payload::cuFuncSetAttribute_call{
                       kKernel, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50});
        ASSERT_EQ(guest.synchronise(0), 0u);
        const auto any = [](std::uint64_t) { return true; };
        for (const FunctionUse& use : host.process->code.device_use.list(any)) {
            EXPECT_EQ(use.dynamic_shared_bytes, -1);
        }
        guest.send(Op::cuFuncSetAttribute,
                   payload::cuFuncSetAttribute_call{
                       kKernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kDynamicBytes});
        ASSERT_EQ(guest.synchronise(0), 0u);
        const auto needs = state::attribute_needs(*host.process);
        ASSERT_EQ(needs.size(), 1u);
        EXPECT_EQ(needs[0].value_min, kDynamicBytes);
        ASSERT_EQ(guest.synchronise(0), 0u);
        ASSERT_TRUE(host.execution->freeze(5s).ok());
        const auto encoded = state::Part(*host.execution, 1).source.final_graph();
        ASSERT_TRUE(encoded.ok()) << encoded.error().text;
        snapshot::ObjectGraph graph;
        ASSERT_TRUE(graph.ParseFromArray(encoded->data(), static_cast<int>(encoded->size())));
        ASSERT_EQ(graph.contexts_size(), 1);
        EXPECT_EQ(graph.contexts(0).handle(), kContext);
        EXPECT_TRUE(graph.contexts(0).primary());
        ASSERT_EQ(graph.execution().lanes_size(), 1);
        const snapshot::Lane& lane = graph.execution().lanes(0);
        EXPECT_EQ(lane.lane(), kLane);
        EXPECT_NE(lane.answered_seq(), 0u);
        EXPECT_EQ(lane.last_answer().seq(), lane.answered_seq());
        host.execution->thaw();
    }));
}

TEST(Service, AThreadThatTakesALaneOverIsNotToldOfItsErrors) {
    EXPECT_TRUE(in_child([] {
        Serving serving;
        Guest& guest = serving.guest;
        guest.retain();
        for (const bool is_new : {false, true}) {
            guest.send(Op::cuStreamDestroy_v2, payload::cuStreamDestroy_v2_call{kStream});
            guest.next_flags = is_new ? wire::kCommandNewThread : 0u;
            EXPECT_EQ(guest.synchronise(0), is_new ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
            EXPECT_EQ(guest.synchronise(0), 0u);
        }
        // The context's errors are everybody's.
        guest.load_module();
        guest.add(0x10, 1, 0);
        guest.next_flags = wire::kCommandNewThread;
        EXPECT_EQ(guest.synchronise(0), CUDA_ERROR_ILLEGAL_ADDRESS);
    }));
}

TEST(Service, RefusesHostileCommandsAndGoesOn) {
    EXPECT_TRUE(in_child([] {
        Serving serving;
        Host& host = serving.host;
        Guest& guest = serving.guest;
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
        EXPECT_NE(guest.control(ControlOp::kReadDevice, wire::ReadDeviceCall{data, 4096, 0, ~0ull})
                      .status,
                  0u);
        EXPECT_NE(
            guest.control(ControlOp::kReadDevice, wire::ReadDeviceCall{data, ~0ull, 0, 0}).status,
            0u);
        EXPECT_NE(guest.control(ControlOp::kHello, wire::HelloCall{99, 1, 2, {}}).status, 0u);
        struct {  // An older shim's, which is told what is wrong.
            std::uint32_t wire_version = 8, guest_pid = 1;
            std::uint64_t table_hash = 2;
        } older;
        const auto answer = guest.control(ControlOp::kHello, older);
        EXPECT_EQ(answer.status, static_cast<std::uint32_t>(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH));
        EXPECT_EQ(answer.as<wire::HelloReply>().wire_version, wire::kWireVersion);
        guest.write(data, std::vector<std::byte>(64, std::byte{7}));
        EXPECT_EQ(guest.read(data, 16), std::vector<std::uint32_t>(16, 0x07070707));
        EXPECT_GT(host.process->counters.refused.load(), 50u);
    }));
}

TEST(Service, ReportsALateErrorWithTheNextAnswerOfTheLane) {
    EXPECT_TRUE(in_child([] {
        Serving serving;
        Guest& guest = serving.guest;
        guest.retain();
        guest.send(Op::cuMemFree_v2, payload::cuMemFree_v2_call{wire::kArenaBase + 512});
        EXPECT_EQ(guest.synchronise(0), static_cast<std::uint32_t>(CUDA_ERROR_INVALID_VALUE));
        EXPECT_EQ(guest.synchronise(0), 0u);
    }));
}

TEST(Driver, SaysWhatIsWrongWithADriver) {
    auto absent = driver::DriverLibrary::load("/nonexistent/libcuda.so.1");
    ASSERT_FALSE(absent.ok());
    EXPECT_EQ(absent.error().reason, "driver.absent");
    auto other = driver::DriverLibrary::load("libc.so.6");
    ASSERT_FALSE(other.ok());
    EXPECT_EQ(other.error().reason, "driver.symbol_missing");
    EXPECT_NE(other.error().text.find("cuInit"), std::string::npos);
    EXPECT_TRUE(in_child([] {
        auto old = driver::DriverLibrary::load(GANTRY_TEST_OLD_DRIVER);
        ASSERT_FALSE(old.ok());
        EXPECT_EQ(old.error().reason, "driver.too_old");
        EXPECT_NE(old.error().text.find("is for CUDA 12.1; Gantry needs release 535"),
                  std::string::npos)
            << old.error().text;
    }));
}

TEST(Driver, SaysThatTheArenasAddressesAreTaken) {
    EXPECT_TRUE(in_child([] {
        void* const inside = reinterpret_cast<void*>(wire::kArenaBase + (64ull << 20));
        ASSERT_EQ(
            mmap(inside, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
            inside);
        auto library = driver::DriverLibrary::load(GANTRY_TEST_SOFT_DRIVER);
        ASSERT_TRUE(library.ok()) << library.error().text;
        auto refused = Device::open(**library, 0);
        ASSERT_FALSE(refused.ok());
        EXPECT_EQ(refused.error().reason, "device.arena");
        EXPECT_NE(refused.error().text.find("LD_PRELOAD"), std::string::npos)
            << refused.error().text;
        ASSERT_EQ(munmap(inside, 4096), 0);
        EXPECT_TRUE(Device::open(**library, 0).ok());  // It was that, and nothing stays behind.
    }));
}

}  // namespace
}  // namespace gantry::worker
