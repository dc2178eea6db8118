#include "host-daemon/replacement/replacement.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "host-daemon/replacement/exchange.h"
#include "proto/control/channel.h"

namespace gantry::replacement {
namespace {

constexpr std::uint32_t kArena = 7;
constexpr std::uint32_t kBatchBlocks = 256;
constexpr std::uint64_t kBlockBytes = 64 * 1024;

std::uint64_t count_of(const google::protobuf::RepeatedPtrField<control::BlockRun>& runs) {
    std::uint64_t count = 0;
    for (const control::BlockRun& run : runs) {
        count += run.count();
    }
    return count;
}

class Job {
public:
    Job(Endpoint& old_worker, Endpoint& fresh, const Options& options)
        : old_(old_worker), fresh_(fresh), options_(options) {}

    Outcome run();

private:
    Result<void> check();
    Result<void> prepare();
    Result<void> hand_over();
    Result<void> attach_arenas();
    Result<void> detach_arena(Endpoint& worker);
    Result<void> move_pieces();
    /// Images that were not sent yet, as a blob; an invalid descriptor when there are none.
    Result<control::UniqueFd> new_images(std::uint64_t* bytes);
    Result<void> copy_round(std::uint64_t* bytes);
    Result<void> copy_run(control::BlockRun run);
    Result<void> freeze();
    Result<void> send_final();
    Result<void> attach_guest();
    Result<void> change_over();
    Result<Answer> ask(Endpoint& worker, control::ToWorker request,
                       const std::vector<int>& descriptors = {}) {
        return worker.call(std::move(request), descriptors);
    }

