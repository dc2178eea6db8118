// What kernels print: kept until the program synchronises, then written to its stdout (printf)
// or at once to stderr (assert), or handed to a sink (extension). The fifo has the size of
// CU_LIMIT_PRINTF_FIFO_SIZE in text; what does not fit pushes the oldest text out.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>

namespace gantry::softgpu {

class DeviceOutput {
public:
    enum class Channel : int { kPrintf = 1, kAssert = 2 };
    using Sink = void (*)(void* user, int channel, const char* text, std::size_t bytes);

    static DeviceOutput& instance();

    void print(std::string_view text, std::size_t fifo_bytes);
    void assertion(std::string_view text);
    /// Writes what has been printed. Called at every point where CUDA does.
    void flush();
    void set_sink(Sink sink, void* user);
    /// Text printed and not flushed, for a snapshot; and back.
    std::string pending();
    void restore(std::string_view text);

private:
    std::mutex mutex_;
    std::string text_;
    std::atomic<bool> something_{false};
    Sink sink_ = nullptr;
    void* user_ = nullptr;
};

}  // namespace gantry::softgpu
