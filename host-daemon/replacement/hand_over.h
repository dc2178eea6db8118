// HandOver: a replacement on one device, whose memory changes hands and is not copied.
#pragma once

#include "host-daemon/replacement/job.h"

namespace gantry::replacement {

class HandOver final : public Job {
public:
    using Job::Job;

private:
    Result<void> check_devices(const control::DeviceDescription& from,
                               const control::DeviceDescription& to) override;
    Result<void> prepare() override;
    Result<void> send_final() override;
    Result<void> move_pieces();
    Result<void> copy_round(std::uint64_t* bytes);

    std::uint64_t last_serial_ = 0;
    control::MemorySum sum_;
};

}  // namespace gantry::replacement
