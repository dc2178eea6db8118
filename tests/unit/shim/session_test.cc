// The session against a fake worker. A session is one per process, so each test's body runs in a
// child process of its own.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "guest-shim/session/connection.h"
#include "guest-shim/session/session.h"
#include "tests/unit/shim/in_child.h"

namespace gantry::test {
namespace {

thread_local void (*t_on_yield)() = nullptr;

}  // namespace
}  // namespace gantry::test

/// As libc's, which this one takes the place of in this program: what happens while a thread offers
/// its processor to others is the test's choice.
extern "C" int sched_yield() noexcept {
    if (gantry::test::t_on_yield != nullptr) {
        gantry::test::t_on_yield();
        return 0;
    }
    return static_cast<int>(syscall(SYS_sched_yield));
}

namespace gantry::test {
namespace {

TEST(Session, KnowsEventsFromWhatTheHostShows) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        using session::EventState;
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        const std::uint64_t event = cuda::slot_handle(cuda::HandleKind::kEvent, 1, 300);
        std::uint64_t recorded = 4096;
        auto& shown = worker.host().event_done[300 % wire::kEventWords];
        const auto state = [&] { return session::look_at_event(event, recorded); };
        const auto looks = [&] {  // Commands are seen in order: the call is the last.
            CHECK_OR_EXIT(plain_call(kOpA) == CUDA_SUCCESS);
            return worker.take_seen().size() - 1;
        };
        CHECK_OR_EXIT(state() == EventState::kUnknown);  // Not shown here.
        worker.host().shows_events = 1;
        CHECK_OR_EXIT(session::look_at_event(event, 0) == EventState::kDone);
        CHECK_OR_EXIT(looks() == 0);
        CHECK_OR_EXIT(state() == EventState::kPending);
        CHECK_OR_EXIT(state() == EventState::kPending);
        CHECK_OR_EXIT(looks() == 1);  // The host was told once.
        worker.host().looked = ~0ull;
        CHECK_OR_EXIT(state() == EventState::kPending);
        CHECK_OR_EXIT(looks() == 1);
        shown = recorded + 1;
        CHECK_OR_EXIT(state() == EventState::kDone);
        shown = recorded + 65;  // Of another event.
        CHECK_OR_EXIT(state() == EventState::kUnknown);
        shown = recorded + 1;
        worker.host().announce = 1;
        CHECK_OR_EXIT(state() == EventState::kUnknown);
        worker.host().announce = 2;
        CHECK_OR_EXIT(state() == EventState::kDone);
        shown = 0;  // Recorded before the migration: this host may know nothing of it.
        CHECK_OR_EXIT(state() == EventState::kUnknown);
        recorded = session::g_connection.ring.tail() + 4096;  // And after it.
        CHECK_OR_EXIT(state() == EventState::kPending);
        shown = recorded + 1;
        worker.host().late_errors = 1;
        CHECK_OR_EXIT(state() == EventState::kUnknown);
        CHECK_OR_EXIT(state() == EventState::kDone);
        session::thread()->in_callback = 1;
        CHECK_OR_EXIT(state() == EventState::kUnknown);
        session::thread()->in_callback = 0;
        // A worker that is gone never shows anything: the wait for it must end.
        worker.host().worker_state = wire::WorkerState::kDisowned;
        CHECK_OR_EXIT(state() == EventState::kUnknown);
        worker.host().worker_state = wire::WorkerState::kRunning;
        shown = 0;
        worker.host().looked = 0;
        worker.die(false);
        int asked = 0;
        while (state() == EventState::kPending) {
            CHECK_OR_EXIT(++asked < 1000);
        }
        CHECK_OR_EXIT(session::gate() == CUDA_ERROR_UNKNOWN);
    }));
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        worker.host().shows_events = 1;
        worker.host().sticky_error = CUDA_ERROR_ILLEGAL_ADDRESS;
        CHECK_OR_EXIT(session::look_at_event(1, 0) == session::EventState::kUnknown);
    }));
}

