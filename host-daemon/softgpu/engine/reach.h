// What kernels may touch: the memory that the driver has mapped for them, as spans of addresses.
// Every access of a kernel through a global or generic address is looked up here before it is made
// (exec/addresses.h, isa/addresses.h), so a kernel reaches nothing else of its process, whatever is
// mapped there. A block's own shared and local memory, a launch's parameters and what else the
// engine itself lends a kernel have addresses of windows.h, which are never looked up here.
//
// Spans are kept to the byte, and neighbours of one kind become one span. add() and remove() take a
// lock. find() takes none: it reads an immutable table, which the first find() after a change makes
// anew.
//
// Threads that run kernels keep spans between instructions (ReachCache), and drop them when they
// pass a quiescent point: between two turns of a block's warps, and while a service runs. So
// remove() is not enough before the addresses may become something else's: then await_kernels()
// must be called in between. It waits until every thread has passed such a point, which is a matter
// of microseconds, not of a kernel's end.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace gantry::softgpu {

struct Inst;

enum class Touch : std::uint8_t { kRead, kWrite };

/// Both ends belong to it. An empty span holds no access.
struct ReachSpan {
    std::uint64_t begin = 1;
    std::uint64_t last = 0;
};

class Reach {
public:
    Reach() = default;
    ~Reach();
    Reach(const Reach&) = delete;
    Reach& operator=(const Reach&) = delete;

    /// Kernels may read, and if `writable` write, [begin, begin + bytes) from here on, whatever
    /// held there before. Nothing happens for 0 bytes, or if the end lies beyond 2^64.
    void add(std::uint64_t begin, std::uint64_t bytes, bool writable = true);
    void remove(std::uint64_t begin, std::uint64_t bytes);

    /// Whether all of [begin, begin + bytes) may be touched so; `span` is then the one around
    /// `begin`. Only inside a ReachScope. Any thread.
    [[nodiscard]] bool find(std::uint64_t begin, std::uint64_t bytes, Touch touch,
                            ReachSpan& span) const;

    /// Returns when no thread uses what was removed, of any Reach, or any older state that it
    /// guards. Not from within a ReachScope.
    static void await_kernels();

private:
    struct Extent {
        std::uint64_t last = 0;
        bool writable = true;
    };
    struct Entry {
        std::uint64_t begin = 0;
        Extent extent;
    };
    struct Table {
        std::uint64_t version = 0;
        std::vector<Entry> entries;
    };

    void cut(std::uint64_t begin, std::uint64_t last);
    [[nodiscard]] const Table& renew() const;

    mutable std::mutex mutex_;
    std::map<std::uint64_t, Extent> extents_;  ///< By begin; disjoint.
    std::atomic<std::uint64_t> version_{1};
    mutable std::atomic<const Table*> table_{nullptr};
    /// Tables that some thread may still read, with the generation that ends this.
    mutable std::vector<std::pair<std::uint64_t, std::unique_ptr<const Table>>> retired_;
};

/// The spans that a thread's instructions were last found in, by instruction.
class ReachCache {
public:
    // Inline in every handler: see isa/lanes.h.
    [[nodiscard, gnu::always_inline]] ReachSpan& of(const Inst* inst, Touch touch) {
        constexpr std::uintptr_t kInstBytes = 64;
        return spans_[static_cast<std::size_t>(touch)]
                     [reinterpret_cast<std::uintptr_t>(inst) / kInstBytes % kEntries];
    }
    void forget();
    /// A quiescent point: forgets everything if anything was removed since the last one.
    void pass_quiescent_point();

private:
    static constexpr std::size_t kEntries = 64;
    ReachSpan spans_[2][kEntries];
};

/// The calling thread runs kernels while this lives: it may find() and keep spans. Does not nest.
class ReachScope {
public:
    ReachScope() { enter(); }
    ~ReachScope() { leave(); }
    ReachScope(const ReachScope&) = delete;
    ReachScope& operator=(const ReachScope&) = delete;

    static void enter();
    static void leave();
};

}  // namespace gantry::softgpu
