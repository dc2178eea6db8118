// Claiming a channel of a region: the guest side of the directory pages of region.h.
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>

#include "guest-shim/session/connection.h"
#include "guest-shim/session/transport/claimant.h"

namespace gantry::session {
namespace {

constexpr std::uint32_t kInitialising = 1;  // In GuestDirectory.magic, while one process fills it.
constexpr std::uint64_t kBytesPerChannel = 64ull << 20;
constexpr std::uint32_t kMostChannels = 16;

std::uint32_t channels_for(const Connection& connection) {
    if (connection.attachment.exclusive) {
        return 1;
    }
    const std::uint64_t wanted = connection.attachment.region_bytes / kBytesPerChannel;
    if (wanted == 0) {
        return 1;
    }
    return wanted > kMostChannels ? kMostChannels : static_cast<std::uint32_t>(wanted);
}

/// The first process of a guest writes the directory; the others wait for its magic.
bool initialise_directory(Connection* connection, AttachProblem* problem) {
    wire::GuestDirectory* directory = connection->guest_directory;
    const std::uint64_t deadline = wire::monotonic_ns() + 2'000'000'000;
    wire::Backoff backoff;
    for (;;) {
        std::uint32_t magic = directory->magic.load(std::memory_order_acquire);
        if (magic == wire::kRegionMagic) {
            break;
        }
        const bool overdue = magic == kInitialising && wire::monotonic_ns() > deadline;
        if ((magic == 0 || overdue) &&
            directory->magic.compare_exchange_strong(magic, kInitialising)) {
            directory->wire_version = wire::kWireVersion;
            directory->region_bytes = connection->attachment.region_bytes;
            directory->channel_count = channels_for(*connection);
            directory->magic.store(wire::kRegionMagic, std::memory_order_release);
            break;
        }
        if (magic != 0 && magic != kInitialising) {
            return fail(problem, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
                        "the shared memory holds something that is no Gantry region (magic 0x%x)",
                        magic);
        }
        backoff.pause();
    }
    if (directory->wire_version != wire::kWireVersion) {
        return fail(problem, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
                    "the region has wire version %u, this libcuda.so.1 version %u; install the "
                    "same Gantry version on both sides",
                    directory->wire_version, wire::kWireVersion);
    }
    return true;
}

void nap() {
    const timespec time{0, 20'000'000};
    nanosleep(&time, nullptr);
}

/// Who has a channel, as ChannelClaim begins. Both change in one step: a claim that was released
/// and taken again while somebody looked at it stays with its new owner.
struct Holding {
    wire::ClaimState state;
    std::uint32_t pid;
};
using HoldingWord [[gnu::may_alias]] = std::uint64_t;
static_assert(sizeof(Holding) == sizeof(HoldingWord) &&
              offsetof(wire::ChannelClaim, state) == offsetof(Holding, state) &&
              offsetof(wire::ChannelClaim, guest_pid) == offsetof(Holding, pid) &&
              alignof(wire::ChannelClaim) >= alignof(HoldingWord));

Holding holding_of(const wire::ChannelClaim& claim) {
    return __builtin_bit_cast(
        Holding, __atomic_load_n(reinterpret_cast<const HoldingWord*>(&claim), __ATOMIC_ACQUIRE));
}

bool change(wire::ChannelClaim* claim, Holding from, Holding to) {
    auto expected = __builtin_bit_cast(std::uint64_t, from);
    return __atomic_compare_exchange_n(reinterpret_cast<HoldingWord*>(claim), &expected,
                                       __builtin_bit_cast(std::uint64_t, to), false,
                                       __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/// Of the calling process's claim, on to its next state; false where it is another's by now.
bool go_on(const Connection& connection, wire::ClaimState from, wire::ClaimState to) {
    wire::ChannelClaim& claim = connection.guest_directory->claims[connection.channel];
    const auto pid = static_cast<std::uint32_t>(getpid());
    return claim.generation == connection.generation && change(&claim, {from, pid}, {to, pid});
}

/// Channels whose process has died without a goodbye are given to the host to be closed. Containers
/// have the same numbers, so that the generation is asked for again.
void release_dead_claims(wire::GuestDirectory* directory) {
    for (std::uint32_t index = 0; index < directory->channel_count; ++index) {
        wire::ChannelClaim& claim = directory->claims[index];
        const Holding holding = holding_of(claim);
        const std::uint64_t generation = claim.generation;
        if (holding.state == wire::ClaimState::kOpen &&
            find_claimant(*directory, index).state == ClaimantState::kGone &&
            claim.generation == generation) {
            change(&claim, holding, {wire::ClaimState::kClosing, holding.pid});
        }
    }
}

/// Claims that were being made when their processes died. Who makes one has it under its number
/// first and signs it then: it counts as dead when nothing has changed for a long time.
class UnfinishedClaims {
public:
    void release(wire::GuestDirectory* directory, std::uint64_t patience_ns) {
        const std::uint64_t now = wire::monotonic_ns();
        for (std::uint32_t index = 0; index < directory->channel_count; ++index) {
            wire::ChannelClaim& claim = directory->claims[index];
            const Holding holding = holding_of(claim);
            Seen& seen = seen_[index];
            if (holding.state != wire::ClaimState::kClaiming || holding.pid != seen.pid ||
                claim.generation != seen.generation) {
                seen = {now, claim.generation, holding.pid};
            } else if (now - seen.since_ns > patience_ns &&
                       find_claimant(*directory, index).state == ClaimantState::kGone) {
                change(&claim, holding, {wire::ClaimState::kClosing, holding.pid});
            }
        }
    }

private:
    struct Seen {
        std::uint64_t since_ns;
        std::uint64_t generation;
        std::uint32_t pid;
    };
    Seen seen_[wire::kMaxChannels] = {};
};

/// A closing claim may be taken again once the host has said that it let go of that generation.
bool is_takable(const Connection& connection, std::uint32_t index, wire::ClaimState state) {
    const wire::ChannelClaim& claim = connection.guest_directory->claims[index];
    if (state == wire::ClaimState::kFree) {
        return true;
    }
    if (state != wire::ClaimState::kClosing) {
        return false;
    }
    if (claim.generation == 0) {  // It died claiming it: the host was never told.
        return true;
    }
    const wire::HostChannel& served = connection.host_directory->channels[index];
    const wire::ServeState serve = served.state.load(std::memory_order_acquire);
    return served.generation.load(std::memory_order_acquire) == claim.generation &&
           (serve == wire::ServeState::kClosed || serve == wire::ServeState::kRefused);
}

bool try_claim(Connection* connection) {
    wire::GuestDirectory* directory = connection->guest_directory;
    for (std::uint32_t index = 0; index < directory->channel_count; ++index) {
        wire::ChannelClaim& claim = directory->claims[index];
        const Holding holding = holding_of(claim);
        const Holding own{wire::ClaimState::kClaiming, static_cast<std::uint32_t>(getpid())};
        if (!is_takable(*connection, index, holding.state) || !change(&claim, holding, own)) {
            continue;
        }
        sign_claim(&directory->claimants[index]);
        if (const Holding now = holding_of(claim); now.state != own.state || now.pid != own.pid) {
            continue;  // Somebody else's, after this process stood still for long.
        }
        connection->begins_anew = claim.generation == wire::kMaxGeneration;
        claim.generation = wire::next_generation(claim.generation);
        connection->channel = index;
        connection->generation = claim.generation;
        return true;
    }
    return false;
}

bool lay_out(Connection* connection, AttachProblem* problem) {
    const Attachment& attachment = connection->attachment;
    if (!wire::compute_layout(attachment.region_bytes, connection->guest_directory->channel_count,
                              connection->channel, &connection->layout)) {
        return fail(problem, CUDA_ERROR_OPERATING_SYSTEM,
                    "a region of %llu bytes is too small for %u channels; give it 64 MiB or more",
                    static_cast<unsigned long long>(attachment.region_bytes),
                    connection->guest_directory->channel_count);
    }
    const wire::ChannelLayout& layout = connection->layout;
    std::byte* region = attachment.region;
    connection->guest = reinterpret_cast<wire::GuestWords*>(region + layout.guest_words);
    connection->host = reinterpret_cast<wire::HostWords*>(region + layout.host_words);
    connection->replies = reinterpret_cast<wire::ReplyPage*>(region + layout.replies);
    const std::uint64_t host_bytes = layout.bulk_bytes - wire::outbox_bytes(layout);
    connection->bulk.attach(region + layout.bulk, host_bytes);
    connection->outbox.attach(region + layout.bulk + host_bytes, host_bytes,
                              wire::outbox_bytes(layout), connection->host);
    return true;
}

/// Clears the words that an earlier owner of the channel may have left.
void reset_guest_words(wire::GuestWords* guest) {
    for (auto& waiting : guest->lane_waiting) {
        waiting.store(0, std::memory_order_relaxed);
    }
    guest->ring_waiting.store(0, std::memory_order_relaxed);
    guest->announce_seen.store(0, std::memory_order_relaxed);
    guest->pinned_high_water.store(0, std::memory_order_relaxed);
}

bool wait_until_served(Connection* connection, AttachProblem* problem) {
    const wire::HostChannel& served = connection->host_directory->channels[connection->channel];
    const std::uint64_t deadline =
        wire::monotonic_ns() + connection->environment.connect_timeout_ms * 1'000'000ull;
    wire::Backoff backoff;
    for (;;) {
        if (served.generation.load(std::memory_order_acquire) == connection->generation) {
            const wire::ServeState state = served.state.load(std::memory_order_acquire);
            if (state == wire::ServeState::kServing) {
                return true;
            }
            if (state == wire::ServeState::kRefused || state == wire::ServeState::kClosed) {
                char text[sizeof(connection->host_directory->refusal_text)];
                std::memcpy(text, connection->host_directory->refusal_text, sizeof(text));
                text[sizeof(text) - 1] = '\0';
                std::uint32_t error = CUDA_ERROR_NO_DEVICE;
                error = served.refusal != 0 ? served.refusal : error;
                return fail(problem, error, "the host refuses this process: %s", text);
            }
        }
        if (wire::monotonic_ns() > deadline) {
            return fail(problem, CUDA_ERROR_SYSTEM_NOT_READY,
                        "the host did not serve channel %u within %u ms; is gantryd running there?",
                        connection->channel, connection->environment.connect_timeout_ms);
        }
        backoff.pause();
    }
}

bool claim_channel(Connection* connection, AttachProblem* problem) {
    const std::uint64_t begin = wire::monotonic_ns();
    const std::uint64_t most = connection->environment.connect_timeout_ms * 1'000'000ull;
    UnfinishedClaims unfinished;
    release_dead_claims(connection->guest_directory);
    while (!try_claim(connection)) {
        if (wire::monotonic_ns() - begin > most) {
            return fail(problem, CUDA_ERROR_NOT_PERMITTED,
                        "all %u channels of the region are in use by other CUDA processes; those "
                        "of a container that was killed become free when root starts a CUDA "
                        "program outside of containers",
                        connection->guest_directory->channel_count);
        }
        nap();
        release_dead_claims(connection->guest_directory);
        unfinished.release(connection->guest_directory, most / 4);
    }
    return true;
}

}  // namespace

bool open_channel(Connection* connection, AttachProblem* problem) {
    std::byte* region = connection->attachment.region;
    if (connection->attachment.region_bytes < 2 * wire::kPageBytes + wire::kMinChannelBytes) {
        return fail(problem, CUDA_ERROR_OPERATING_SYSTEM,
                    "a region of %llu bytes is too small; give it 64 MiB or more",
                    static_cast<unsigned long long>(connection->attachment.region_bytes));
    }
    connection->guest_directory = reinterpret_cast<wire::GuestDirectory*>(region);
    connection->host_directory = reinterpret_cast<wire::HostDirectory*>(region + wire::kPageBytes);
    if (!initialise_directory(connection, problem) || !claim_channel(connection, problem)) {
        return false;
    }
    if (!lay_out(connection, problem)) {
        go_on(*connection, wire::ClaimState::kClaiming, wire::ClaimState::kFree);
        return false;
    }
    reset_guest_words(connection->guest);
    const std::uint64_t start = connection->generation << wire::kGenerationShift;
    connection->ring.attach(region + connection->layout.ring, connection->layout.ring_bytes,
                            &connection->host->head, start);
    // Pages are made now, not one by one inside the application's launches. Where the kernel or the
    // region's kind cannot, they are made as they are used.
    madvise(region + connection->layout.ring, connection->layout.ring_bytes, MADV_POPULATE_WRITE);
    if (connection->begins_anew) {
        std::memset(region + connection->layout.ring, 0, connection->layout.ring_bytes);
    }
    if (!go_on(*connection, wire::ClaimState::kClaiming, wire::ClaimState::kOpen)) {
        return fail(problem, CUDA_ERROR_SYSTEM_NOT_READY,
                    "channel %u was taken by another process while this one stood still; start "
                    "the program again",
                    connection->channel);
    }
    if (!wait_until_served(connection, problem)) {
        go_on(*connection, wire::ClaimState::kOpen, wire::ClaimState::kClosing);
        return false;
    }
    return true;
}

void close_channel(Connection* connection) {
    if (connection->guest_directory != nullptr && connection->generation != 0) {
        go_on(*connection, wire::ClaimState::kOpen, wire::ClaimState::kClosing);
    }
}

}  // namespace gantry::session