// While one thread waits for room to have the host look, the others answer all the same.
TEST(Session, AThreadThatAsksTheHostToLookHoldsUpNoOther) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        using session::EventState;
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        worker.host().shows_events = 1;
        worker.hold(true);
        std::atomic<bool> enough{false};
        std::thread fills([&] {
            while (!enough) {
                CHECK_OR_EXIT(session::post(kOpB, nullptr, 0, nullptr, 0) == CUDA_SUCCESS);
            }
        });
        for (std::uint64_t tail = 0; tail != session::g_connection.ring.tail();) {
            tail = session::g_connection.ring.tail();
            usleep(50'000);
        }
        std::atomic<int> pending{0};
        const auto looks = [&] {
            const std::uint64_t event = cuda::slot_handle(cuda::HandleKind::kEvent, 1, 300);
            pending += session::look_at_event(event, 4096) == EventState::kPending ? 1 : 0;
        };
        std::thread first(looks);
        usleep(100'000);
        std::thread second(looks);
        usleep(100'000);
        enough = true;
        worker.hold(false);
        first.join();
        second.join();
        fills.join();
        CHECK_OR_EXIT(pending == 2);
    }));
}

TEST(Session, KnowsAStreamThatHasJustRunDry) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        CHECK_OR_EXIT(!session::is_synchronised(0));
        const auto synchronise = [] {
            CHECK_OR_EXIT(plain_call(kOpA) == CUDA_SUCCESS);
            session::note_synchronised(5);
            return session::is_synchronised(5);
        };
        CHECK_OR_EXIT(synchronise());
        CHECK_OR_EXIT(!session::is_synchronised(6));
        session::push_context(77);
        CHECK_OR_EXIT(!session::is_synchronised(5));
        CHECK_OR_EXIT(synchronise());
        CHECK_OR_EXIT(session::post(kOpB, nullptr, 0, nullptr, 0) == CUDA_SUCCESS);
        CHECK_OR_EXIT(!session::is_synchronised(5));
        CHECK_OR_EXIT(synchronise());
        std::thread([] { CHECK_OR_EXIT(!session::is_synchronised(5)); }).join();
        CHECK_OR_EXIT(session::is_synchronised(5));
        session::thread()->in_callback = 1;
        CHECK_OR_EXIT(!session::is_synchronised(5));
        session::thread()->in_callback = 0;
        std::thread([] { session::post(kOpB, nullptr, 0, nullptr, 0); }).join();
        CHECK_OR_EXIT(!session::is_synchronised(5));
        CHECK_OR_EXIT(synchronise());
        worker.host().late_errors = 1;
        CHECK_OR_EXIT(!session::is_synchronised(5));
        CHECK_OR_EXIT(session::is_synchronised(5));
        worker.host().sticky_error = CUDA_ERROR_ILLEGAL_ADDRESS;
        CHECK_OR_EXIT(!session::is_synchronised(5));
    }));
}

TEST(Session, PostsArriveInOrderWithTheContext) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        session::push_context(77);
        constexpr std::uint32_t kCount = 5000;
        for (std::uint32_t i = 0; i < kCount; ++i) {
            CHECK_OR_EXIT(session::post(kOpA, &i, sizeof(i), nullptr, 0) == CUDA_SUCCESS);
        }
        CHECK_OR_EXIT(plain_call(kOpB) == CUDA_SUCCESS);
        const std::vector<Seen> seen = worker.take_seen();
        CHECK_OR_EXIT(seen.size() == kCount + 1);
        for (std::uint32_t i = 0; i < kCount; ++i) {
            CHECK_OR_EXIT(std::memcmp(seen[i].args.data(), &i, sizeof(i)) == 0);
            CHECK_OR_EXIT(seen[i].context == 77);
        }
    }));
}

TEST(Session, RingsOnceForEachSleepOfTheWorker) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        const auto rings_of_ten = [&worker] {
            const std::uint32_t before = worker.guest().doorbell.load();
            for (int i = 0; i < 10; ++i) {
                CHECK_OR_EXIT(session::post(kOpA, nullptr, 0, nullptr, 0) == CUDA_SUCCESS);
            }
            return worker.guest().doorbell.load() - before;
        };
        CHECK_OR_EXIT(rings_of_ten() == 0);
        worker.host().consumer_sleeps.store(5);  // And it gets no processor to clear it.
        CHECK_OR_EXIT(rings_of_ten() == 1);
        worker.host().consumer_sleeps.store(6);
        CHECK_OR_EXIT(rings_of_ten() == 1);
        worker.host().consumer_sleeps.store(0);
        CHECK_OR_EXIT(rings_of_ten() == 0);
    }));
}

