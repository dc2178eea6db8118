#include "tests/sim/carriers/workers.h"

#include <lz4.h>

#include <algorithm>
#include <cstring>

#include "proto/control/worker.pb.h"
#include "proto/snapshot/fingerprint.h"

namespace gantry::sim {
namespace {

const Error kGone{Code::kUnavailable, "worker.gone", "the simulated worker has died"};
const Error kInjected{Code::kUnavailable, "worker.busy", "injected"};

class Staged final : public engine::StagedBlocks {
public:
    Staged(std::vector<std::pair<std::size_t, std::uint64_t>> words, snapshot::Fingerprint zero)
        : words_(std::move(words)), zero_(zero) {}
    [[nodiscard]] std::size_t count() const override { return words_.size(); }
    [[nodiscard]] engine::BlockAddress address(std::size_t i) const override {
        return address_of_block(words_[i].first);
    }
    /// The word, and zeros. The runner copies them before it asks for the next.
    [[nodiscard]] std::span<const std::byte, engine::kBlockBytes> bytes(
        std::size_t i) const override {
        static std::array<std::byte, engine::kBlockBytes> bytes{};
        std::memcpy(bytes.data(), &words_[i].second, sizeof words_[i].second);
        return bytes;
    }
    [[nodiscard]] snapshot::Fingerprint fingerprint(std::size_t i) const override {
        return words_[i].second == 0 ? zero_ : snapshot::Fingerprint{words_[i].second, 1};
    }

private:
    std::vector<std::pair<std::size_t, std::uint64_t>> words_;
    snapshot::Fingerprint zero_;
};

std::vector<std::size_t> blocks_of(engine::PartId part) {
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i < kBlocks; ++i) {
        if (part_of_block(i) == part) {
            out.push_back(i);
        }
    }
    return out;
}

engine::BlockSetDigest digest_of(const Worker& worker, engine::PartId part) {
    engine::BlockSetDigest digest;
    for (const std::size_t i : blocks_of(part)) {
        digest.add(1, i, {worker.device[i], 0});
    }
    return digest;
}

}  // namespace

// ---- source ----

void SimSource::take(std::int64_t low_us, std::int64_t high_us) {
    runtime_.pause(world_.delay(low_us, high_us));
}

bool SimSource::fails(double probability) {
    return world_.now < world_.heal_at && world_.random.chance(probability);
}

Result<Worker*> SimSource::worker() {
    if (!host_.worker || !host_.worker->serves_role) {
        return kGone;
    }
    return host_.worker.get();
}

std::vector<engine::PartId> SimSource::parts() const {
    std::vector<engine::PartId> out;
    for (std::uint64_t i = 1; i <= kParts && host_.worker && host_.worker->serves_role; ++i) {
        out.push_back({i});
    }
    return out;
}

bool SimSource::has(engine::PartId /*part*/) const {
    return host_.worker && host_.worker->serves_role;
}

