// WorkersSource: see worker_state.h.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "host-daemon/supervisor/parts/worker_blocks.h"
#include "host-daemon/supervisor/parts/worker_state.h"

namespace gantry::supervisor {
namespace {

/// A part of 1 TiB has 16 Mi blocks: more than that is no list of a scan.
constexpr std::uint64_t kScanBlocksMax = 1ULL << 24;
/// Percent of the time, that a scan may keep a GPU whose guest is served.
constexpr unsigned kScanShare = 50;
/// A graph or a list of images of more cannot be parsed.
constexpr std::uint64_t kParsedBytesMax = (1ULL << 31) - 1;
/// For the last worker of a session whose others took all the time there was.
constexpr std::chrono::microseconds kFreezeLeast{100'000};

control::FreezeToken to_proto(const engine::FreezeToken& token) {
    control::FreezeToken out;
    out.set_migration_low(token.migration.low);
    out.set_migration_high(token.migration.high);
    out.set_count(token.count);
    return out;
}

class StagedInSlot final : public engine::StagedBlocks {
public:
    StagedInSlot(StagingSlot slot, std::vector<engine::BlockAddress> blocks,
                 std::vector<engine::Fingerprint> fingerprints)
        : slot_(std::move(slot)),
          blocks_(std::move(blocks)),
          fingerprints_(std::move(fingerprints)) {}

    std::size_t count() const override { return blocks_.size(); }
    engine::BlockAddress address(std::size_t i) const override { return blocks_.at(i); }
    std::span<const std::byte, engine::kBlockBytes> bytes(std::size_t i) const override {
        return slot_.bytes().subspan(i * engine::kBlockBytes).first<engine::kBlockBytes>();
    }
    engine::Fingerprint fingerprint(std::size_t i) const override { return fingerprints_.at(i); }

private:
    StagingSlot slot_;
    std::vector<engine::BlockAddress> blocks_;
    std::vector<engine::Fingerprint> fingerprints_;
};

Result<std::string> text_of(WorkerReply& reply, std::uint64_t bytes) {
    GANTRY_ASSIGN(const control::MappedBlob blob,
                  control::take_blob(reply.descriptors, 0, bytes, kParsedBytesMax));
    return std::string(blob.text());
}

void add_module(const control::Module& from, engine::PartId part, engine::SessionNeeds* needs) {
    engine::ModuleNeed module;
    module.part = part;
    module.image_sha256 = from.image_sha256();
    module.name = from.name();
    module.has_address_bound_globals = from.has_address_bound_globals();
    for (const control::ModuleCode& code : from.code()) {
        module.code.push_back({{code.major(), code.minor()},
                               static_cast<engine::CodeScope>(code.scope()),
                               code.is_ptx(),
                               code.ptx_isa_version()});
    }
    needs->modules.push_back(std::move(module));
}

/// One worker's description into the session's: the strictest of all parts wins.
void merge(const control::DescribeReply& from, engine::PartId part, engine::SessionNeeds* needs) {
    needs->parts.push_back({part, from.process_name(), from.guest_pid(), from.resident_bytes(),
                            from.pinned_bytes(), from.mirror_region_bytes(), from.table_hash(),
                            from.beside_bytes()});
    needs->cc_seen = {from.cc_seen_major(), from.cc_seen_minor()};
    needs->cc_min = std::max(needs->cc_min, {from.cc_min_major(), from.cc_min_minor()});
    if (from.soft_only()) {
        needs->profile = engine::ProfileKind::kSoftOnly;
    }
    needs->profile_name = from.profile_name();
    for (const control::Module& module : from.modules()) {
        add_module(module, part, needs);
    }
    for (const control::AttributeNeed& need : from.attributes()) {
        needs->attributes.push_back({need.attribute(), need.name(), need.value_min()});
    }
    for (const control::Feature& feature : from.blocking()) {
        needs->blocking.push_back({part, feature.id(), feature.detail()});
    }
    needs->driver_version = std::max(needs->driver_version, from.driver_version());
    needs->driver_version_min = std::max(needs->driver_version_min, from.driver_version_min());
    needs->snapshot_version = std::max(needs->snapshot_version, from.snapshot_version());
}

}  // namespace

std::vector<engine::PartId> WorkersSource::parts() const {
    std::vector<engine::PartId> out;
    for (const auto& worker : workers_.all()) {
        out.push_back(worker->part());
    }
    return out;
}

Result<void> WorkersSource::for_each(const EachWorker& ask) {
    for (const auto& worker : workers_.all()) {
        const Result<void> asked = ask(worker);
        if (!asked && !has_left(worker)) {
            return asked;
        }
    }
    return {};
}

/// Since the list was made: its program has ended, and what it would have said matters no more.
bool WorkersSource::has_left(const std::shared_ptr<Worker>& worker) const {
    return workers_.find(worker->part()) != worker;
}

bool WorkersSource::is_frozen() const {
    const MutexLock lock(coming_);
    return is_frozen_;
}

Result<void> WorkersSource::add(const std::shared_ptr<Worker>& worker,
                                const std::function<Result<void>()>& serve) {
    const MutexLock lock(coming_);
    if (is_frozen_) {
        return Error{Code::kUnavailable, kSessionFrozen,
                     "session " + facts_.session_id + " is frozen: its new programs have to wait"};
    }
    GANTRY_TRY(serve());
    workers_.add(worker);
    return {};
}

void WorkersSource::set_suspended(bool suspended) {
    suspended_ = suspended;
    set_frozen(suspended);  // It was frozen for this, and is not thawed.
}

void WorkersSource::set_frozen(bool frozen) {
    const MutexLock lock(coming_);
    is_frozen_ = frozen;
}

Result<engine::SessionNeeds> WorkersSource::describe() {
    if (suspended_) {
        return Error{Code::kFailedPrecondition, "session.suspended",
                     "session " + facts_.session_id +
                         " is suspended into a file; `gantry restore` it first"};
    }
    engine::SessionNeeds needs;
    needs.session_id = facts_.session_id;
    needs.memory_quota_bytes = facts_.quota_bytes;
    needs.cc_min = facts_.cc_min;
    const auto ask = [&](const std::shared_ptr<Worker>& worker) -> Result<void> {
        control::ToWorker request;
        request.mutable_describe();
        GANTRY_ASSIGN(WorkerReply reply, worker->call(std::move(request), kQuickCall));
        control::DescribeReply& described = *reply.message.mutable_describe();
        if (described.modules_bytes() != 0) {
            control::ModuleList modules;
            GANTRY_TRY(
                control::parse_blob(reply.descriptors, 0, described.modules_bytes(), &modules));
            *described.mutable_modules() = std::move(*modules.mutable_modules());
        }
        merge(described, worker->part(), &needs);
        return {};
    };
    GANTRY_TRY(for_each(ask));
    return needs;
}

Result<void> WorkersSource::tell(Worker& worker, bool migrating) {
    control::ToWorker request;
    request.mutable_announce()->set_migrating(migrating);
    GANTRY_TRY(worker.call(std::move(request), kQuickCall));
    return {};
}

Result<void> WorkersSource::announce() {
    return for_each([](const auto& worker) { return tell(*worker, true); });
}

void WorkersSource::announce_to(Worker& worker) { (void)tell(worker, true); }

void WorkersSource::end_announcement() {
    for (const auto& worker : workers_.all()) {
        (void)tell(*worker, false);
    }
}

bool WorkersSource::is_announced() {
    const auto workers = workers_.all();
    return std::any_of(workers.begin(), workers.end(), [](const auto& worker) {
        const auto status = worker->status();
        return status && status->announced();
    });
}

Result<void> WorkersSource::begin(Worker& worker, engine::Seed seed) {
    control::ToWorker request;
    request.mutable_begin_precopy()->mutable_seed()->set_low(seed.low);
    request.mutable_begin_precopy()->mutable_seed()->set_high(seed.high);
    GANTRY_TRY(worker.call(std::move(request), kQuickCall));
    return {};
}

Result<void> WorkersSource::begin_precopy(engine::Seed seed) {
    begun_.clear();
    const auto ask = [&](const auto& worker) -> Result<void> {
        GANTRY_TRY(begin(*worker, seed));
        begun_.insert(worker->part());
        return {};
    };
    GANTRY_TRY(for_each(ask));
    seed_ = seed;
    return {};
}

Result<engine::ScanResult> WorkersSource::scan(engine::PartId part) {
    GANTRY_ASSIGN(auto worker, workers_.need(part));
    if (seed_ && !begun_.contains(part)) {
        GANTRY_TRY(begin(*worker, *seed_));
        begun_.insert(part);
    }
    control::ToWorker request;
    request.mutable_scan()->set_share_percent(kScanShare);
    GANTRY_ASSIGN(WorkerReply reply, worker->call(std::move(request), kLongCall));
    control::ScanReply& scanned = *reply.message.mutable_scan();
    if (scanned.runs_bytes() != 0) {
        control::BlockRunList list;
        GANTRY_TRY(control::parse_blob(reply.descriptors, 0, scanned.runs_bytes(), &list));
        *scanned.mutable_runs() = std::move(*list.mutable_runs());
    }
    engine::ScanResult result;
    GANTRY_ASSIGN(result.changed, expand_runs(scanned.runs(), kScanBlocksMax));
    result.scanned_block_count = scanned.scanned_block_count();
    result.rested = std::chrono::microseconds(scanned.rest_us());
    return result;
}

Result<std::unique_ptr<engine::StagedBlocks>> WorkersSource::read_blocks(
    engine::PartId part, std::span<const engine::BlockAddress> blocks) {
    if (blocks.size() > kBatchBlocks) {
        return Error{Code::kInternal, "staging.batch",
                     fmt::format("{} blocks do not fit the staging area's slot", blocks.size())};
    }
    GANTRY_ASSIGN(auto worker, workers_.need(part));
    GANTRY_ASSIGN(auto staging, workers_.staging(worker));
    StagingSlot slot = staging->acquire();
    control::ToWorker request;
    control::ReadBlocks& read = *request.mutable_read_blocks();
    read.set_arena_id(kStagingArena);
    read.set_offset(slot.offset());
    append_runs(blocks, read.mutable_runs());
    GANTRY_ASSIGN(WorkerReply reply, worker->call(std::move(request), kLongCall));
    const control::ReadBlocksReply& copied = reply.message.read_blocks();
    GANTRY_ASSIGN(auto got, expand_runs(copied.runs(), blocks.size()));
    GANTRY_ASSIGN(auto fingerprints, parse_fingerprints(copied.fingerprints(), got.size()));
    return std::unique_ptr<engine::StagedBlocks>(
        std::make_unique<StagedInSlot>(std::move(slot), std::move(got), std::move(fingerprints)));
}

Result<void> WorkersSource::mark_unsent(engine::PartId part,
                                        std::span<const engine::BlockAddress> blocks) {
    GANTRY_ASSIGN(auto worker, workers_.need(part));
    control::ToWorker request;
    append_runs(blocks, request.mutable_mark_unsent()->mutable_runs());
    GANTRY_TRY(worker->call(std::move(request), kQuickCall));
    return {};
}

Result<std::string> WorkersSource::graph(engine::PartId part) {
    GANTRY_ASSIGN(auto worker, workers_.need(part));
    control::ToWorker request;
    request.mutable_get_graph();
    GANTRY_ASSIGN(WorkerReply reply, worker->call(std::move(request), kLongCall));
    return text_of(reply, reply.message.graph().bytes());
}

Result<std::string> WorkersSource::images(engine::PartId part,
                                          const std::vector<std::string>& known) {
    GANTRY_ASSIGN(auto worker, workers_.need(part));
    control::ToWorker request;
    control::GetImages& get = *request.mutable_get_images();
    for (const std::string& sha256 : known) {
        get.add_known_sha256(sha256);
    }
    GANTRY_ASSIGN(WorkerReply reply, worker->call(std::move(request), kLongCall));
    if (reply.message.images().bytes() == 0) {
        return std::string{};
    }
    return text_of(reply, reply.message.images().bytes());
}

Result<void> WorkersSource::freeze(engine::FreezeToken token, std::chrono::microseconds deadline) {
    set_frozen(true);  // Before the list is made: no worker comes after it.
    const auto end = std::chrono::steady_clock::now() + deadline;
    const Result<void> all_frozen = for_each([&](const auto& worker) -> Result<void> {
        // One deadline for all: while one is asked the others' kernels come to their ends, too.
        const auto left = std::max<std::chrono::microseconds>(
            kFreezeLeast, std::chrono::duration_cast<std::chrono::microseconds>(
                              end - std::chrono::steady_clock::now()));
        control::ToWorker request;
        *request.mutable_freeze()->mutable_token() = to_proto(token);
        request.mutable_freeze()->set_deadline_us(static_cast<std::uint64_t>(left.count()));
        const auto patience =
            std::chrono::duration_cast<std::chrono::milliseconds>(left) + kQuickCall;
        GANTRY_TRY(worker->call(std::move(request), patience));
        return {};
    });
    if (!all_frozen) {
        (void)thaw();  // all parts or none
    }
    return all_frozen;
}

Result<std::optional<engine::FreezeToken>> WorkersSource::frozen_token() {
    std::optional<engine::FreezeToken> common;
    bool is_common = true;
    const auto ask = [&](const auto& worker) -> Result<void> {
        GANTRY_ASSIGN(const control::StatusReply status, worker->status());
        const engine::FreezeToken token{
            {status.frozen().migration_low(), status.frozen().migration_high()},
            status.frozen().count()};
        is_common = is_common && status.has_frozen() && (!common || *common == token);
        common = token;
        return {};
    };
    GANTRY_TRY(for_each(ask));
    if (is_common && common) {
        set_frozen(true);  // Before a restart of gantryd.
    }
    return is_common ? common : std::nullopt;
}

Result<engine::FinalPart> WorkersSource::final_part(engine::PartId part) {
    GANTRY_ASSIGN(auto worker, workers_.need(part));
    control::ToWorker request;
    request.mutable_final_part();
    GANTRY_ASSIGN(WorkerReply reply, worker->call(std::move(request), kLongCall));
    const control::FinalPartReply& got = reply.message.final_part();
    engine::FinalPart out;
    out.part = part;
    out.digest.block_count = got.digest().block_count();
    out.digest.sum = {got.digest().sum_low(), got.digest().sum_high()};
    GANTRY_ASSIGN(out.graph, text_of(reply, got.graph_bytes()));
    return out;
}

/// Every one is told, whatever the others say.
Result<void> WorkersSource::tell_all(const std::function<control::ToWorker()>& request) {
    Result<void> outcome;
    (void)for_each([&](const auto& worker) -> Result<void> {
        if (auto reply = worker->call(request(), kQuickCall); !reply && !has_left(worker)) {
            outcome = reply.error();
        }
        return {};
    });
    return outcome;
}

Result<void> WorkersSource::thaw() {
    const Result<void> outcome = tell_all([] {
        control::ToWorker request;
        request.mutable_thaw();
        return request;
    });
    set_frozen(false);
    return outcome;
}

Result<void> WorkersSource::fence(bool guest_is_here) {
    if (facts_.shares_region_with_target) {
        return {};
    }
    return tell_all([guest_is_here] {
        control::ToWorker request;
        request.mutable_fence()->set_guest_is_here(guest_is_here);
        return request;
    });
}

Result<void> WorkersSource::unfence(Epoch epoch) {
    return tell_all([epoch] {
        control::ToWorker request;
        request.mutable_unfence()->set_epoch(epoch.value);
        return request;
    });
}

void WorkersSource::end_precopy() {
    seed_.reset();
    for (const auto& worker : workers_.all()) {
        control::ToWorker end;
        end.mutable_end_precopy();
        (void)worker->call(std::move(end), kQuickCall);
    }
    workers_.drop_staging();
}

Result<void> WorkersSource::release() {
    for (const auto& worker : workers_.all()) {
        control::ToWorker request;
        request.mutable_release();
        (void)worker->call(std::move(request), kLongCall);
        worker->end();
        workers_.remove(worker->part());
    }
    return {};
}

}  // namespace gantry::supervisor
