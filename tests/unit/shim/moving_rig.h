// What a moving guest, its hosts and the model of a hypervisor share, for hypervisor_test.cc.
//
// THE MODEL is of a hypervisor whose dirty log sees what the guest writes and nothing that the host
// writes, as QEMU's does. The guest is a process with a session of the shim; its mappings are
// write-protected page by page, and a fault is a dirty page. The host is a process of its own: the
// worker's ChannelMemory and ReplyBoard on the region that both map, and a program of one call in
// place of a GPU. A pass copies dirty pages into what will be the target's memory; for the
// switch-over the guest is stopped (SIGSTOP, wherever it stands), and that memory is put in place
// of the region: host writes in clean pages are lost. Another process is the target's host.
#pragma once

#include <atomic>
#include <cstdint>

#include "proto/wire/region.h"

namespace gantry::test {

inline constexpr std::uint64_t kMovedBytes = 16ull << 20;
inline constexpr std::size_t kMovedPages = kMovedBytes / wire::kPageBytes;
inline constexpr std::uint16_t kMovedOp = 100;
inline constexpr std::uint32_t kMovedThreads = 2;

/// The call's arguments. The host counts the calls of a lane, writes the count to `word` in
/// page-locked memory, and then answers with it.
struct MovedCall {
    std::uint64_t word;
};

/// What the state of a session has of all this.
struct CarriedState {
    struct Kept {
        std::uint64_t position;
        std::uint32_t lane;
        std::uint64_t value;
    };
    std::uint64_t next_position = 0;
    std::uint64_t counts[wire::kLaneCount] = {};
    std::uint64_t confirmed[wire::kLaneCount] = {};
    Kept answers[wire::kLaneCount] = {};
    std::uint32_t answer_count = 0;
    /// The word of a call whose answer no confirm has followed; 0: none (memory/pinned_writes.h).
    std::uint64_t left[wire::kLaneCount] = {};
};

/// Lies in memory that all processes of a test share, zero at first.
struct MovingRig {
    // From the hypervisor to the guest, and back.
    std::atomic<std::uint64_t> calls_allowed;  ///< Of each thread.
    std::atomic<std::uint64_t> calls_done[kMovedThreads];
    std::atomic<std::uint64_t> looks;  ///< At who serves it, by a thread that waits for its answer.
    std::atomic<std::uint32_t> log_asked, log_given;  ///< Counts; what follows is the answer.
    std::atomic<bool> log_whole;                      ///< All pages, dirty or not.
    bool taken[kMovedPages];
    std::atomic<bool> dirty[kMovedPages];
    std::atomic<bool> started;
    // To the host that serves, and back.
    std::atomic<bool> announced, announced_done;
    std::atomic<bool> held;     ///< It leaves commands where they are ...
    std::atomic<bool> pending;  ///< ... of which there is one.
    std::atomic<std::uint64_t> answered;
    std::atomic<bool> freeze, frozen;
    std::atomic<bool> disown, disowned;
    std::atomic<bool> watch;  ///< It notes which pages it writes.
    std::atomic<bool> watching;
    std::atomic<bool> host_dirty[kMovedPages];
    std::atomic<bool> serving;
    CarriedState carried;
    // From whoever sees that something is wrong.
    std::atomic<bool> failed;
    char failure[256];
};

/// Ends this process with a reason; the first one counts.
[[noreturn]] void end_with(MovingRig* rig, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

/// The body of the guest's process.
[[noreturn]] void run_moved_guest(MovingRig* rig, std::uint32_t threads);

/// The body of a host's: the first hands the region out at `listener`; later ones (-1) take over.
[[noreturn]] void run_moved_host(MovingRig* rig, int region, int listener);

}  // namespace gantry::test
