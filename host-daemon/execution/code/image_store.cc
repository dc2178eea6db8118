#include "host-daemon/execution/code/image_store.h"

#include <fmt/format.h>

namespace gantry::worker {

Result<void> ImageStore::stage(std::uint64_t image_id, std::uint64_t total_bytes,
                               std::uint64_t offset, std::span<const std::byte> bytes) {
    MutexLock lock(mutex_);
    auto staged = staged_.find(image_id);
    if (staged == staged_.end()) {
        if (total_bytes == 0 || total_bytes > quota_bytes_ - staged_bytes_ ||
            staged_.size() >= kStagedCountMax) {
            return Error{Code::kResourceExhausted, "image.quota",
                         fmt::format("an image of {} bytes does not fit: {} of {} bytes are staged",
                                     total_bytes, staged_bytes_, quota_bytes_)};
        }
        staged = staged_.emplace(image_id, Staged{total_bytes, {}}).first;
        staged_bytes_ += total_bytes;
    }
    Staged& image = staged->second;
    // Parts of an image start at multiples of 8: the gap behind a part is zeros.
    if (total_bytes == image.total_bytes && offset > image.bytes.size() &&
        offset - image.bytes.size() < kPartAlignBytes && offset <= total_bytes) {
        image.bytes.resize(offset);
    }
    if (total_bytes != image.total_bytes || offset != image.bytes.size() ||
        bytes.size() > image.total_bytes - image.bytes.size()) {
        staged_bytes_ -= image.total_bytes;
        staged_.erase(staged);
        return Error{
            Code::kInvalidArgument, "image.piece",
            fmt::format("a piece at {} of image {} does not continue it", offset, image_id)};
    }
    image.bytes.insert(image.bytes.end(), bytes.begin(), bytes.end());
    return {};
}

void ImageStore::drop(std::uint64_t image_id) {
    MutexLock lock(mutex_);
    if (const auto staged = staged_.find(image_id); staged != staged_.end()) {
        staged_bytes_ -= staged->second.total_bytes;
        staged_.erase(staged);
    }
}

Result<ImagePtr> ImageStore::take(std::uint64_t image_id, std::uint64_t bytes) {
    std::vector<std::byte> content;
    {
        MutexLock lock(mutex_);
        const auto staged = staged_.find(image_id);
        if (staged != staged_.end() && staged->second.total_bytes == bytes &&
            bytes - staged->second.bytes.size() < kPartAlignBytes) {
            staged->second.bytes.resize(bytes);
        }
        if (staged == staged_.end() || staged->second.bytes.size() != bytes ||
            staged->second.total_bytes != bytes) {
            return Error{
                Code::kNotFound, "image.staged",
                fmt::format("image {} of {} bytes is not staged completely", image_id, bytes)};
        }
        content = std::move(staged->second.bytes);
        staged_bytes_ -= staged->second.total_bytes;
        staged_.erase(staged);
    }
    return adopt(std::move(content));
}

ImagePtr ImageStore::adopt(std::vector<std::byte> bytes) {
    const Sha256 digest = sha256_of(bytes);
    MutexLock lock(mutex_);
    if (ImagePtr known = images_[digest].lock()) {
        return known;
    }
    std::erase_if(images_, [](const auto& entry) { return entry.second.expired(); });
    auto image = std::make_shared<const Image>(Image{digest, std::move(bytes)});
    images_[digest] = image;
    return image;
}

ImagePtr ImageStore::find(const Sha256& sha256) {
    MutexLock lock(mutex_);
    const auto image = images_.find(sha256);
    return image == images_.end() ? nullptr : image->second.lock();
}

std::uint64_t ImageStore::staged_bytes() const {
    MutexLock lock(mutex_);
    return staged_bytes_;
}

std::vector<StagedImage> ImageStore::staged() {
    std::map<std::uint64_t, Staged> copied;
    {
        MutexLock lock(mutex_);
        copied = staged_;
    }
    std::vector<StagedImage> images;
    for (auto& [image_id, image] : copied) {
        images.push_back({image_id, image.total_bytes, adopt(std::move(image.bytes))});
    }
    return images;
}

Result<void> ImageStore::set_staged(std::span<const StagedImage> images) {
    {
        MutexLock lock(mutex_);
        staged_.clear();
        staged_bytes_ = 0;
    }
    for (const StagedImage& image : images) {
        GANTRY_TRY(stage(image.image_id, image.total_bytes, 0, image.part->bytes));
    }
    return {};
}

}  // namespace gantry::worker
