// Rewrites the snapshot file in argument 1 to the one in argument 2 with its memory in packed block
// sections, as Gantry wrote it before there were memory sections (proto/snapshot/FORMAT.md).
#include <cstdio>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "proto/snapshot/container.h"
#include "proto/snapshot/container.pb.h"

namespace {

using namespace gantry;
using namespace gantry::snapshot;

class Rewriter final : public SnapshotVisitor {
public:
    explicit Rewriter(AtomicFile& file) : file_(file) {}
    Result<void> on_header(const SnapshotHeader& header) override {
        writer_ = std::make_unique<SnapshotWriter>(file_.fd(), file_.path(), header, Codec::kLz4);
        return {};
    }
    Result<void> on_graph(std::uint64_t part, std::string_view graph) override {
        return writer_->add_graph(part, graph);
    }
    Result<void> on_image(std::span<const std::byte, 32> sha256,
                          std::span<const std::byte> bytes) override {
        return writer_->add_image(sha256, bytes);
    }
    Result<void> on_blocks(std::span<const StoredBlock> blocks) override {
        for (const StoredBlock& block : blocks) {
            std::vector<std::byte>& bytes = contents_[key_of(block.ref)];
            bytes.assign(block.bytes.begin(), block.bytes.end());
            if (block.form == StoredForm::kCopyOf) {
                bytes = contents_.at(key_of(block.origin));
            }
            bytes.resize(kBlockBytes);
            GANTRY_TRY(writer_->add_block(block.ref, BlockSpan(bytes)));
        }
        return {};
    }
    Result<void> on_end(const SnapshotSummary& summary) override {
        (void)summary;
        GANTRY_TRY(writer_->finish());
        return file_.commit();
    }

private:
    using Key = std::tuple<std::uint64_t, std::uint32_t, std::uint64_t>;
    static Key key_of(const BlockRef& ref) { return {ref.part, ref.space, ref.index}; }

    AtomicFile& file_;
    std::unique_ptr<SnapshotWriter> writer_;
    std::map<Key, std::vector<std::byte>> contents_;
};

Result<void> rewrite(const std::string& from, const std::string& to) {
    GANTRY_ASSIGN(AtomicFile file, AtomicFile::create(to));
    Rewriter rewriter(file);
    GANTRY_ASSIGN(const std::uint64_t bytes, read_snapshot(from, rewriter));
    (void)bytes;
    return {};
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: as_blocks FROM TO\n");
        return 2;
    }
    const auto done = rewrite(argv[1], argv[2]);
    if (!done) {
        std::fprintf(stderr, "%s\n", done.error().to_string().c_str());
        return 1;
    }
    return 0;
}
