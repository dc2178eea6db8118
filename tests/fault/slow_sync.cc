// Preloaded into a gantryd, it makes fsync as slow as SLOW_SYNC_S says, so that a test can do its
// harm while a grant is being written.
#include <unistd.h>

#include <sys/syscall.h>

#include <cstdlib>

extern "C" int fsync(int fd) {
    const char* seconds = std::getenv("SLOW_SYNC_S");
    if (seconds != nullptr) {
        ::usleep(static_cast<useconds_t>(std::atof(seconds) * 500'000));  // file, then folder
    }
    return static_cast<int>(::syscall(SYS_fsync, fd));
}
