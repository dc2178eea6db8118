// Copy: a replacement that copies device memory, live; how is told in copy.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "host-daemon/replacement/job.h"
#include "migration/engine/transfer.h"

namespace gantry::replacement {

class Copy final : public Job {
public:
    using Job::Job;

private:
    /// What the pause may spend on copying rather than have another round.
    static constexpr engine::Duration kPauseCopyMax{60'000};
    enum class Phase : std::uint8_t { kLive, kFrozen };

    Result<void> check_devices(const control::DeviceDescription& from,
                               const control::DeviceDescription& to) override;
    Result<void> prepare() override;
    Result<void> send_final() override;
    void tidy_up() override;

    Result<void> open_window();
    /// Pieces that are new since the last call, into the window.
    Result<void> take_pieces();
    /// Memory at the fresh worker for what is new, and what was in it counts as never sent.
    Result<void> follow_pieces();
    Result<void> forget_unprepared();
    /// A round while the guest is served. False: another one would not shorten the pause.
    Result<bool> live_round();
    Result<void> copy(const Runs& runs, Phase phase, Round* round);
    Result<void> pull(const Runs& runs, Phase phase, Round* round);
    Result<std::uint64_t> last_serial();

    engine::Rounds rounds_{engine::rules_of_replacement(kPauseCopyMax)};
    std::uint64_t last_serial_ = 0;      ///< Of the window.
    std::uint64_t prepared_serial_ = 0;  ///< The fresh worker's graph knows pieces up to it.
    std::vector<control::MemoryPiece> unprepared_;
};

}  // namespace gantry::replacement