Result<void> SimSource::announce() {
    take(50, 20'000);
    world_.stand_in(host_.index);
    if (host_.worker->announcement == 0) {
        host_.worker->announcement = ++world_.last_announcement;
    }
    return {};
}

void SimSource::end_announcement() {
    take(50, 20'000);
    if (host_.worker) {
        host_.worker->announcement = 0;
    }
}

Result<engine::SessionNeeds> SimSource::describe() {
    take(50, 30'000);
    engine::SessionNeeds needs;
    needs.session_id = "vm";
    needs.memory_quota_bytes = 1 << 20;
    needs.cc_min = {8, 0};
    for (std::uint64_t i = 1; i <= kParts; ++i) {
        engine::PartNeed part;
        part.part = {i};
        part.resident_bytes = blocks_of({i}).size() * engine::kBlockBytes;
        needs.parts.push_back(part);
    }
    return needs;
}

Result<void> SimSource::begin_precopy(engine::Seed seed) {
    take(100, 20'000);
    zero_ = snapshot::FingerprintKey(seed).zero_block();
    if (host_.worker) {
        host_.worker->last_sent.assign(kBlocks, std::nullopt);
    }
    return {};
}

Result<engine::ScanResult> SimSource::scan(engine::PartId part) {
    take(100, 3'000);
    GANTRY_ASSIGN(Worker* const from, worker());
    if (fails(0.01)) {
        return kInjected;
    }
    engine::ScanResult out;
    for (const std::size_t i : blocks_of(part)) {
        ++out.scanned_block_count;
        if (from->last_sent[i] != from->device[i]) {
            out.changed.push_back(address_of_block(i));
        }
    }
    std::ranges::sort(out.changed);
    return out;
}

Result<std::unique_ptr<engine::StagedBlocks>> SimSource::read_blocks(
    engine::PartId part, std::span<const engine::BlockAddress> blocks) {
    take(50, 5'000);
    GANTRY_ASSIGN(Worker* const from, worker());
    if (fails(0.01)) {
        return kInjected;
    }
    std::vector<std::pair<std::size_t, std::uint64_t>> words;
    for (const engine::BlockAddress& block : blocks) {
        if (part_of_block(block.index) != part || block != address_of_block(block.index)) {
            world_.violate("a block is asked for that the part does not have");
        }
        from->last_sent[block.index] = from->device[block.index];
        words.emplace_back(block.index, from->device[block.index]);
    }
    take(50, 2'000);
    return std::unique_ptr<engine::StagedBlocks>(std::make_unique<Staged>(std::move(words), zero_));
}

Result<void> SimSource::mark_unsent(engine::PartId part,
                                    std::span<const engine::BlockAddress> blocks) {
    take(50, 2'000);
    GANTRY_ASSIGN(Worker* const from, worker());
    if (fails(0.02)) {
        return kInjected;
    }
    for (const engine::BlockAddress& block : blocks) {
        from->last_sent[block.index].reset();
    }
    for (const std::size_t i : blocks_of(part)) {
        if (blocks.empty()) {
            from->last_sent[i].reset();
        }
    }
    return {};
}

Result<std::string> SimSource::graph(engine::PartId part) {
    take(50, 2'000);
    GANTRY_TRY(worker());
    return "graph of part " + std::to_string(part.value);
}

/// One image for each part.
Result<std::string> SimSource::images(engine::PartId part, const std::vector<std::string>& known) {
    const std::string name(32, static_cast<char>('a' + part.value));
    if (std::ranges::find(known, name) != known.end()) {
        return std::string();
    }
    control::ImageList list;
    list.add_images()->set_sha256(name);
    return list.SerializeAsString();
}

/// The request may reach the worker although gantryd dies meanwhile.
Result<void> SimSource::freeze(engine::FreezeToken token, Duration /*deadline*/) {
    const bool will_fail = fails(0.05);
    try {
        take(200, 60'000);
    } catch (const Killed&) {
        if (worker() && !host_.worker->frozen && !host_.worker->fenced && !will_fail &&
            world_.random.chance(0.3)) {
            host_.worker->frozen = token;
        }
        throw;
    }
    GANTRY_ASSIGN(Worker* const frozen, worker());
    if (!frozen->frozen && will_fail) {
        return Error{Code::kDeadlineExceeded, "drain.timeout", "injected"};
    }
    if (frozen->fenced) {
        world_.violate("a session that was given away is frozen anew");
    }
    frozen->frozen = token;
    return {};
}

Result<std::optional<engine::FreezeToken>> SimSource::frozen_token() {
    GANTRY_ASSIGN(Worker* const from, worker());
    return from->frozen;
}

Result<engine::FinalPart> SimSource::final_part(engine::PartId part) {
    take(100, 8'000);
    GANTRY_ASSIGN(Worker* const from, worker());
    if (!from->frozen) {
        return Error{Code::kFailedPrecondition, "worker.running", "it is not frozen"};
    }
    if (fails(0.02)) {
        return kInjected;
    }
    const World::Job& job = world_.job;
    if (job.from == host_.index && job.announcement && !from->dead &&
        world_.guests[host_.index].domain != Domain::kRunning &&
        from->announcement != *job.announcement) {
        world_.violate("the final state lacks what the GPU wrote since QEMU copied the guest");
    }
    return engine::FinalPart{part, from->dead ? kDeadGraph : std::to_string(from->next_seq),
                             digest_of(*from, part)};
}

Result<void> SimSource::thaw() {
    take(100, 20'000);
    if (fails(0.02)) {
        return kInjected;
    }
    world_.stand_in(host_.index);
    host_.worker->frozen.reset();
    return {};
}

Result<void> SimSource::fence(bool guest_is_here) {
    const World::Job& job = world_.job;
    if (guest_is_here && job.active && job.from == host_.index && job.postcopy_open) {
        world_.violate("the guest's memory is pulled from here, and tells it of an error");
    }
    if (host_.worker && host_.worker->serves_role) {
        host_.worker->fenced = true;
        host_.worker->tells = host_.worker->tells || guest_is_here;
    }
    take(50, 3'000);
    return {};
}

Result<void> SimSource::unfence(Epoch epoch) {
    take(50, 3'000);
    if (host_.worker && host_.worker->serves_role) {
        if (!host_.disk || host_.disk->granted || host_.disk->epoch != epoch) {
            world_.violate("a session is taken back, and the disk says that it is given away");
        }
        host_.worker->fenced = host_.worker->tells = false;
        host_.worker->epoch = epoch;
        ++world_.verdict.returned_count;
    }
    return {};
}

void SimSource::end_precopy() { take(50, 2'000); }

Result<void> SimSource::release() {
    take(100, 20'000);
    if (host_.worker && host_.worker->serves_role && host_.worker->fenced) {
        host_.worker.reset();
        world_.guests[host_.index].told = true;
    }
    return {};
}

// ---- target ----

void SimSink::take(std::int64_t low_us, std::int64_t high_us) {
    runtime_.pause(world_.delay(low_us, high_us));
}

bool SimSink::fails(double probability) {
    return world_.now < world_.heal_at && world_.random.chance(probability);
}

Result<Worker*> SimSink::worker() {
    if (!host_.worker || host_.worker->serves_role) {
        return kGone;
    }
    return host_.worker.get();
}

Result<void> SimSink::reserve(const engine::SessionNeeds& needs) {
    const bool will_fail = fails(0.02);
    take(500, 80'000);
    if (will_fail || host_.worker != nullptr) {
        return Error{Code::kResourceExhausted, "gpu.memory.in_use", "injected"};
    }
    if (needs.parts.size() != kParts) {
        world_.violate("the needs have lost a part on their way");
    }
    images_.clear();
    host_.worker = std::make_unique<Worker>();
    host_.has_served = false;
    if (host_.target && host_.target->migration()) {
        host_.worker->receiving = host_.target->migration();
        host_.note = {*host_.target->migration(), host_.target->epoch()};
    }
    return {};
}

void SimSink::add_images(engine::PartId part, std::string image_list) {
    control::ImageList list;
    if (!list.ParseFromString(image_list) || list.images_size() != 1 ||
        list.images(0).sha256() != std::string(32, static_cast<char>('a' + part.value))) {
        world_.violate("an image goes to another part, or is damaged");
    }
    images_.insert(part);
}

Result<void> SimSink::prepare(engine::PartId part, engine::Seed /*seed*/, std::string_view graph) {
    if (std::exchange(is_preparing_, true)) {
        world_.violate("two graphs are prepared at the same time");
    }
    const bool will_fail = fails(0.01);
    try {
        take(100, 20'000);
    } catch (const Killed&) {
        is_preparing_ = false;
        throw;
    }
    is_preparing_ = false;
    GANTRY_TRY(worker());
    if (graph != "graph of part " + std::to_string(part.value)) {
        world_.violate("a part is prepared from the graph of another");
    }
    if (will_fail) {
        return kInjected;
    }
    if (!images_.contains(part)) {
        world_.violate("a graph comes without its images");
    }
    return {};
}

Result<void> SimSink::apply_batch(engine::PartId part, const engine::BlockBatch& batch) {
    // Now and then longer than the source waits for a round, which is sent again meanwhile.
    const bool is_slow = world_.now < world_.heal_at && world_.random.chance(0.01);
    const bool will_fail = fails(0.01);
    std::string content(batch.content_bytes, '\0');
    if (batch.lz4) {
        const int got = LZ4_decompress_safe(batch.content.data(), content.data(),
                                            static_cast<int>(batch.content.size()),
                                            static_cast<int>(content.size()));
        if (got != static_cast<int>(content.size())) {
            world_.violate("a batch does not unpack to what it says");
        }
    } else {
        content = batch.content;
    }
    GANTRY_ASSIGN(Worker* const to, worker());
    const auto receiving = to->receiving;
    std::size_t at = 0;
    for (const engine::BlockBatch::Run& run : batch.runs) {
        for (std::uint32_t i = 0; i < run.count; ++i) {
            const std::uint64_t block = run.first.index + i;
            if (block >= kBlocks || part_of_block(block) != part ||
                address_of_block(block).space != run.first.space) {
                world_.violate("a block comes to another place than it was read from");
                return kInjected;
            }
            std::uint64_t word = 0;
            if (!run.zero) {
                if (at + engine::kBlockBytes > content.size()) {
                    world_.violate("a batch has fewer bytes than blocks");
                    return kInjected;
                }
                std::memcpy(&word, content.data() + at, sizeof word);
                at += engine::kBlockBytes;
            }
            take(10, is_slow ? 4'000'000 : 1'000);
            if (!host_.worker || host_.worker.get() != to || to->serves_role ||
                to->receiving != receiving) {
                return kGone;
            }
            to->device[block] = word;
            to->complete.reset();
        }
    }
    if (at != content.size()) {
        world_.violate("a batch has more bytes than blocks");
    }
    return will_fail ? Result<void>(kInjected) : Result<void>{};
}

void SimSink::keep_only(const std::vector<engine::PartId>& parts) {
    final_.clear();
    if (parts.size() != kParts) {
        world_.violate("the final state lacks a part of a session");
    }
}

Result<void> SimSink::apply_final(const engine::FinalPart& part) {
    take(200, 30'000);
    GANTRY_ASSIGN(Worker* const to, worker());
    if (fails(0.02)) {
        return kInjected;
    }
    if (!images_.contains(part.part)) {
        world_.violate("the final state names an image that never came");
    }
    final_.insert(part.part);
    to->dead = part.graph == kDeadGraph;
    to->next_seq = to->dead ? 0 : std::stoull(part.graph);
    return {};
}

/// While the source is frozen as the state says that is applied here, its blocks are the truth.
void SimSink::check_blocks(engine::PartId part) {
    const Host& other = world_.hosts[1 - host_.index];
    if (!other.worker || !other.worker->serves_role || !other.worker->frozen ||
        other.worker->frozen->migration != host_.worker->receiving || other.worker->dead ||
        other.worker->next_seq != host_.worker->next_seq) {
        return;
    }
    for (const std::size_t i : blocks_of(part)) {
        if (host_.worker->device[i] != other.worker->device[i]) {
            world_.violate("block " + std::to_string(i) +
                           " is lost: all of the source's were said to be applied");
        }
    }
}

Result<engine::BlockSetDigest> SimSink::digest(engine::PartId part) {
    take(100, 10'000);
    GANTRY_ASSIGN(const Worker* const of, worker());
    check_blocks(part);
    return digest_of(*of, part);
}

Result<void> SimSink::mark_complete(engine::FreezeToken token) {
    take(50, 5'000);
    GANTRY_ASSIGN(Worker* const of, worker());
    if (token.count == 0) {
        of->complete.reset();
        return {};
    }
    if (final_.size() != kParts) {
        world_.violate("state is called complete without the graph of a part");
    }
    of->complete = token;
    return {};
}

Result<std::optional<engine::FreezeToken>> SimSink::complete_token() {
    GANTRY_ASSIGN(const Worker* const of, worker());
    return of->complete;
}

Result<void> SimSink::activate(Epoch epoch) {
    take(500, 50'000);
    const Host& other = world_.hosts[1 - host_.index];
    if (!host_.worker) {
        return host_.has_served ? Result<void>{} : Result<void>(kGone);
    }
    const bool granted =
        other.disk && other.disk->granted && other.disk->epoch.value + 1 == epoch.value;
    if (!granted && !world_.fenced_by_operator && !host_.worker->serves_role) {
        world_.violate("host " + std::to_string(host_.index) + " takes up service as epoch " +
                       std::to_string(epoch.value) + " without a grant on the other's disk");
        return kInjected;
    }
    if (!host_.disk || host_.disk->granted || host_.disk->epoch != epoch) {
        if (!host_.disk || host_.disk->epoch.value <= epoch.value) {
            world_.violate("an epoch is served that is not on the disk of its host");
        }
    }
    if (world_.fenced_by_operator && host_.worker->next_seq != world_.executed) {
        world_.worker_lost = true;  // The guest's memory shows answers that this state never gave.
        return Error{Code::kDataLoss, "session.stale", "newer answers"};
    }
    host_.worker->serves_role = true;
    host_.worker->epoch = epoch;
    host_.has_served = true;
    host_.note.reset();
    world_.guests[host_.index].told = host_.worker->dead;
    take(0, 40'000);
    return {};
}

Result<void> SimSink::discard() {
    if (host_.worker && host_.worker->serves_role) {
        if (host_.worker->executes() && host_.target &&
            host_.worker->epoch == host_.target->epoch()) {
            world_.violate("the target discards a session that it serves");
        }
    } else {
        host_.worker.reset();
        host_.note.reset();
    }
    return {};
}

bool SimSink::retract() {
    take(100, 20'000);
    if (!host_.has_served && host_.worker && !host_.worker->serves_role) {
        host_.worker.reset();
    }
    return host_.has_served;
}

// ---- disk ----

Result<std::optional<engine::DurableRecord>> SimStore::load(const std::string& /*session*/) const {
    return host_.disk;
}

void SimStore::check_record(const engine::DurableRecord& record) {
    if (host_.disk &&
        (record.epoch.value < host_.disk->epoch.value ||
         (record.epoch == host_.disk->epoch && host_.disk->granted && record != *host_.disk))) {
        world_.violate("epoch " + std::to_string(record.epoch.value) + " is written over epoch " +
                       std::to_string(host_.disk->epoch.value) + ", owned or given away already");
    }
    if (!record.granted) {
        return;
    }
    world_.check_grant(host_.index, record);
    const std::optional<World::Outgoing>& move = world_.outgoing[host_.index];
    const bool was_asked = std::ranges::any_of(requests_, [&](const auto& one) {
        return one.first == record.granted_migration && one.second.token == record.granted_token &&
               (one.second.epoch.value == 0 || one.second.epoch.value == record.epoch.value + 1) &&
               move && one.second.ticket.is_same(move->ticket);
    });
    if (!was_asked) {
        world_.violate("a grant that nobody has asked for");
    }
}

supervisor::SaveOutcome SimStore::save(const std::string& /*session*/,
                                       const engine::DurableRecord& record) {
    check_record(record);
    using supervisor::SaveFailure;
    const bool is_lost = world_.now < world_.heal_at && world_.random.chance(0.03);
    const bool is_unknown = world_.now < world_.heal_at && world_.random.chance(0.02);
    runtime_.pause(world_.delay(100, 10'000));
    if (is_lost) {
        return {SaveFailure::kProvenUnwritten,
                {Code::kResourceExhausted, "epoch.write", "injected"}};
    }
    if (!is_unknown || world_.random.chance(0.5)) {
        host_.disk = record;
        if (!record.granted && record.granted_migration != engine::MigrationId{}) {
            world_.returned.push_back(record.granted_migration);
        }
    }
    runtime_.pause(world_.delay(0, 8'000));
    if (is_unknown) {
        return {SaveFailure::kUnknown, {Code::kUnavailable, "epoch.write", "injected"}};
    }
    return {};
}

Result<void> SimStore::remove(const std::string& /*session*/) {
    host_.disk.reset();
    return {};
}

}  // namespace gantry::sim
