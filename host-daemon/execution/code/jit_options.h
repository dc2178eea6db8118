// JitOptions: the application's JIT options for the driver, with log buffers of the worker's own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/cuda/abi.h"
#include "proto/cuda/wire_hand.h"

namespace gantry::worker {

class JitOptions {
public:
    JitOptions(std::span<const cuda::wire_hand::ImageOption> options, std::uint32_t info_log_bytes,
               std::uint32_t error_log_bytes);

    [[nodiscard]] unsigned int count() const { return static_cast<unsigned int>(names_.size()); }
    CUjit_option* names() { return names_.data(); }
    void** values() { return values_.data(); }
    /// What the driver has written by now; `text` gets the info log, then the error log.
    [[nodiscard]] cuda::wire_hand::JitLogs logs(std::string* text) const;

private:
    struct Log {
        std::vector<char> buffer;
        std::size_t size_index = 0;  ///< Of its size option's value.
    };
    void add(CUjit_option name, void* value);
    [[nodiscard]] std::uint32_t size_of(const Log& log) const;
    [[nodiscard]] bool is_written(const Log& log) const;
    /// The text, as far as it is NUL-terminated or fills the buffer.
    [[nodiscard]] std::string_view text_of(const Log& log) const;
    [[nodiscard]] float wall_time_ms() const;

    std::vector<CUjit_option> names_;
    std::vector<void*> values_;
    Log info_;
    Log error_;
    std::size_t wall_time_index_ = 0;
};

/// True for JIT options whose value is a number (the others name buffers of a process).
bool is_plain_jit_option(std::uint32_t option);

}  // namespace gantry::worker
