#include "host-daemon/worker/replace.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "host-daemon/replacement/exchange.h"
#include "host-daemon/state/block_runs.h"

namespace gantry::worker {
namespace {

using replacement::blob_of;
using replacement::Clock;
using replacement::us_since;

constexpr std::uint32_t kArena = 1;
constexpr std::uint64_t kBatchBlocks = engine::StateSource::kReadBlocksMax;
constexpr std::uint32_t kRoundsMax = 8;
constexpr std::uint64_t kFewBlocks = 256;  // 16 MiB: not worth another round.
constexpr std::uint64_t kFreezeDeadlineUs = 10'000'000;

class Move {
public:
    Move(WorkerLink& source, WorkerLink& target) : source_(source), target_(target) {}
    Result<ReplaceReport> run();

private:
    Result<void> attach_arenas();
    Result<void> prepare();
    /// One round: what differs from what was last sent. Returns how many blocks there were.
    Result<std::uint64_t> round(std::uint64_t* bytes);
    Result<void> copy(std::span<const engine::BlockAddress> blocks);
    Result<void> switch_over();
    Result<void> hand_over();

    WorkerLink& source_;
    WorkerLink& target_;
    control::UniqueFd arena_;
    control::Seed seed_;
    std::string images_;
    ReplaceReport report_;
};

Result<void> Move::attach_arenas() {
    arena_ = control::UniqueFd(memfd_create("gantry-staging", MFD_CLOEXEC));
    const std::uint64_t bytes = kBatchBlocks * engine::kBlockBytes;
    if (!arena_.valid() || ftruncate(arena_.get(), static_cast<off_t>(bytes)) != 0) {
        return Error{Code::kResourceExhausted, "worker.arena", std::strerror(errno)};
    }
    for (WorkerLink* worker : {&source_, &target_}) {
        control::ToWorker request;
        request.mutable_attach_arena()->set_arena_id(kArena);
        request.mutable_attach_arena()->set_bytes(bytes);
        const int descriptors[] = {arena_.get()};
        GANTRY_TRY(worker->call(std::move(request), descriptors));
    }
    return {};
}

Result<void> Move::prepare() {
    control::ToWorker get;
    get.mutable_get_graph();
    GANTRY_ASSIGN(WorkerLink::Answer answer, source_.call(std::move(get)));
    GANTRY_ASSIGN(const std::string graph,
                  blob_of(answer.descriptors, answer.message.graph().bytes()));
    control::ToWorker get_images;
    get_images.mutable_get_images();
    GANTRY_ASSIGN(WorkerLink::Answer listed, source_.call(std::move(get_images)));
    GANTRY_ASSIGN(images_, blob_of(listed.descriptors, listed.message.images().bytes()));
    GANTRY_ASSIGN(const control::UniqueFd graph_blob, control::make_blob(graph));
    GANTRY_ASSIGN(const control::UniqueFd images_blob, control::make_blob(images_));
    control::ToWorker request;
    *request.mutable_prepare()->mutable_seed() = seed_;
    request.mutable_prepare()->set_graph_bytes(graph.size());
    request.mutable_prepare()->set_images_bytes(images_.size());
    std::vector<int> descriptors = {graph_blob.get()};
    if (!images_.empty()) {
        descriptors.push_back(images_blob.get());
    }
    GANTRY_TRY(target_.call(std::move(request), descriptors));
    return {};
}

Result<void> Move::copy(std::span<const engine::BlockAddress> blocks) {
    control::ToWorker read;
    read.mutable_read_blocks()->set_arena_id(kArena);
    state::append_runs(blocks, read.mutable_read_blocks()->mutable_runs());
    GANTRY_ASSIGN(const WorkerLink::Answer copied, source_.call(std::move(read)));
    control::ToWorker apply;
    apply.mutable_apply_blocks()->set_arena_id(kArena);
    for (const control::BlockRun& run : copied.message.read_blocks().runs()) {
        control::IncomingRun* incoming = apply.mutable_apply_blocks()->add_runs();
        *incoming->mutable_run() = run;
        incoming->set_form(control::IncomingRun::FORM_BYTES);
    }
    GANTRY_TRY(target_.call(std::move(apply)));
    return {};
}

Result<std::uint64_t> Move::round(std::uint64_t* bytes) {
    control::ToWorker scan;
    scan.mutable_scan();
    GANTRY_ASSIGN(WorkerLink::Answer answer, source_.call(std::move(scan)));
    control::ScanReply* scanned = answer.message.mutable_scan();
    if (scanned->runs_bytes() != 0) {
        GANTRY_ASSIGN(const std::string blob, blob_of(answer.descriptors, scanned->runs_bytes()));
        control::BlockRunList list;
        list.ParseFromString(blob);
        *scanned->mutable_runs() = std::move(*list.mutable_runs());
    }
    GANTRY_ASSIGN(const auto blocks, state::expand_runs(scanned->runs()));
    for (std::size_t at = 0; at < blocks.size(); at += kBatchBlocks) {
        GANTRY_TRY(copy(std::span(blocks).subspan(at, std::min(kBatchBlocks, blocks.size() - at))));
    }
    *bytes += blocks.size() * engine::kBlockBytes;
    return blocks.size();
}

Result<void> Move::hand_over() {
    control::ToWorker release;
    release.mutable_release()->set_return_guest(true);
    GANTRY_ASSIGN(WorkerLink::Answer released, source_.call(std::move(release)));
    control::ToWorker activate;
    activate.mutable_activate()->set_epoch(2);
    *activate.mutable_activate()->mutable_guest() = released.message.release().guest();
    std::vector<int> descriptors;
    for (const control::UniqueFd& fd : released.descriptors) {
        descriptors.push_back(fd.get());
    }
    GANTRY_TRY(target_.call(std::move(activate), descriptors));
    return {};
}

Result<void> Move::switch_over() {
    std::uint64_t final_bytes = 0;
    GANTRY_TRY(round(&final_bytes));
    report_.final_bytes = final_bytes;
    report_.bytes += final_bytes;
    ++report_.rounds;
    control::ToWorker final_part;
    final_part.mutable_final_part();
    GANTRY_ASSIGN(WorkerLink::Answer answer, source_.call(std::move(final_part)));
    const control::Digest expected = answer.message.final_part().digest();
    GANTRY_ASSIGN(const std::string graph,
                  blob_of(answer.descriptors, answer.message.final_part().graph_bytes()));
    control::ToWorker get_images;
    get_images.mutable_get_images();
    GANTRY_ASSIGN(WorkerLink::Answer listed, source_.call(std::move(get_images)));
    GANTRY_ASSIGN(images_, blob_of(listed.descriptors, listed.message.images().bytes()));
    GANTRY_ASSIGN(const control::UniqueFd graph_blob, control::make_blob(graph));
    GANTRY_ASSIGN(const control::UniqueFd images_blob, control::make_blob(images_));
    control::ToWorker apply;
    apply.mutable_apply_final()->set_graph_bytes(graph.size());
    apply.mutable_apply_final()->set_images_bytes(images_.size());
    *apply.mutable_apply_final()->mutable_digest() = expected;
    std::vector<int> descriptors = {graph_blob.get()};
    if (!images_.empty()) {
        descriptors.push_back(images_blob.get());
    }
    GANTRY_TRY(target_.call(std::move(apply), descriptors));
    control::ToWorker get_digest;
    get_digest.mutable_get_digest();
    GANTRY_ASSIGN(const WorkerLink::Answer digest, target_.call(std::move(get_digest)));
    if (digest.message.digest().SerializeAsString() != expected.SerializeAsString()) {
        return Error{Code::kDataLoss, "snapshot.digest",
                     fmt::format("the memory of old and new worker differs ({} and {} blocks); the "
                                 "old one goes on",
                                 expected.block_count(), digest.message.digest().block_count())};
    }
    return {};
}

Result<ReplaceReport> Move::run() {
    const auto begin = Clock::now();
    GANTRY_ASSIGN(seed_, replacement::random_seed());
    GANTRY_TRY(attach_arenas());
    control::ToWorker precopy;
    *precopy.mutable_begin_precopy()->mutable_seed() = seed_;
    GANTRY_TRY(source_.call(std::move(precopy)));
    GANTRY_TRY(prepare());
    while (report_.rounds < kRoundsMax) {
        GANTRY_ASSIGN(const std::uint64_t blocks, round(&report_.bytes));
        ++report_.rounds;
        if (blocks <= kFewBlocks) {
            break;
        }
    }
    const auto pause = Clock::now();
    control::ToWorker freeze;
    freeze.mutable_freeze()->mutable_token()->set_count(1);
    freeze.mutable_freeze()->set_deadline_us(kFreezeDeadlineUs);
    GANTRY_TRY(source_.call(std::move(freeze)));
    auto done = switch_over();
    if (done.ok()) {
        done = hand_over();
    }
    if (!done.ok()) {
        control::ToWorker thaw;
        thaw.mutable_thaw();
        (void)source_.call(std::move(thaw));
        return done.error();
    }
    report_.pause_us = us_since(pause);
    report_.total_us = us_since(begin);
    return report_;
}

}  // namespace

std::string ReplaceReport::to_json() const {
    return fmt::format(
        R"({{"rounds":{},"bytes":{},"final_bytes":{},"pause_us":{},"total_us":{}}})", rounds, bytes,
        final_bytes, pause_us, total_us);
}

Result<ReplaceReport> copy_to_worker(WorkerLink& old_worker, WorkerLink& fresh) {
    return Move(old_worker, fresh).run();
}

namespace {

class LinkEndpoint final : public replacement::Endpoint {
public:
    explicit LinkEndpoint(WorkerLink& link) : link_(link) {}
    Result<replacement::Answer> call(control::ToWorker request,
                                     std::span<const int> descriptors) override {
        return link_.call(std::move(request), descriptors);
    }
    void kill() override { link_.kill_now(); }

private:
    WorkerLink& link_;
};

}  // namespace

replacement::Outcome hand_to_worker(WorkerLink& old_worker, WorkerLink& fresh,
                                    const replacement::Options& options) {
    LinkEndpoint from(old_worker);
    LinkEndpoint to(fresh);
    return replacement::replace(from, to, options);
}

}  // namespace gantry::worker
