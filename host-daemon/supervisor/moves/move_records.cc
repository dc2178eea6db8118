#include "host-daemon/supervisor/moves/move_records.h"

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <vector>

#include "host-daemon/supervisor/config/version.h"

namespace gantry::supervisor {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kWriteDelay{500};
/// The guest's first call and libvirt's last word come after the end.
constexpr std::uint64_t kAfterwardsUs = 30'000'000;
/// Of one that nobody ended; it is read again when it goes on.
constexpr std::uint64_t kInMemoryUs = 2ULL * 3600 * 1'000'000;
constexpr std::size_t kTextMax = 400;
constexpr std::uintmax_t kRecordBytesMax = 4U << 20;
constexpr int kRepeatsLookedAt = 8;

const char* word_of(MoveSide side) { return side == MoveSide::kOutgoing ? "outgoing" : "incoming"; }

MoveSide side_of(const std::string& direction) {
    return direction == "incoming" ? MoveSide::kIncoming : MoveSide::kOutgoing;
}

bool is_migration_id(const std::string& text) {
    return text.size() == 32 && std::all_of(text.begin(), text.end(), [](char c) {
               return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
           });
}

void cut(std::string* text) {
    std::size_t size = std::min(text->size(), kTextMax);
    while (size < text->size() && size > 0 &&
           (static_cast<unsigned char>((*text)[size]) & 0xC0) == 0x80) {
        --size;  // not in the middle of a character
    }
    text->resize(size);
}

/// A repeated message says nothing new.
bool is_repeated(const control::MoveRecord& record, const MoveStamp& stamp) {
    const int count = record.events_size();
    for (int i = std::max(0, count - kRepeatsLookedAt); i < count; ++i) {
        const control::MoveEvent& one = record.events(i);
        if (one.what() == stamp.what && one.detail() == stamp.detail &&
            one.round() == stamp.round && stamp.what != "state") {
            return true;
        }
    }
    return false;
}

void thin_out(control::MoveRecord* record) {
    google::protobuf::RepeatedPtrField<control::MoveSample> kept;
    for (int i = 0; i < record->samples_size(); i += 2) {
        kept.Add()->Swap(record->mutable_samples(i));
    }
    record->mutable_samples()->Swap(&kept);
}

void add_event(control::MoveRecord* record, MoveStamp stamp) {
    if (is_repeated(*record, stamp)) {
        return;
    }
    if (record->events_size() >= MoveRecords::kEventsMax) {
        record->set_events_left_out(record->events_left_out() + 1);
        return;
    }
    cut(&stamp.detail);
    control::MoveEvent& event = *record->add_events();
    event.set_at_us(stamp.at_us != 0 ? stamp.at_us : monotonic_us());
    event.set_what(std::move(stamp.what));
    event.set_detail(std::move(stamp.detail));
    event.set_round(stamp.round);
    event.set_bytes(stamp.bytes);
}

std::uint64_t us_of(engine::Duration duration) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(0, duration.count()));
}

/// Another host's word: as long as ours at most, and nothing that a terminal obeys.
void tame(std::string* text) {
    cut(text);
    std::replace_if(
        text->begin(), text->end(),
        [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, '?');
}

/// No more of it is kept than of ours.
void cut_to_bounds(control::MoveRecord* record) {
    const auto shorten = [](auto* list, int most) {
        if (list->size() > most) {
            list->DeleteSubrange(most, list->size() - most);
        }
    };
    shorten(record->mutable_events(), MoveRecords::kEventsMax);
    shorten(record->mutable_samples(), MoveRecords::kSamplesMax);
    for (control::MoveEvent& event : *record->mutable_events()) {
        tame(event.mutable_what());
        tame(event.mutable_detail());
    }
    for (std::string* text :
         {record->mutable_session_id(), record->mutable_vm_name(), record->mutable_host(),
          record->mutable_gantry_version(), record->mutable_device_name()}) {
        tame(text);
    }
    control::MoveProgress& last = *record->mutable_last();
    for (std::string* text :
         {last.mutable_direction(), last.mutable_phase(), last.mutable_machine_state(),
          last.mutable_error_reason(), last.mutable_error_text(), last.mutable_migration_id(),
          last.mutable_outcome(), last.mutable_memory_digest(), record->mutable_peer()}) {
        tame(text);
    }
}

}  // namespace

