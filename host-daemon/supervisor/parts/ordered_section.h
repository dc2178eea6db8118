// OrderedSection: several threads share out numbered pieces of work, of which one step goes in
// order.
//
//     turns.run(threads, count, [&](std::size_t piece, auto in_turn) -> Result<void> {
//         ...;                                              // at any time, beside others
//         GANTRY_TRY(in_turn([&]() -> Result<void> {...})); // piece 0 first, then piece 1, ...
//         ...;
//     });
//
// Pieces are taken in order, so the piece whose turn it is has always been begun. After the first
// error no piece is begun any more, and nobody's turn comes. Returns that error, when all threads
// have returned.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

#include "host-daemon/supervisor/workers/worker_set.h"
#include "proto/base/result.h"

namespace gantry::supervisor {

/// Threads that hash and copy blocks: more than cores, so that none idles while the thread whose
/// turn it is has to wait for one. Whoever waits for its turn may hold a slot of a staging area:
/// there have to be as many slots as threads.
inline std::size_t slot_threads() {
    return std::clamp<std::size_t>(2 * std::thread::hardware_concurrency(), 1, kStagingSlots);
}

class OrderedSection {
public:
    template <typename Work>
    Result<void> run(std::size_t threads, std::size_t count, Work work) {
        std::vector<std::jthread> helpers;
        const auto take = [&] {
            for (std::size_t piece = 0; begin(count, &piece);) {
                const auto in_turn = [&](auto step) -> Result<void> {
                    if (!await(piece)) {
                        return Error{Code::kCancelled, "snapshot.cancelled", "another part failed"};
                    }
                    Result<void> done = step();
                    pass_on();
                    return done;
                };
                if (Result<void> done = work(piece, in_turn); !done) {
                    fail(done.error());
                }
            }
        };
        for (std::size_t i = 1; i < std::min(threads, count); ++i) {
            helpers.emplace_back(take);
        }
        take();
        helpers.clear();
        return outcome_;
    }

private:
    bool begin(std::size_t count, std::size_t* piece) {
        const std::lock_guard lock(mutex_);
        if (next_ == count || !outcome_) {
            return false;
        }
        *piece = next_++;
        return true;
    }
    bool await(std::size_t piece) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return turn_ == piece || !outcome_; });
        return outcome_.ok();
    }
    void pass_on() {
        const std::lock_guard lock(mutex_);
        ++turn_;
        changed_.notify_all();
    }
    void fail(const Error& error) {
        const std::lock_guard lock(mutex_);
        if (outcome_) {
            outcome_ = error;
        }
        changed_.notify_all();
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::size_t next_ = 0;
    std::size_t turn_ = 0;
    Result<void> outcome_;
};

}  // namespace gantry::supervisor