// The answer has come, so that the worker may sleep again when the confirm is posted.
TEST(Session, RingsForAConfirmToo) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        worker.on_call = [](FakeWorker& self, const Seen& command) {
            self.host().consumer_sleeps.store(9);
            self.answer(command, 0);
        };
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        worker.host().announce.store(1);
        const std::uint32_t before = worker.guest().doorbell.load();
        CHECK_OR_EXIT(plain_call(kOpA) == CUDA_SUCCESS);
        CHECK_OR_EXIT(worker.confirms == 1);
        CHECK_OR_EXIT(worker.guest().doorbell.load() == before + 1);
    }));
}

TEST(Session, WaitsForRoomInAFullRing) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        worker.hold(true);
        std::thread later([&worker] {
            usleep(50'000);
            worker.hold(false);
        });
        std::vector<std::byte> data(200'000);
        for (int i = 0; i < 40; ++i) {  // 8 MB through a ring of 2 MiB.
            CHECK_OR_EXIT(session::post(kOpA, nullptr, 0, data.data(),
                                        static_cast<std::uint32_t>(data.size())) == CUDA_SUCCESS);
        }
        CHECK_OR_EXIT(plain_call(kOpB) == CUDA_SUCCESS);
        CHECK_OR_EXIT(worker.take_seen().size() == 41);
        later.join();
    }));
}

TEST(Session, AnswersMayComeOutOfOrder) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        static std::vector<Seen> waiting;  // Used by the worker's thread when this body has ended.
        worker.on_call = [](FakeWorker& self, const Seen& command) {
            if (command.op == static_cast<std::uint16_t>(kOpA)) {
                waiting.push_back(command);  // Stays unanswered until a later B of another lane.
                return;
            }
            self.answer(command, 0);
            for (const Seen& blocked : waiting) {
                self.answer(blocked, 7);
            }
        };
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        CUresult blocked = CUDA_SUCCESS;
        std::thread other([&blocked] { blocked = plain_call(kOpA); });
        usleep(20'000);
        CHECK_OR_EXIT(plain_call(kOpB) == CUDA_SUCCESS);
        other.join();
        CHECK_OR_EXIT(blocked == static_cast<CUresult>(7));
    }));
}

/// Errors that its calls have left on the lane are not the next thread's.
TEST(Session, AThreadSaysThatItsLaneWasAnothers) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        CHECK_OR_EXIT(plain_call(kOpA) == CUDA_SUCCESS);
        for (int i = 0; i < 2; ++i) {
            std::thread([] {
                CHECK_OR_EXIT(session::post(kOpB, nullptr, 0, nullptr, 0) == CUDA_SUCCESS);
                CHECK_OR_EXIT(plain_call(kOpA) == CUDA_SUCCESS);
            }).join();
        }
        std::thread([] { CHECK_OR_EXIT(plain_call(kOpA) == CUDA_SUCCESS); }).join();
        CHECK_OR_EXIT(plain_call(kOpA) == CUDA_SUCCESS);
        const std::vector<Seen> seen = worker.take_seen();
        const bool expected[] = {false, false, false, true, false, true, false};
        CHECK_OR_EXIT(seen.size() == std::size(expected));
        for (std::size_t i = 0; i < seen.size(); ++i) {
            CHECK_OR_EXIT(((seen[i].flags & wire::kCommandNewThread) != 0) == expected[i]);
            CHECK_OR_EXIT(seen[i].lane ==
                          (i == 0 || i + 1 == seen.size() ? seen[0].lane : seen[1].lane));
        }
    }));
}

