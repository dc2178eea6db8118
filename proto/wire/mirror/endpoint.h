// What gantry-guest and gantry-relay share: options, the accepting loop, the first frame each way,
// and small socket helpers, whose errors are -1/false with errno set: the callers make sentences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "proto/wire/attach.h"
#include "proto/wire/mirror/link.h"
#include "proto/wire/mirror/mirror.h"

namespace gantry::wire {

/// Listens on a SOCK_SEQPACKET unix socket, replacing a stale file of that name.
int listen_unix(const std::string& path);
int connect_unix(const std::string& path);
/// HOST:PORT with a numeric port; an empty host listens on every address.
int listen_tcp(const std::string& address);
int connect_tcp(const std::string& address);
/// Port that a listening socket got (for port 0).
std::uint16_t local_port(int fd);

/// One packet with at most one descriptor beside it (-1: none).
bool send_packet(int fd, const void* data, std::size_t bytes, int passed);
bool receive_packet(int fd, void* data, std::size_t bytes, int* passed);

/// True once the other end of a socket is gone (or data that must not come has come).
bool hung_up(int fd);

/// An option `--name VALUE` and where its value goes: a text, or a number of milliseconds above 0;
/// or `--name` alone, which is noted.
struct EndpointOption {
    const char* name;
    std::string* text = nullptr;
    std::uint64_t* ms = nullptr;
    bool* flag = nullptr;
};

/// Reads a command line. Empty when it is right, else what is wrong and with which argument.
std::string read_options(int argc, char** argv, std::initializer_list<EndpointOption> options);

/// Whether --help or -h is among the arguments.
bool asks_for_help(int argc, char** argv);
/// Prints a program's --help, or what is wrong with its arguments; the exit status.
int print_help(const char* program, const std::string& help);
int refuse_arguments(const char* program, const std::string& problem);

/// Lets this process have as many descriptors as it may.
void raise_descriptor_limit();

/// Hands every connection of `listener` to `serve`, for good; SIGPIPE is ignored from now on. Where
/// the system lacks descriptors or memory for one, it is tried again after a pause. Returns when
/// accept() fails beyond repair, having said so on stderr under `program`'s name.
void accept_forever(const char* program, int listener, const std::function<void(int)>& serve);

/// Sends the frame that opens a stream: kAttach with its request, or kAttached with its reply.
template <typename Body>
bool send_opening(ResumableLink& link, FrameKind kind, const Body& body) {
    std::byte frame[sizeof(FrameHeader) + sizeof body];
    const FrameHeader header{kind, sizeof body, 0};
    std::memcpy(frame, &header, sizeof header);
    std::memcpy(frame + sizeof header, &body, sizeof body);
    return link.send(frame);
}

/// Collects the frame that opens a stream, which may arrive in pieces, from what comes behind it.
template <typename Body>
class OpeningFrame {
public:
    static constexpr std::size_t kBytes = sizeof(FrameHeader) + sizeof(Body);
    /// Adds what arrived; true once the frame is whole, and never to be called after that.
    bool add(std::span<const std::byte> bytes) {
        held_.insert(held_.end(), bytes.begin(), bytes.end());
        return held_.size() >= kBytes;
    }
    /// The body; false when the frame is of another kind or length.
    bool read(FrameKind kind, Body* body) const {
        FrameHeader header;
        std::memcpy(&header, held_.data(), sizeof header);
        std::memcpy(body, held_.data() + sizeof header, sizeof *body);
        return header.kind == kind && header.bytes == sizeof *body;
    }
    /// What came behind the frame.
    [[nodiscard]] std::span<const std::byte> rest() const {
        return std::span(held_).subspan(kBytes);
    }

private:
    std::vector<std::byte> held_;
};

/// Maps a region for one of its channels; false when these numbers make no layout.
bool map_region(int memfd, std::uint64_t region_bytes, MappedChannel* out,
                std::uint32_t channel_count = 1, std::uint32_t channel_index = 0);
void unmap_region(MappedChannel* channel);

}  // namespace gantry::wire
