// ImageStore: device code images on their way from the guest, and those that live objects name.
//
// A guest sends an image in pieces under an id of its choice; the load call that follows takes it.
// A taken image is named by its SHA-256 and kept while anything refers to it (a snapshot needs the
// bytes as the application gave them). Equal images share their bytes.
//
// Threads: all calls lock; images themselves are immutable. Failure: Result with reason `image.*`.
// Cost: one copy of the bytes and one SHA-256 at take().
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "proto/base/mutex.h"
#include "proto/base/result.h"
#include "proto/base/sha256.h"

namespace gantry::worker {

struct Image {
    Sha256 sha256{};
    std::vector<std::byte> bytes;
};
using ImagePtr = std::shared_ptr<const Image>;

/// An image on its way: what has come so far.
struct StagedImage {
    std::uint64_t image_id = 0;
    std::uint64_t total_bytes = 0;
    ImagePtr part;
};

class ImageStore {
public:
    explicit ImageStore(std::uint64_t quota_bytes) : quota_bytes_(quota_bytes) {}

    /// One piece; pieces of an image come in order, from offset 0. Less than 8 bytes may be left
    /// out between two, and at the end; they are zeros.
    Result<void> stage(std::uint64_t image_id, std::uint64_t total_bytes, std::uint64_t offset,
                       std::span<const std::byte> bytes);
    void drop(std::uint64_t image_id);
    /// The complete image; it is no longer staged then.
    Result<ImagePtr> take(std::uint64_t image_id, std::uint64_t bytes);

    /// Names bytes that came another way (a snapshot, a linker's output).
    ImagePtr adopt(std::vector<std::byte> bytes);
    /// Null when no live object refers to such an image.
    [[nodiscard]] ImagePtr find(const Sha256& sha256);
    [[nodiscard]] std::uint64_t staged_bytes() const;

    /// All that are on their way; a guest may be frozen between two pieces. Copies their bytes.
    [[nodiscard]] std::vector<StagedImage> staged();
    /// These and no others are on their way.
    Result<void> set_staged(std::span<const StagedImage> images);

private:
    struct Staged {
        std::uint64_t total_bytes = 0;
        std::vector<std::byte> bytes;
    };
    static constexpr std::size_t kStagedCountMax = 1024;
    static constexpr std::uint64_t kPartAlignBytes = 8;

    std::uint64_t quota_bytes_;
    mutable Mutex mutex_;
    std::map<std::uint64_t, Staged> staged_ GANTRY_GUARDED_BY(mutex_);
    std::uint64_t staged_bytes_ GANTRY_GUARDED_BY(mutex_) = 0;
    std::map<Sha256, std::weak_ptr<const Image>> images_ GANTRY_GUARDED_BY(mutex_);
};

}  // namespace gantry::worker
