// The rules for memory that a hypervisor moves (proto/wire/region.h, MIGRATION), against a model of
// one whose dirty log sees what the guest writes and nothing that the host writes, as QEMU's does.
//
// The model: the guest's mappings are write-protected page by page and a fault is a dirty page; the
// worker has a mapping of its own. A pass copies dirty pages into what will be the target's memory;
// the switch-over puts that in place of the region, so that host writes in clean pages are lost.
// Built twice more with a rule taken out (CMakeLists.txt): then a test here must fail.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <set>
#include <utility>

#include "guest-shim/session/connection.h"
#include "guest-shim/session/session.h"
#include "tests/unit/shim/in_child.h"

namespace gantry::test {
namespace {

constexpr auto kOp = static_cast<cuda::Op>(100);
constexpr std::size_t kPages = FakeWorker::kRegionBytes / wire::kPageBytes;

/// What the fault handler reaches: one a process.
struct Mapping {
    std::byte* base = nullptr;
    std::size_t first_page = 0;  ///< In the region.
    std::size_t pages = 0;
};
Mapping g_mappings[2];
std::atomic<bool> g_dirty[kPages];

void on_fault(int, siginfo_t* info, void*) {
    auto* at = static_cast<std::byte*>(info->si_addr);
    for (const Mapping& mapping : g_mappings) {
        if (at >= mapping.base && at < mapping.base + mapping.pages * wire::kPageBytes) {
            const auto page = static_cast<std::size_t>(at - mapping.base) / wire::kPageBytes;
            g_dirty[mapping.first_page + page].store(true);
            mprotect(mapping.base + page * wire::kPageBytes, wire::kPageBytes,
                     PROT_READ | PROT_WRITE);
            return;
        }
    }
    _exit(3);
}

class Hypervisor {
public:
    /// After the session has started.
    explicit Hypervisor(FakeWorker& worker) : worker_(worker), target_(FakeWorker::kRegionBytes) {
        const std::size_t pool = worker.layout().pinned / wire::kPageBytes;
        g_mappings[0] = {reinterpret_cast<std::byte*>(session::g_connection.guest_directory), 0,
                         pool};
        g_mappings[1] = {reinterpret_cast<std::byte*>(wire::kPinnedBase), pool, kPages - pool};
        struct sigaction action {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO;
        sigaction(SIGSEGV, &action, nullptr);
    }

    /// Logs from here on.
    void clear_log() {
        for (auto& page : g_dirty) {
            page.store(false);
        }
        for (const Mapping& mapping : g_mappings) {
            mprotect(mapping.base, mapping.pages * wire::kPageBytes, PROT_READ);
        }
    }
    void first_pass() {
        clear_log();
        std::memcpy(target_.data(), worker_.region(), target_.size());
    }
    /// Copies what the guest has written since the pass before.
    void pass() {
        for (std::size_t page = 0; page < kPages; ++page) {
            if (g_dirty[page].load()) {
                std::memcpy(target_.data() + page * wire::kPageBytes,
                            worker_.region() + page * wire::kPageBytes, wire::kPageBytes);
            }
        }
    }
    /// The guest goes on in the memory that was carried.
    void switch_over() { std::memcpy(worker_.region(), target_.data(), target_.size()); }

    static std::set<std::size_t> dirty_pages() {
        std::set<std::size_t> pages;
        for (std::size_t page = 0; page < kPages; ++page) {
            if (g_dirty[page].load()) {
                pages.insert(page);
            }
        }
        return pages;
    }

private:
    FakeWorker& worker_;
    std::vector<std::byte> target_;
};

/// What a target does before it serves: host-owned words and the kept answer, again.
void take_over(FakeWorker& worker, const Seen& answered, std::uint64_t payload) {
    worker.host().worker_state.store(wire::WorkerState::kRunning);
    worker.host().announce.store(2);
#ifndef GANTRY_MUTANT_WITHOUT_LOG
    worker.answer(answered, 0, &payload, sizeof(payload));
#else
    (void)answered;
    (void)payload;
#endif
}

/// Runs `body` in a child that has a session.
bool with_session(const std::function<void(FakeWorker&)>& body) {
    constexpr unsigned kLimitS = 5;  // Where a rule is taken out the guest may hang.
    return in_child(
        [&body](FakeWorker& worker) {
            worker.start();
            CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
            body(worker);
        },
        kLimitS);
}

CUresult call_for(std::uint64_t* value) {
    return session::call(kOp, nullptr, 0, nullptr, 0, value, sizeof(*value), nullptr, 0, nullptr);
}

/// Until the guest sleeps in its wait for the answer, having written so in its words.
void wait_until_asleep(FakeWorker& worker, const Seen& command) {
    while (worker.guest().lane_waiting[command.lane].load() == 0) {
        usleep(100);
    }
}

// What the host wrote into page-locked memory before an answer that was consumed has been carried.
TEST(Hypervisor, CarriesWhatWasTouchedAndConfirmed) {
    EXPECT_TRUE(with_session([](FakeWorker& worker) {
        auto* word = static_cast<volatile std::uint32_t*>(session::pinned_allocate(4096));
        *word = 1;
        Hypervisor hypervisor(worker);
        worker.host().announce.store(1);
        hypervisor.first_pass();
        worker.on_call = [](FakeWorker& self, const Seen& command) {
            const std::uint32_t written = 7;
            std::memcpy(self.region() + self.layout().pinned, &written, sizeof(written));
            const std::uint64_t payload = 5;
            self.answer(command, 0, &payload, sizeof(payload));
        };
        std::uint64_t value = 0;
        CHECK_OR_EXIT(call_for(&value) == CUDA_SUCCESS && value == 5);
        worker.hold(true);
        usleep(2000);  // The guest is idle here: a pause finds it so.
        hypervisor.pass();
        hypervisor.switch_over();
        CHECK_OR_EXIT(*word == 7);
    }));
}

// An answer that no pass has carried, since the guest had not seen it: the target's log has it.
TEST(Hypervisor, AnAnswerThatWasNotCarriedComesFromTheLog) {
    EXPECT_TRUE(with_session([](FakeWorker& worker) {
        Hypervisor hypervisor(worker);
        worker.host().announce.store(1);
        hypervisor.first_pass();
        int executed = 0;
        worker.on_call = [&](FakeWorker& self, const Seen& command) {
            ++executed;
            // A guest that is paused writes nothing. This one cannot be, so it is left to fall
            // asleep in its wait, and the answer's number, for which it waits, is left out: what
            // it would do upon it in the pause would be lost with the page, and it would hang.
            wait_until_asleep(self, command);
            hypervisor.pass();
            const std::uint64_t payload = 9;
            std::memcpy(self.reply(command.lane).payload, &payload, sizeof(payload));
            hypervisor.switch_over();  // The page of the answer is the old one again.
            take_over(self, command, payload);
        };
        std::uint64_t value = 0;
        CHECK_OR_EXIT(call_for(&value) == CUDA_SUCCESS);
        CHECK_OR_EXIT(value == 9 && executed == 1);
    }));
}

/// Pages in which the host has words or bytes, by a layout.
std::set<std::size_t> host_pages(const wire::ChannelLayout& layout) {
    std::set<std::size_t> pages{1};  // HostDirectory
    const auto add = [&](std::uint64_t from, std::uint64_t bytes) {
        for (std::uint64_t at = from; at < from + bytes; at += wire::kPageBytes) {
            pages.insert(at / wire::kPageBytes);
        }
    };
    add(layout.host_words, sizeof(wire::HostWords));
    add(layout.replies, wire::kLaneCount * sizeof(wire::ReplyPage));
    add(layout.bulk, layout.bulk_bytes);
    return pages;
}

bool meets(const std::set<std::size_t>& a, const std::set<std::size_t>& b) {
    return std::any_of(a.begin(), a.end(), [&](std::size_t page) { return b.contains(page); });
}

// The page split: without a migration the guest dirties no page that the host writes, so that no
// page of the guest's stream carries host bytes of some earlier moment.
TEST(Hypervisor, GuestWritesNoPageOfTheHost) {
    EXPECT_TRUE(with_session([](FakeWorker& worker) {
        Hypervisor hypervisor(worker);
        hypervisor.clear_log();
        bool first = true;
        worker.on_call = [&first](FakeWorker& self, const Seen& command) {
            if (std::exchange(first, false)) {
                wait_until_asleep(self, command);  // so that it has written its words, too
            }
            const std::uint64_t payload = command.position;
            self.answer(command, 0, &payload, sizeof(payload));
        };
        std::uint64_t value = 0;
        for (int i = 0; i < 50; ++i) {
            CHECK_OR_EXIT(call_for(&value) == CUDA_SUCCESS);
        }
        const auto dirty = Hypervisor::dirty_pages();
        CHECK_OR_EXIT(!dirty.empty());
        CHECK_OR_EXIT(!meets(dirty, host_pages(worker.layout())));
        // With the host's words in the guest's page, the same look finds it.
        wire::ChannelLayout unsplit = worker.layout();
        unsplit.host_words = unsplit.guest_words;
        CHECK_OR_EXIT(meets(dirty, host_pages(unsplit)));
    }));
}

}  // namespace
}  // namespace gantry::test
