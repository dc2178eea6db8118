// ShareLink: this worker's connection to the share broker of its host (proto/control/share.h).
//
// Threads: all calls lock; ask() may wait kAnswerTime. Failure: a broker that does not answer in
// time, or says what is no answer, is left: its late answer would be taken for the next one's.
// Cost: ask() is a round trip to the broker's thread.
#pragma once

#include <chrono>
#include <cstdint>

#include "proto/base/mutex.h"
#include "proto/control/channel.h"
#include "proto/control/share.h"

namespace gantry::worker {

class ShareLink {
public:
    static constexpr std::chrono::milliseconds kAnswerTime{2000};

    struct Answer {
        control::ShareReply reply;
        control::UniqueFd descriptor;
        std::uint64_t connection = 0;  ///< That it came over.
    };

    /// From here on this is the broker's connection; what was offered over an earlier one is gone.
    void connect(control::UniqueFd broker);
    /// Which connection it is, counted from 1; 0: there is no broker.
    [[nodiscard]] std::uint64_t connection();
    /// The descriptor stays the caller's.
    Result<Answer> ask(const control::ShareRequest& request, int descriptor = -1);
    void tell(control::ShareOp op, const control::ShareToken& token);
    /// When it returns nobody can open the token any more (or there is no broker).
    void withdraw(const control::ShareToken& token);
    /// How often others have open what is offered here, or are about to (ShareOp::kCount).
    [[nodiscard]] std::uint64_t open_elsewhere(control::ShareKind kind);

private:
    Mutex mutex_;
    control::PacketSocket broker_ GANTRY_GUARDED_BY(mutex_);
    std::uint64_t connections_ GANTRY_GUARDED_BY(mutex_) = 0;
};

}  // namespace gantry::worker
