#include "host-daemon/replacement/job.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>

#include "proto/base/random.h"
#include "proto/control/channel.h"

namespace gantry::replacement {
namespace {

constexpr std::uint32_t kArena = 7;
/// Of variables and arrays alone, and of all memory; two of the latter are page-locked by both
/// workers.
constexpr std::uint32_t kSmallBatchBlocks = 64;
constexpr std::uint32_t kBatchBlocks = 512;

std::string name_of(const control::ToWorker& request) {
    const auto* field = control::ToWorker::descriptor()->FindFieldByNumber(
        static_cast<int>(request.request_case()));
    std::string name(field != nullptr ? field->name() : "unknown");
    const bool is_paced =
        request.scan().share_percent() != 0 || request.pull_blocks().share_percent() != 0;
    return is_paced ? name + " paced" : name;
}

}  // namespace

Result<Answer> Job::ask(Endpoint& worker, control::ToWorker request,
                        const std::vector<int>& descriptors) {
    std::string name = name_of(request);
    const auto begin = Clock::now();
    auto answer = worker.call(std::move(request), descriptors);
    timeline_.note(&worker == &old_ ? Whom::kOld : Whom::kFresh, std::move(name), begin,
                   Clock::now());
    return answer;
}

std::uint64_t count_of(const Runs& runs) {
    std::uint64_t count = 0;
    for (const control::BlockRun& run : runs) {
        count += run.count();
    }
    return count;
}

void Job::lap(const char* step) {
    const auto now = Clock::now();
    report_.pause_steps.emplace_back(
        step, static_cast<std::uint64_t>(
                  std::chrono::duration_cast<std::chrono::microseconds>(now - lap_at_).count()));
    lap_at_ = now;
}

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
    GANTRY_TRY(check_devices(from.device(), to.device()));
    if (from.limits().device_memory_bytes() != to.limits().device_memory_bytes()) {
        return Error{Code::kFailedPrecondition, "handover.limits",
                     "old and fresh worker have different memory quotas"};
    }
    return {};
}

Result<void> Job::attach_arenas(Staging staging) {
    batch_blocks_ = staging == Staging::kAll ? kBatchBlocks : kSmallBatchBlocks;
    staging_ = control::UniqueFd(memfd_create("gantry-replacement", MFD_CLOEXEC));
    const std::uint64_t bytes = 2 * batch_blocks_ * kBlockBytes;
    if (!staging_.valid() || ftruncate(staging_.get(), static_cast<off_t>(bytes)) != 0) {
        return Error{Code::kResourceExhausted, "worker.arena", std::strerror(errno)};
    }
    for (Endpoint* worker : {&old_, &fresh_}) {
        (void)detach_arena(*worker);  // Of a replacement that was cut short, or a smaller one.
        control::ToWorker request;
        request.mutable_attach_arena()->set_arena_id(kArena);
        request.mutable_attach_arena()->set_bytes(bytes);
        request.mutable_attach_arena()->set_pageable(staging == Staging::kFew);
        GANTRY_TRY(ask(*worker, std::move(request), {staging_.get()}));
    }
    return {};
}

Result<control::UniqueFd> Job::new_images(std::uint64_t* bytes) {
    control::ToWorker request;
    request.mutable_get_images()->mutable_known_sha256()->Assign(images_sent_.begin(),
                                                                 images_sent_.end());
    GANTRY_ASSIGN(Answer answer, ask(old_, std::move(request)));
    *bytes = answer.message.images().bytes();
    if (*bytes == 0) {
        return control::UniqueFd();
    }
    GANTRY_ASSIGN(const control::MappedBlob blob,
                  control::take_blob(answer.descriptors, 0, *bytes));
    control::ImageList list;
    GANTRY_TRY(blob.parse(&list));
    for (const control::ImageBytes& image : list.images()) {
        images_sent_.push_back(image.sha256());
    }
    return control::make_blob(blob.bytes());
}

Result<void> Job::begin_precopy(bool arena_is_shared, Staging staging) {
    const auto [low, high] = random_bits();
    seed_.set_low(low);
    seed_.set_high(high);
    GANTRY_TRY(attach_arenas(staging));
    control::ToWorker begin;
    *begin.mutable_begin_precopy()->mutable_seed() = seed_;
    begin.mutable_begin_precopy()->set_arena_is_shared(arena_is_shared);
    GANTRY_TRY(ask(old_, std::move(begin)));
    return {};
}

Result<Job::Parcel> Job::take_graph() {
    Parcel parcel;
    control::ToWorker get;
    get.mutable_get_graph();
    GANTRY_ASSIGN(Answer answer, ask(old_, std::move(get)));
    GANTRY_ASSIGN(const control::MappedBlob graph,
                  control::take_blob(answer.descriptors, 0, answer.message.graph().bytes()));
    parcel.graph = graph.text();
    GANTRY_ASSIGN(parcel.images, new_images(&parcel.images_bytes));
    return parcel;
}