TEST(Session, AThreadSaysOnceThatItWaitsForWhatItQueues) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        session::wait_follows();
        std::thread([] { CHECK_OR_EXIT(plain_call(kOpA) == CUDA_SUCCESS); }).join();
        CHECK_OR_EXIT(session::post(kOpB, nullptr, 0, nullptr, 0) == CUDA_SUCCESS);
        CHECK_OR_EXIT(plain_call(kOpA) == CUDA_SUCCESS);
        const std::vector<Seen> seen = worker.take_seen();
        const bool expected[] = {false, true, false};
        CHECK_OR_EXIT(seen.size() == std::size(expected));
        for (std::size_t i = 0; i < seen.size(); ++i) {
            CHECK_OR_EXIT(((seen[i].flags & wire::kCommandIsAwaited) != 0) == expected[i]);
        }
    }));
}

/// With one processor: a wait offers it to others, and after eight in a row that this has helped
/// the next one sleeps, once.
TEST(Session, AWaitSleepsNowAndThenWhereProcessorsAreFew) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        // Not on the stack: the worker's thread outlives this body.
        static std::atomic<int> current{0};   // The call under way ...
        static std::atomic<int> allowed{0};   // ... the last one that may be answered ...
        static std::atomic<int> answered{0};  // ... and that was.
        worker.on_call = [](FakeWorker& self, const Seen& command) {
            while (allowed <= answered) {
                usleep(50);
            }
            self.answer(command, 0);
            ++answered;
        };
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        session::g_connection.cpus = 1;
        static std::atomic<bool> has_ended{false};
        std::thread lets_sleepers_go([&worker] {
            while (!has_ended) {
                const int call = current;
                for (const auto& waiting : worker.guest().lane_waiting) {
                    if (waiting != 0) {
                        allowed = call;
                    }
                }
                usleep(100);
            }
        });
        static bool has_yielded;
        t_on_yield = [] {
            has_yielded = true;
            allowed = current.load();
            while (answered < current) {
                usleep(50);
            }
        };
        std::string ways;
        for (int call = 1; call <= 40; ++call) {
            has_yielded = false;
            current = call;
            CHECK_OR_EXIT(plain_call(kOpA) == CUDA_SUCCESS);
            ways += has_yielded ? 'y' : 's';
        }
        t_on_yield = nullptr;
        has_ended = true;
        lets_sleepers_go.join();
        const std::size_t first = ways.find('s');  // The start's own waits have counted before.
        CHECK_OR_EXIT(first <= 8);
        CHECK_OR_EXIT(ways.substr(first, 27) == "syyyyyyyysyyyyyyyysyyyyyyyy");
    }));
}

TEST(Session, MoreThreadsThanLanes) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        std::vector<std::thread> threads;
        std::atomic<int> fine{0};
        for (int i = 0; i < 100; ++i) {
            threads.emplace_back([&fine] {
                for (int round = 0; round < 20; ++round) {
                    fine += plain_call(kOpA) == CUDA_SUCCESS ? 1 : 0;
                }
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        CHECK_OR_EXIT(fine == 2000);
    }));
}

TEST(Session, DeadWorkerIsAnErrorNotAHang) {
    for (const bool leaves_note : {true, false}) {
        EXPECT_TRUE(in_child([leaves_note](FakeWorker& worker) {
            worker.on_call = [leaves_note](FakeWorker& self, const Seen&) {
                self.die(leaves_note);
            };
            worker.start();
            CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
            CHECK_OR_EXIT(plain_call(kOpA) == CUDA_ERROR_UNKNOWN);
            CHECK_OR_EXIT(session::post(kOpA, nullptr, 0, nullptr, 0) == CUDA_ERROR_UNKNOWN);
            CHECK_OR_EXIT(session::gate_local() == CUDA_SUCCESS);
        })) << leaves_note;
    }
}

TEST(Session, DeadWorkerEndsAWaitForRoom) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        worker.die(true);
        CUresult result = CUDA_SUCCESS;
        for (int i = 0; i < 200'000 && result == CUDA_SUCCESS; ++i) {
            result = session::post(kOpA, nullptr, 0, nullptr, 0);
        }
        CHECK_OR_EXIT(result == CUDA_ERROR_UNKNOWN);
    }));
}

