// A restore into another process that takes the same shared memory over, on the soft GPU's driver.
//
// Each part of a test runs in a child process of its own, since a worker holds fixed addresses.
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "host-daemon/state/cuda_graphs/cuda_graph_content.h"
#include "proto/wire/mirror/words.h"
#include "tests/unit/worker/moved_guest.h"

namespace gantry::worker {
namespace {

constexpr std::size_t kSentPtxBytes = 100;  // Of an image that is on its way when all stops.

void run_source(int region, Shared* shared) {
    Serving serving(map_region(region));
    Host& host = serving.host;
    Guest& guest = serving.guest;
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
    ASSERT_TRUE(host.execution->freeze(5s).ok());
    // Posted while frozen: the next worker has to execute these, once.
    shared->last_position = guest.post(static_cast<std::uint16_t>(Op::cuStreamSynchronize),
                                       std::as_bytes(std::span(&kStream, 1)), {}, true);
    guest.add(shared->data, 7, 0);
    shared->tail = guest.tail();
    state::Part part(*host.execution, 1);
    share_state(part, shared);
    EXPECT_TRUE(part.source.scan()->changed.empty());
    EXPECT_EQ(part.content.images().size(), 2u);
    shared->digest = part.content.digest().value();
}

void run_target(int region, Shared* shared) {
    Host host;
    state::Part part(*host.execution, 1);
    const std::string_view graph(shared->graph, shared->graph_bytes);
    auto missing = part.target.prepare(kMoveSeed, graph);
    ASSERT_TRUE(missing.ok());
    EXPECT_EQ(missing->size(), 2u);
    part.content.keep_image(ptx_image());
    part.content.keep_image(ptx_image(kSentPtxBytes));
    // Blocks may come before their memory is known.
    for (std::uint64_t i = 0; i < shared->block_count; ++i) {
        ASSERT_TRUE(part.target.apply_block(shared->addresses[i], shared->blocks[i]).ok());
    }
    missing = part.target.apply_final(graph);
    ASSERT_TRUE(missing.ok()) << missing.error().text;
    ASSERT_TRUE(missing->empty());
    EXPECT_EQ(part.content.digest().value(), shared->digest);
    auto memory = map_region(region);
    // The hypervisor lost the host's writes: answers must come from the log.
    memory->reply(kLane).seq.store(0);
    memory->host_words().head.store(0);
    host.process->memory.device.set_pinned_pool(memory->layout().pinned_bytes);
    ASSERT_TRUE(part.target.register_pinned().ok());
    ASSERT_TRUE(host.execution->take_over(std::move(memory), *part.target.channel_state(), 2).ok());
    Guest guest(*host.process->channel.memory(), shared->tail);
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

TEST(TakeOver, AnotherWorkerTakesTheGuestOverWhereItStood) {
    Common common;
    ASSERT_TRUE(common.in_child(run_source));
    EXPECT_TRUE(common.in_child(run_target));
}

void run_broken_source(int region, Shared* shared) {
    Serving serving(map_region(region));
    Host& host = serving.host;
    Guest& guest = serving.guest;
    guest.retain();
    guest.load_module();
    shared->data = guest.allocate(3ull << 20);
    state::Part part(*host.execution, 1);
    part.source.begin_precopy(kMoveSeed);
    const auto before = part.source.scan();
    ASSERT_TRUE(before.ok() && !before->changed.empty());
    std::vector<std::byte> out(engine::kBlockBytes);
    ASSERT_TRUE(part.source.read_blocks(std::span(before->changed).first(1), out).ok());
    guest.add(0x10, 1, 0);  // No call tells of it: the next looks find it.
    for (int i = 0; i < 20'000 && !host.process->is_broken(); ++i) {
        ASSERT_TRUE(part.source.scan().ok());
        std::this_thread::sleep_for(500us);
    }
    ASSERT_TRUE(host.process->is_broken());
    EXPECT_EQ(part.source.describe().resident_bytes, 0u);
    EXPECT_TRUE(part.source.describe().modules.empty() && part.source.describe().blocking.empty());
    ASSERT_TRUE(host.execution->freeze(5s).ok());
    shared->last_position = guest.post(static_cast<std::uint16_t>(Op::cuStreamSynchronize),
                                       std::as_bytes(std::span(&kStream, 1)), {}, true);
    guest.add(shared->data, 7, 0);
    shared->tail = guest.tail();
    const auto last = part.source.scan();
    ASSERT_TRUE(last.ok());
    EXPECT_TRUE(last->changed.empty());
    EXPECT_EQ(part.content.digest()->block_count, 0u);
    EXPECT_TRUE(part.content.images().empty());
    share_state(part, shared);
    EXPECT_EQ(shared->block_count, 0u);
}

/// `has_begun`: with what an early graph had the target build, which the last one takes back.
void run_broken_target(int region, Shared* shared, bool has_begun) {
    Host host;
    state::Part part(*host.execution, 1);
    if (has_begun) {
        ASSERT_TRUE(host.process->memory.device.allocate(8ull << 20).ok());
    }
    const std::string_view graph(shared->graph, shared->graph_bytes);
    const auto missing = part.target.apply_final(graph);
    ASSERT_TRUE(missing.ok()) << missing.error().text;
    EXPECT_TRUE(missing->empty());
    EXPECT_EQ(host.process->objects.size(), 0u);
    EXPECT_EQ(host.process->memory.device.mapped_bytes(), 0u);
    ASSERT_TRUE(
        host.execution->take_over(map_region(region), *part.target.channel_state(), 2).ok());
    const ChannelMemory& taken = *host.process->channel.memory();
    EXPECT_EQ(taken.host_words().sticky_error.load(), CUDA_ERROR_ILLEGAL_ADDRESS);
    Guest guest(*host.process->channel.memory(), shared->tail);
    EXPECT_EQ(guest.wait(shared->last_position).status, CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(guest.synchronise(0), CUDA_ERROR_ILLEGAL_ADDRESS);
    const auto allocated = guest.call(Op::cuMemAlloc_v2, payload::cuMemAlloc_v2_call{4096});
    EXPECT_EQ(allocated.status, CUDA_ERROR_ILLEGAL_ADDRESS);
    const auto read =
        guest.control(ControlOp::kReadDevice, wire::ReadDeviceCall{shared->data, 64, 0, 0});
    EXPECT_EQ(read.status, CUDA_ERROR_ILLEGAL_ADDRESS);
    const auto reset =
        guest.call(Op::cuDevicePrimaryCtxReset_v2, hand::ContextEndCall{kContext, 0, 0});
    EXPECT_EQ(reset.status, CUDA_ERROR_NOT_PERMITTED);
    EXPECT_EQ(guest.wait(guest.post(static_cast<std::uint16_t>(ControlOp::kGoodbye), {}, {}, true))
                  .status,
              0u);
    // It goes on to the next host as it came.
    ASSERT_TRUE(host.execution->freeze(5s).ok());
    EXPECT_TRUE(part.source.final_graph().ok());
}

TEST(TakeOver, ABrokenContextMovesAsItsError) {
    for (const bool has_begun : {false, true}) {
        Common common;
        ASSERT_TRUE(common.in_child(run_broken_source));
        EXPECT_TRUE(common.in_child(run_broken_target, has_begun));
    }
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
constexpr std::array kPinnedBuffers = {kBeforeAnnounce, kConfirmed, kUnconfirmed, kUnanswered,
                                       kRows,           kUntouched, kSet,         kAdded,
                                       kAddedConfirmed};
constexpr std::uint64_t kCopyBytes = 512;

std::uint32_t pinned_word(const ChannelMemory& memory, std::uint64_t offset) {
    std::uint32_t word = 0;
    std::memcpy(&word, memory.pinned().data() + offset, sizeof(word));
    return word;
}

void copy_down(Guest& guest, std::uint64_t data, const PinnedBuffer& to) {
    const std::vector<std::byte> bytes(kCopyBytes, static_cast<std::byte>(to.copied & 0xff));
    guest.write(data, bytes);
    guest.send(Op::cuMemcpyAsync,
               payload::cuMemcpyAsync_call{wire::kPinnedBase + to.offset, data, kCopyBytes, 0});
}

void confirm(Guest& guest, const ChannelMemory& memory) {
    const std::uint64_t position =
        guest.post(static_cast<std::uint16_t>(ControlOp::kConfirm), {}, {});
    EXPECT_TRUE(reaches(memory.host_words().confirm_seq[kLane], position + 1));
}

void run_pinned_source(int region, Shared* shared) {
    Serving serving(map_guest_memory(region));
    Host& host = serving.host;
    const ChannelMemory& memory = serving.channel;
    Guest& guest = serving.guest;
    guest.retain();
    ASSERT_EQ(guest
                  .call(Op::cuMemHostAlloc,
                        payload::cuMemHostAlloc_call{wire::kPinnedBase, 1 << 16, 0, 0})
                  .status,
              0u);
    const std::uint64_t data = guest.allocate(kCopyBytes);
    guest.load_module();
    for (const auto& buffer : kPinnedBuffers) {
        std::memcpy(memory.pinned().data() + buffer.offset, &buffer.before, 4);
    }
    copy_down(guest, data, kBeforeAnnounce);
    EXPECT_EQ(guest.synchronise(0), 0u);
    host.execution->announce(true);
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
                                             static_cast<std::uint8_t>(kSet.copied & 0xff), 0, 0, 0,
                                             0, kCopyBytes, 0});
    copy_down(guest, data, kUnconfirmed);
    EXPECT_EQ(guest.synchronise(0), 0u);
    ASSERT_TRUE(host.execution->freeze(5s).ok());
    host.execution->announce(true);  // Another attempt within the hypervisor's job.
    EXPECT_EQ(pinned_word(memory, kRows.offset + 3 * 1024), kRows.copied);
    shared->tail = guest.tail();
    state::Part part(*host.execution, 1);
    share_state(part, shared);
}

/// What the target's pool holds after its takeover, from a graph with or without the carried bytes.
void run_pinned_target(int region, Shared* shared, bool with_pinned_writes) {
    Host host;
    state::Part part(*host.execution, 1);
    std::string graph(shared->graph, shared->graph_bytes);
    if (!with_pinned_writes) {
        snapshot::ObjectGraph without;
        ASSERT_TRUE(without.ParseFromString(graph));
        without.mutable_execution()->clear_pinned_writes();
        graph = without.SerializeAsString();
    }
    part.content.keep_image(ptx_image());
    ASSERT_TRUE(part.target.prepare(kMoveSeed, graph).ok());
    for (std::uint64_t i = 0; i < shared->block_count; ++i) {
        ASSERT_TRUE(part.target.apply_block(shared->addresses[i], shared->blocks[i]).ok());
    }
    const auto missing = part.target.apply_final(graph);
    ASSERT_TRUE(missing.ok()) << missing.error().text;
    auto memory = map_guest_memory(region);
    // The hypervisor carried what the guest wrote last, and nothing that the host wrote.
    std::memset(memory->pinned().data(), 0xee, 1 << 16);
    host.process->memory.device.set_pinned_pool(memory->layout().pinned_bytes);
    ASSERT_TRUE(part.target.register_pinned().ok());
    ASSERT_TRUE(host.execution->take_over(std::move(memory), *part.target.channel_state(), 2).ok());
    const ChannelMemory& taken = *host.process->channel.memory();
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
    Guest guest(*host.process->channel.memory(), shared->tail);
    EXPECT_EQ(guest.synchronise(0), 0u);
}

/// A graph from elsewhere may name bytes beyond the pool, or nonsense.
void refuse_damaged_pinned(int region, Shared* shared) {
    Host host;
    state::Part part(*host.execution, 1);
    const std::string graph(shared->graph, shared->graph_bytes);
    part.content.keep_image(ptx_image());
    ASSERT_TRUE(part.target.prepare(kMoveSeed, graph).ok());
    ASSERT_TRUE(part.target.apply_final(graph).ok());
    snapshot::ObjectGraph damaged;
    ASSERT_TRUE(damaged.ParseFromString(graph));
    ASSERT_NE(damaged.execution().pinned_writes_size(), 0);
    damaged.mutable_execution()->mutable_pinned_writes(0)->set_pool_offset(~0ull);
    EXPECT_FALSE(state::decode(damaged.SerializeAsString()).ok());
    ChannelState hostile = *part.target.channel_state();
    auto memory = map_guest_memory(region);
    hostile.pinned.push_back({memory->layout().pinned_bytes - 1, std::vector<std::byte>(2)});
    EXPECT_FALSE(host.execution->take_over(std::move(memory), hostile, 2).ok());
}

TEST(TakeOver, PinnedBytesThatNoHypervisorSawMoveWithTheChannel) {
    Common common;
    ASSERT_TRUE(common.in_child(run_pinned_source));
    EXPECT_TRUE(common.in_child(refuse_damaged_pinned));
    // The rule taken out: every such buffer is stale.
    EXPECT_TRUE(common.in_child(run_pinned_target, false));
    EXPECT_TRUE(common.in_child(run_pinned_target, true));
}

/// What a guest reads of its worker once the session is another host's.
wire::WorkerState disowned_state(std::unique_ptr<ChannelMemory> memory, bool guest_is_here) {
    Serving serving(std::move(memory));
    EXPECT_TRUE(serving.host.execution->freeze(5s).ok());
    serving.host.execution->disown(guest_is_here);
    return serving.channel.host_words().worker_state.load();
}

// Post-copy before the first pass over all memory has ended: the guest runs at the target, and the
// page with the host's words leaves the source after the grant.
TEST(TakeOver, MemoryThatIsStillPulledTellsNoGuestThatItIsDisowned) {
    Common common;
    EXPECT_TRUE(common.in_child([](int region, Shared*) {
        EXPECT_EQ(disowned_state(map_guest_memory(region), false), wire::WorkerState::kRunning);
    }));
    EXPECT_TRUE(common.in_child([](int region, Shared*) {
        EXPECT_EQ(disowned_state(map_guest_memory(region), true), wire::WorkerState::kDisowned);
    })) << "its guest is here, and would wait for ever";
    EXPECT_TRUE(common.in_child([](int region, Shared*) {
        EXPECT_EQ(disowned_state(map_region(region), false), wire::WorkerState::kDisowned);
    })) << "a region that stays where it is";
    EXPECT_TRUE(common.in_child([](int region, Shared*) {
        auto memory = map_guest_memory(region);
        wire::mirror_words(memory->guest_words()).session[0].store(1);
        EXPECT_EQ(disowned_state(std::move(memory), false), wire::WorkerState::kDisowned);
    })) << "a mirrored one, whose relay lets the guest go on this";
}

/// Kernel nodes that have the attribute which no driver tells, in graphs and in execs.
std::vector<int> untold_in(std::string_view described) {
    snapshot::ObjectGraph objects;
    EXPECT_TRUE(objects.ParseFromArray(described.data(), static_cast<int>(described.size())));
    const auto count = [](const snapshot::Graph& graph) {
        return static_cast<int>(std::count_if(
            graph.nodes().begin(), graph.nodes().end(), [](const snapshot::GraphNode& node) {
                return node.attributes().contains(
                    CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING);
            }));
    };
    std::vector<int> counts;
    for (const snapshot::Graph& graph : objects.graphs()) {
        counts.push_back(count(graph));
    }
    for (const snapshot::GraphExec& exec : objects.graph_execs()) {
        counts.push_back(count(exec.graph()));
    }
    return counts;
}

/// A graph of four kernel nodes: one is given the attribute, one copies it, one that has it is
/// destroyed. Then a clone, an exec of each, and the first graph goes.
void run_untold_source(int region, Shared* shared) {
    Serving serving(map_region(region));
    Guest& guest = serving.guest;
    guest.retain();
    guest.load_module();
    const auto handle = [](HandleKind kind, std::uint64_t index) {
        return cuda::make_handle(kind, (1ull << 24) + index);
    };
    const std::uint64_t graph = handle(HandleKind::kGraph, 0);
    guest.send(Op::cuGraphCreate, payload::cuGraphCreate_call{graph, 0, 0});
    const std::byte arguments[12] = {};
    for (std::uint64_t i = 0; i < 4; ++i) {
        hand::GraphKernelNodeCall node{};
        node.graph = graph;
        node.node = handle(HandleKind::kGraphNode, i);
        node.launch = one_thread(kKernel, 0);
        node.launch.param_bytes = sizeof(arguments);
        ASSERT_EQ(guest.call(Op::cuGraphAddKernelNode_v2, node, arguments).status, 0u);
    }
    payload::cuGraphKernelNodeSetAttribute_call set{};
    set.attr = CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING;
    set.value.nvlinkUtilCentricScheduling = 1;
    for (const std::uint64_t i : {0U, 3U}) {
        set.hNode = handle(HandleKind::kGraphNode, i);
        ASSERT_EQ(guest.call(Op::cuGraphKernelNodeSetAttribute, set).status, 0u);
    }
    EXPECT_EQ(guest
                  .call(Op::cuGraphKernelNodeCopyAttributes,
                        payload::cuGraphKernelNodeCopyAttributes_call{
                            handle(HandleKind::kGraphNode, 1), handle(HandleKind::kGraphNode, 0)})
                  .status,
              0u);
    EXPECT_EQ(
        guest.call(Op::cuGraphDestroyNode, payload::cuGraphDestroyNode_call{set.hNode}).status, 0u);
    const std::uint64_t clone = handle(HandleKind::kGraph, 1);
    EXPECT_EQ(guest.call(Op::cuGraphClone, payload::cuGraphClone_call{clone, graph}).status, 0u);
    for (const std::uint64_t i : {0U, 1U}) {
        EXPECT_EQ(
            guest
                .call(Op::cuGraphInstantiateWithFlags,
                      payload::cuGraphInstantiateWithFlags_call{handle(HandleKind::kGraphExec, i),
                                                                handle(HandleKind::kGraph, i), 0})
                .status,
            0u);
    }
    guest.send(Op::cuGraphDestroy, payload::cuGraphDestroy_call{graph});
    EXPECT_EQ(guest.synchronise(0), 0u);
    ASSERT_TRUE(serving.host.execution->freeze(5s).ok());
    state::Part part(*serving.host.execution, 1);
    share_state(part, shared);
    EXPECT_EQ(untold_in({shared->graph, shared->graph_bytes}), (std::vector<int>{2, 2, 2}));
}

void run_untold_target(int, Shared* shared) {
    Host host;
    state::Part part(*host.execution, 1);
    part.content.keep_image(ptx_image());
    const std::string_view graph(shared->graph, shared->graph_bytes);
    ASSERT_TRUE(part.target.prepare(kMoveSeed, graph).ok());
    for (std::uint64_t i = 0; i < shared->block_count; ++i) {
        ASSERT_TRUE(part.target.apply_block(shared->addresses[i], shared->blocks[i]).ok());
    }
    const auto missing = part.target.apply_final(graph);
    ASSERT_TRUE(missing.ok()) << missing.error().text;
    snapshot::ObjectGraph made;
    state::CudaGraphReader reader(*host.process);
    ASSERT_TRUE(reader.read_all(&made).ok());
    EXPECT_EQ(untold_in(made.SerializeAsString()), (std::vector<int>{2, 2, 2}));
}

TEST(TakeOver, WhatNoDriverTellsOfAKernelNodeMovesWithIt) {
    Common common;
    ASSERT_TRUE(common.in_child(run_untold_source));
    EXPECT_TRUE(common.in_child(run_untold_target));
}

TEST(TakeOver, EveryDamagedGraphIsRefusedOrHarmless) {
    Common common;
    ASSERT_TRUE(common.in_child(run_source));
    // Decoding alone: building from a damaged graph is the digest's and the driver's to refuse.
    EXPECT_TRUE(common.in_child([](int, Shared* shared) {
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
        snapshot::ObjectGraph foreign;
        ASSERT_TRUE(foreign.ParseFromString(graph));
        foreign.mutable_process()->set_shim_abi_hash(foreign.process().shim_abi_hash() + 1);
        EXPECT_EQ(state::decode(foreign.SerializeAsString()).error().reason, "version.table");
    }));
}

// The guest would run whatever function it names.
TEST(TakeOver, AHostCallbackThatCannotBeOpenIsRefused) {
    Common common;
    ASSERT_TRUE(common.in_child(run_source));
    EXPECT_TRUE(common.in_child([](int, Shared* shared) {
        snapshot::ObjectGraph objects;
        ASSERT_TRUE(objects.ParseFromArray(shared->graph, static_cast<int>(shared->graph_bytes)));
        const auto decoded = [&](std::uint64_t seq, std::uint64_t id) {
            objects.mutable_execution()->set_open_callback_seq(seq);
            objects.mutable_execution()->set_open_callback_id(id);
            return state::decode(objects.SerializeAsString());
        };
        const std::uint64_t next = objects.execution().next_seq();
        ASSERT_GT(next, 1u);
        EXPECT_TRUE(decoded(next + 1, 7).ok()) << "a command in the ring waits for it";
        EXPECT_TRUE(decoded(1, 7).ok()) << "nothing in the ring waits for it";
        for (const auto& [seq, id] :
             {std::pair{next, 7ull}, std::pair{next + 1, 0ull}, std::pair{next + 1, ~0ull},
              std::pair{std::uint64_t{1}, 0ull}}) {
            const auto refused = decoded(seq, id);
            ASSERT_FALSE(refused.ok()) << seq << " " << id;
            EXPECT_NE(refused.error().text.find("callback"), std::string::npos);
        }
    }));
}

}  // namespace
}  // namespace gantry::worker