    Endpoint& old_;
    Endpoint& fresh_;
    const Options& options_;
    Report report_;
    Owner owner_ = Owner::kOld;
    bool is_frozen_ = false;
    control::UniqueFd staging_;
    control::Seed seed_;
    std::vector<std::string> images_sent_;
    std::uint64_t last_serial_ = 0;
    control::MemorySum sum_;
    Clock::time_point paused_at_;
};

/// Before anything is asked of the old worker that costs its guest time.
Result<void> Job::check() {
    control::ToWorker status;
    status.mutable_status();
    GANTRY_ASSIGN(const Answer old_answer, ask(old_, status));
    GANTRY_ASSIGN(const Answer fresh_answer, ask(fresh_, status));
    const control::StatusReply& from = old_answer.message.status_reply();
    const control::StatusReply& to = fresh_answer.message.status_reply();
    if (from.state() != control::WORKER_STATE_SERVING) {
        return Error{Code::kFailedPrecondition, "handover.state",
                     "the old worker does not serve its guest now"};
    }
    if (from.device().uuid() != to.device().uuid()) {
        return Error{Code::kFailedPrecondition, "handover.other_device",
                     "the old worker has device " + from.device().uuid() + ", the fresh one " +
                         to.device().uuid() + ": memory is handed over on one device only"};
    }
    if (from.device().driver_version() != to.device().driver_version() ||
        from.device().is_soft() != to.device().is_soft()) {
        return Error{Code::kFailedPrecondition, "handover.other_driver",
                     "the old worker's CUDA driver is " +
                         std::to_string(from.device().driver_version()) + ", the fresh one's " +
                         std::to_string(to.device().driver_version()) +
                         ": move the session instead"};
    }
    if (from.limits().device_memory_bytes() != to.limits().device_memory_bytes()) {
        return Error{Code::kFailedPrecondition, "handover.limits",
                     "old and fresh worker have different memory quotas"};
    }
    return {};
}

Result<void> Job::attach_arenas() {
    staging_ = control::UniqueFd(memfd_create("gantry-replacement", MFD_CLOEXEC));
    const std::uint64_t bytes = kBatchBlocks * kBlockBytes;
    if (!staging_.valid() || ftruncate(staging_.get(), static_cast<off_t>(bytes)) != 0) {
        return Error{Code::kResourceExhausted, "worker.arena", std::strerror(errno)};
    }
    (void)detach_arena(old_);  // Of a replacement that a restart of gantryd cut short.
    for (Endpoint* worker : {&old_, &fresh_}) {
        control::ToWorker request;
        request.mutable_attach_arena()->set_arena_id(kArena);
        request.mutable_attach_arena()->set_bytes(bytes);
        GANTRY_TRY(ask(*worker, std::move(request), {staging_.get()}));
    }
    return {};
}

Result<void> Job::move_pieces() {
    for (bool more = true; more;) {
        control::ToWorker request;
        request.mutable_export_memory()->set_after_serial(last_serial_);
        GANTRY_ASSIGN(const Answer answer, ask(old_, std::move(request)));
        const control::ExportMemoryReply& exported = answer.message.export_memory();
        const auto count = static_cast<std::size_t>(exported.pieces_size());
        if (count != answer.descriptors.size()) {
            return Error{Code::kInvalidArgument, "worker.protocol",
                         std::to_string(answer.descriptors.size()) + " descriptors for " +
                             std::to_string(count) + " pieces of memory"};
        }
        more = exported.more() && count != 0;
        sum_ = exported.sum();
        if (count == 0) {
            break;
        }
        control::ToWorker import;
        *import.mutable_import_memory()->mutable_pieces() = exported.pieces();
        std::vector<int> descriptors;
        for (const control::UniqueFd& descriptor : answer.descriptors) {
            descriptors.push_back(descriptor.get());
        }
        GANTRY_TRY(ask(fresh_, std::move(import), descriptors));
        last_serial_ = exported.pieces().rbegin()->serial();
    }
    report_.pieces = sum_.count();
    report_.bytes_handed_over = sum_.bytes();
    return {};
}

Result<control::UniqueFd> Job::new_images(std::uint64_t* bytes) {
    control::ToWorker request;
    request.mutable_get_images()->mutable_known_sha256()->Assign(images_sent_.begin(),
                                                                 images_sent_.end());
    GANTRY_ASSIGN(Answer answer, ask(old_, std::move(request)));
    *bytes = answer.message.images().bytes();
    GANTRY_ASSIGN(const std::string serialised, blob_of(answer.descriptors, *bytes));
    control::ImageList list;
    if (!list.ParseFromString(serialised)) {
        return Error{Code::kInvalidArgument, "worker.protocol", "a damaged list of images"};
    }
    for (const control::ImageBytes& image : list.images()) {
        images_sent_.push_back(image.sha256());
    }
    return *bytes == 0 ? Result<control::UniqueFd>(control::UniqueFd())
                       : control::make_blob(serialised);
}

Result<void> Job::copy_run(control::BlockRun run) {
    control::ToWorker read;
    read.mutable_read_blocks()->set_arena_id(kArena);
    *read.mutable_read_blocks()->add_runs() = run;
    GANTRY_ASSIGN(const Answer copied, ask(old_, std::move(read)));
    control::ToWorker apply;
    apply.mutable_apply_blocks()->set_arena_id(kArena);
    for (const control::BlockRun& there : copied.message.read_blocks().runs()) {
        control::IncomingRun* incoming = apply.mutable_apply_blocks()->add_runs();
        *incoming->mutable_run() = there;
        incoming->set_form(control::IncomingRun::FORM_BYTES);
    }
    GANTRY_TRY(ask(fresh_, std::move(apply)));
    return {};
}

Result<void> Job::copy_round(std::uint64_t* bytes) {
    control::ToWorker scan;
    scan.mutable_scan();
    GANTRY_ASSIGN(Answer answer, ask(old_, std::move(scan)));
    google::protobuf::RepeatedPtrField<control::BlockRun> runs = answer.message.scan().runs();
    if (const std::uint64_t size = answer.message.scan().runs_bytes(); size != 0) {
        GANTRY_ASSIGN(const std::string blob, blob_of(answer.descriptors, size));
        control::BlockRunList list;
        if (!list.ParseFromString(blob)) {
            return Error{Code::kInvalidArgument, "worker.protocol", "a damaged list of blocks"};
        }
        runs = std::move(*list.mutable_runs());
    }
    for (control::BlockRun run : runs) {
        while (run.count() != 0) {
            control::BlockRun part = run;
            part.set_count(std::min(run.count(), kBatchBlocks));
            GANTRY_TRY(copy_run(part));
            run.set_first(run.first() + part.count());
            run.set_count(run.count() - part.count());
        }
    }
    *bytes += count_of(runs) * kBlockBytes;
    return {};
}

/// All that the old worker need not stop for.
Result<void> Job::prepare() {
    GANTRY_ASSIGN(seed_, random_seed());
    GANTRY_TRY(attach_arenas());
    control::ToWorker begin;
    *begin.mutable_begin_precopy()->mutable_seed() = seed_;
    begin.mutable_begin_precopy()->set_arena_is_shared(true);
    GANTRY_TRY(ask(old_, std::move(begin)));
    control::ToWorker get;
    get.mutable_get_graph();
    GANTRY_ASSIGN(Answer answer, ask(old_, std::move(get)));
    GANTRY_ASSIGN(const std::string graph,
                  blob_of(answer.descriptors, answer.message.graph().bytes()));
    std::uint64_t images_bytes = 0;
    GANTRY_ASSIGN(const control::UniqueFd images, new_images(&images_bytes));
    GANTRY_TRY(move_pieces());
    GANTRY_ASSIGN(const control::UniqueFd graph_blob, control::make_blob(graph));
    control::ToWorker prepare;
    *prepare.mutable_prepare()->mutable_seed() = seed_;
    prepare.mutable_prepare()->set_graph_bytes(graph.size());
    prepare.mutable_prepare()->set_images_bytes(images_bytes);
    prepare.mutable_prepare()->set_arena_is_shared(true);
    std::vector<int> descriptors = {graph_blob.get()};
    if (images.valid()) {
        descriptors.push_back(images.get());
    }
    GANTRY_TRY(ask(fresh_, std::move(prepare), descriptors));
    return copy_round(&report_.bytes_copied);
}

Result<void> Job::freeze() {
    paused_at_ = Clock::now();
    control::ToWorker request;
    request.mutable_freeze()->mutable_token()->set_migration_low(seed_.low());
    request.mutable_freeze()->mutable_token()->set_migration_high(seed_.high());
    request.mutable_freeze()->mutable_token()->set_count(1);
    request.mutable_freeze()->set_deadline_us(options_.freeze_deadline_us);
    GANTRY_ASSIGN(const Answer frozen, ask(old_, std::move(request)));
    is_frozen_ = true;
    report_.drain_us = frozen.message.freeze().drain_us();
    return {};
}

Result<void> Job::send_final() {
    // The graph before the memory: taking it may give spare memory back.
    GANTRY_TRY(copy_round(&report_.bytes_copied_frozen));
    report_.bytes_copied += report_.bytes_copied_frozen;
    control::ToWorker final_part;
    final_part.mutable_final_part();
    GANTRY_ASSIGN(Answer answer, ask(old_, std::move(final_part)));
    const control::Digest expected = answer.message.final_part().digest();
    GANTRY_ASSIGN(const std::string graph,
                  blob_of(answer.descriptors, answer.message.final_part().graph_bytes()));
    GANTRY_TRY(move_pieces());
    std::uint64_t images_bytes = 0;
    GANTRY_ASSIGN(const control::UniqueFd images, new_images(&images_bytes));
    GANTRY_ASSIGN(const control::UniqueFd graph_blob, control::make_blob(graph));
    control::ToWorker apply;
    apply.mutable_apply_final()->set_graph_bytes(graph.size());
    apply.mutable_apply_final()->set_images_bytes(images_bytes);
    *apply.mutable_apply_final()->mutable_digest() = expected;
    *apply.mutable_apply_final()->mutable_memory() = sum_;
    std::vector<int> descriptors = {graph_blob.get()};
    if (images.valid()) {
        descriptors.push_back(images.get());
    }
    GANTRY_TRY(ask(fresh_, std::move(apply), descriptors));
    control::ToWorker get_digest;
    get_digest.mutable_get_digest();
    GANTRY_ASSIGN(const Answer digest, ask(fresh_, std::move(get_digest)));
    if (digest.message.digest().SerializeAsString() != expected.SerializeAsString()) {
        return Error{Code::kDataLoss, "snapshot.digest",
                     "what was copied of module variables and arrays differs between old and "
                     "fresh worker; the old one goes on"};
    }
    return {};
}

Result<void> Job::attach_guest() {
    control::ToWorker lend;
    lend.mutable_release()->set_return_guest(true);
    lend.mutable_release()->set_lend(true);
    GANTRY_ASSIGN(const Answer lent, ask(old_, std::move(lend)));
    control::ToWorker attach;
    attach.mutable_activate()->set_epoch(options_.epoch);
    attach.mutable_activate()->set_stay_back(true);
    *attach.mutable_activate()->mutable_guest() = lent.message.release().guest();
    std::vector<int> descriptors;
    for (const control::UniqueFd& descriptor : lent.descriptors) {
        descriptors.push_back(descriptor.get());
    }
    GANTRY_TRY(ask(fresh_, std::move(attach), descriptors));
    return {};
}

Result<void> Job::change_over() {
    control::ToWorker alive;  // The old worker is about to let go: is anybody there?
    alive.mutable_status();
    GANTRY_TRY(ask(fresh_, std::move(alive)));
    owner_ = Owner::kNobody;
    control::ToWorker release;
    release.mutable_release()->set_return_guest(true);
    if (auto released = ask(old_, std::move(release)); !released.ok()) {
        // It may have let go or not, and must not serve beside the fresh one, which has all it
        // needs.
        old_.kill();
    }
    options_.at_step(Step::kReleased);
    control::ToWorker activate;
    activate.mutable_activate()->set_epoch(options_.epoch);
    GANTRY_TRY(ask(fresh_, std::move(activate)));
    owner_ = Owner::kFresh;
    report_.pause_us = us_since(paused_at_);
    options_.at_step(Step::kActivated);
    return {};
}

Result<void> Job::detach_arena(Endpoint& worker) {
    control::ToWorker detach;
    detach.mutable_detach_arena()->set_arena_id(kArena);
    GANTRY_TRY(ask(worker, std::move(detach)));
    return {};
}

Result<void> Job::hand_over() {
    GANTRY_TRY(check());
    options_.at_step(Step::kChecked);
    GANTRY_TRY(prepare());
    options_.at_step(Step::kPrepared);
    GANTRY_TRY(freeze());
    options_.at_step(Step::kFrozen);
    GANTRY_TRY(send_final());
    options_.at_step(Step::kFinal);
    // Now, as a driver may wait for the device before it gives page-locked memory back, and once
    // the fresh worker serves, a host callback of the guest's may keep the device at work.
    GANTRY_TRY(detach_arena(fresh_));
    GANTRY_TRY(attach_guest());
    options_.at_step(Step::kAttached);
    return change_over();
}

Outcome Job::run() {
    const auto begin = Clock::now();
    const Result<void> done = hand_over();
    report_.total_us = us_since(begin);
    if (done.ok()) {
        return {report_, owner_};
    }
    if (owner_ == Owner::kOld) {
        if (is_frozen_) {
            control::ToWorker thaw;
            thaw.mutable_thaw();
            if (!ask(old_, std::move(thaw)).ok()) {
                owner_ = Owner::kNobody;
            }
        }
        control::ToWorker end;
        end.mutable_end_precopy();
        (void)ask(old_, std::move(end));
        if (!detach_arena(old_).ok()) {
            owner_ = Owner::kNobody;
        }
    }
    return {done.error(), owner_};
}

}  // namespace

const char* to_string(Step step) {
    constexpr const char* kNames[] = {"checked",  "prepared", "frozen",   "final",
                                      "attached", "released", "activated"};
    return kNames[static_cast<int>(step)];
}

std::string Report::to_json() const {
    const auto field = [](const char* name, std::uint64_t value) {
        return std::string("\"") + name + "\":" + std::to_string(value);
    };
    return "{" + field("pieces", pieces) + "," + field("bytes_handed_over", bytes_handed_over) +
           "," + field("bytes_copied", bytes_copied) + "," +
           field("bytes_copied_frozen", bytes_copied_frozen) + "," + field("drain_us", drain_us) +
           "," + field("pause_us", pause_us) + "," + field("total_us", total_us) + "}";
}

Outcome replace(Endpoint& old_worker, Endpoint& fresh, const Options& options) {
    return Job(old_worker, fresh, options).run();
}

}  // namespace gantry::replacement