std::string migration_text(engine::MigrationId id) {
    return fmt::format("{:016x}{:016x}", id.high, id.low);
}

std::uint64_t monotonic_us() {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())
                                          .count());
}

MoveRecords::MoveRecords(const std::string& state_directory, std::string host)
    : folder_(state_directory + "/moves"),
      host_(std::move(host)),
      writer_([this] { write_changed(); }) {}

MoveRecords::~MoveRecords() {
    writer_.stop();
    write_changed();
}

std::string MoveRecords::path_of(const Key& key) const {
    return folder_ + "/" + key.first + "." + word_of(key.second) + ".json";
}

std::optional<control::MoveRecordsReply> MoveRecords::read(const std::string& path) const {
    std::error_code error;
    if (const auto size = fs::file_size(path, error); error || size > kRecordBytesMax) {
        return std::nullopt;
    }
    std::ifstream file(path);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    control::MoveRecordsReply records;
    google::protobuf::util::JsonParseOptions options;
    options.ignore_unknown_fields = true;  // of a later release
    if (!google::protobuf::util::JsonStringToMessage(text, &records, options).ok()) {
        return std::nullopt;
    }
    return records;
}

/// In memory, or taken up again from its file.
MoveRecords::Entry* MoveRecords::known(const Key& key) {
    if (const auto found = entries_.find(key); found != entries_.end()) {
        return &found->second;
    }
    auto records = read(path_of(key));
    if (!records) {
        return nullptr;
    }
    Entry& entry = entries_[key];
    entry.records = std::move(*records);
    entry.ended_us = entry.records.own().last().outcome().empty() ? 0 : 1;
    return &entry;
}

MoveRecords::Entry& MoveRecords::entry(const Whose& whose) {
    const Key key{migration_text(whose.migration), whose.side};
    if (Entry* const found = known(key)) {
        return *found;
    }
    const std::uint64_t now = monotonic_us();
    for (auto& [other, one] : entries_) {  // Of an attempt that came before.
        if (other.second == whose.side && one.records.own().session_id() == whose.session_id &&
            one.ended_us == 0) {
            one.ended_us = now;
            one.records.mutable_own()->mutable_last()->set_outcome("tried again");
            change(one);
        }
    }
    Entry& made = entries_[key];
    control::MoveRecord& own = *made.records.mutable_own();
    own.set_migration_id(key.first);
    own.set_session_id(whose.session_id);
    own.set_vm_name(whose.vm_name);
    own.set_direction(word_of(whose.side));
    own.set_host(host_);
    own.set_gantry_version(kGantryVersion);
    own.set_begun_us(now);
    own.set_begun_unix_us(std::chrono::duration_cast<std::chrono::microseconds>(
                              std::chrono::system_clock::now().time_since_epoch())
                              .count());
    return made;
}

void MoveRecords::change(Entry& entry) {
    entry.is_changed = true;
    if (!is_write_due_) {
        is_write_due_ = writer_.post(
            [this] { writer_.set_timer_by(SerialExecutor::Clock::now() + kWriteDelay); });
    }
}

void MoveRecords::note(const Whose& whose, MoveStamp stamp) {
    const MutexLock lock(mutex_);
    Entry& one = entry(whose);
    add_event(one.records.mutable_own(), std::move(stamp));
    change(one);
}

void MoveRecords::note_peer(const Whose& whose, const std::string& peer) {
    const MutexLock lock(mutex_);
    Entry& one = entry(whose);
    if (one.records.own().peer() != peer) {
        one.records.mutable_own()->set_peer(peer);
        change(one);
    }
}

