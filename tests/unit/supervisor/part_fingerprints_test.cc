// What a worker says of its blocks, which may be anything.
#include "host-daemon/supervisor/parts/part_fingerprints.h"

#include <gtest/gtest.h>

#include "host-daemon/state/blocks/block_runs.h"

namespace gantry::supervisor {
namespace {

engine::BlockAddress device(std::uint64_t index) { return {engine::MemorySpace::kDevice, index}; }

/// A reply that names these, each with its index as fingerprint.
struct Answer {
    explicit Answer(const std::vector<std::uint64_t>& indices, std::size_t fingerprints) {
        control::BlockRunList list;
        for (const std::uint64_t index : indices) {
            state::append_run(device(index), list.mutable_runs());
        }
        std::string raw;
        for (std::size_t i = 0; i < fingerprints; ++i) {
            state::append_fingerprint({indices[i % indices.size()], 0}, &raw);
        }
        const std::string runs = list.SerializeAsString();
        digest.set_runs_bytes(runs.size());
        digest.set_fingerprint_bytes(raw.size());
        reply.descriptors.push_back(std::move(control::make_blob(runs)).value());
        reply.descriptors.push_back(std::move(control::make_blob(raw)).value());
    }
    std::string refused() {
        const auto taken = take_fingerprints(reply, digest, 0);
        return taken.ok() ? "" : taken.error().reason + ": " + taken.error().text;
    }
    WorkerReply reply;
    control::Digest digest;
};

TEST(PartFingerprints, ComeInOrderHoweverTheyAreListed) {
    Answer answer({7, 8, 3, 9}, 4);
    const auto taken = take_fingerprints(answer.reply, answer.digest, 0);
    ASSERT_TRUE(taken.ok());
    std::vector<std::uint64_t> indices;
    for (const FingerprintedBlock& block : *taken) {
        indices.push_back(block.address.index);
        EXPECT_EQ(block.fingerprint.low, block.address.index);
    }
    EXPECT_EQ(indices, (std::vector<std::uint64_t>{3, 7, 8, 9}));
}

TEST(PartFingerprints, NoneAreAnEmptyList) {
    WorkerReply reply;
    const auto taken = take_fingerprints(reply, control::Digest(), 0);
    ASSERT_TRUE(taken.ok());
    EXPECT_TRUE(taken->empty());
}

TEST(PartFingerprints, WhatCannotBeIsRefused) {
    EXPECT_EQ(Answer({7, 8, 7}, 3).refused(),
              "worker.protocol: a worker lists a block of its memory twice");
    EXPECT_EQ(Answer({7, 8}, 3).refused(),
              "worker.protocol: 2 blocks with 48 bytes of fingerprints");
    Answer cut({7, 8}, 2);
    cut.reply.descriptors.pop_back();
    EXPECT_EQ(cut.refused(), "worker.protocol: a blob is missing");
    Answer longer({7, 8}, 2);
    longer.digest.set_fingerprint_bytes(1000);
    EXPECT_NE(longer.refused(), "");
}

}  // namespace
}  // namespace gantry::supervisor