TEST(Session, StickyErrorComesFromEveryLaterCall) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        worker.on_call = [](FakeWorker& self, const Seen& command) {
            self.host().sticky_error.store(CUDA_ERROR_ILLEGAL_ADDRESS);
            self.answer(command, CUDA_ERROR_ILLEGAL_ADDRESS);
        };
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        CHECK_OR_EXIT(plain_call(kOpA) == CUDA_ERROR_ILLEGAL_ADDRESS);
        CHECK_OR_EXIT(session::post(kOpA, nullptr, 0, nullptr, 0) == CUDA_ERROR_ILLEGAL_ADDRESS);
    }));
}

TEST(Session, ChildOfAForkIsNotInitialised) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        const pid_t child = fork();
        if (child == 0) {
            const bool fine =
                session::start() == CUDA_ERROR_NOT_INITIALIZED &&
                plain_call(kOpA) == CUDA_ERROR_NOT_INITIALIZED &&
                session::post(kOpA, nullptr, 0, nullptr, 0) == CUDA_ERROR_NOT_INITIALIZED;
            session::end();
            _exit(fine && session::gate() == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
        }
        int status = 0;
        waitpid(child, &status, 0);
        CHECK_OR_EXIT(status == 0);
        CHECK_OR_EXIT(plain_call(kOpB) == CUDA_SUCCESS);
        CHECK_OR_EXIT(worker.take_seen().size() == 1);
    }));
}

TEST(Session, ChildOfAForkDuringTheStartIsNotInitialised) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        // Not on the stack, which is used again before ThreadSanitizer sees that the worker's
        // thread has ended: what orders them is in the region, which has two mappings.
        static std::atomic<bool> is_asked{false};
        static std::atomic<bool> may_answer{false};
        worker.on_control = [](FakeWorker&, const Seen& command) {
            if (command.op == static_cast<std::uint16_t>(wire::ControlOp::kHello)) {
                for (is_asked = true; !may_answer;) {
                    usleep(1000);
                }
            }
            return false;
        };
        worker.start();
        std::thread starts([] { CHECK_OR_EXIT(session::start() == CUDA_SUCCESS); });
        while (!is_asked) {
            usleep(1000);
        }
        const pid_t child = fork();
        if (child == 0) {
            alarm(10);
            _exit(session::start() == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
        }
        int status = 0;
        waitpid(child, &status, 0);
        may_answer = true;
        starts.join();
        CHECK_OR_EXIT(status == 0);
        CHECK_OR_EXIT(plain_call(kOpA) == CUDA_SUCCESS);
    }));
}

// While gantryd starts a worker, and the child lives on.
TEST(Session, ChildOfAForkDuringTheAttachHoldsNoLink) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        pid_t child = 0;
        worker.on_attach = [&] {
            int ends[2];
            CHECK_OR_EXIT(pipe(ends) == 0);
            child = fork();
            if (child == 0) {
                alarm(30);
                CHECK_OR_EXIT(write(ends[1], "c", 1) == 1);
                pause();
            }
            char has_begun = 0;
            CHECK_OR_EXIT(read(ends[0], &has_begun, 1) == 1);
        };
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        const std::string link = std::to_string(session::g_connection.attachment.link_fd);
        const bool has_link = access(("/proc/self/fd/" + link).c_str(), F_OK) == 0;
        const std::string of_child = "/proc/" + std::to_string(child) + "/fd/";
        const bool is_child_here = access((of_child + "2").c_str(), F_OK) == 0;
        const bool child_has_link = access((of_child + link).c_str(), F_OK) == 0;
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
        CHECK_OR_EXIT(has_link && is_child_here && !child_has_link);
    }));
}

TEST(Session, CopiesBothWays) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        std::vector<unsigned char> data(3'000'001, 1);
        CHECK_OR_EXIT(session::read_device(data.data(), wire::kArenaBase + 5, data.size(), 0) ==
                      CUDA_SUCCESS);
        CHECK_OR_EXIT(data.front() == 5);
        // Pieces carry the address's low byte, and each piece starts at a multiple of 256 plus 5.
        CHECK_OR_EXIT(data.back() == 5);
        for (std::size_t i = 0; i < data.size(); ++i) {
            data[i] = static_cast<unsigned char>(i * 7);
        }
        CHECK_OR_EXIT(session::write_device(wire::kArenaBase, data.data(), data.size(), 0) ==
                      CUDA_SUCCESS);
        CHECK_OR_EXIT(plain_call(kOpB) == CUDA_SUCCESS);
        std::vector<std::byte> arrived;
        for (const Seen& command : worker.take_seen()) {
            if (command.op == static_cast<std::uint16_t>(wire::ControlOp::kWriteDevice)) {
                arrived.insert(arrived.end(), command.trailing.begin(), command.trailing.end());
            }
        }
        CHECK_OR_EXIT(arrived.size() == data.size());
        CHECK_OR_EXIT(std::memcmp(arrived.data(), data.data(), data.size()) == 0);
    }));
}

