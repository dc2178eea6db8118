// Pageable copies of the session against a fake worker: what is lent to it, what it shows, and what
// of that counts. A session is one per process, so each test's body runs in a child of its own.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "guest-shim/session/connection.h"
#include "guest-shim/session/crew.h"
#include "guest-shim/session/session.h"
#include "tests/unit/shim/in_child.h"

namespace gantry::test {
namespace {

using wire::ControlOp;

constexpr std::size_t kDeviceBytes = 8u << 20;

/// Held while a command is served. Guest and worker map the region at two addresses, between which
/// ThreadSanitizer sees no order.
std::mutex g_serving;

/// Device memory at the arena's base behind the fake worker. Copies are done at once, unless they
/// are `delayed`; a test may step in before each command.
struct Device {
    std::vector<std::byte> memory = std::vector<std::byte>(kDeviceBytes);
    std::atomic<bool> delayed{false};  ///< Copies from the outbox wait for finish().
    std::atomic<bool> silent{false};   ///< Ends are not shown.
    bool loses_reads = false;          ///< Their bytes, but not their ends.
    std::atomic<int> lent{0}, in_records{0}, shown_reads{0}, answered_reads{0}, looks{0};
    std::function<void(FakeWorker&, ControlOp)> before;
    std::vector<std::pair<wire::BulkCopyCall, std::uint64_t>> waiting;

