// Hostile snapshot files, starting from the golden ones: read to the end or refused with a reason.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "proto/base/assert.h"
#include "proto/snapshot/container.h"

namespace {

/// Takes everything and looks at every byte.
class Reader : public gantry::snapshot::SnapshotVisitor {
public:
    gantry::Result<void> on_header(const gantry::snapshot::SnapshotHeader&) override { return {}; }
    gantry::Result<void> on_graph(std::uint64_t, std::string_view graph) override {
        for (const char c : graph) {
            sum_ += static_cast<unsigned char>(c);
        }
        return {};
    }
    gantry::Result<void> on_image(std::span<const std::byte, 32>,
                                  std::span<const std::byte> bytes) override {
        for (const std::byte b : bytes) {
            sum_ += static_cast<unsigned char>(b);
        }
        return {};
    }
    gantry::Result<void> on_blocks(
        std::span<const gantry::snapshot::StoredBlock> blocks) override {
        sum_ += blocks.size();
        return {};
    }
    gantry::Result<void> on_end(const gantry::snapshot::SnapshotSummary&) override { return {}; }

private:
    volatile std::uint64_t sum_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const int file = ::memfd_create("snapshot", MFD_CLOEXEC);
    GANTRY_ASSERT(file >= 0 && ::write(file, data, size) == static_cast<ssize_t>(size), "memfd");
    GANTRY_ASSERT(::lseek(file, 0, SEEK_SET) == 0, "seek");
    Reader reader;
    const auto outcome = gantry::snapshot::read_snapshot(file, "fuzz", reader);
    if (!outcome.ok()) {
        GANTRY_ASSERT(!outcome.error().reason.empty(), "a refusal without a reason");
    }
    ::close(file);
    return 0;
}
