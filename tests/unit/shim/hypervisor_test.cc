// The rules for memory that a hypervisor moves (proto/wire/region.h, MIGRATION), against a model of
// one (moving_rig.h). The product is built three times more with a rule taken out of it
// (CMakeLists.txt): the test here that is about the rule must fail then, with its own words.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "host-daemon/execution/ring/channel_memory.h"
#include "tests/unit/shim/moving_rig.h"

namespace gantry::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Pages = std::vector<std::size_t>;

/// A guest, the host that serves it and what moves both. Each step is one call, true if it went
/// well; what did not is told once.
class Move {
public:
    explicit Move(std::uint32_t threads) : threads_(threads), target_(kMovedBytes) {
        void* shared = mmap(nullptr, sizeof(MovingRig), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        rig_ = static_cast<MovingRig*>(shared);
        file_ = std::move(worker::ChannelMemory::create_region(kMovedBytes)).value();
        region_ = static_cast<std::byte*>(
            mmap(nullptr, kMovedBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0));
        wire::compute_layout(kMovedBytes, 1, 0, &layout_);
    }
    ~Move() {
        for (const pid_t host : hosts_) {
            end(host);
        }
        end(guest_);
        munmap(region_, kMovedBytes);
        munmap(rig_, sizeof(MovingRig));
    }
    Move(const Move&) = delete;
    Move& operator=(const Move&) = delete;

    MovingRig& rig() { return *rig_; }
    const wire::ChannelLayout& layout() const { return layout_; }

    bool start() {
        const std::string path = "/tmp/gantry-moving-test-" + std::to_string(getpid()) + ".sock";
        unlink(path.c_str());
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
        const control::UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        if (bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
            listen(listener.get(), 1) != 0) {
            return told("no socket");
        }
        setenv("GANTRY_TRANSPORT", ("unix:" + path).c_str(), 1);
        run_host(listener.get());
        guest_ = fork();
        if (guest_ == 0) {
            run_moved_guest(rig_, threads_);
        }
        const bool fine = until([this] { return rig_->started.load(); }, "the guest starts");
        unlink(path.c_str());
        return fine;
    }

    /// Every thread makes its next `count` calls.
    bool calls(std::uint64_t count) {
        allow(count);
        return until([this] { return slowest() >= rig_->calls_allowed.load(); },
                     "the guest has its answers");
    }
    void allow(std::uint64_t count) { rig_->calls_allowed.fetch_add(count); }
    [[nodiscard]] std::uint64_t slowest() const {
        std::uint64_t done = rig_->calls_done[0].load();
        for (std::uint32_t i = 1; i < threads_; ++i) {
            done = std::min(done, rig_->calls_done[i].load());
        }
        return done;
    }

    bool announce(bool migrating) {
        rig_->announced.store(migrating);
        return until([this] { return rig_->announced.load() == rig_->announced_done.load(); },
                     "the migration is announced");
    }
    bool first_pass() {
        return take_log(true) && (std::memcpy(target_.data(), region_, kMovedBytes), true);
    }
    /// While the guest runs: what it has written since the pass before.
    bool pass() {
        if (!take_log(false)) {
            return false;
        }
        copy_pages(taken());
        return true;
    }

    bool stop_guest() {
        int status = 0;
        return kill(guest_, SIGSTOP) == 0 && waitpid(guest_, &status, WUNTRACED) == guest_ &&
                       WIFSTOPPED(status)
                   ? true
                   : told("the guest does not stop");
    }
    /// Only while the guest is stopped.
    [[nodiscard]] Pages dirty() const {
        Pages pages;
        for (std::size_t page = 0; page < kMovedPages; ++page) {
            if (rig_->dirty[page].load()) {
                pages.push_back(page);
            }
        }
        return pages;
    }
    void copy_pages(const Pages& pages) {
        for (const std::size_t page : pages) {
            std::memcpy(target_.data() + page * wire::kPageBytes, region_ + page * wire::kPageBytes,
                        wire::kPageBytes);
        }
    }
    bool freeze() {
        rig_->freeze.store(true);
        return until([this] { return rig_->frozen.load(); }, "the source freezes");
    }
    /// What a source does once another host has been granted the session.
    bool disown() {
        rig_->disown.store(true);
        return until([this] { return rig_->disowned.load(); }, "the source gives the session up");
    }
    /// The guest is in the memory that was carried.
    void switch_over() { std::memcpy(region_, target_.data(), kMovedBytes); }
    void resume_guest() { kill(guest_, SIGCONT); }
    bool take_over() {
        // The first host stays, with nothing to do: the guest's socket is with it.
        rig_->freeze.store(false);
        rig_->frozen.store(false);
        for (std::size_t i = 1; i < hosts_.size(); ++i) {
            end(hosts_[i]);
        }
        kill(hosts_[0], SIGSTOP);
        hosts_.resize(1);
        rig_->announced.store(false);
        rig_->announced_done.store(false);
        run_host(-1);
        return until([this] { return rig_->serving.load(); }, "the target serves");
    }

    bool until(const std::function<bool()>& reached, const char* what) {
        const auto deadline = Clock::now() + kLimit;
        while (!reached()) {
            if (rig_->failed.load()) {
                return told(rig_->failure);
            }
            if (Clock::now() > deadline) {
                return told(std::string("in vain waited for this: ") + what);
            }
            std::this_thread::sleep_for(100us);
        }
        return true;
    }

private:
    static constexpr auto kLimit = 20s;  // Where a rule is taken out the guest may hang.

    static bool told(const std::string& what) {
        ADD_FAILURE() << what;
        return false;
    }
    static void end(pid_t child) {
        if (child > 0) {
            kill(child, SIGKILL);
            waitpid(child, nullptr, 0);
        }
    }
    void run_host(int listener) {
        rig_->serving.store(false);
        const pid_t host = fork();
        if (host == 0) {
            run_moved_host(rig_, file_.get(), listener);
        }
        hosts_.push_back(host);
    }
    bool take_log(bool whole) {
        std::memset(rig_->taken, 0, sizeof(rig_->taken));
        rig_->log_whole.store(whole);
        rig_->log_asked.fetch_add(1);
        return until([this] { return rig_->log_asked.load() == rig_->log_given.load(); },
                     "the log is given");
    }
    [[nodiscard]] Pages taken() const {
        Pages pages;
        for (std::size_t page = 0; page < kMovedPages; ++page) {
            if (rig_->taken[page]) {
                pages.push_back(page);
            }
        }
        return pages;
    }

    std::uint32_t threads_;
    MovingRig* rig_ = nullptr;
    control::UniqueFd file_;
    std::byte* region_ = nullptr;
    wire::ChannelLayout layout_{};
    std::vector<std::byte> target_;
    pid_t guest_ = -1;
    std::vector<pid_t> hosts_;
};

// What the host wrote into page-locked memory before an answer that was consumed has been carried.
TEST(Hypervisor, CarriesWhatWasTouchedAndConfirmed) {
    Move move(1);
    ASSERT_TRUE(move.start() && move.calls(5));
    ASSERT_TRUE(move.announce(true) && move.first_pass());
    ASSERT_TRUE(move.calls(1));  // The guest is idle after it: a pause finds it so.
    ASSERT_TRUE(move.stop_guest());
    move.copy_pages(move.dirty());
    ASSERT_TRUE(move.freeze());
    move.switch_over();
    ASSERT_TRUE(move.take_over());
    move.resume_guest();
    EXPECT_TRUE(move.calls(3));
}

// And so has the answer: it is not what the target publishes for want of a better one.
TEST(Hypervisor, CarriesTheReplyThatWasConfirmed) {
    Move move(1);
    ASSERT_TRUE(move.start() && move.calls(5));
    ASSERT_TRUE(move.announce(true) && move.first_pass());
    ASSERT_TRUE(move.calls(1));
    ASSERT_TRUE(move.stop_guest());
    const Pages dirty = move.dirty();
    EXPECT_TRUE(std::any_of(dirty.begin(), dirty.end(), [&](std::size_t page) {
        return page >= move.layout().replies / wire::kPageBytes &&
               page < move.layout().ring / wire::kPageBytes;
    })) << "the hypervisor's log has no reply page";
}

// An answer that came while the guest stood still, so that no page of it is dirty: the target
// publishes it from the log.
TEST(Hypervisor, AnAnswerThatWasNotCarriedComesFromTheLog) {
    Move move(1);
    ASSERT_TRUE(move.start() && move.calls(3));
    ASSERT_TRUE(move.announce(true) && move.first_pass());
    move.rig().held.store(true);
    move.allow(1);
    ASSERT_TRUE(move.until([&] { return move.rig().pending.load(); }, "a command lies there"));
    ASSERT_TRUE(move.stop_guest());
    move.copy_pages(move.dirty());
    const std::uint64_t answered = move.rig().answered.load();
    move.rig().held.store(false);
    ASSERT_TRUE(move.until([&] { return move.rig().answered.load() > answered; }, "an answer"));
    ASSERT_TRUE(move.freeze());
    move.switch_over();
    ASSERT_TRUE(move.take_over());
    move.resume_guest();
    EXPECT_TRUE(move.calls(2));
}

// The page split, by what both sides really write: without a migration no page but page-locked
// memory, which is theirs both, is written by guest and host.
TEST(Hypervisor, GuestWritesNoPageOfTheHost) {
    Move move(kMovedThreads);
    ASSERT_TRUE(move.start() && move.calls(2));
    ASSERT_TRUE(move.first_pass());
    move.rig().watch.store(true);
    ASSERT_TRUE(move.until([&] { return move.rig().watching.load(); }, "the host is watched"));
    ASSERT_TRUE(move.calls(30));
    ASSERT_TRUE(move.stop_guest());
    const Pages by_guest = move.dirty();
    EXPECT_FALSE(by_guest.empty());
    std::size_t by_host = 0;
    for (std::size_t page = 0; page < move.layout().pinned / wire::kPageBytes; ++page) {
        by_host += move.rig().host_dirty[page].load() ? 1 : 0;
        EXPECT_FALSE(move.rig().host_dirty[page].load() &&
                     std::find(by_guest.begin(), by_guest.end(), page) != by_guest.end())
            << "page " << page << " of the region is written by both sides";
    }
    EXPECT_GE(by_host, 2u) << "the host's words, and a reply";
}

// Post-copy: dirty pages leave the source last, after it was told that the session is another
// host's. The guest has the memory by then, and must not be told so, too.
TEST(Hypervisor, PagesPulledLateCarryNoWordsOfTheHost) {
    Move move(1);
    ASSERT_TRUE(move.start() && move.calls(2));
    ASSERT_TRUE(move.announce(true) && move.first_pass());
    ASSERT_TRUE(move.calls(3));
    ASSERT_TRUE(move.stop_guest());
    ASSERT_TRUE(move.freeze() && move.disown());
    move.copy_pages(move.dirty());
    move.switch_over();
    const std::uint64_t looks = move.rig().looks.load();
    move.allow(1);
    move.resume_guest();
    ASSERT_TRUE(move.until([&] { return move.rig().looks.load() >= looks + 2; },
                           "the guest waits for its answer, and looks who serves it"));
    ASSERT_TRUE(move.take_over());
    EXPECT_TRUE(move.calls(2));
}

// Two threads that call without end, moved and stopped wherever they stand; some moves are called
// off. Every call is executed once, in order, and what it wrote is there.
TEST(Hypervisor, MovesAtAnyMoment) {
    constexpr int kMoves = 25;
    Move move(kMovedThreads);
    ASSERT_TRUE(move.start());
    move.allow(1u << 30);
    for (int seed = 0; seed < kMoves; ++seed) {
        SCOPED_TRACE("move " + std::to_string(seed));
        std::mt19937 random(static_cast<unsigned>(seed));
        const auto linger = [&random] {
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 1500));
        };
        const std::uint64_t before = move.slowest();
        ASSERT_TRUE(move.announce(true) && move.first_pass());
        for (unsigned passes = random() % 4; passes > 0; --passes) {
            linger();
            ASSERT_TRUE(move.pass());
        }
        linger();
        ASSERT_TRUE(move.stop_guest());
        if (random() % 4 == 0) {
            move.resume_guest();
            ASSERT_TRUE(move.announce(false));
        } else {
            const bool first = random() % 2 == 0;
            if (first) {
                move.copy_pages(move.dirty());
                linger();
            }
            ASSERT_TRUE(move.freeze());
            if (!first) {
                move.copy_pages(move.dirty());
            }
            move.switch_over();
            const bool runs_first = random() % 2 == 0;
            if (runs_first) {
                move.resume_guest();
                linger();
            }
            ASSERT_TRUE(move.take_over());
            move.resume_guest();
        }
        ASSERT_TRUE(move.until([&] { return move.slowest() > before + 2; }, "the calls go on"));
    }
}

}  // namespace
}  // namespace gantry::test