void MoveRecords::sample(const Whose& whose, const engine::Progress& progress) {
    const MutexLock lock(mutex_);
    Entry& one = entry(whose);
    control::MoveRecord& own = *one.records.mutable_own();
    const std::uint64_t now = monotonic_us();
    const bool is_early =
        own.samples_size() > 0 &&
        now - own.samples(own.samples_size() - 1).at_us() < one.sample_interval_us;
    if (is_early) {
        own.mutable_samples()->RemoveLast();  // The newest always counts.
    }
    control::MoveSample& sample = *own.add_samples();
    sample.set_at_us(now);
    sample.set_round(progress.round);
    sample.set_bytes_remaining(progress.bytes_remaining);
    sample.set_bytes_processed(progress.bytes_content);
    sample.set_bytes_on_wire(progress.bytes_sent);
    sample.set_bytes_per_second(progress.link_bytes_per_second);
    sample.set_dirty_bytes_per_second(progress.dirty_bytes_per_second);
    sample.set_downtime_expected_us(us_of(progress.downtime_estimate));
    if (own.samples_size() >= kSamplesMax) {
        thin_out(&own);
        one.sample_interval_us *= 2;
    }
    change(one);
}

void MoveRecords::note_heard(const Whose& whose, const engine::MessageTime& time,
                             std::uint64_t at_us) {
    if (time.sent_us == 0) {
        return;
    }
    const MutexLock lock(mutex_);
    Entry& one = entry(whose);
    const auto difference = static_cast<std::int64_t>(at_us - time.sent_us);
    one.own_least_us = std::min(one.own_least_us.value_or(difference), difference);
    if (time.least_us) {
        one.peer_least_us = std::min(one.peer_least_us.value_or(*time.least_us), *time.least_us);
    }
    if (one.peer_least_us && *one.peer_least_us != std::numeric_limits<std::int64_t>::min()) {
        control::PeerClock& clock = *one.records.mutable_own()->mutable_clock();
        clock.set_is_known(true);
        clock.set_own_minus_peer_us_min(-*one.peer_least_us);
        clock.set_own_minus_peer_us_max(*one.own_least_us);
        change(one);
    }
}

engine::MessageTime MoveRecords::stamp_message(const Whose& whose) {
    const MutexLock lock(mutex_);
    const auto found = entries_.find({migration_text(whose.migration), whose.side});
    return {monotonic_us(), found == entries_.end() ? std::nullopt : found->second.own_least_us};
}

void MoveRecords::note_session(const std::string& session_id, MoveStamp stamp) {
    const MutexLock lock(mutex_);
    const std::uint64_t now = monotonic_us();
    Entry* newest = nullptr;
    for (auto& [key, one] : entries_) {
        const control::MoveRecord& own = one.records.own();
        const bool is_open = one.ended_us == 0 || now - one.ended_us < kAfterwardsUs;
        if (own.session_id() == session_id && is_open &&
            (newest == nullptr || newest->records.own().begun_us() < own.begun_us())) {
            newest = &one;
        }
    }
    if (newest != nullptr) {
        add_event(newest->records.mutable_own(), std::move(stamp));
        change(*newest);
    }
}

void MoveRecords::note_ended(const control::SessionStatus& status) {
    const MutexLock lock(mutex_);
    Entry* const one = known({status.move().migration_id(), side_of(status.move().direction())});
    if (one == nullptr) {
        return;
    }
    *one->records.mutable_own()->mutable_last() = status.move();
    one->records.mutable_own()->set_device_name(status.device_name());
    one->ended_us = monotonic_us();
    change(*one);
}

bool MoveRecords::has(MoveSide side, const std::string& migration_id,
                      const std::string& what) const {
    const MutexLock lock(mutex_);
    const auto found = entries_.find({migration_id, side});
    return found != entries_.end() &&
           std::any_of(found->second.records.own().events().begin(),
                       found->second.records.own().events().end(),
                       [&](const control::MoveEvent& event) { return event.what() == what; });
}

