// ThreadPool: a few threads that share out the pieces of one job (copies, fingerprints, questions
// to several workers).
//
// The threads start with the first job that has more than one piece and wait in between. Threads:
// one caller at a time. Cost: one wake-up of each helper per job.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "proto/base/mutex.h"

namespace gantry {

class ThreadPool {
public:
    /// `threads` counts the caller's; 0: the machine's cores, at most 8.
    explicit ThreadPool(unsigned threads = 0);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    /// Calls piece(0) to piece(count - 1), each once, in any order, some at the same time; returns
    /// when all have returned. `piece` does not throw.
    void run(std::size_t count, const std::function<void(std::size_t)>& piece);

private:
    void help();
    void take_pieces(std::size_t count, const std::function<void(std::size_t)>& piece);

    const unsigned threads_;
    std::vector<std::thread> helpers_;
    Mutex mutex_;
    CondVar changed_;
    /// Counts jobs: a helper works on each once.
    std::uint64_t job_ GANTRY_GUARDED_BY(mutex_) = 0;
    std::size_t at_work_ GANTRY_GUARDED_BY(mutex_) = 0;  ///< Helpers in the present job.
    bool ending_ GANTRY_GUARDED_BY(mutex_) = false;
    const std::function<void(std::size_t)>* piece_ GANTRY_GUARDED_BY(mutex_) = nullptr;
    std::size_t count_ GANTRY_GUARDED_BY(mutex_) = 0;
    std::atomic<std::size_t> next_{0};
};

}  // namespace gantry
