// Events that workers of one VM share: who may have which, what is refused, and what holds a move
// up meanwhile.
#include "guest_fixture.h"
#include "host-daemon/sharing/share_broker.h"
#include "host-daemon/state/parts/blocking_features.h"

namespace gantry::worker {
namespace {

using sharing::ShareBroker;

constexpr std::uint32_t kSharable = CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
const std::uint64_t kNext = cuda::make_handle(HandleKind::kEvent, 2ull << 24);
const std::uint64_t kUnknown = cuda::make_handle(HandleKind::kEvent, 3ull << 24);

std::uint32_t give(Guest& guest, std::uint64_t event, hand::ShareHandle* handle) {
    const auto reply =
        guest.call(Op::cuIpcGetEventHandle, payload::cuIpcGetEventHandle_call{event});
    *handle = reply.as<hand::ShareHandle>();
    return reply.status;
}

std::uint32_t take(Guest& guest, std::uint64_t event, const hand::ShareHandle& handle) {
    return guest.call(Op::cuIpcOpenEventHandle, payload::cuIpcOpenEventHandle_call{event, handle})
        .status;
}

payload::cuIpcOpenMemHandle_v2_call open_memory(const hand::ShareHandle& handle) {
    payload::cuIpcOpenMemHandle_v2_call call{};
    std::memcpy(&call.handle, &handle, sizeof(call.handle));
    return call;
}

void make(Guest& guest, std::uint64_t event, std::uint32_t flags) {
    guest.send(Op::cuEventCreate, payload::cuEventCreate_call{event, flags, 0});
}

void end(Guest& guest, std::uint64_t event) {
    guest.send(Op::cuEventDestroy_v2, payload::cuEventDestroy_v2_call{event});
}

std::uint32_t query(Guest& guest, std::uint64_t event) {
    return guest.call(Op::cuEventQuery, payload::cuEventQuery_call{event}).status;
}

bool holds_moves_up(Serving& serving) {
    for (const auto& feature : state::blocking_features(*serving.host.process, 1)) {
        if (feature.id == "ipc.events") {
            return true;
        }
    }
    return false;
}

/// Until the broker has heard of what its workers have told it.
bool comes_to_hold_none(Serving& serving) {
    for (int i = 0; i < 20'000 && holds_moves_up(serving); ++i) {
        std::this_thread::sleep_for(500us);
    }
    return !holds_moves_up(serving);
}

TEST(SharedEvents, RefusesAsTheDriverDoes) {
    EXPECT_TRUE(in_child([] {
        const auto broker = std::move(ShareBroker::start(0ms)).value();
        Serving serving;
        Guest& guest = serving.guest;
        guest.retain();
        hand::ShareHandle handle{};
        hand::ShareHandle again{};
        make(guest, kEvent, kSharable);
        EXPECT_EQ(give(guest, kEvent, &handle), CUDA_ERROR_NOT_SUPPORTED);  // No broker.
        serving.host.process->shares.link.connect(std::move(broker->connect("vm")).value());
        EXPECT_EQ(give(guest, kEvent, &handle), CUDA_SUCCESS);
        EXPECT_EQ(give(guest, kEvent, &again), CUDA_SUCCESS);
        EXPECT_EQ(std::memcmp(&handle, &again, sizeof(handle)), 0);
        EXPECT_EQ(give(guest, kUnknown, &again), CUDA_ERROR_INVALID_HANDLE);
        make(guest, kNext, CU_EVENT_DISABLE_TIMING);
        EXPECT_EQ(give(guest, kNext, &again), CUDA_ERROR_INVALID_HANDLE);
        end(guest, kNext);

        EXPECT_EQ(take(guest, kNext, handle), CUDA_ERROR_INVALID_CONTEXT);
        hand::ShareHandle wrong = handle;
        wrong.token_low ^= 1;
        EXPECT_EQ(take(guest, kNext, wrong), CUDA_ERROR_INVALID_VALUE);
        wrong = handle;
        wrong.magic ^= 1;
        EXPECT_EQ(take(guest, kNext, wrong), CUDA_ERROR_INVALID_VALUE);
        wrong = handle;
        wrong.kind = static_cast<std::uint32_t>(control::ShareKind::kDeviceMemory);
        EXPECT_EQ(take(guest, kNext, wrong), CUDA_ERROR_INVALID_VALUE);
        EXPECT_EQ(guest.call(Op::cuIpcOpenMemHandle_v2, open_memory(wrong)).status,
                  CUDA_ERROR_INVALID_VALUE);
        EXPECT_EQ(take(guest, kEvent, handle), CUDA_ERROR_INVALID_HANDLE);  // The name is taken.
        EXPECT_EQ(query(guest, kNext), CUDA_ERROR_INVALID_HANDLE);
        EXPECT_FALSE(holds_moves_up(serving));
        // Over another connection, as after a restart of the broker, it is another handle.
        serving.host.process->shares.link.connect(std::move(broker->connect("vm")).value());
        EXPECT_EQ(give(guest, kEvent, &again), CUDA_SUCCESS);
        EXPECT_NE(std::memcmp(&handle, &again, sizeof(handle)), 0);
        EXPECT_EQ(take(guest, kNext, handle), CUDA_ERROR_INVALID_VALUE);
    }));
}

TEST(SharedEvents, ADriverThatMakesNoneLeavesTheEventToItsProcess) {
    EXPECT_TRUE(in_child([] {
        Serving serving;
        Guest& guest = serving.guest;
        guest.retain();
        make(guest, kEvent, CU_EVENT_INTERPROCESS);  // Refused as it is: it would have a time.
        EXPECT_EQ(query(guest, kEvent), CUDA_SUCCESS);
        hand::ShareHandle handle{};
        const auto broker = std::move(ShareBroker::start()).value();
        serving.host.process->shares.link.connect(std::move(broker->connect("vm")).value());
        EXPECT_EQ(give(guest, kEvent, &handle), CUDA_ERROR_INVALID_HANDLE);
    }));
}

/// What the processes of a test tell each other: how far they are, and the handle.
struct Board {
    enum Step : std::uint64_t { kGiven = 1, kOpen, kRecorded, kTakerEnded, kEventEnded, kDone };
    std::atomic<std::uint64_t> step;
    hand::ShareHandle handle;

