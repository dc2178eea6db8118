// Words of the policy of a shared GPU: what a session is given, says of itself, and may do.
#pragma once

#include <chrono>
#include <cstdint>

namespace gantry::scheduling {

/// Since any beginning, the same for all calls of one object.
using Time = std::chrono::nanoseconds;
inline constexpr Time kNever = Time::max();

inline constexpr std::uint32_t kPriorityMax = 9;
inline constexpr std::uint32_t kWeightMax = 1000;

/// Of one session, as its VM's metadata has it.
struct Share {
    std::uint32_t priority = 4;  ///< 0 to kPriorityMax: the higher one goes first.
    std::uint32_t weight = 100;  ///< 1 to kWeightMax: parts of the GPU's time among equals.
    friend bool operator==(const Share&, const Share&) = default;
};

enum class Traffic {
    kLaunches,
    kPrecopy,  ///< Copies of a move: below every priority, but never silent for long.
};

/// What a session says of itself.
struct Claim {
    bool wants = false;  ///< It has work that it has not given to the driver.
    bool runs = false;   ///< The driver has work of it that has not ended.
    Time next{};         ///< How long what it wants takes, most times; 0: not known.
    Time gap{};          ///< How long it will have nothing, at least, most times; 0: not known.
    friend bool operator==(const Claim&, const Claim&) = default;
};

enum class Permit : std::uint32_t {
    kOpen,    ///< Nobody else is there: it launches, and says nothing.
    kTold,    ///< It launches as it likes, and tells its claims.
    kWindow,  ///< It may have a window of GPU time queued.
    kOnce,    ///< It may give one window of GPU time to the driver, once for each serial number.
    kHold,    ///< It waits.
    kFill,    ///< As kWindow, but only what has ended by `until`: it is in another's gap.
};

struct Verdict {
    Permit permit = Permit::kOpen;
    std::uint32_t serial = 0;  ///< Of kOnce and kFill: another number is another window.
    Time until{};              ///< Of kFill.
    friend bool operator==(const Verdict&, const Verdict&) = default;
};

struct Settings {
    Time window{std::chrono::microseconds{200}};  ///< GPU time that a limited session has queued.
    Time quantum{std::chrono::milliseconds{5}};   ///< A turn among equals.
    Time linger{std::chrono::microseconds{500}};  ///< A holder without work keeps the GPU so long.
    Time starvation{std::chrono::milliseconds{100}};
    Time precopy_every{std::chrono::milliseconds{5}};
    Time drain_max{std::chrono::milliseconds{10}};     ///< What a turn leaves behind is waited for.
    Time switch_cost{std::chrono::microseconds{150}};  ///< From one process to another (H100).
    bool fills_gaps = false;
    /// Of a gap: to change from one process to another and back, and for what is late.
    Time fill_margin{std::chrono::microseconds{200}};
    /// A holder that will be away for longer gives up the GPU at once.
    Time gap_max{std::chrono::milliseconds{10}};
};

}  // namespace gantry::scheduling