TEST(Session, LongAnswersUseTheOfferedExtent) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        worker.on_call = [](FakeWorker& self, const Seen& command) {
            // The extent is in the header, which the fake worker does not keep: page 0 is free.
            std::memset(self.bulk(), 0x5a, 9000);
            self.reply(command.lane).bulk_offset = 0;
            self.reply(command.lane).bulk_bytes = 9000;
            const std::uint64_t fixed = 42;
            self.answer(command, 0, &fixed, sizeof(fixed));
        };
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        std::vector<unsigned char> trailing(20'000);
        std::uint64_t fixed = 0;
        std::uint32_t got = 0;
        CHECK_OR_EXIT(session::call(kOpA, nullptr, 0, nullptr, 0, &fixed, sizeof(fixed),
                                    trailing.data(), 20'000, &got) == CUDA_SUCCESS);
        CHECK_OR_EXIT(fixed == 42 && got == 9000 && trailing[8999] == 0x5a && trailing[9000] == 0);
    }));
}

TEST(Session, AnAnswerMayFillItsExtent) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        constexpr std::uint32_t kBytes = 2 * wire::kPageBytes;
        worker.on_call = [](FakeWorker& self, const Seen& command) {
            std::memset(self.bulk(), 0x5a, kBytes);  // The first pages are free.
            self.answer_bulk(command, 0, kBytes);
        };
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        const std::vector<unsigned char> expected(kBytes, 0x5a);
        std::vector<unsigned char> trailing(kBytes);
        std::uint32_t got = 0;
        CHECK_OR_EXIT(session::call(kOpA, nullptr, 0, nullptr, 0, nullptr, 0, trailing.data(),
                                    kBytes, &got) == CUDA_SUCCESS);
        CHECK_OR_EXIT(got == kBytes && trailing == expected);
    }));
}

TEST(Session, DeviceOutputComesOutBeforeTheCallReturns) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        worker.printed = "hello from the device\n";
        worker.on_call = [](FakeWorker& self, const Seen& command) {
            self.answer(command, 0, nullptr, 0, wire::kReplyOutputPending);
        };
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        int ends[2];
        CHECK_OR_EXIT(pipe(ends) == 0 && dup2(ends[1], 1) == 1);
        CHECK_OR_EXIT(plain_call(kOpA) == CUDA_SUCCESS);
        char text[64] = {};
        CHECK_OR_EXIT(read(ends[0], text, sizeof(text)) == 22);
        CHECK_OR_EXIT(std::strcmp(text, "hello from the device\n") == 0);
    }));
}

// The touch rule: while a migration is announced, an answer is consumed only after a confirm.
TEST(Session, AnnouncedMigrationNeedsAConfirm) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        CHECK_OR_EXIT(plain_call(kOpA) == CUDA_SUCCESS);
        CHECK_OR_EXIT(worker.confirms == 0);
        worker.host().announce.store(1);
        CHECK_OR_EXIT(plain_call(kOpA) == CUDA_SUCCESS);
        CHECK_OR_EXIT(worker.confirms == 1);
        CHECK_OR_EXIT(worker.guest().announce_seen.load() == 1);
        worker.host().announce.store(2);
        CHECK_OR_EXIT(plain_call(kOpA) == CUDA_SUCCESS);
        CHECK_OR_EXIT(worker.confirms == 1);
    }));
}

