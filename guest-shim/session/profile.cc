#include "guest-shim/session/profile.h"

#include <cstdlib>
#include <cstring>

#include "guest-shim/session/connection.h"
#include "guest-shim/session/thread_times.h"

namespace gantry::session {
namespace {

constexpr std::atomic<std::uint32_t> kOff{0};

}  // namespace

std::atomic<const std::atomic<std::uint32_t>*> g_profile_word{&kOff};

/// What profile.h keeps for a thread.
struct ProfiledThread {
    ThreadTimes times;
    std::uint32_t word;         ///< The setting that `times` is for.
    std::uint32_t sent_worker;  ///< Who was sent its rows.
    std::uint64_t sent_ns;      ///< When.
};

namespace {

constexpr std::uint64_t kSendEveryNs = 50'000'000;
constexpr std::uint64_t kRangesSentMax = 1024;

struct Ranges {
    FutexMutex mutex;
    std::uint64_t count GANTRY_GUARDED_BY(mutex);  ///< Ever.
    std::uint64_t sent GANTRY_GUARDED_BY(mutex);
    std::uint32_t sent_worker GANTRY_GUARDED_BY(mutex);
    wire::ProfileRange kept[wire::kProfileRanges] GANTRY_GUARDED_BY(mutex);
};

/// What goes into one record.
struct Outgoing {
    wire::ProfileRow rows[wire::kProfileRows];
    wire::ProfileRange ranges[kRangesSentMax];
};

struct Profile {
    ProfileTable table;
    Ranges ranges;
    FutexMutex sending;
    std::byte outgoing[sizeof(Outgoing)] GANTRY_GUARDED_BY(sending);
    std::atomic<std::uint32_t> threads;
    std::uint32_t stamp_ps;
    std::uint32_t range_ps;
};

std::atomic<Profile*> g_profile{nullptr};
FutexMutex g_profile_mutex;

HostTimes host_times() noexcept {
    const wire::HostWords& words = *g_connection.host;
    HostTimes out;
    out.worker = words.profile_worker.load(std::memory_order_acquire);
    out.held_ns = words.held_ns.load(std::memory_order_relaxed);
    out.launch_ns = words.launch_ns.load(std::memory_order_relaxed);
    out.pause_ns = words.pause_ns.load(std::memory_order_relaxed);
    out.stop_ns = words.stop_ns.load(std::memory_order_relaxed);
    return out;
}

std::uint32_t picoseconds(std::uint64_t ns, std::uint64_t times) {
    const std::uint64_t each = ns * 1000 / times;
    return each < 0xffffffff ? static_cast<std::uint32_t>(each) : 0xffffffff;
}

/// What stamps and ranges cost here, by doing them.
void calibrate(Profile* profile) {
    constexpr std::uint64_t kTimes = 256;
    auto* table = static_cast<ProfileTable*>(std::calloc(1, sizeof(ProfileTable)));
    auto* times = static_cast<ThreadTimes*>(std::calloc(1, sizeof(ThreadTimes)));
    if (table != nullptr && times != nullptr) {
        times->begin(table, 0, wire::monotonic_ns(), host_times());
        const std::uint64_t begin = wire::monotonic_ns();
        for (std::uint64_t i = 0; i < kTimes; ++i) {
            times->enter_call(wire::monotonic_ns(), host_times());
            times->leave_call(wire::monotonic_ns(), host_times());
        }
        const std::uint64_t middle = wire::monotonic_ns();
        for (std::uint64_t i = 0; i < kTimes; ++i) {
            times->push(wire::monotonic_ns(), host_times(), "calibration", true);
            times->pop(wire::monotonic_ns(), host_times());
        }
        const std::uint64_t end = wire::monotonic_ns();
        profile->stamp_ps = picoseconds(middle - begin, 2 * kTimes);
        const std::uint32_t both = picoseconds(end - middle, kTimes);
        profile->range_ps = both > 2 * profile->stamp_ps ? both - 2 * profile->stamp_ps : 0;
    }
    std::free(table);
    std::free(times);
}

Profile* the_profile() noexcept {
    Profile* profile = g_profile.load(std::memory_order_acquire);
    if (profile != nullptr) {
        return profile;
    }
    Guard guard(g_profile_mutex);
    profile = g_profile.load(std::memory_order_acquire);
    if (profile == nullptr) {
        profile = static_cast<Profile*>(std::calloc(1, sizeof(Profile)));
        if (profile != nullptr) {
            calibrate(profile);
            g_profile.store(profile, std::memory_order_release);
        }
    }
    return profile;
}

/// The calling thread's, for the setting that holds now; null: out of memory.
ProfiledThread* profiled_thread() noexcept {
    Thread* self = thread();
    Profile* profile = the_profile();
    if (self == nullptr || profile == nullptr) {
        return nullptr;
    }
    const std::uint32_t word =
        g_profile_word.load(std::memory_order_relaxed)->load(std::memory_order_relaxed);
    ProfiledThread* mine = self->profile;
    if (mine != nullptr && mine->word == word) {
        return mine;
    }
    if (mine == nullptr) {
        mine = static_cast<ProfiledThread*>(std::calloc(1, sizeof(ProfiledThread)));
        if (mine == nullptr) {
            return nullptr;
        }
        self->profile = mine;
    }
    const std::uint32_t number = profile->threads.fetch_add(1, std::memory_order_relaxed);
    mine->times.begin(&profile->table, number, wire::monotonic_ns(), host_times());
    mine->word = word;
    return mine;
}

/// Rows of this thread that have changed; all of them where the worker is another one.
std::uint32_t collect_rows(Profile& profile, const ProfiledThread& mine, bool is_all,
                           wire::ProfileRow* out) {
    std::uint32_t count = 0;
    for (std::uint32_t next = mine.times.first_row() + 1; next != 0;) {
        ProfileTable::Link& link = profile.table.links[next - 1];
        const wire::ProfileRow& row = profile.table.rows[next - 1];
        if (is_all || row.wall_ns != link.sent_ns) {
            out[count++] = row;
            link.sent_ns = row.wall_ns;
        }
        next = link.next_of_thread;
    }
    return count;
}

std::uint32_t collect_ranges(Ranges& ranges, std::uint32_t worker, std::uint64_t* first,
                             wire::ProfileRange* out) {
    Guard guard(ranges.mutex);
    if (ranges.sent_worker != worker) {
        ranges.sent_worker = worker;
        ranges.sent = 0;
    }
    if (ranges.count - ranges.sent > wire::kProfileRanges) {
        ranges.sent = ranges.count - wire::kProfileRanges;
    }
    *first = ranges.sent;
    std::uint32_t count = 0;
    for (; ranges.sent < ranges.count && count < kRangesSentMax; ++ranges.sent) {
        out[count++] = ranges.kept[ranges.sent % wire::kProfileRanges];
    }
    return count;
}

void send(Thread* self, ProfiledThread& mine, std::uint64_t now) noexcept {
    Profile* profile = g_profile.load(std::memory_order_acquire);
    const std::uint32_t worker = g_connection.host->profile_worker.load(std::memory_order_acquire);
    Guard guard(profile->sending);
    wire::ProfileCall call{};
    auto* rows = reinterpret_cast<wire::ProfileRow*>(profile->outgoing);
    call.row_count = collect_rows(*profile, mine, mine.sent_worker != worker, rows);
    auto* ranges = reinterpret_cast<wire::ProfileRange*>(rows + call.row_count);
    call.range_count = collect_ranges(profile->ranges, worker, &call.first_range, ranges);
    call.rows_lost = profile->table.lost.load(std::memory_order_relaxed);
    call.unmatched = profile->table.unmatched.load(std::memory_order_relaxed);
    call.stamp_ps = profile->stamp_ps;
    call.range_ps = profile->range_ps;
    mine.sent_worker = worker;
    mine.sent_ns = now;
    const auto bytes = static_cast<std::uint32_t>(call.row_count * sizeof(wire::ProfileRow) +
                                                  call.range_count * sizeof(wire::ProfileRange));
    std::uint64_t position = 0;
    std::uint64_t end = 0;
    if (bytes != 0) {
        (void)post_on(self->lane, 0, wire::ControlOp::kProfile, &call, sizeof(call),
                      profile->outgoing, bytes, &position, &end);
    }
}

/// Not in a host callback, whose end the ring may be waiting for.
void send_if_due(ProfiledThread& mine, std::uint64_t now) noexcept {
    Thread* self = nullptr;
    if (!mine.times.is_in_call() && now - mine.sent_ns >= kSendEveryNs &&
        usable_thread(&self) == CUDA_SUCCESS) {
        send(self, mine, now);
    }
}

void note_range(const wire::ProfileRange& range) noexcept {
    Ranges& ranges = g_profile.load(std::memory_order_acquire)->ranges;
    Guard guard(ranges.mutex);
    ranges.kept[ranges.count++ % wire::kProfileRanges] = range;
}

void note_ended(ProfiledThread& mine, const ThreadTimes::Ended& ended, std::uint64_t now) {
    if (ended.row != wire::kNoProfileRow && wire::profile_level(mine.word) == 2) {
        note_range({ended.row, 0, ended.begin_ns, now});
    }
}

std::uint64_t begin_range(const char* name, bool is_nested) noexcept {
    if (!profiled() || name == nullptr) {
        return 0;
    }
    ProfiledThread* mine = profiled_thread();
    return mine != nullptr ? mine->times.push(wire::monotonic_ns(), host_times(), name, is_nested)
                           : 0;
}

}  // namespace

void note_call_begun() noexcept {
    if (ProfiledThread* mine = profiled_thread(); mine != nullptr) {
        mine->times.enter_call(wire::monotonic_ns(), host_times());
    }
}

void note_call_ended() noexcept {
    ProfiledThread* mine = profiled_thread();
    if (mine == nullptr) {
        return;
    }
    const std::uint64_t now = wire::monotonic_ns();
    mine->times.leave_call(now, host_times());
    send_if_due(*mine, now);
}

void note_launch() noexcept {
    if (ProfiledThread* mine = profiled_thread(); mine != nullptr) {
        mine->times.launched();
    }
}

/// Not of the library's own threads, nor of a wait within one.
void ProfiledWait::begin() noexcept {
    const Thread* self = thread();
    if (self == nullptr || self->profile == nullptr || !self->profile->times.is_in_call() ||
        self->profile->times.is_waiting()) {
        return;
    }
    self->profile->times.begin_wait(wire::monotonic_ns(), host_times());
    is_noted_ = true;
}

void ProfiledWait::end() noexcept {
    ProfiledThread& mine = *thread()->profile;
    if (!mine.times.is_waiting()) {
        return;  // It was begun anew meanwhile.
    }
    const std::uint32_t pauses = mine.times.pauses();
    const std::uint64_t began = mine.times.last_ns();
    const std::uint64_t now = wire::monotonic_ns();
    mine.times.end_wait(now, host_times(), device_ns_);
    if (mine.times.pauses() != pauses && wire::profile_level(mine.word) == 2) {
        note_range({mine.times.row(), static_cast<std::uint32_t>(wire::Part::kPause), began, now});
    }
}

int push_range(const char* name) noexcept { return begin_range(name, true) != 0 ? 0 : -1; }

int pop_range() noexcept {
    ProfiledThread* mine = profiled() ? profiled_thread() : nullptr;
    if (mine == nullptr) {
        return -1;
    }
    const std::uint64_t now = wire::monotonic_ns();
    note_ended(*mine, mine->times.pop(now, host_times()), now);
    send_if_due(*mine, now);
    return 0;
}

std::uint64_t start_range(const char* name) noexcept { return begin_range(name, false); }

void end_range(std::uint64_t range) noexcept {
    if (ProfiledThread* mine = profiled() ? profiled_thread() : nullptr; mine != nullptr) {
        const std::uint64_t now = wire::monotonic_ns();
        note_ended(*mine, mine->times.end(now, host_times(), range), now);
    }
}

void follow_profile_word(const std::atomic<std::uint32_t>* word) noexcept {
    g_profile_word.store(word != nullptr ? word : &kOff, std::memory_order_release);
}

void end_profile(Thread* self) noexcept {
    if (self->profile == nullptr) {
        return;
    }
    if (profiled() && gate() == CUDA_SUCCESS) {
        send(self, *self->profile, wire::monotonic_ns());
    }
    std::free(self->profile);
    self->profile = nullptr;
}

}  // namespace gantry::session
