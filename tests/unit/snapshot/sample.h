// A small snapshot that uses every kind of section and every form of block.
#pragma once

#include <string>
#include <vector>

#include "proto/snapshot/container.h"
#include "proto/snapshot/container.pb.h"
#include "proto/snapshot/file_io.h"
#include "proto/snapshot/memory_writer.h"
#include "proto/snapshot/object_graph.pb.h"

namespace gantry::snapshot {

inline std::vector<std::byte> sample_block(unsigned number) {
    std::vector<std::byte> block(kBlockBytes);
    for (std::size_t i = 0; number != 0 && i < kBlockBytes; ++i) {
        block[i] = static_cast<std::byte>((i / 1024) * number);
    }
    return block;
}

inline SnapshotHeader sample_header() {
    SnapshotHeader header;
    header.set_session_id("11111111-0000-4000-8000-000000000001");
    header.set_producer("golden");
    header.set_created_unix_seconds(1'700'000'000);
    header.set_epoch(3);
    header.set_seed_low(0x1122334455667788);
    header.set_seed_high(0x99AABBCCDDEEFF00);
    header.set_part_count(2);
    return header;
}

inline std::string sample_graph(std::uint64_t part) {
    ObjectGraph graph;
    graph.set_version(1);
    graph.set_part_id(part);
    graph.mutable_process()->set_process_name("sample");
    Stream* stream = graph.add_streams();
    stream->set_handle(0x10);
    stream->set_priority(-1);
    Allocation* allocation = graph.add_allocations();
    allocation->set_address(0x300000000000);
    allocation->set_size_bytes(4 * kBlockBytes);
    allocation->set_kind(ALLOCATION_KIND_LINEAR);
    graph.mutable_execution()->set_next_seq(4096);
    return graph.SerializeAsString();
}

/// Writes the sample: two parts; stored, zero and copied blocks; one image.
inline Result<void> write_sample(int fd, const std::string& name, Codec codec) {
    SnapshotWriter writer(fd, name, sample_header(), codec);
    GANTRY_TRY(writer.add_graph(1, sample_graph(1)));
    GANTRY_TRY(writer.add_graph(2, sample_graph(2)));
    std::array<std::byte, 32> hash{};
    hash.fill(std::byte{0xAB});
    GANTRY_TRY(writer.add_image(hash, std::as_bytes(std::span("ptx text", 8))));
    const unsigned contents[] = {1, 0, 1, 2};
    for (std::uint64_t i = 0; i < 4; ++i) {
        const auto block = sample_block(contents[i]);
        GANTRY_TRY(writer.add_block({1, 1, 0x30000000 + i}, BlockSpan(block)));
    }
    const auto block = sample_block(2);
    GANTRY_TRY(writer.add_block({2, 2, 7}, BlockSpan(block)));
    return writer.finish();
}

/// A sample whose part 2 is a memory section: stored, zero and copied blocks, stored out of order.
inline Result<void> write_memory_sample(int fd, const std::string& name) {
    SnapshotWriter writer(fd, name, sample_header(), Codec::kLz4);
    GANTRY_TRY(writer.add_graph(1, sample_graph(1)));
    GANTRY_TRY(writer.add_graph(2, sample_graph(2)));
    std::array<std::byte, 32> hash{};
    hash.fill(std::byte{0xAB});
    GANTRY_TRY(writer.add_image(hash, std::as_bytes(std::span("ptx text", 8))));
    const auto first = sample_block(1);
    GANTRY_TRY(writer.add_block({1, 1, 0x30000000}, BlockSpan(first)));
    const unsigned contents[] = {3, 0, 3, 2};
    GANTRY_ASSIGN(MemoryWriter * memory, writer.begin_memory(2, 4));
    const FingerprintKey key({sample_header().seed_low(), sample_header().seed_high()});
    std::vector<MemoryWriter::Block> blocks;
    for (std::uint64_t i = 0; i < 4; ++i) {
        const auto block = sample_block(contents[i]);
        blocks.push_back({1, 0x30000000 + i, fingerprint(key, BlockSpan(block)), contents[i] == 0});
    }
    std::vector<std::uint64_t> places(4);
    GANTRY_TRY(memory->place(blocks, places));
    for (const std::size_t i : {std::size_t{3}, std::size_t{0}}) {
        GANTRY_TRY(write_at(memory->file(), name, places[i], sample_block(contents[i])));
    }
    if (places[1] != MemoryWriter::kNotStored || places[2] != MemoryWriter::kNotStored) {
        return Error{Code::kInternal, "test", "zeros and repeats have places"};
    }
    GANTRY_TRY(writer.end_memory());
    return writer.finish();
}

/// Keeps everything, with copies resolved.
class Collector : public SnapshotVisitor {
public:
    Result<void> on_header(const SnapshotHeader& h) override {
        header = h;
        return {};
    }
    Result<void> on_graph(std::uint64_t part, std::string_view graph) override {
        graphs[part] = graph;
        return {};
    }
    Result<void> on_image(std::span<const std::byte, 32>, std::span<const std::byte> b) override {
        images.emplace_back(reinterpret_cast<const char*>(b.data()), b.size());
        return {};
    }
    Result<void> on_blocks(std::span<const StoredBlock> stored) override {
        for (const StoredBlock& block : stored) {
            std::vector<std::byte> bytes(kBlockBytes);
            if (block.form == StoredForm::kBytes) {
                bytes.assign(block.bytes.begin(), block.bytes.end());
            } else if (block.form == StoredForm::kCopyOf) {
                bytes = blocks.at(block.origin);
                ++copies;
            }
            blocks[block.ref] = std::move(bytes);
        }
        return {};
    }
    Result<void> on_end(const SnapshotSummary& told) override {
        summary = told;
        ended = true;
        return {};
    }

    SnapshotHeader header;
    std::unordered_map<std::uint64_t, std::string> graphs;
    std::vector<std::string> images;
    std::unordered_map<BlockRef, std::vector<std::byte>, BlockRefHash> blocks;
    SnapshotSummary summary;
    int copies = 0;
    bool ended = false;
};

}  // namespace gantry::snapshot