// A reply page that turns stale between answer and confirm (the target has QEMU's old copy of it)
// must not be consumed: the answer is taken when it is published again.
TEST(Session, StaleAnswerAfterConfirmIsNotConsumed) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        worker.on_call = [](FakeWorker& self, const Seen& command) {
            const std::uint64_t payload = 1;
            self.answer(command, 0, &payload, sizeof(payload));
        };
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        worker.host().announce.store(1);
        worker.pause_confirms = true;
        std::atomic<bool> returned{false};
        std::uint64_t value = 0;
        std::thread caller([&] {
            session::call(kOpA, nullptr, 0, nullptr, 0, &value, sizeof(value), nullptr, 0, nullptr);
            returned = true;
        });
        usleep(30'000);
        CHECK_OR_EXIT(!returned);
        const std::uint32_t lane = worker.take_seen().at(0).lane;
        const std::uint64_t seq = worker.reply(lane).seq.exchange(0);  // The stale page.
        worker.pause_confirms = false;
        usleep(30'000);
        CHECK_OR_EXIT(!returned);
        const std::uint64_t payload = 2;
        std::memcpy(worker.reply(lane).payload, &payload, sizeof(payload));
        worker.host().announce.store(2);
        worker.reply(lane).seq.store(seq);  // Published again.
        caller.join();
        CHECK_OR_EXIT(value == 2);
    }));
}

TEST(Session, PinnedPoolGivesDisjointPagesAtTheFixedAddress) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        auto* a = static_cast<char*>(session::pinned_allocate(10'000));
        auto* b = static_cast<char*>(session::pinned_allocate(1));
        CHECK_OR_EXIT(reinterpret_cast<std::uint64_t>(a) == wire::kPinnedBase);
        CHECK_OR_EXIT(b == a + 12'288);
        std::memset(a, 1, 10'000);
        b[0] = 2;
        session::pinned_free(a);
        CHECK_OR_EXIT(session::pinned_allocate(12'288) == a);
        CHECK_OR_EXIT(session::pinned_allocate(1ull << 40) == nullptr);
    }));
}

TEST(Session, PinnedExtentsStayTheirOwnersWhateverElseIsFreed) {
    EXPECT_TRUE(in_child([](FakeWorker& worker) {
        worker.start();
        CHECK_OR_EXIT(session::start() == CUDA_SUCCESS);
        constexpr std::uint64_t kPage = wire::kPageBytes;
        const auto at = [](std::uint64_t page) {
            return reinterpret_cast<void*>(wire::kPinnedBase + page * kPage);
        };
        const auto handed_out = [&] { return worker.guest().pinned_high_water.load() / kPage; };
        CHECK_OR_EXIT(handed_out() == 0);
        for (std::uint64_t page = 0; page < 5; ++page) {
            CHECK_OR_EXIT(session::pinned_allocate(kPage) == at(page));
            CHECK_OR_EXIT(handed_out() == page + 1);
        }
        session::pinned_free(at(1));
        session::pinned_free(at(2));
        CHECK_OR_EXIT(session::pinned_allocate(2 * kPage) == at(1));
        session::pinned_free(at(0));
        CHECK_OR_EXIT(session::pinned_allocate(2 * kPage) == at(5));
        CHECK_OR_EXIT(handed_out() == 7);
        session::pinned_free(at(5));
        CHECK_OR_EXIT(session::pinned_allocate(kPage) == at(0));
        CHECK_OR_EXIT(session::pinned_allocate(kPage) == at(5));
        CHECK_OR_EXIT(handed_out() == 7);  // It was used once: a mirror has to compare it.
    }));
}

TEST(Session, ContextStackIsPerThread) {
    EXPECT_TRUE(in_child([](FakeWorker&) {
        for (std::uint64_t i = 1; i <= 20; ++i) {
            CHECK_OR_EXIT(session::push_context(i) == CUDA_SUCCESS);
        }
        std::uint64_t other = 99;
        std::thread([&other] { other = session::current_context(); }).join();
        CHECK_OR_EXIT(other == 0);
        CHECK_OR_EXIT(session::set_context(50) == CUDA_SUCCESS);
        CHECK_OR_EXIT(session::pop_context() == 50);
        CHECK_OR_EXIT(session::current_context() == 19);
    }));
}

}  // namespace
}  // namespace gantry::test
