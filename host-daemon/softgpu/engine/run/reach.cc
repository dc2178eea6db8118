#include "host-daemon/softgpu/engine/reach.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <iterator>

namespace gantry::softgpu {
namespace {

constexpr std::uint64_t kOutside = 0;

/// One thread's place in the order of removals: every removal up to that generation is known to it.
struct Reader {
    std::atomic<std::uint64_t> seen{kOutside};
};

/// Never destroyed: threads may outlive exit().
struct Readers {
    std::mutex mutex;
    std::vector<Reader*> all;
    std::atomic<std::uint64_t> generation{1};
};

Readers& readers() {
    static auto* const all = new Readers;
    return *all;
}

struct Registered {
    Reader reader;
    Registered() {
        const std::lock_guard lock(readers().mutex);
        readers().all.push_back(&reader);
    }
    ~Registered() {
        const std::lock_guard lock(readers().mutex);
        std::erase(readers().all, &reader);
    }
    Registered(const Registered&) = delete;
    Registered& operator=(const Registered&) = delete;
};

Reader& own_reader() {
    thread_local Registered self;
    return self.reader;
}

bool has_passed(const Reader& reader, std::uint64_t generation) {
    const std::uint64_t seen = reader.seen.load(std::memory_order_seq_cst);
    return seen == kOutside || seen >= generation;
}

bool all_have_passed(std::uint64_t generation) {
    const std::lock_guard lock(readers().mutex);
    return std::all_of(readers().all.begin(), readers().all.end(),
                       [&](const Reader* reader) { return has_passed(*reader, generation); });
}

}  // namespace

void ReachScope::enter() {
    Reader& own = own_reader();
    own.seen.store(readers().generation.load(std::memory_order_seq_cst), std::memory_order_seq_cst);
    // Either await_kernels() sees this thread, or this thread sees what was removed before.
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

void ReachScope::leave() { own_reader().seen.store(kOutside, std::memory_order_seq_cst); }

void ReachCache::forget() {
    for (auto& spans : spans_) {
        std::fill(std::begin(spans), std::end(spans), ReachSpan{});
    }
}

void ReachCache::pass_quiescent_point() {
    Reader& own = own_reader();
    const std::uint64_t now = readers().generation.load(std::memory_order_acquire);
    if (now != own.seen.load(std::memory_order_relaxed)) {
        forget();
        own.seen.store(now, std::memory_order_seq_cst);
    }
}

void Reach::await_kernels() {
    const std::uint64_t wanted = readers().generation.fetch_add(1, std::memory_order_seq_cst) + 1;
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (unsigned look = 0; !all_have_passed(wanted); ++look) {
        if (look < 100) {
            sched_yield();
        } else {
            const timespec pause = {0, 50'000};
            nanosleep(&pause, nullptr);
        }
    }
}

Reach::~Reach() { delete table_.load(); }

void Reach::cut(std::uint64_t begin, std::uint64_t last) {
    auto at = extents_.upper_bound(begin);
    if (at != extents_.begin() && std::prev(at)->second.last >= begin) {
        --at;
    }
    while (at != extents_.end() && at->first <= last) {
        const auto [first, extent] = *at;
        at = extents_.erase(at);
        if (first < begin) {
            extents_[first] = {begin - 1, extent.writable};
        }
        if (extent.last > last) {
            extents_[last + 1] = extent;
            break;
        }
    }
}

void Reach::add(std::uint64_t begin, std::uint64_t bytes, bool writable) {
    std::uint64_t last = begin + bytes - 1;
    if (bytes == 0 || last < begin) {
        return;
    }
    const std::lock_guard lock(mutex_);
    cut(begin, last);
    const auto next = extents_.lower_bound(begin);
    if (next != extents_.end() && next->first == last + 1 && next->second.writable == writable) {
        last = next->second.last;
        extents_.erase(next);
    }
    const auto behind = extents_.lower_bound(begin);
    if (behind != extents_.begin()) {
        const auto previous = std::prev(behind);
        if (previous->second.last + 1 == begin && previous->second.writable == writable) {
            begin = previous->first;
        }
    }
    extents_[begin] = {last, writable};
    version_.fetch_add(1, std::memory_order_release);
}

void Reach::remove(std::uint64_t begin, std::uint64_t bytes) {
    const std::uint64_t last = begin + bytes - 1;
    if (bytes == 0 || last < begin) {
        return;
    }
    {
        const std::lock_guard lock(mutex_);
        cut(begin, last);
        version_.fetch_add(1, std::memory_order_seq_cst);
    }
    readers().generation.fetch_add(1, std::memory_order_seq_cst);
}

const Reach::Table& Reach::renew() const {
    const std::lock_guard lock(mutex_);
    const Table* const old = table_.load(std::memory_order_acquire);
    const std::uint64_t version = version_.load(std::memory_order_acquire);
    if (old != nullptr && old->version == version) {
        return *old;  // Another thread was first.
    }
    auto made = std::make_unique<Table>();
    made->version = version;
    made->entries.reserve(extents_.size());
    for (const auto& [begin, extent] : extents_) {
        made->entries.push_back({begin, extent});
    }
    const Table* const now = made.release();
    table_.store(now, std::memory_order_release);
    if (old != nullptr) {
        retired_.emplace_back(readers().generation.fetch_add(1, std::memory_order_seq_cst) + 1,
                              std::unique_ptr<const Table>(old));
    }
    std::erase_if(retired_, [](const auto& one) { return all_have_passed(one.first); });
    return *now;
}

bool Reach::find(std::uint64_t begin, std::uint64_t bytes, Touch touch, ReachSpan& span) const {
    const std::uint64_t last = begin + bytes - 1;
    if (bytes == 0 || last < begin) {
        return false;
    }
    const Table* table = table_.load(std::memory_order_acquire);
    if (table == nullptr || table->version != version_.load(std::memory_order_seq_cst)) {
        table = &renew();
    }
    const std::vector<Entry>& entries = table->entries;
    auto at = std::upper_bound(
        entries.begin(), entries.end(), begin,
        [](std::uint64_t address, const Entry& entry) { return address < entry.begin; });
    if (at == entries.begin()) {
        return false;
    }
    --at;
    const Entry& around = *at;
    for (std::uint64_t from = begin;; from = at->extent.last + 1, ++at) {
        // What is read only and what is not may lie side by side.
        if (at == entries.end() || at->begin > from || at->extent.last < from ||
            (touch == Touch::kWrite && !at->extent.writable)) {
            return false;
        }
        if (at->extent.last >= last) {
            break;
        }
    }
    span = {around.begin, around.extent.last};
    return true;
}

}  // namespace gantry::softgpu
