// What gantry-guest and gantry-relay share: small socket helpers. Errors are returned as -1/false
// with errno set; the callers turn them into sentences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "proto/wire/attach.h"
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

/// Maps a region of one channel; false when its size makes no layout.
bool map_region(int memfd, std::uint64_t region_bytes, MappedChannel* out);
void unmap_region(MappedChannel* channel);

}  // namespace gantry::wire