Result<Job::Parcel> Job::take_final() {
    Parcel parcel;
    control::ToWorker request;
    request.mutable_final_part();
    GANTRY_ASSIGN(Answer answer, ask(old_, std::move(request)));
    parcel.digest = answer.message.final_part().digest();
    GANTRY_ASSIGN(
        const control::MappedBlob graph,
        control::take_blob(answer.descriptors, 0, answer.message.final_part().graph_bytes()));
    parcel.graph = graph.text();
    GANTRY_ASSIGN(parcel.images, new_images(&parcel.images_bytes));
    return parcel;
}

Result<void> Job::send_graph(const Parcel& parcel, control::ToWorker request) {
    GANTRY_ASSIGN(const control::UniqueFd graph_blob, control::make_blob(parcel.graph));
    std::vector<int> descriptors = {graph_blob.get()};
    if (parcel.images.valid()) {
        descriptors.push_back(parcel.images.get());
    }
    GANTRY_TRY(ask(fresh_, std::move(request), descriptors));
    return {};
}

Result<void> Job::send_prepare(const Parcel& parcel, bool arena_is_shared) {
    control::ToWorker request;
    control::Prepare* prepare = request.mutable_prepare();
    *prepare->mutable_seed() = seed_;
    prepare->set_graph_bytes(parcel.graph.size());
    prepare->set_images_bytes(parcel.images_bytes);
    prepare->set_arena_is_shared(arena_is_shared);
    prepare->set_new_memory_comes(report_.way == Way::kPeer);
    prepare->set_counted_elsewhere(true);
    return send_graph(parcel, std::move(request));
}

Result<void> Job::apply_final(const Parcel& parcel, const control::MemorySum* memory) {
    control::ToWorker request;
    control::ApplyFinal* apply = request.mutable_apply_final();
    apply->set_graph_bytes(parcel.graph.size());
    apply->set_images_bytes(parcel.images_bytes);
    *apply->mutable_digest() = parcel.digest;
    apply->set_region_stays(true);
    apply->set_new_memory_comes(report_.way == Way::kPeer);
    if (memory != nullptr) {
        *apply->mutable_memory() = *memory;
    }
    return send_graph(parcel, std::move(request));
}

Result<Job::Scanned> Job::scan(ScanHow how, unsigned share_percent) {
    control::ToWorker request;
    request.mutable_scan()->set_share_percent(share_percent);
    request.mutable_scan()->set_look(how == ScanHow::kLook);
    GANTRY_ASSIGN(Answer answer, ask(old_, std::move(request)));
    const control::ScanReply& reply = answer.message.scan();
    Scanned scanned{reply.runs(), reply.digest(), reply.elapsed_us() - reply.rest_us(),
                    reply.rest_us()};
    if (const std::uint64_t size = reply.runs_bytes(); size != 0) {
        control::BlockRunList list;
        GANTRY_TRY(control::parse_blob(answer.descriptors, 0, size, &list));
        scanned.runs = std::move(*list.mutable_runs());
    }
    return scanned;
}

std::vector<Runs> Job::batches_of(const Runs& runs) const {
    std::vector<Runs> batches;
    std::uint32_t room = 0;
    for (control::BlockRun run : runs) {
        while (run.count() != 0) {
            if (room == 0) {
                batches.emplace_back();
                room = batch_blocks_;
            }
            control::BlockRun* part = batches.back().Add();
            *part = run;
            part->set_count(std::min(run.count(), room));
            room -= part->count();
            run.set_first(run.first() + part->count());
            run.set_count(run.count() - part->count());
        }
    }
    return batches;
}

Result<control::ToWorker> Job::read_batch(const Runs& runs, std::uint64_t offset) {
    control::ToWorker read;
    read.mutable_read_blocks()->set_arena_id(kArena);
    read.mutable_read_blocks()->set_offset(offset);
    *read.mutable_read_blocks()->mutable_runs() = runs;
    GANTRY_ASSIGN(const Answer copied, ask(old_, std::move(read)));
    control::ToWorker apply;
    apply.mutable_apply_blocks()->set_arena_id(kArena);
    apply.mutable_apply_blocks()->set_offset(offset);
    for (const control::BlockRun& there : copied.message.read_blocks().runs()) {
        control::IncomingRun* incoming = apply.mutable_apply_blocks()->add_runs();
        *incoming->mutable_run() = there;
        incoming->set_form(control::IncomingRun::FORM_BYTES);
    }
    return apply;
}

