// CUjit_option lists are in and out: buffers for logs and results stay in the guest, plain values
// travel. This splits a list and puts the answers back.
#pragma once

#include <cstdint>

#include "proto/cuda/abi.h"
#include "proto/cuda/wire_hand.h"

namespace gantry::shim {

inline constexpr std::uint32_t kMaxOptions = 64;

class JitOptions {
public:
    /// Reads the application's list. It must stay alive until put_back().
    CUresult read(unsigned count, const CUjit_option* options, void** values) noexcept;
    /// Adds options that have plain values only (library options).
    CUresult add(std::uint32_t option, std::uint64_t value) noexcept;

    /// Writes what the driver wrote into the application's buffers and options. `text` holds `got`
    /// bytes: the info log, then the error log.
    void put_back(const cuda::wire_hand::JitLogs& logs, const char* text,
                  std::uint32_t got) noexcept;
    /// True when there is anything to write back.
    [[nodiscard]] bool has_outputs() const {
        return info_.capacity != 0 || error_.capacity != 0 || wall_time_ != nullptr;
    }

    [[nodiscard]] const cuda::wire_hand::ImageOption* sent() const { return sent_; }
    [[nodiscard]] std::uint32_t sent_count() const { return sent_count_; }
    [[nodiscard]] std::uint32_t info_capacity() const { return info_.capacity; }
    [[nodiscard]] std::uint32_t error_capacity() const { return error_.capacity; }

private:
    struct Log {
        char* buffer = nullptr;
        std::uint32_t capacity = 0;
        void** size_out = nullptr;  ///< The option's value slot: receives the bytes written.
    };
    static void put_log(const Log& log, const char* text, std::uint32_t bytes,
                        std::uint32_t size) noexcept;

    cuda::wire_hand::ImageOption sent_[kMaxOptions] = {};
    std::uint32_t sent_count_ = 0;
    Log info_;
    Log error_;
    void** wall_time_ = nullptr;
};

}  // namespace gantry::shim
