#include "guest-shim/session/programs.h"

#include "guest-shim/session/connection.h"
#include "guest-shim/session/session.h"
#include "guest-shim/session/transport/claimant.h"

namespace gantry::session {
namespace {

std::uint64_t device_bytes(std::uint32_t channel, std::uint32_t channel_count) {
    const Attachment& attachment = g_connection.attachment;
    wire::ChannelLayout layout{};
    if (!wire::compute_layout(attachment.region_bytes, channel_count, channel, &layout)) {
        return Program::kNotKnown;
    }
    const auto* words =
        reinterpret_cast<const wire::HostWords*>(attachment.region + layout.host_words);
    const bool is_mirrored = words->shares_bulk.load(std::memory_order_relaxed) == 0;
    return is_mirrored ? Program::kNotKnown : words->device_bytes.load(std::memory_order_relaxed);
}

}  // namespace

std::uint32_t programs(Program* out, std::uint32_t room) noexcept {
    if (gate() != CUDA_SUCCESS) {
        return 0;
    }
    const wire::GuestDirectory* directory = g_connection.guest_directory;
    const std::uint32_t channels = directory->channel_count;
    std::uint32_t found = 0;
    for (std::uint32_t channel = 0; channel < channels && channel < wire::kMaxChannels; ++channel) {
        const wire::ClaimState state =
            directory->claims[channel].state.load(std::memory_order_acquire);
        if (state != wire::ClaimState::kOpen) {
            continue;
        }
        // One that died without a goodbye keeps its claim until somebody wants a channel.
        const Claimant claimant = find_claimant(*directory, channel);
        if (claimant.state != ClaimantState::kAlive) {
            continue;
        }
        if (found < room) {
            out[found] = {claimant.pid, device_bytes(channel, channels)};
        }
        ++found;
    }
    return found;
}

}  // namespace gantry::session