    bool serve(FakeWorker& worker, const Seen& command) {
        const std::lock_guard lock(g_serving);
        const auto op = static_cast<ControlOp>(command.op);
        if (before) {
            before(worker, op);
        }
        switch (op) {
            case ControlOp::kWriteDevice: {
                ++in_records;
                std::memcpy(at(arguments<wire::WriteDeviceCall>(command).device_address),
                            command.trailing.data(), command.trailing.size());
                return true;
            }
            case ControlOp::kWriteFromBulk:
                ++lent;
                waiting.emplace_back(arguments<wire::BulkCopyCall>(command), command.position);
                if (!delayed) {
                    finish(worker);
                }
                return true;
            case ControlOp::kReadToBulk: {
                const auto copy = arguments<wire::BulkCopyCall>(command);
                if (!silent) {
                    ++shown_reads;
                    if (loses_reads) {
                        std::memset(worker.bulk() + copy.bulk_offset, 0x77, copy.bytes);
                    } else {
                        std::memcpy(worker.bulk() + copy.bulk_offset, at(copy.device_address),
                                    copy.bytes);
                    }
                    show(worker, copy.word, command.position);
                }
                return true;
            }
            case ControlOp::kReadDevice: {
                ++answered_reads;
                const auto read = arguments<wire::ReadDeviceCall>(command);
                std::memcpy(worker.bulk() + read.bulk_offset, at(read.device_address), read.bytes);
                worker.answer_bulk(command, read.bulk_offset, read.bytes);
                return true;
            }
            case ControlOp::kLookAtBulk: {
                ++looks;
                const auto look = arguments<wire::LookAtBulkCall>(command);
                show(worker, look.word, look.position);
                return true;
            }
            default: return false;
        }
    }
    void finish(FakeWorker& worker) {
        for (const auto& [copy, position] : waiting) {
            std::memcpy(at(copy.device_address), worker.bulk() + copy.bulk_offset, copy.bytes);
            if (!silent) {
                show(worker, copy.word, position);
            }
        }
        waiting.clear();
    }

private:
    template <typename T>
    static T arguments(const Seen& command) {
        T value;
        CHECK_OR_EXIT(command.args.size() == sizeof(value));
        std::memcpy(&value, command.args.data(), sizeof(value));
        return value;
    }
    std::byte* at(std::uint64_t address) { return memory.data() + (address - wire::kArenaBase); }
    static void show(FakeWorker& worker, std::uint32_t word, std::uint64_t position) {
        worker.host().bulk_done[word].store(position + 1, std::memory_order_release);
    }
};

/// Runs `body` in a child, with a session that takes the machine for a large one.
bool with_device(const std::function<void(FakeWorker&, Device&)>& body) {
    Device device;
    return in_child([&](FakeWorker& worker) {
        worker.on_control = [&](FakeWorker& self, const Seen& command) {
            return device.serve(self, command);
        };
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        session::g_connection.cpus = 8;
        worker.host().shares_bulk = 1;
        worker.host().bulk_locked = 1;
        body(worker, device);
    });
}

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
    std::vector<std::byte> out(bytes);
    for (std::byte& byte : out) {
        seed = seed * 1664525u + 1013904223u;
        byte = static_cast<std::byte>(seed >> 24);
    }
    return out;
}

void write(const std::vector<std::byte>& source, std::uint64_t offset = 0) {
    CHECK_OR_EXIT(session::write_device(wire::kArenaBase + offset, source.data(), source.size(),
                                        0) == CUDA_SUCCESS);
}

std::vector<std::byte> read(std::size_t bytes, std::uint64_t offset = 0) {
    std::vector<std::byte> target(bytes);
    CHECK_OR_EXIT(session::read_device(target.data(), wire::kArenaBase + offset, bytes, 0) ==
                  CUDA_SUCCESS);
    return target;
}

/// Waits until the worker has executed everything.
void settle() {
    CHECK_OR_EXIT(session::call(static_cast<cuda::Op>(100), nullptr, 0, nullptr, 0, nullptr, 0,
                                nullptr, 0, nullptr) == CUDA_SUCCESS);
    const std::lock_guard lock(g_serving);
}

bool all_is_free() {
    std::uint32_t first = 0;
    const auto pages = static_cast<std::uint32_t>(session::g_connection.bulk.bytes() / 4096);
    return session::g_connection.bulk.try_allocate(pages, &first);
}

TEST(Copies, GoThroughTheOutboxAndBack) {
    EXPECT_TRUE(with_device([](FakeWorker&, Device& device) {
        for (const std::size_t bytes : {1, 4095, 16384, 65536, 100'001, 300'077, 5'000'003}) {
            const auto source = pattern(bytes, static_cast<unsigned>(bytes));
            write(source, 3);
            CHECK_OR_EXIT(read(bytes, 3) == source);
        }
        CHECK_OR_EXIT(device.lent > 10 && device.shown_reads > 5);
        CHECK_OR_EXIT(all_is_free());
    }));
}

/// Who works at a job that takes each of them so long.
std::size_t workers_at(session::Help help, std::chrono::microseconds time) {
    struct Job {
        std::chrono::microseconds time;
        std::mutex mutex;
        std::set<std::thread::id> seen;
    } job{time, {}, {}};
    session::work_together(
        help,
        [](void* data) {
            Job& work = *static_cast<Job*>(data);
            {
                const std::lock_guard lock(work.mutex);
                work.seen.insert(std::this_thread::get_id());
            }
            std::this_thread::sleep_for(work.time);
        },
        &job);
    return job.seen.size();
}

TEST(Copies, HelpersComeToLongJobsAndToThoseThatFollowEachOther) {
    EXPECT_TRUE(with_device([](FakeWorker&, Device&) {
        constexpr std::chrono::microseconds kLong{100'000};
        CHECK_OR_EXIT(workers_at({.helpers = 2}, kLong) == 1);  // Alone: nobody is woken.
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        CHECK_OR_EXIT(workers_at({.helpers = 0, .is_long = true}, kLong) == 1);
        // On a busy machine they may be too late for one.
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (workers_at({.helpers = 2, .is_long = true}, kLong) < 3) {
            CHECK_OR_EXIT(std::chrono::steady_clock::now() < until);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(5));  // They sleep again.
        while (workers_at({.helpers = 2}, std::chrono::microseconds(500)) < 3) {
            CHECK_OR_EXIT(std::chrono::steady_clock::now() < until);
        }
    }));
}

TEST(Copies, OfManyThreadsDoNotMeet) {
    EXPECT_TRUE(with_device([](FakeWorker&, Device&) {
        std::vector<std::thread> threads;
        for (unsigned i = 0; i < 6; ++i) {
            threads.emplace_back([i] {
                for (unsigned round = 0; round < 10; ++round) {
                    const auto source = pattern(1'200'000 - round * 100'000, i * 100 + round);
                    write(source, i * 1'300'000ull);
                    CHECK_OR_EXIT(read(source.size(), i * 1'300'000ull) == source);
                }
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        CHECK_OR_EXIT(all_is_free());
    }));
}

// The device reads what was lent to it whenever it comes to it; what finds no room goes in records.
TEST(Copies, LentBytesStayUntilTheirEndIsShown) {
    EXPECT_TRUE(with_device([](FakeWorker& worker, Device& device) {
        device.delayed = true;
        const auto first = pattern(2'000'000, 1);
        const auto second = pattern(1'000'000, 2);
        write(first);
        write(second, first.size());
        settle();
        CHECK_OR_EXIT(device.lent > 0 && device.in_records > 0);
        const int lent = device.lent;
        write(second, first.size());
        settle();
        CHECK_OR_EXIT(device.lent == lent);
        device.finish(worker);
        CHECK_OR_EXIT(std::equal(first.begin(), first.end(), device.memory.begin()));
        CHECK_OR_EXIT(std::equal(second.begin(), second.end(),
                                 device.memory.begin() + static_cast<long>(first.size())));
        write(second);
        settle();
        CHECK_OR_EXIT(device.lent > lent);
    }));
}

// A move can leave ends behind: after one the host is asked about each run once.
TEST(Copies, EndsLostInAMoveAreAskedFor) {
    EXPECT_TRUE(with_device([](FakeWorker& worker, Device& device) {
        device.silent = true;
        const auto source = pattern(2'000'000, 3);
        write(source);
        write(source);
        settle();
        const int lent = device.lent;
        CHECK_OR_EXIT(device.looks == 0 && device.in_records > 0);
        worker.host().epoch.fetch_add(1);
        device.silent = false;
        write(source);
        settle();
        CHECK_OR_EXIT(device.looks == lent);
        write(source);
        settle();
        CHECK_OR_EXIT(device.looks == lent && device.lent > lent);
    }));
}

TEST(Copies, WhatIsNeverShownIsAskedFor) {
    EXPECT_TRUE(with_device([](FakeWorker&, Device& device) {
        const auto source = pattern(700'000, 4);
        write(source);
        device.silent = true;
        CHECK_OR_EXIT(read(source.size()) == source);
        CHECK_OR_EXIT(device.answered_reads > 0 && device.shown_reads == 0);
        CHECK_OR_EXIT(all_is_free());
    }));
}

TEST(Copies, ALateEndIsWaitedForUnlessNobodyLooks) {
    EXPECT_TRUE(with_device([](FakeWorker& worker, Device& device) {
        const auto source = pattern(4096, 6);
        write(source);
        settle();
        device.before = [](FakeWorker&, ControlOp op) {
            if (op == ControlOp::kReadToBulk) {  // A kernel runs before the copy.
                std::this_thread::sleep_for(std::chrono::milliseconds(2));
            }
        };
        // On a busy machine not each time.
        int in_time = 0;
        for (int i = 0; i < 20 && in_time == 0; ++i) {
            const int answered = device.answered_reads;
            CHECK_OR_EXIT(read(4096) == source);
            in_time += device.answered_reads == answered ? 1 : 0;
        }
        CHECK_OR_EXIT(in_time != 0);
        // A capture begins.
        device.silent = true;
        device.before = [](FakeWorker& self, ControlOp op) {
            if (op == ControlOp::kReadToBulk) {
                self.host().bulk_locked = 0;
            }
        };
        std::uint64_t least_ns = ~0ull;
        for (int i = 0; i < 20; ++i) {
            worker.host().bulk_locked = 1;
            const std::uint64_t begin = wire::monotonic_ns();
            CHECK_OR_EXIT(read(4096) == source);
            least_ns = std::min(least_ns, wire::monotonic_ns() - begin);
        }
        CHECK_OR_EXIT(least_ns < 8'000'000);
    }));
}

// The bytes of a read that ended across an announcement may be stale where the guest now is.
TEST(Copies, WhatAnAnnouncementMeetsIsReadAnew) {
    for (const std::uint32_t announced : {1u, 2u}) {  // Still going on; over, on another host.
        EXPECT_TRUE(with_device([announced](FakeWorker&, Device& device) {
            const auto source = pattern(700'000, 5);
            write(source);
            settle();
            int reads = 0;
            device.before = [&](FakeWorker& self, ControlOp op) {
                if (op == ControlOp::kReadToBulk && ++reads == 3) {
                    self.host().announce.store(announced);
                    device.loses_reads = true;
                }
            };
            CHECK_OR_EXIT(read(source.size()) == source);
            CHECK_OR_EXIT(device.answered_reads > 0);
            CHECK_OR_EXIT(all_is_free());
        }));
    }
}

TEST(Copies, FailedReadsTellAndFreeTheirExtents) {
    EXPECT_TRUE(with_device([](FakeWorker& worker, Device& device) {
        worker.on_control = [&](FakeWorker& self, const Seen& command) {
            if (command.op == static_cast<std::uint16_t>(ControlOp::kReadDevice)) {
                self.answer(command, CUDA_ERROR_INVALID_VALUE);
                return true;
            }
            return command.op == static_cast<std::uint16_t>(ControlOp::kReadToBulk) ||
                   device.serve(self, command);
        };
        std::vector<std::byte> target(700'000);
        CHECK_OR_EXIT(session::read_device(target.data(), wire::kArenaBase, target.size(), 0) ==
                      CUDA_ERROR_INVALID_VALUE);
        CHECK_OR_EXIT(all_is_free());
    }));
}

// An error that an earlier command of the thread met belongs to its next answer.
TEST(Copies, EarlierErrorsAreToldByAReadWithoutAnAnswer) {
    EXPECT_TRUE(with_device([](FakeWorker& worker, Device& device) {
        write(pattern(100'000, 6));
        settle();
        worker.host().late_errors = 1;
        worker.on_control = [&](FakeWorker& self, const Seen& command) {
            if (command.op == static_cast<std::uint16_t>(ControlOp::kReadDevice)) {
                self.answer(command, CUDA_ERROR_INVALID_HANDLE);
                return true;
            }
            return device.serve(self, command);
        };
        std::vector<std::byte> target(100'000);
        CHECK_OR_EXIT(session::read_device(target.data(), wire::kArenaBase, target.size(), 0) ==
                      CUDA_ERROR_INVALID_HANDLE);
    }));
}

// Where the host sees no memory of this process (a mirror), everything travels with the commands.
TEST(Copies, AMirroredRegionLendsNothing) {
    EXPECT_TRUE(with_device([](FakeWorker& worker, Device& device) {
        worker.host().shares_bulk = 0;
        const auto source = pattern(3'000'000, 7);
        write(source);
        CHECK_OR_EXIT(read(source.size()) == source);
        CHECK_OR_EXIT(device.lent == 0 && device.shown_reads == 0);
    }));
}

}  // namespace
}  // namespace gantry::test
