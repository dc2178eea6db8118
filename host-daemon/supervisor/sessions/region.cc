#include "host-daemon/supervisor/sessions/region.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "proto/wire/mirror/words.h"

namespace gantry::supervisor {
namespace {

Error region_error(const char* reason, const std::string& text) {
    return Error{Code::kFailedPrecondition, reason, text};
}

constexpr std::uint64_t kHostDirectoryOffset = wire::kPageBytes;

constexpr std::uint64_t host_channel_offset(std::uint32_t channel) {
    return kHostDirectoryOffset + offsetof(wire::HostDirectory, channels) +
           channel * sizeof(wire::HostChannel);
}

}  // namespace

Result<Region> Region::create_local(std::uint64_t region_bytes) {
    Region region;
    region.bytes_ = region_bytes;
    region.fd_.reset(::memfd_create("gantry-region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!region.fd_.valid() ||
        ::ftruncate(region.fd_.get(), static_cast<off_t>(region_bytes)) != 0 ||
        ::fcntl(region.fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        return Error{Code::kResourceExhausted, "region.create",
                     fmt::format("cannot make a region of {} bytes: {}", region_bytes,
                                 std::strerror(errno))};
    }
    return region;
}

Result<Region> Region::open_file(const std::string& path, std::uint64_t region_bytes) {
    Region region;
    region.bytes_ = region_bytes;
    region.fd_.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!region.fd_.valid()) {
        return Error{errno == ENOENT ? Code::kNotFound : Code::kPermissionDenied, "region.open",
                     "cannot open " + path + ": " + std::strerror(errno)};
    }
    struct stat status {};
    if (::fstat(region.fd_.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
        static_cast<std::uint64_t>(status.st_size) < region_bytes) {
        return region_error("region.size", fmt::format("{} is not a file of at least {} bytes",
                                                       path, region_bytes));
    }
    return region;
}

Result<Region> Region::make_file(const std::string& path, std::uint64_t region_bytes,
                                 std::uint32_t channel_count) {
    struct {
        std::uint32_t magic = wire::kRegionMagic;
        std::uint32_t wire_version = wire::kWireVersion;
        std::uint64_t region_bytes;
        std::uint32_t channel_count;
        std::uint32_t reserved = 0;
    } head{.region_bytes = region_bytes, .channel_count = channel_count};
    static_assert(sizeof head == offsetof(wire::GuestDirectory, claims));
    Region region;
    region.bytes_ = region_bytes;
    region.fd_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    struct stat status {};
    if (!region.fd_.valid() || ::fstat(region.fd_.get(), &status) != 0 ||
        !S_ISREG(status.st_mode) || status.st_uid != ::geteuid() ||
        (status.st_size == 0 &&
         ::ftruncate(region.fd_.get(), static_cast<off_t>(region_bytes)) != 0)) {
        return Error{Code::kPermissionDenied, "region.create",
                     "cannot make " + path + ": " + std::strerror(errno)};
    }
    if (status.st_size == 0) {
        GANTRY_TRY(region.write(&head, sizeof head, 0));
    } else if (static_cast<std::uint64_t>(status.st_size) != region_bytes) {
        return region_error("region.size", fmt::format("{} has {} bytes, not {}", path,
                                                       status.st_size, region_bytes));
    }
    return region;
}

Region Region::adopt(control::UniqueFd fd, std::uint64_t region_bytes) {
    Region region;
    region.fd_ = std::move(fd);
    region.bytes_ = region_bytes;
    return region;
}

Result<void> Region::read(void* to, std::size_t bytes, std::uint64_t offset) const {
    if (::pread(fd_.get(), to, bytes, static_cast<off_t>(offset)) != static_cast<ssize_t>(bytes)) {
        return region_error(
            "region.read",
            fmt::format("the region cannot be read at offset {} (cut short?)", offset));
    }
    return {};
}

Result<void> Region::write(const void* from, std::size_t bytes, std::uint64_t offset) {
    if (::pwrite(fd_.get(), from, bytes, static_cast<off_t>(offset)) !=
        static_cast<ssize_t>(bytes)) {
        return region_error(
            "region.write",
            fmt::format("the region cannot be written at offset {} (cut short?)", offset));
    }
    return {};
}

Result<std::optional<std::uint32_t>> Region::channel_count() const {
    struct {
        std::uint32_t magic;
        std::uint32_t wire_version;
        std::uint64_t region_bytes;
        std::uint32_t channel_count;
    } head{};
    static_assert(offsetof(wire::GuestDirectory, region_bytes) == 8 &&
                  offsetof(wire::GuestDirectory, channel_count) == 16);
    GANTRY_TRY(read(&head, sizeof head, 0));
    if (head.magic == 0) {
        return std::optional<std::uint32_t>{};
    }
    if (head.magic != wire::kRegionMagic) {
        return region_error("region.magic", "the region does not start with Gantry's magic number");
    }
    if (head.wire_version != wire::kWireVersion) {
        return region_error("version.wire",
                            fmt::format("the guest's libcuda.so.1 speaks wire version {}, this "
                                        "host {}; install the same Gantry version in the guest",
                                        head.wire_version, wire::kWireVersion));
    }
    wire::ChannelLayout layout{};
    if (head.region_bytes > bytes_ ||
        !wire::compute_layout(head.region_bytes, head.channel_count, 0, &layout)) {
        return region_error("region.layout",
                            fmt::format("the guest laid out {} channels in {} bytes, which does "
                                        "not fit the region of {} bytes",
                                        head.channel_count, head.region_bytes, bytes_));
    }
    return std::optional{head.channel_count};
}

Result<std::vector<Claim>> Region::claims(std::uint32_t channel_count) const {
    struct Raw {
        std::uint32_t state;
        std::uint32_t guest_pid;
        std::uint64_t generation;
    };
    static_assert(sizeof(Raw) == sizeof(wire::ChannelClaim));
    std::vector<Raw> raw(std::min(channel_count, wire::kMaxChannels));
    GANTRY_TRY(read(raw.data(), raw.size() * sizeof(Raw), offsetof(wire::GuestDirectory, claims)));
    std::vector<Claim> out;
    for (std::uint32_t i = 0; i < raw.size(); ++i) {
        out.push_back(
            {i, static_cast<wire::ClaimState>(raw[i].state), raw[i].guest_pid, raw[i].generation});
    }
    return out;
}

Result<std::vector<Answer>> Region::answers(std::uint32_t channel_count) const {
    std::vector<Answer> out;
    for (std::uint32_t i = 0; i < std::min(channel_count, wire::kMaxChannels); ++i) {
        struct {
            std::uint64_t generation;
            wire::ServeState state;
            std::uint32_t refusal;
        } raw{};
        static_assert(sizeof raw == sizeof(wire::HostChannel));
        GANTRY_TRY(read(&raw, sizeof raw, host_channel_offset(i)));
        out.push_back({raw.generation, raw.state});
    }
    return out;
}

Result<void> Region::write_mark(const wire::SaveMark& mark) {
    return write(&mark, sizeof mark, wire::kSaveMarkOffset);
}

Result<wire::SaveMark> Region::mark() const {
    wire::SaveMark mark;
    GANTRY_TRY(read(&mark, sizeof mark, wire::kSaveMarkOffset));
    return mark;
}

Result<void> Region::write_state(std::uint32_t channel, std::uint64_t generation,
                                 wire::ServeState state, std::uint32_t cuda_error,
                                 const std::string& text) {
    GANTRY_ASSERT(channel < wire::kMaxChannels, "%u", channel);
    if (state == wire::ServeState::kRefused) {
        char buffer[sizeof wire::HostDirectory::refusal_text] = {};
        std::memcpy(buffer, text.data(), std::min(text.size(), sizeof buffer - 1));
        GANTRY_TRY(write(buffer, sizeof buffer,
                         kHostDirectoryOffset + offsetof(wire::HostDirectory, refusal_text)));
    }
    const std::uint64_t at = host_channel_offset(channel);
    // Order: the guest polls `generation` and believes `state` once that is its own.
    GANTRY_TRY(write(&cuda_error, sizeof cuda_error, at + offsetof(wire::HostChannel, refusal)));
    GANTRY_TRY(write(&state, sizeof state, at + offsetof(wire::HostChannel, state)));
    return write(&generation, sizeof generation, at + offsetof(wire::HostChannel, generation));
}

Result<void> Region::reserve(std::uint32_t channel_count, const Claim& claim) {
    wire::ChannelLayout layout{};
    if (!wire::compute_layout(bytes_, channel_count, claim.channel, &layout)) {
        return region_error("region.layout",
                            fmt::format("channel {} does not fit the region", claim.channel));
    }
    if (::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(layout.channel_offset),
                    static_cast<off_t>(layout.end - layout.channel_offset)) != 0) {
        return Error{Code::kUnavailable, "region.clear",
                     std::string("cannot clear a channel: ") + std::strerror(errno)};
    }
    struct {
        wire::ClaimState state;
        std::uint32_t guest_pid;
        std::uint64_t generation;
    } raw{claim.state, claim.guest_pid, claim.generation};
    static_assert(sizeof raw == sizeof(wire::ChannelClaim));
    return write(&raw, sizeof raw,
                 offsetof(wire::GuestDirectory, claims) + claim.channel * sizeof raw);
}

Result<std::optional<MirrorName>> Region::mirror_name(std::uint32_t channel_count,
                                                      std::uint32_t channel) const {
    wire::ChannelLayout layout{};
    if (!wire::compute_layout(bytes_, channel_count, channel, &layout)) {
        return region_error("region.layout",
                            fmt::format("channel {} does not fit the region", channel));
    }
    MirrorName name;
    static_assert(offsetof(wire::MirrorWords, session) == 0 && sizeof name == 16);
    GANTRY_TRY(read(&name, sizeof name, layout.guest_words + wire::kMirrorWordsOffset));
    return name == MirrorName{} ? std::nullopt : std::optional(name);
}

Result<void> Region::write_worker_state(std::uint32_t channel_count, std::uint32_t channel,
                                        wire::WorkerState state) {
    wire::ChannelLayout layout{};
    if (!wire::compute_layout(bytes_, channel_count, channel, &layout)) {
        return region_error("region.layout",
                            fmt::format("channel {} does not fit the region", channel));
    }
    return write(&state, sizeof state, layout.host_words + offsetof(wire::HostWords, worker_state));
}

}  // namespace gantry::supervisor
