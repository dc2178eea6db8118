// A guest that one worker after another takes over, for tests: what each hands to the next.
//
// Each part of a test runs in a child process of its own, since a worker holds fixed addresses.
#pragma once

#include <gtest/gtest.h>

#include "host-daemon/state/parts/part.h"
#include "tests/unit/worker/guest_fixture.h"

namespace gantry::worker {

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

/// The region of the guest and what its workers share, for children that take one another over.
struct Common {
    Common() {
        void* mapped = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        GANTRY_ASSERT(mapped != MAP_FAILED, "no %zu bytes to share", sizeof(Shared));
        shared = new (mapped) Shared;
    }
    ~Common() { munmap(shared, sizeof(Shared)); }
    Common(const Common&) = delete;
    Common& operator=(const Common&) = delete;

    /// Runs one worker's part; true when it had no failure.
    template <typename Body, typename... More>
    bool in_child(Body body, More... more) {
        return worker::in_child([&] { body(region->get(), shared, more...); });
    }

    const Result<control::UniqueFd> region = ChannelMemory::create_region(kRegionBytes);
    Shared* shared = nullptr;
};

inline constexpr snapshot::Seed kMoveSeed{11, 22};
/// The blocks and the graph of a process that is frozen.
inline void share_state(state::Part& part, Shared* shared) {
    part.source.begin_precopy(kMoveSeed);
    auto scan = part.source.scan();
    ASSERT_TRUE(scan.ok());
    ASSERT_LE(scan->changed.size(), std::size(shared->addresses));
    for (const engine::BlockAddress& block : scan->changed) {
        auto copied =
            part.source.read_blocks(std::span(&block, 1), shared->blocks[shared->block_count]);
        ASSERT_TRUE(copied.ok());
        shared->addresses[shared->block_count++] = block;
    }
    const std::string graph = part.source.final_graph().value();
    ASSERT_LE(graph.size(), sizeof(shared->graph));
    std::memcpy(shared->graph, graph.data(), graph.size());
    shared->graph_bytes = graph.size();
}

inline std::vector<std::byte> ptx_image(std::size_t bytes = sizeof(kPtx)) {
    const auto text = std::as_bytes(std::span(kPtx)).first(bytes);
    return {text.begin(), text.end()};
}

}  // namespace gantry::worker