Result<control::MoveRecordsReply> MoveRecords::find(const std::string& name,
                                                    const std::string& migration_id) const {
    std::optional<control::MoveRecordsReply> newest;
    const auto offer = [&](const control::MoveRecordsReply& one) {
        const control::MoveRecord& own = one.own();
        const bool is_meant = (own.session_id() == name || own.vm_name() == name) &&
                              (migration_id.empty() || own.migration_id() == migration_id);
        if (is_meant && (!newest || newest->own().begun_unix_us() < own.begun_unix_us())) {
            newest = one;
        }
    };
    std::set<std::string> seen;
    {
        const MutexLock lock(mutex_);
        for (const auto& [key, one] : entries_) {
            seen.insert(path_of(key));
            offer(one.records);
        }
    }
    std::error_code error;
    for (const auto& file : fs::directory_iterator(folder_, error)) {
        const std::string path = file.path().string();
        if (path.ends_with(".json") && !seen.contains(path)) {
            if (const auto one = read(path)) {
                offer(*one);
            }
        }
    }
    if (!newest) {
        return Error{Code::kNotFound, "migration.unrecorded",
                     "no move of '" + name + "' has been recorded on this host" +
                         (migration_id.empty() ? "" : " under " + migration_id)};
    }
    return *newest;
}

std::optional<control::MoveRecord> MoveRecords::own(MoveSide side,
                                                    const std::string& migration_id) const {
    if (!is_migration_id(migration_id)) {
        return std::nullopt;
    }
    const Key key{migration_id, side};
    {
        const MutexLock lock(mutex_);
        if (const auto found = entries_.find(key); found != entries_.end()) {
            return found->second.records.own();
        }
    }
    auto records = read(path_of(key));
    return records ? std::optional{std::move(*records->mutable_own())} : std::nullopt;
}

bool MoveRecords::join_peer(MoveSide side, control::MoveRecord record) {
    if (!is_migration_id(record.migration_id())) {
        return false;
    }
    cut_to_bounds(&record);
    const MutexLock lock(mutex_);
    Entry* const one = known({record.migration_id(), side});
    if (one == nullptr) {
        return false;
    }
    *one->records.mutable_peer() = std::move(record);
    change(*one);
    return true;
}

Result<control::MoveRecord> MoveRecords::exchange(const control::MoveRecord& record,
                                                  const std::string& peer) {
    auto mine = own(MoveSide::kOutgoing, record.migration_id());
    if (!mine || peer.empty() || mine->peer() != peer || !join_peer(MoveSide::kOutgoing, record)) {
        return Error{Code::kNotFound, "migration.unrecorded",
                     "this host has recorded no such move to the host that asks"};
    }
    return std::move(*mine);
}

/// What has ended long ago leaves memory when it has been written.
void MoveRecords::write_changed() {
    std::vector<std::pair<std::string, control::MoveRecordsReply>> due;
    {
        const MutexLock lock(mutex_);
        is_write_due_ = false;
        const std::uint64_t now = monotonic_us();
        for (auto& [key, one] : entries_) {
            if (std::exchange(one.is_changed, false)) {
                due.emplace_back(path_of(key), one.records);
            }
        }
        std::erase_if(entries_, [&](const auto& one) {
            const bool is_over =
                one.second.ended_us != 0 && now - one.second.ended_us > kAfterwardsUs;
            return is_over || now - one.second.records.own().begun_us() > kInMemoryUs;
        });
    }
    if (due.empty()) {
        return;
    }
    std::error_code error;
    fs::create_directory(folder_, error);
    fs::permissions(folder_, fs::perms::owner_all, error);
    for (const auto& [path, records] : due) {
        google::protobuf::util::JsonPrintOptions options;
        options.preserve_proto_field_names = true;
        std::string text;
        (void)google::protobuf::util::MessageToJsonString(records, &text, options);
        std::ofstream file(path + ".new", std::ios::trunc);
        file << text;
        file.close();
        error.clear();
        if (file) {
            fs::rename(path + ".new", path, error);
        }
        if (!file || error) {
            spdlog::warn("the record of a move cannot be written to {}", path);
            fs::remove(path + ".new", error);
        }
    }
    prune();
}

void MoveRecords::prune() const {
    std::vector<std::pair<fs::file_time_type, std::string>> files;
    std::error_code error;
    for (const auto& file : fs::directory_iterator(folder_, error)) {
        files.emplace_back(file.last_write_time(error), file.path().string());
    }
    std::sort(files.begin(), files.end());
    for (std::size_t i = 0; i + kRecordsKept < files.size(); ++i) {
        fs::remove(files[i].second, error);
    }
}

}  // namespace gantry::supervisor
