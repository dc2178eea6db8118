// Preloaded into a gantryd, it holds it at a named step for as long as a test needs to do its harm
// exactly there. The file that HOLD_FILE names says where, in one line:
//
//   line TEXT   the thread that logs TEXT waits, once the line is written. The engine logs a new
//               state before it carries out anything of it.
//   sync N      the thread that calls fsync for the Nth time since the file came waits before it.
//
// That it waits is told by a file NAME.held beside it, with the same line in it; it goes on when
// HOLD_FILE is removed, or says something else.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <sys/syscall.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace {

constexpr int kWaitMaxMs = 60'000;
std::atomic<int> g_syncs{0};

std::string order() {
    const char* path = std::getenv("HOLD_FILE");
    const int file = path != nullptr && std::strcmp(program_invocation_short_name, "gantryd") == 0
                         ? ::open(path, O_RDONLY | O_CLOEXEC)
                         : -1;
    if (file < 0) {
        return {};
    }
    char text[200];
    const ssize_t got = ::read(file, text, sizeof text);
    ::close(file);
    return std::string(text, got > 0 ? static_cast<std::size_t>(got) : 0);
}

void hold(const std::string& at) {
    const std::string told = std::getenv("HOLD_FILE") + std::string(".held");
    const std::string fresh = told + ".new";
    const int file = ::open(fresh.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    if (file < 0 || ::write(file, at.data(), at.size()) < 0 || ::close(file) != 0 ||
        std::rename(fresh.c_str(), told.c_str()) != 0) {
        std::abort();
    }
    for (int ms = 0; ms < kWaitMaxMs && order() == at; ++ms) {
        ::usleep(1000);
    }
    g_syncs = 0;
}

}  // namespace

extern "C" int fsync(int fd) {
    const std::string at = order();
    if (at.starts_with("sync ") && ++g_syncs == std::atoi(at.c_str() + 5)) {
        hold(at);
    }
    return static_cast<int>(::syscall(SYS_fsync, fd));
}

extern "C" std::size_t fwrite(const void* data, std::size_t size, std::size_t count, FILE* file) {
    static const auto real = reinterpret_cast<decltype(&fwrite)>(::dlsym(RTLD_NEXT, "fwrite"));
    const std::size_t written = real(data, size, count, file);
    const std::string_view text(static_cast<const char*>(data), size * count);
    const std::string at = file == stderr ? order() : std::string();
    if (at.starts_with("line ") && text.find(at.substr(5)) != text.npos) {
        hold(at);
    }
    return written;
}
