// ThreadPool: a few threads that share out the pieces of one job over memory (copies,
// fingerprints).
//
// The threads start with the first job that has more than one piece and wait in between; they make
// no driver calls. Threads: one caller at a time. Cost: one wake-up of each helper per job.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace gantry::state {

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
    void take_pieces();

    const unsigned threads_;
    std::vector<std::thread> helpers_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::uint64_t job_ = 0;    ///< Counts jobs: a helper works on each once.
    std::size_t at_work_ = 0;  ///< Helpers in the present job.
    bool ending_ = false;
    const std::function<void(std::size_t)>* piece_ = nullptr;
    std::size_t count_ = 0;
    std::atomic<std::size_t> next_{0};
};

}  // namespace gantry::state
