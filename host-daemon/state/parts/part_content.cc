#include "host-daemon/state/parts/part_content.h"

#include <set>
#include <utility>

#include "host-daemon/state/blocks/block_ranges.h"

namespace gantry::state {

PartContent::PartContent(worker::Execution& execution_in, std::uint64_t id, FingerprintBy by,
                         std::unique_ptr<GpuFingerprints> fingerprints,
                         std::unique_ptr<Mapping> slot_pages)
    : execution(execution_in),
      process(execution_in.process()),
      part_id(id),
      memory(process),
      reader(process, memory, by, std::move(fingerprints)),
      copied(reader),
      slots(process, std::move(slot_pages)) {}

void PartContent::set_seed(snapshot::Seed seed) {
    seed_ = seed;
    key_ = std::make_unique<snapshot::FingerprintKey>(seed);
}

void PartContent::expect_seed(snapshot::Seed seed) {
    if (!seed_ || *seed_ != seed) {
        seed_ = seed;
        key_.reset();
    }
}

Result<engine::BlockSetDigest> PartContent::digest() { return digest_without({}, {}); }

Result<engine::BlockSetDigest> PartContent::digest(const BlockReader::Visit& see) {
    return digest_without({}, see);
}

Result<void> PartContent::need_key() {
    if (!seed_) {
        return Error{Code::kFailedPrecondition, "worker.state", "no seed was given yet"};
    }
    if (key_ == nullptr) {
        key_ = std::make_unique<snapshot::FingerprintKey>(*seed_);
    }
    return {};
}

Result<engine::BlockSetDigest> PartContent::digest_without(std::vector<BlockRange> known,
                                                           const BlockReader::Visit& see) {
    GANTRY_TRY(need_key());
    engine::BlockSetDigest digest;
    reader.set_share(0);
    const auto visit = [&](const BlockRange& range, std::span<const Fingerprint> fingerprints) {
        add_fingerprints(range, fingerprints, &digest);
        if (see) {
            see(range, fingerprints);
        }
    };
    GANTRY_TRY(reader.for_each_fingerprint(*key_, visit, std::move(known)));
    return digest;
}

Result<engine::BlockSetDigest> PartContent::digest_after_copies() {
    if (execution.serving() && !execution.frozen()) {
        return Error{Code::kFailedPrecondition, "worker.state",
                     "what was copied may have changed: the guest is served"};
    }
    GANTRY_TRY(need_key());
    GANTRY_TRY(copied.look_at_sample(*key_));
    GANTRY_ASSIGN(engine::BlockSetDigest digest, digest_without(copied.seen(), {}));
    digest.merge(copied.digest());
    return digest;
}

void PartContent::keep_image(std::vector<std::byte> bytes) {
    kept_images_.push_back(process.code.images.adopt(std::move(bytes)));
}

std::vector<worker::ImagePtr> PartContent::images() {
    std::vector<worker::ImagePtr> images;
    if (process.is_broken()) {
        return images;
    }
    std::set<Sha256> listed;
    for (const worker::LoadedImage& loaded : process.code.modules.list()) {
        if (listed.insert(loaded.image->sha256).second) {
            images.push_back(loaded.image);
        }
    }
    if (execution.frozen()) {  // Before, more pieces may come.
        for (worker::StagedImage& staged : process.code.images.staged()) {
            if (listed.insert(staged.part->sha256).second) {
                images.push_back(std::move(staged.part));
            }
        }
    }
    return images;
}

void PartContent::wait_for_slots() {
    if (on_slots_.valid()) {
        on_slots_.wait();
    }
}

void PartContent::end_files() {
    wait_for_slots();
    slots.give_back();
    copied.clear();
}

void PartContent::begin_slots(std::function<void()> work) {
    on_slots_ = std::async(std::launch::async, std::move(work));
}

}  // namespace gantry::state
