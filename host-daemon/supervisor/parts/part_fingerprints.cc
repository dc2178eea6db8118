#include "host-daemon/supervisor/parts/part_fingerprints.h"

#include <fmt/format.h>

#include "host-daemon/supervisor/parts/worker_blocks.h"
#include "proto/snapshot/large_pages.h"

namespace gantry::supervisor {
namespace {

constexpr std::uint64_t kListedBlocksMax = 1ULL << 24;

}  // namespace

Result<std::vector<FingerprintedBlock>> take_fingerprints(WorkerReply& reply,
                                                          const control::Digest& digest,
                                                          std::size_t descriptor) {
    std::vector<FingerprintedBlock> out;
    if (digest.runs_bytes() == 0) {
        return out;
    }
    GANTRY_ASSIGN(const control::BlockRunList list,
                  take_runs(reply, descriptor, digest.runs_bytes()));
    GANTRY_ASSIGN(const control::MappedBlob fingerprints,
                  control::take_blob(reply.descriptors, descriptor + 1, digest.fingerprint_bytes(),
                                     kListedBlocksMax * kFingerprintBytes));
    GANTRY_ASSIGN(const std::uint64_t count, count_runs(list.runs(), kListedBlocksMax));
    GANTRY_TRY(check_fingerprints(fingerprints.bytes().size(), count));
    out.reserve(count);
    snapshot::want_large_pages(out.data(), count * sizeof(FingerprintedBlock));
    for (const control::BlockRun& run : list.runs()) {
        for (std::uint64_t i = 0; i < run.count(); ++i) {
            out.push_back({{static_cast<engine::MemorySpace>(run.space()), run.first() + i},
                           fingerprint_at(fingerprints.bytes().data(), out.size())});
        }
    }
    const auto address_of = [](const FingerprintedBlock& block) { return block.address; };
    if (!is_ascending(out, address_of)) {  // Range by range, as the worker's memory lies.
        std::sort(out.begin(), out.end(),
                  [](const FingerprintedBlock& a, const FingerprintedBlock& b) {
                      return a.address < b.address;
                  });
        if (!is_ascending(out, address_of)) {
            return Error{Code::kInvalidArgument, "worker.protocol",
                         "a worker lists a block of its memory twice"};
        }
    }
    return out;
}

Result<std::vector<FingerprintedBlock>> fingerprints_now(Worker& worker) {
    control::ToWorker request;
    request.mutable_get_digest()->set_with_fingerprints(true);
    GANTRY_ASSIGN(WorkerReply reply, worker.call(std::move(request), kLongCall));
    return take_fingerprints(reply, reply.message.digest(), 0);
}

Result<FirstFingerprints> first_fingerprints(Worker& worker, std::size_t count_max) {
    control::ToWorker request;
    request.mutable_get_digest()->set_with_fingerprints(true);
    request.mutable_get_digest()->set_first_count(count_max);
    GANTRY_ASSIGN(WorkerReply reply, worker.call(std::move(request), kLongCall));
    FirstFingerprints first;
    GANTRY_ASSIGN(first.blocks, take_fingerprints(reply, reply.message.digest(), 0));
    if (reply.message.digest().left_count() > kListedBlocksMax - first.blocks.size()) {
        return Error{Code::kInvalidArgument, "worker.protocol",
                     fmt::format("a worker holds {} more blocks than it has listed",
                                 reply.message.digest().left_count())};
    }
    first.left_count = reply.message.digest().left_count();
    return first;
}

}  // namespace gantry::supervisor
