// ShareBroker: passes shared memory and events from worker to worker, within a group.
//
// A group is what may share: the processes of one VM, or the local programs of one user. Whoever
// holds a connection belongs to the group it was made for; nothing that a worker says changes that,
// and a token is looked up in the asker's group alone, so one that was guessed or copied from
// another VM opens nothing. Tokens are 128 random bits.
//
// Owner: gantryd. A thread of its own answers; it never waits for a worker: one that does not take
// its answers, or sends what is none, loses its connection. What a connection offered goes with it;
// what others have opened stays theirs. What was offered just now and nobody has opened yet counts
// as open: whom it is for is about to. Failure: `share.*`.
// Cost: a descriptor for each offer of memory that stands, kMemoryMax of them a group; of events
// kEventsMax.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "proto/base/mutex.h"
#include "proto/base/result.h"
#include "proto/control/channel.h"
#include "proto/control/share.h"

namespace gantry::sharing {

class ShareBroker {
public:
    static constexpr std::size_t kMemoryMax = 256;
    static constexpr std::size_t kEventsMax = 8192;
    /// For how long an offer that nobody opens counts as open.
    static constexpr std::chrono::milliseconds kAwaited{10'000};

    static Result<std::unique_ptr<ShareBroker>> start(std::chrono::milliseconds awaited = kAwaited);
    ~ShareBroker();
    ShareBroker(const ShareBroker&) = delete;
    ShareBroker& operator=(const ShareBroker&) = delete;

    /// The worker's end of a new connection. Any thread.
    Result<control::UniqueFd> connect(const std::string& group);

private:
    using Clock = std::chrono::steady_clock;
    struct Connection {
        std::uint64_t id = 0;
        std::string group;
        control::PacketSocket socket;
        std::map<control::ShareToken, std::uint32_t> opened;
    };
    struct Offer {
        std::uint64_t owner = 0;  ///< Connection; 0: withdrawn, and open somewhere.
        control::ShareKind kind = control::ShareKind::kInvalid;
        std::uint64_t bytes = 0;
        control::UniqueFd descriptor;
        control::ShareWord word{};
        std::uint64_t open_count = 0;
        Clock::time_point awaited_until;  ///< In the past once it was opened.
        [[nodiscard]] std::uint64_t counts_as() const {
            return open_count != 0 ? open_count : Clock::now() < awaited_until ? 1 : 0;
        }
    };
    using Offers = std::map<control::ShareToken, Offer>;
    struct Group {
        Offers offers;
        std::map<control::ShareKind, std::size_t> counts;  ///< Of the offers.
    };

    ShareBroker(control::UniqueFd wake, std::chrono::milliseconds awaited)
        : wake_(std::move(wake)), awaited_(awaited) {}
    void serve();
    /// False when the connection is to be dropped.
    bool answer(Connection& asker);
    bool act(Connection& asker, const control::ShareRequest& request,
             std::vector<control::UniqueFd>& in);
    control::ShareReply offer(Connection& asker, const control::ShareRequest& request,
                              std::vector<control::UniqueFd>& in);
    control::ShareReply open(Connection& asker, const control::ShareRequest& request, int* out);
    static void withdraw(Group& group, Offers::iterator offer);
    static void erase(Group& group, Offers::iterator offer);
    void close(const Connection& asker, const control::ShareToken& token);
    void drop(Connection& connection);

    control::UniqueFd wake_;
    const std::chrono::milliseconds awaited_;
    Mutex mutex_;  ///< Over what connect() hands to the thread.
    std::vector<std::unique_ptr<Connection>> fresh_ GANTRY_GUARDED_BY(mutex_);
    std::uint64_t next_id_ GANTRY_GUARDED_BY(mutex_) = 1;
    bool ending_ GANTRY_GUARDED_BY(mutex_) = false;

    // The thread's own.
    std::vector<std::unique_ptr<Connection>> connections_;
    std::map<std::string, Group> groups_;
    std::thread thread_;
};

}  // namespace gantry::sharing
