#include "proto/wire/mirror/endpoint.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "proto/base/packet.h"
#include "proto/base/standard_output.h"

namespace gantry::wire {
namespace {

bool unix_address(const std::string& path, sockaddr_un* address) {
    *address = {};
    address->sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof address->sun_path) {
        errno = ENAMETOOLONG;
        return false;
    }
    std::memcpy(address->sun_path, path.c_str(), path.size() + 1);
    return true;
}

// Calls `use` with a socket for each address that HOST:PORT resolves to, until one succeeds.
template <typename Use>
int with_addresses(const std::string& address, bool passive, Use use) {
    const std::size_t colon = address.rfind(':');
    if (colon == std::string::npos) {
        errno = EINVAL;
        return -1;
    }
    std::string host = address.substr(0, colon);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
        host = host.substr(1, host.size() - 2);
    }
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
    addrinfo* list = nullptr;
    if (::getaddrinfo(host.empty() ? nullptr : host.c_str(), address.c_str() + colon + 1, &hints,
                      &list) != 0) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    int result = -1;
    for (addrinfo* one = list; one != nullptr && result < 0; one = one->ai_next) {
        const int fd = ::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, one->ai_protocol);
        if (fd >= 0 && use(fd, one)) {
            result = fd;
        } else if (fd >= 0) {
            ::close(fd);
        }
    }
    ::freeaddrinfo(list);
    return result;
}

}  // namespace

int listen_unix(const std::string& path) {
    sockaddr_un address;
    if (!unix_address(path, &address)) {
        return -1;
    }
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ::unlink(path.c_str());
    if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(fd, 64) != 0) {
        if (fd >= 0) {
            ::close(fd);
        }
        return -1;
    }
    return fd;
}

int connect_unix(const std::string& path) {
    sockaddr_un address;
    if (!unix_address(path, &address)) {
        return -1;
    }
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
        ::close(fd);
        return -1;
    }
    return fd;
}

int listen_tcp(const std::string& address) {
    return with_addresses(address, true, [](int fd, const addrinfo* one) {
        const int yes = 1;
        ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        return ::bind(fd, one->ai_addr, one->ai_addrlen) == 0 && ::listen(fd, 64) == 0;
    });
}

int connect_tcp(const std::string& address) {
    return with_addresses(address, false, [](int fd, const addrinfo* one) {
        return ::connect(fd, one->ai_addr, one->ai_addrlen) == 0;
    });
}

std::uint16_t local_port(int fd) {
    sockaddr_storage address{};
    socklen_t bytes = sizeof address;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
        return 0;
    }
    return ntohs(address.ss_family == AF_INET6
                     ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                     : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

bool send_packet(int fd, const void* data, std::size_t bytes, int passed) {
    return send_packet_with(fd, data, bytes, &passed, passed >= 0 ? 1 : 0) ==
           static_cast<ssize_t>(bytes);
}

bool receive_packet(int fd, void* data, std::size_t bytes, int* passed) {
    *passed = -1;
    const ReceivedPacket packet = receive_packet_with(fd, data, bytes, passed, 1);
    return packet.bytes == static_cast<ssize_t>(bytes) && !packet.bytes_cut;
}

std::string read_options(int argc, char** argv, std::initializer_list<EndpointOption> options) {
    for (int i = 1; i < argc; ++i) {
        const EndpointOption* found = nullptr;
        std::string known;
        for (const EndpointOption& option : options) {
            known += std::string(known.empty() ? "--" : ", --") + option.name;
            if (std::strncmp(argv[i], "--", 2) == 0 && std::strcmp(argv[i] + 2, option.name) == 0) {
                found = &option;
            }
        }
        if (found == nullptr) {
            return std::string("unknown option '") + argv[i] + "'; known are " + known;
        }
        if (found->flag != nullptr) {
            *found->flag = true;
            continue;
        }
        if (++i == argc) {
            return std::string("--") + found->name + " needs a value";
        }
        if (found->text != nullptr) {
            *found->text = argv[i];
            continue;
        }
        char* end = nullptr;
        *found->ms = std::strtoull(argv[i], &end, 10);
        if (*found->ms == 0 || *end != '\0' || argv[i][0] == '-') {
            return std::string("--") + found->name + " needs milliseconds above 0, got '" +
                   argv[i] + "'";
        }
    }
    return {};
}

bool asks_for_help(int argc, char** argv) {
    return std::any_of(argv + 1, argv + argc, [](const std::string_view argument) {
        return argument == "--help" || argument == "-h";
    });
}

int print_help(const char* program, const std::string& help) {
    const auto written = write_standard_output(help);
    if (!written) {
        std::fprintf(stderr, "%s: %s [%s]\n", program, written.error().text.c_str(),
                     written.error().reason.c_str());
    }
    return written ? 0 : 1;
}

int refuse_arguments(const char* program, const std::string& problem) {
    std::fprintf(stderr, "%s: %s; see `%s --help` [command.usage]\n", program, problem.c_str(),
                 program);
    return 2;
}

void raise_descriptor_limit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        ::setrlimit(RLIMIT_NOFILE, &limit);
    }
}

void accept_forever(const char* program, int listener, const std::function<void(int)>& serve) {
    ::signal(SIGPIPE, SIG_IGN);
    constexpr timespec kPause{0, 50'000'000};
    bool is_short = false;
    for (;;) {
        const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd >= 0) {
            is_short = false;
            serve(fd);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            if (!std::exchange(is_short, true)) {
                std::fprintf(stderr, "%s: accept: %s; connections have to wait\n", program,
                             std::strerror(errno));
            }
            ::nanosleep(&kPause, nullptr);
        } else if (errno != EINTR && errno != ECONNABORTED) {
            std::fprintf(stderr, "%s: accept: %s\n", program, std::strerror(errno));
            return;
        }
    }
}

bool hung_up(int fd) {
    pollfd entry{fd, POLLIN | POLLRDHUP, 0};
    return ::poll(&entry, 1, 0) != 0;
}

bool map_region(int memfd, std::uint64_t region_bytes, MappedChannel* out,
                std::uint32_t channel_count, std::uint32_t channel_index) {
    if (!compute_layout(region_bytes, channel_count, channel_index, &out->layout)) {
        return false;
    }
    void* mapped = ::mmap(nullptr, region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
    if (mapped == MAP_FAILED) {
        return false;
    }
    out->region = static_cast<std::byte*>(mapped);
    out->region_bytes = region_bytes;
    out->index = channel_index;
    return true;
}

void unmap_region(MappedChannel* channel) {
    if (channel->region != nullptr) {
        ::munmap(channel->region, channel->region_bytes);
        channel->region = nullptr;
    }
}

}  // namespace gantry::wire
