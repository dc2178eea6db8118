// Options of cuModuleLoadDataEx, cuLibraryLoadData and cuLink*: values go in and, for the logs
// and the time, out through the same array.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "proto/cuda/abi.h"

namespace gantry::softgpu {

class JitOptions {
public:
    /// Remembers where the outputs go. CUDA_ERROR_INVALID_VALUE for null arrays.
    CUresult read(unsigned count, CUjit_option* options, void** values);
    /// Writes the logs (an error log is empty on success), their sizes and the wall time.
    void finish(const std::string& error_log, const std::string& info_log = "");
    /// The program asked for more than errors.
    [[nodiscard]] bool is_verbose() const { return verbose_; }
    /// There is room for an error log.
    [[nodiscard]] bool wants_errors() const {
        return error_buffer_ != nullptr && error_capacity_ != 0;
    }

private:
    static void write_log(char* buffer, std::uint64_t capacity, void** size_slot,
                          const std::string& text);

    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
    char* info_buffer_ = nullptr;
    std::uint64_t info_capacity_ = 0;
    void** info_size_slot_ = nullptr;
    char* error_buffer_ = nullptr;
    std::uint64_t error_capacity_ = 0;
    void** error_size_slot_ = nullptr;
    void** wall_time_slot_ = nullptr;
    bool verbose_ = false;
};

/// A file's bytes with a NUL behind them. 301 when it cannot be read.
CUresult read_image_file(const char* path, std::string& bytes);

}  // namespace gantry::softgpu