    void await(Step wanted) const { EXPECT_TRUE(reaches(step, wanted)) << wanted; }
};

void give_and_watch(Board& board, control::UniqueFd broker) {
    Serving serving;
    Guest& guest = serving.guest;
    guest.retain();
    serving.host.process->shares.link.connect(std::move(broker));
    make(guest, kEvent, kSharable);
    EXPECT_EQ(give(guest, kEvent, &board.handle), CUDA_SUCCESS);
    EXPECT_FALSE(holds_moves_up(serving));
    board.step = Board::kGiven;
    board.await(Board::kOpen);
    EXPECT_TRUE(holds_moves_up(serving));
    guest.send(Op::cuEventRecord, payload::cuEventRecord_call{kEvent, 0});
    EXPECT_EQ(query(guest, kEvent), CUDA_SUCCESS);
    board.step = Board::kRecorded;
    board.await(Board::kTakerEnded);
    EXPECT_TRUE(comes_to_hold_none(serving));
    end(guest, kEvent);
    EXPECT_EQ(query(guest, kEvent), CUDA_ERROR_INVALID_HANDLE);
    board.step = Board::kEventEnded;
    board.await(Board::kDone);
}

/// Ends one of the two that it opens; the other ends with its process.
void take_twice(Board& board, control::UniqueFd broker) {
    Serving serving;
    Guest& guest = serving.guest;
    guest.retain();
    serving.host.process->shares.link.connect(std::move(broker));
    EXPECT_EQ(take(guest, kEvent, board.handle), CUDA_SUCCESS);
    EXPECT_EQ(take(guest, kNext, board.handle), CUDA_SUCCESS);
    EXPECT_TRUE(holds_moves_up(serving));
    board.step = Board::kOpen;
    board.await(Board::kRecorded);
    EXPECT_EQ(query(guest, kEvent), CUDA_SUCCESS);
    EXPECT_EQ(guest.call(Op::cuEventSynchronize, payload::cuEventSynchronize_call{kNext}).status,
              CUDA_SUCCESS);
    hand::ShareHandle again{};
    EXPECT_EQ(give(guest, kEvent, &again), CUDA_ERROR_INVALID_HANDLE);  // Another's to give.
    end(guest, kEvent);
    EXPECT_EQ(query(guest, kEvent), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_TRUE(holds_moves_up(serving));
}

void find_it_gone(Board& board, control::UniqueFd broker) {
    Serving serving;
    serving.guest.retain();
    serving.host.process->shares.link.connect(std::move(broker));
    EXPECT_EQ(take(serving.guest, kEvent, board.handle), CUDA_ERROR_INVALID_VALUE);
    EXPECT_FALSE(holds_moves_up(serving));
}

TEST(SharedEvents, AreOpenUntilTheyOrTheirProcessesEnd) {
    const auto broker = std::move(ShareBroker::start(0ms)).value();
    void* shared =
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(shared, MAP_FAILED);
    Board& board = *static_cast<Board*>(shared);
    const auto as_worker = [&](auto body) {
        auto end = std::move(broker->connect("vm")).value();
        return in_child([&] { body(board, std::move(end)); });
    };
    std::thread giver([&] { EXPECT_TRUE(as_worker(give_and_watch)); });
    board.await(Board::kGiven);
    EXPECT_TRUE(as_worker(take_twice));
    board.step = Board::kTakerEnded;
    board.await(Board::kEventEnded);
    EXPECT_TRUE(as_worker(find_it_gone));
    board.step = Board::kDone;
    giver.join();
    munmap(shared, sizeof(Board));
}

}  // namespace
}  // namespace gantry::worker
