// gantryd's small part in a shared region: reads the guest's directory, writes the host's.
//
// gantryd never maps a region: it reads and writes words with pread and pwrite, so that a file cut
// short under its feet (by QEMU or whoever owns it) is an error and not a SIGBUS. What the guest
// wrote is copied once and then checked. Threads: one at a time per object. Cost: one system call
// each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/base/result.h"
#include "proto/control/unique_fd.h"
#include "proto/wire/region.h"
#include "proto/wire/save_mark.h"

namespace gantry::supervisor {

struct Claim {
    std::uint32_t channel = 0;
    wire::ClaimState state = wire::ClaimState::kFree;
    std::uint32_t guest_pid = 0;
    std::uint64_t generation = 0;
};

/// What a host has said about a claim of a channel.
struct Answer {
    std::uint64_t generation = 0;  ///< 0: nothing.
    wire::ServeState state = wire::ServeState::kNone;
};

/// MirrorWords.session.
struct MirrorName {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    friend bool operator==(const MirrorName&, const MirrorName&) = default;
};

class Region {
public:
    /// A sealed memfd (it can neither shrink nor grow) with one channel, for a local guest.
    static Result<Region> create_local(std::uint64_t region_bytes);
    /// An ivshmem file; `region_bytes` as the domain says. kNotFound while it does not exist.
    static Result<Region> open_file(const std::string& path, std::uint64_t region_bytes);
    /// A file of ours, laid out in channels; made if there is none.
    static Result<Region> make_file(const std::string& path, std::uint64_t region_bytes,
                                    std::uint32_t channel_count);
    /// A region handed back by a worker or by another gantryd of this host.
    static Region adopt(control::UniqueFd fd, std::uint64_t region_bytes);

    [[nodiscard]] int fd() const { return fd_.get(); }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

    /// nullopt: no guest has initialised the region yet. Errors: another wire version, or numbers
    /// that do not fit (reason `region.*`).
    Result<std::optional<std::uint32_t>> channel_count() const;
    Result<std::vector<Claim>> claims(std::uint32_t channel_count) const;

    /// By channel.
    Result<std::vector<Answer>> answers(std::uint32_t channel_count) const;

    /// Tells the guest about one claim of a channel.
    Result<void> write_state(std::uint32_t channel, std::uint64_t generation,
                             wire::ServeState state, std::uint32_t cuda_error = 0,
                             const std::string& text = "");
    /// Empties a channel that nobody uses and claims it for a guest that will open it.
    Result<void> reserve(std::uint32_t channel_count, const Claim& claim);
    /// The link of the guest that uses a channel over TCP; nullopt: it uses this very memory.
    [[nodiscard]] Result<std::optional<MirrorName>> mirror_name(std::uint32_t channel_count,
                                                                std::uint32_t channel) const;
    Result<void> write_worker_state(std::uint32_t channel_count, std::uint32_t channel,
                                    wire::WorkerState state);
    Result<void> write_mark(const wire::SaveMark& mark);
    [[nodiscard]] Result<wire::SaveMark> mark() const;

private:
    Result<void> read(void* to, std::size_t bytes, std::uint64_t offset) const;
    Result<void> write(const void* from, std::size_t bytes, std::uint64_t offset);

    control::UniqueFd fd_;
    std::uint64_t bytes_ = 0;
};

}  // namespace gantry::supervisor
