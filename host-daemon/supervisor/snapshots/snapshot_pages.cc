#include "host-daemon/supervisor/snapshots/snapshot_pages.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <limits>
#include <thread>

#include "host-daemon/supervisor/parts/part_files.h"
#include "host-daemon/supervisor/snapshots/snapshot_room.h"
#include "proto/snapshot/large_pages.h"

namespace gantry::supervisor {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kLargePage = snapshot::kLargePageBytes;
/// Of a file's first sections; of a part's graph and what surrounds it; of an object in a graph.
constexpr std::uint64_t kHeaderBytes = 64U << 10;
constexpr std::uint64_t kGraphBytes = 256U << 10;
constexpr std::uint64_t kObjectBytes = 256;
/// The most of a part: of memory where no quota is set, and what a worker and a mirror may hold.
constexpr std::uint64_t kResidentMax = std::uint64_t{1} << 40;
constexpr std::uint64_t kImagesMax = std::uint64_t{4} << 30;
constexpr std::uint64_t kObjectsMax = 1U << 20;
constexpr std::uint64_t kMirrorMax = std::uint64_t{4} << 30;
/// An entry of a part's table.
constexpr std::uint64_t kEntryBytes = 64;
/// Between two questions to a worker: at first, and at most.
constexpr std::chrono::milliseconds kAskFirst{1};
constexpr std::chrono::milliseconds kAskMost{20};
/// How long a worker may take to let a file go.
constexpr std::chrono::seconds kLettingGo{10};

struct Part {
    std::shared_ptr<Worker> worker;
    PartEstimate estimate;
};

/// What a part holds now, as its worker says; nothing of one that does not.
Part look_at(Session& session, const std::shared_ptr<Worker>& worker) {
    Part part{worker, {}};
    control::ToWorker request;
    request.mutable_describe();
    const auto reply = worker->call(std::move(request), kQuickCall);
    if (!reply) {
        spdlog::info("session {}: nothing is prepared for worker {}: {}", session.info().id,
                     worker->part().value, reply.error().to_string());
        return part;
    }
    const control::DescribeReply& described = reply->message.describe();
    // A worker may say anything; it can have no more than this.
    const std::uint64_t quota = session.info().quota_bytes;
    const std::uint64_t resident =
        std::min(described.resident_bytes(), quota != 0 ? quota : kResidentMax);
    part.estimate.block_count = resident / engine::kBlockBytes;
    part.estimate.stored_bytes = resident;
    part.estimate.other_bytes =
        std::min(described.image_bytes(), kImagesMax) + kGraphBytes +
        std::min(described.object_count(), kObjectsMax) * kObjectBytes +
        std::min({described.mirror_region_bytes(), described.pinned_bytes(), kMirrorMax});
    return part;
}

/// To what offset pages are made ahead: an estimate may be far too high where much is zero. Of a
/// disk with so much room a part is left to others; of memory, which the pages of a file on tmpfs
/// are, a quarter of what the system can give: a session may hold half of a host's memory.
std::uint64_t pages_end_max(int file, std::uint64_t room) {
    if (!snapshot::is_on_tmpfs(file)) {
        return room / 16 * 15 / kLargePage * kLargePage;
    }
    std::ifstream text("/proc/meminfo");
    std::string word;
    std::uint64_t kib = 0;
    while (text >> word) {
        if (word == "MemAvailable:" && text >> kib) {
            break;
        }
    }
    return kib * 1024 / 4 * 3 / kLargePage * kLargePage;
}

void drop_at(Worker& worker) {
    control::ToWorker request;
    request.mutable_drop_prepared_file();
    (void)worker.call(std::move(request), kQuickCall);
}

/// Asks until `is_enough` of a reply; nothing: the worker does not answer, or not in time.
template <typename IsEnough, typename MayGoOn>
Result<control::PreparedFileReply> ask(Worker& worker, Clock::time_point until,
                                       const MayGoOn& may_go_on, IsEnough is_enough) {
    for (auto pause = kAskFirst;; pause = std::min(2 * pause, kAskMost)) {
        control::ToWorker request;
        request.mutable_ask_prepared_file();
        GANTRY_ASSIGN(const WorkerReply reply, worker.call(std::move(request), kQuickCall));
        const control::PreparedFileReply& now = reply.message.prepared_file();
        if (is_enough(now)) {
            return now;
        }
        if (Clock::now() > until) {
            return Error{Code::kDeadlineExceeded, "worker.deadline",
                         "the file is not as it should be by now"};
        }
        GANTRY_TRY(may_go_on());
        std::this_thread::sleep_for(pause);
    }
}

}  // namespace

std::vector<snapshot::FileRange> lay_out(std::span<const PartEstimate> parts,
                                         std::uint64_t end_max) {
    std::vector<snapshot::FileRange> ranges;
    std::uint64_t at = kHeaderBytes;
    std::uint64_t begin = 0;
    for (const PartEstimate& part : parts) {
        const std::uint64_t table_end = at + part.other_bytes + part.block_count * kEntryBytes;
        at = snapshot::round_up(table_end, kLargePage) + part.stored_bytes;
        const std::uint64_t end = snapshot::round_up(at, kLargePage);
        ranges.push_back({std::min(begin, end_max), std::min(end, end_max)});
        begin = end;
    }
    return ranges;
}

