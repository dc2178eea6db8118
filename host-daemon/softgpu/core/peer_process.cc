#include "host-daemon/softgpu/core/peer_process.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <sstream>

namespace gantry::softgpu {

std::optional<std::uint64_t> process_start(std::int32_t process) {
    const std::string path = "/proc/" + std::to_string(process) + "/stat";
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    std::array<char, 1024> bytes{};  // The line is shorter.
    const ssize_t length = file >= 0 ? read(file, bytes.data(), bytes.size()) : -1;
    const int error = errno;
    if (file >= 0) {
        close(file);
    }
    if (length <= 0) {
        return error == ENOENT || error == ESRCH ? std::optional<std::uint64_t>(0) : std::nullopt;
    }
    const std::string text(bytes.data(), static_cast<std::size_t>(length));
    const std::size_t name_end = text.rfind(')');
    if (name_end == std::string::npos) {
        return std::nullopt;
    }
    std::istringstream fields(text.substr(name_end + 1));
    std::string field;
    fields >> field;
    if (field == "Z" || field == "X") {
        return 0;
    }
    for (int number = 4; number < 22; ++number) {
        fields >> field;
    }
    std::uint64_t started = 0;
    fields >> started;
    return started;
}

std::uint64_t own_start() { return process_start(getpid()).value_or(0); }

int open_peer_file(std::int32_t process, std::uint64_t started, std::int32_t file,
                   const std::string& name) {
    const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(file);
    const int opened = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (opened < 0) {
        return -1;
    }
    std::array<char, 64> target{};
    const std::string own = "/proc/self/fd/" + std::to_string(opened);
    const ssize_t length = readlink(own.c_str(), target.data(), target.size() - 1);
    const std::string wanted = "/memfd:" + name + " (deleted)";
    if (process_start(process) != started || length < 0 || wanted != target.data()) {
        close(opened);
        return -1;
    }
    return opened;
}

}  // namespace gantry::softgpu
