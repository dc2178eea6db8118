// Host side of pause_probe: notes when marks arrive and reports the longest silence of each kind.
//
// One runs on every host of the rig and writes "MICROSECONDS KIND NUMBER" lines, stamped with the
// machine's monotonic clock, which all hosts of the rig share; `pause_report` merges the files.
// Usage: pause_sink ADDRESS FILE [PORT]; runs until it is killed.
#include <arpa/inet.h>
#include <sys/socket.h>

#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr int kDefaultPort = 7777;

struct Mark {
    std::uint32_t kind;
    std::uint32_t reserved;
    std::uint64_t number;
};

std::int64_t now_us() {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) {
        std::fprintf(stderr, "usage: pause_sink ADDRESS FILE [PORT]\n");
        return 2;
    }
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port =
        htons(static_cast<std::uint16_t>(argc > 3 ? std::atoi(argv[3]) : kDefaultPort));
    if (fd < 0 || inet_pton(AF_INET, argv[1], &address.sin_addr) != 1 ||
        bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
        std::perror("pause_sink: cannot listen");
        return 1;
    }
    std::FILE* file = std::fopen(argv[2], "w");
    if (file == nullptr) {
        std::perror("pause_sink: cannot write the file");
        return 1;
    }
    std::setvbuf(file, nullptr, _IOLBF, BUFSIZ);  // Nothing is lost when it is killed.
    for (;;) {
        Mark mark{};
        if (recv(fd, &mark, sizeof mark, 0) == sizeof mark) {
            std::fprintf(file, "%" PRId64 " %u %" PRIu64 "\n", now_us(), mark.kind, mark.number);
        }
    }
}