Result<SnapshotPages> SnapshotPages::prepare(Session& session, SourceRunner& driver, int file,
                                             const std::string& name, Made made,
                                             const MayGoOn& may_go_on) {
    auto pages = make(session, file, name, made, may_go_on);
    if (pages || pages.error().reason != "snapshot.disk_full") {
        return pages;
    }
    // Not for all that is held; but what is zero, or there twice, takes none.
    (void)::ftruncate(file, 0);
    const auto stored = stored_bytes_now(session, driver);
    GANTRY_TRY(may_go_on());
    const std::uint64_t room = snapshot::free_bytes(file);
    if (stored && *stored > room) {
        return Error{Code::kResourceExhausted, "snapshot.disk_full",
                     fmt::format("{}; {} MiB are to be stored, there is room for {} MiB",
                                 pages.error().text, *stored >> 20, room >> 20)};
    }
    SnapshotPages none;
    none.how_ = "not ahead: " + pages.error().text;
    return none;
}

Result<SnapshotPages> SnapshotPages::make(Session& session, int file, const std::string& name,
                                          Made made, const MayGoOn& may_go_on) {
    std::vector<Part> parts;
    std::vector<PartEstimate> estimates;
    for (const auto& worker : session.workers().all()) {
        parts.push_back(look_at(session, worker));
        estimates.push_back(parts.back().estimate);
        // An earlier snapshot's pages may be on their way out, and take room until then.
        drop_at(*worker);
        (void)ask(*worker, Clock::now() + kLettingGo, may_go_on,
                  [](const control::PreparedFileReply& now) { return !now.is_there(); });
        GANTRY_TRY(may_go_on());
    }
    SnapshotPages pages;
    if (parts.empty()) {
        return pages;
    }
    const std::uint64_t room = snapshot::free_bytes(file);
    const std::uint64_t wanted =
        lay_out(estimates, std::numeric_limits<std::uint64_t>::max()).back().end;
    if (wanted > room) {
        return snapshot::write_error(ENOSPC, name, room);
    }
    const std::vector<snapshot::FileRange> ranges = lay_out(estimates, pages_end_max(file, room));
    const std::uint64_t end = ranges.back().end;
    const std::string size = std::to_string(end >> 20) + " MiB ";
    const bool is_memory = snapshot::is_on_tmpfs(file);
    if (!is_memory || (made == Made::kWhenWritten && snapshot::has_large_pages(file))) {
        const auto reserved =
            snapshot::reserve_room(file, name, {0, end}, [&] { return may_go_on().ok(); });
        GANTRY_TRY(may_go_on());
        GANTRY_TRY(reserved);
        pages.how_ = size + (is_memory ? "reserved, to be made when written" : "reserved");
        return pages;
    }
    GANTRY_TRY(snapshot::grow_file(file, name, end));
    if (made == Made::kWhenWritten) {
        pages.how_ = size + "to be made when written";
        return pages;
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
        if (ranges[i].bytes() != 0) {
            pages.prepare_by(session, parts[i].worker, file, ranges[i]);
        }
    }
    for (const auto& worker : std::vector(pages.preparing_)) {
        GANTRY_TRY(pages.await(session, worker, end, may_go_on));
    }
    return pages;
}

/// Has the worker begin.
void SnapshotPages::prepare_by(Session& session, const std::shared_ptr<Worker>& worker, int file,
                               const snapshot::FileRange& range) {
    control::ToWorker request;
    request.mutable_prepare_file()->set_offset(range.begin);
    request.mutable_prepare_file()->set_bytes(range.bytes());
    preparing_.push_back(worker);  // Also one that answers late.
    if (const auto begun = worker->call(std::move(request), kQuickCall, {&file, 1}); !begun) {
        spdlog::info("session {}: worker {} prepares nothing: {}", session.info().id,
                     worker->part().value, begun.error().to_string());
    }
}

/// Until the worker has done what it was asked for, of `bytes` at most.
Result<void> SnapshotPages::await(Session& session, const std::shared_ptr<Worker>& worker,
                                  std::uint64_t bytes, const MayGoOn& may_go_on) {
    const auto done =
        ask(*worker, Clock::now() + patience_for(bytes), may_go_on,
            [](const control::PreparedFileReply& now) { return now.is_done() || !now.is_there(); });
    GANTRY_TRY(may_go_on());
    if (done && done->failure().reason() == "snapshot.disk_full") {
        return to_error(done->failure());
    }
    how_ += how_.empty() ? "" : "; ";
    how_ += done ? done->how() : done.error().to_string();
    if (done && done->failure().code() != 0) {
        how_ += " (" + done->failure().text() + ")";
    }
    if (!done) {
        spdlog::info("session {}: worker {} prepares no more: {}", session.info().id,
                     worker->part().value, done.error().to_string());
    }
    return {};
}

void SnapshotPages::leave() {
    drop();
    preparing_.clear();
}

void SnapshotPages::drop() {
    for (const auto& worker : preparing_) {
        drop_at(*worker);
    }
}

SnapshotPages::~SnapshotPages() {
    drop();
    const auto until = Clock::now() + kLettingGo;
    for (const auto& worker : preparing_) {
        (void)ask(
            *worker, until, [] { return Result<void>(); },
            [](const control::PreparedFileReply& now) { return !now.is_there(); });
    }
}

}  // namespace gantry::supervisor
