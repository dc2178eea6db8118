#include "proto/control/process_end.h"

#include <string.h>

#include <algorithm>
#include <fstream>

namespace gantry::control {
namespace {

constexpr std::size_t kMostBytes = 300;
constexpr std::streamoff kTailBytes = 4096;

const char* where_to_look(int number) {
    switch (number) {
        case SIGKILL:
            return ": killed from outside, or by the kernel for want of memory (then dmesg says "
                   "so)";
        case SIGSEGV:
        case SIGBUS:
        case SIGILL:
        case SIGFPE:
        case SIGABRT: return ": a fault of the worker or of the CUDA driver that it had loaded";
        default: return "";
    }
}

}  // namespace

std::string describe_end(const siginfo_t& info) {
    if (info.si_code == CLD_EXITED) {
        return "exit status " + std::to_string(info.si_status);
    }
    const char* name = sigdescr_np(info.si_status);
    return "signal " + std::to_string(info.si_status) + " (" +
           (name != nullptr ? name : "unknown") + ")" + where_to_look(info.si_status);
}

std::string last_line_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) {
        return {};
    }
    const std::streamoff end = file.tellg();
    const std::streamoff begin = std::max<std::streamoff>(0, end - kTailBytes);
    std::string tail(static_cast<std::size_t>(end - begin), '\0');
    file.seekg(begin);
    file.read(tail.data(), static_cast<std::streamsize>(tail.size()));
    tail.resize(static_cast<std::size_t>(std::max<std::streamsize>(0, file.gcount())));
    tail.erase(tail.find_last_not_of('\n') + 1);
    tail.erase(0, tail.rfind('\n') + 1);
    std::erase_if(tail, [](char c) { return c < ' ' || c > '~'; });
    return tail.substr(0, kMostBytes);
}

}  // namespace gantry::control
