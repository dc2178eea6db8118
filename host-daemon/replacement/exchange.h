// What a replacement needs in each way: a worker that can be asked, and the clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "proto/base/result.h"
#include "proto/control/unique_fd.h"
#include "proto/control/worker.pb.h"

namespace gantry::replacement {

struct Answer {
    control::FromWorker message;
    std::vector<control::UniqueFd> descriptors;
};

/// A started worker. A reply's error status is the call's error.
class Endpoint {
public:
    virtual ~Endpoint() = default;
    virtual Result<Answer> call(control::ToWorker request, std::span<const int> descriptors) = 0;
    /// Makes sure that its process has ended and can write to no memory any more.
    virtual void kill() = 0;
};

using Clock = std::chrono::steady_clock;

/// Microseconds from `begin` until now.
inline std::uint64_t us_since(Clock::time_point begin) {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count());
}

}  // namespace gantry::replacement