Result<control::MemorySum> Job::transfer_pieces(PiecesAs as, std::uint64_t* serial,
                                                const std::function<void(const Pieces&)>& taken) {
    for (;;) {
        control::ToWorker request;
        request.mutable_export_memory()->set_after_serial(*serial);
        GANTRY_ASSIGN(const Answer answer, ask(old_, std::move(request)));
        const control::ExportMemoryReply& exported = answer.message.export_memory();
        const auto count = static_cast<std::size_t>(exported.pieces_size());
        if (count != answer.descriptors.size()) {
            return Error{Code::kInvalidArgument, "worker.protocol",
                         std::to_string(answer.descriptors.size()) + " descriptors for " +
                             std::to_string(count) + " pieces of memory"};
        }
        if (count == 0) {
            return exported.sum();
        }
        control::ToWorker import;
        *import.mutable_import_memory()->mutable_pieces() = exported.pieces();
        import.mutable_import_memory()->set_as_window(as == PiecesAs::kWindow);
        std::vector<int> descriptors;
        for (const control::UniqueFd& descriptor : answer.descriptors) {
            descriptors.push_back(descriptor.get());
        }
        GANTRY_TRY(ask(fresh_, std::move(import), descriptors));
        taken(exported.pieces());
        *serial = exported.pieces().rbegin()->serial();
        if (!exported.more()) {
            return exported.sum();
        }
    }
}

/// The fresh worker writes one batch while the old one reads the next to the other half.
Result<void> Job::copy_staged(const Runs& runs) {
    std::future<Result<void>> writing;
    std::uint64_t half = 0;
    for (const Runs& batch : batches_of(runs)) {
        auto apply = read_batch(batch, half * batch_blocks_ * kBlockBytes);
        if (writing.valid()) {
            GANTRY_TRY(writing.get());
        }
        if (!apply.ok()) {
            return apply.error();
        }
        half = 1 - half;
        writing = std::async(std::launch::async, [this, request = std::move(*apply)]() mutable {
            auto written = ask(fresh_, std::move(request));
            return written.ok() ? Result<void>{} : Result<void>(written.error());
        });
    }
    return writing.valid() ? writing.get() : Result<void>{};
}

Result<void> Job::freeze() {
    paused_at_ = lap_at_ = Clock::now();
    control::ToWorker request;
    request.mutable_freeze()->mutable_token()->set_migration_low(seed_.low());
    request.mutable_freeze()->mutable_token()->set_migration_high(seed_.high());
    request.mutable_freeze()->mutable_token()->set_count(1);
    request.mutable_freeze()->set_deadline_us(options_.freeze_deadline_us);
    GANTRY_ASSIGN(const Answer frozen, ask(old_, std::move(request)));
    is_frozen_ = true;
    report_.drain_us = frozen.message.freeze().drain_us();
    lap("freeze");
    return {};
}

Result<void> Job::verify(const control::Digest& expected, const char* what) {
    control::ToWorker request;
    request.mutable_get_digest();
    GANTRY_ASSIGN(const Answer answer, ask(fresh_, std::move(request)));
    lap("digest");
    const control::Digest& held = answer.message.digest();
    if (held.SerializeAsString() != expected.SerializeAsString()) {
        return Error{Code::kDataLoss, "snapshot.digest",
                     std::string(what) + " of old and fresh worker differs (" +
                         std::to_string(expected.block_count()) + " and " +
                         std::to_string(held.block_count()) + " blocks); the old one goes on"};
    }
    return {};
}

Result<void> Job::attach_early() {
    control::ToWorker lend;
    lend.mutable_release()->set_return_guest(true);
    lend.mutable_release()->set_lend(true);
    GANTRY_ASSIGN(const Answer lent, ask(old_, std::move(lend)));
    control::ToWorker attach;
    *attach.mutable_attach_guest()->mutable_guest() = lent.message.release().guest();
    std::vector<int> descriptors;
    for (const control::UniqueFd& descriptor : lent.descriptors) {
        descriptors.push_back(descriptor.get());
    }
    GANTRY_TRY(ask(fresh_, std::move(attach), descriptors));
    return {};
}

Result<void> Job::attach_guest() {
    control::ToWorker attach;
    attach.mutable_activate()->set_epoch(options_.epoch);
    attach.mutable_activate()->set_stay_back(true);
    GANTRY_TRY(ask(fresh_, std::move(attach)));
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
    lap("release");
    options_.at_step(Step::kReleased);
    control::ToWorker activate;
    activate.mutable_activate()->set_epoch(options_.epoch);
    GANTRY_TRY(ask(fresh_, std::move(activate)));
    owner_ = Owner::kFresh;
    lap("activate");
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

Result<void> Job::replace() {
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
    lap("detach");
    GANTRY_TRY(attach_guest());
    lap("attach");
    options_.at_step(Step::kAttached);
    return change_over();
}

void Job::go_back() {
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

Outcome Job::run() {
    const auto begin = Clock::now();
    const Result<void> done = replace();
    report_.total_us = us_since(begin);
    report_.begun_us = timeline_.begun_us();
    report_.spans = timeline_.spans();
    if (done.ok()) {
        tidy_up();
        return {report_, owner_};
    }
    if (owner_ == Owner::kOld) {
        go_back();
    }
    return {done.error(), owner_};
}

}  // namespace gantry::replacement
