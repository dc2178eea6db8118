#include "host-daemon/supervisor/sessions/region_image.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

namespace gantry::supervisor {
namespace {

using snapshot::kBlockBytes;

struct Extent {
    std::uint64_t offset = 0;
    std::uint64_t end = 0;
};

struct Extents {
    std::vector<Extent> guest;
    std::vector<Extent> host;
};

Result<Extents> extents_of(const Region& region, std::uint32_t channel_count) {
    Extents out;
    out.guest.push_back({0, wire::kPageBytes});
    out.host.push_back({wire::kPageBytes, 2 * wire::kPageBytes});
    GANTRY_ASSIGN(const auto claims, region.claims(channel_count));
    for (const Claim& claim : claims) {
        if (claim.state == wire::ClaimState::kFree) {
            continue;
        }
        wire::ChannelLayout layout{};
        if (!wire::compute_layout(region.bytes(), channel_count, claim.channel, &layout)) {
            return Error{Code::kFailedPrecondition, "region.layout",
                         fmt::format("channel {} does not fit the region", claim.channel)};
        }
        const std::uint64_t bulk_end = layout.bulk + layout.bulk_bytes;
        const std::uint64_t outbox = bulk_end - wire::outbox_bytes(layout);
        out.guest.push_back({layout.guest_words, layout.host_words});
        out.guest.push_back({layout.ring, layout.bulk});
        out.guest.push_back({outbox, bulk_end});
        out.host.push_back({layout.host_words, layout.ring});
        out.host.push_back({layout.bulk, outbox});
        out.host.push_back({layout.pinned, layout.pinned + layout.pinned_bytes});
    }
    return out;
}

Error image_error(const char* what) {
    return {Code::kUnavailable, "save.image",
            fmt::format("the image of a saved VM's region cannot be {}: {}", what,
                        std::strerror(errno))};
}

using Block = std::span<const std::byte, kBlockBytes>;
/// At an offset, of which the first bytes count and the rest are zeros.
using OnBlock = std::function<Result<void>(std::uint64_t at, Block block, std::size_t bytes)>;

/// Each block of the extents, in order.
Result<void> for_each_block(int from, const std::vector<Extent>& extents, const char* reason,
                            const OnBlock& on_block) {
    std::vector<std::byte> block(kBlockBytes);
    for (const Extent& extent : extents) {
        for (std::uint64_t at = extent.offset; at < extent.end; at += kBlockBytes) {
            const auto bytes =
                static_cast<std::size_t>(std::min<std::uint64_t>(kBlockBytes, extent.end - at));
            const ssize_t got = ::pread(from, block.data(), bytes, static_cast<off_t>(at));
            if (got != static_cast<ssize_t>(bytes)) {
                return Error{
                    Code::kFailedPrecondition, reason,
                    fmt::format("{} bytes at offset {} of a region cannot be read (cut short?)",
                                bytes, at)};
            }
            std::fill(block.begin() + static_cast<std::ptrdiff_t>(bytes), block.end(), std::byte{});
            GANTRY_TRY(on_block(at, Block(block.data(), kBlockBytes), bytes));
        }
    }
    return {};
}

/// Adds a block to a sum by its offset; extents begin at pages.
class Summer {
public:
    explicit Summer(const snapshot::Seed& seed)
        : key_(std::make_unique<snapshot::FingerprintKey>(seed)) {}
    void add(std::uint64_t at, Block block) {
        if (!snapshot::is_zero_block(block)) {
            sum_.add(0, at / wire::kPageBytes, snapshot::fingerprint(*key_, block));
        }
    }
    [[nodiscard]] const snapshot::BlockSetDigest& sum() const { return sum_; }

private:
    std::unique_ptr<snapshot::FingerprintKey> key_;
    snapshot::BlockSetDigest sum_;
};

Result<snapshot::BlockSetDigest> sum_of(int from, const std::vector<Extent>& extents,
                                        const snapshot::Seed& seed, const char* reason) {
    Summer summer(seed);
    GANTRY_TRY(for_each_block(from, extents, reason,
                              [&](std::uint64_t at, Block block, std::size_t) -> Result<void> {
                                  summer.add(at, block);
                                  return {};
                              }));
    return summer.sum();
}

}  // namespace

Result<RegionSums> save_region(const Region& region, std::uint32_t channel_count,
                               const snapshot::Seed& seed, int file) {
    GANTRY_ASSIGN(const Extents extents, extents_of(region, channel_count));
    RegionSums sums;
    GANTRY_ASSIGN(sums.guest, sum_of(region.fd(), extents.guest, seed, "region.read"));
    if (::ftruncate(file, static_cast<off_t>(region.bytes())) != 0) {
        return image_error("made");
    }
    Summer summer(seed);
    GANTRY_TRY(
        for_each_block(region.fd(), extents.host, "region.read",
                       [&](std::uint64_t at, Block block, std::size_t bytes) -> Result<void> {
                           summer.add(at, block);
                           if (!snapshot::is_zero_block(block) &&
                               ::pwrite(file, block.data(), bytes, static_cast<off_t>(at)) !=
                                   static_cast<ssize_t>(bytes)) {
                               return image_error("written");
                           }
                           return {};
                       }));
    sums.host = summer.sum();
    if (::fsync(file) != 0) {
        return image_error("written");
    }
    return sums;
}

Result<snapshot::BlockSetDigest> sum_of_guest(const Region& region, std::uint32_t channel_count,
                                              const snapshot::Seed& seed) {
    GANTRY_ASSIGN(const Extents extents, extents_of(region, channel_count));
    return sum_of(region.fd(), extents.guest, seed, "region.read");
}

Result<void> restore_region(const Region& region, std::uint32_t channel_count,
                            const snapshot::Seed& seed, int file,
                            const snapshot::BlockSetDigest& host) {
    GANTRY_ASSIGN(const Extents extents, extents_of(region, channel_count));
    GANTRY_ASSIGN(const auto found, sum_of(file, extents.host, seed, "save.image"));
    if (found != host) {
        return Error{Code::kDataLoss, "save.image", "the image of a saved VM's region is damaged"};
    }
    return for_each_block(
        file, extents.host, "save.image",
        [&](std::uint64_t at, Block block, std::size_t bytes) -> Result<void> {
            if (::pwrite(region.fd(), block.data(), bytes, static_cast<off_t>(at)) !=
                static_cast<ssize_t>(bytes)) {
                return Error{Code::kFailedPrecondition, "region.write",
                             fmt::format("the region cannot be written at offset {}", at)};
            }
            return {};
        });
}

}  // namespace gantry::supervisor
