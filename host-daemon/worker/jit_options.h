// JitOptions: the application's JIT options for the driver, with log buffers of the worker's own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
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
    [[nodiscard]] std::string info_log() const { return text(info_); }
    [[nodiscard]] std::string error_log() const { return text(error_); }
    [[nodiscard]] float wall_time_ms() const;

private:
    void add(CUjit_option name, void* value);
    static std::string text(const std::vector<char>& log);

    std::vector<CUjit_option> names_;
    std::vector<void*> values_;
    std::vector<char> info_;
    std::vector<char> error_;
    std::size_t wall_time_index_ = 0;
};

/// True for JIT options whose value is a number (the others name buffers of a process).
bool is_plain_jit_option(std::uint32_t option);

}  // namespace gantry::worker
