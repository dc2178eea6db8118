#include "host-daemon/execution/code/jit_options.h"

#include <algorithm>
#include <cstring>

namespace gantry::worker {
namespace {

using cuda::wire_hand::ImageOption;

constexpr std::uint32_t kLogBytesMax = 1u << 20;
/// What a log buffer starts with: no log does, so that one never written is told from an empty one.
constexpr char kUntouched = '\x01';

}  // namespace

bool is_plain_jit_option(std::uint32_t option) {
    switch (static_cast<CUjit_option>(option)) {
        case CU_JIT_MAX_REGISTERS:
        case CU_JIT_THREADS_PER_BLOCK:
        case CU_JIT_OPTIMIZATION_LEVEL:
        case CU_JIT_TARGET:
        case CU_JIT_FALLBACK_STRATEGY:
        case CU_JIT_GENERATE_DEBUG_INFO:
        case CU_JIT_LOG_VERBOSE:
        case CU_JIT_GENERATE_LINE_INFO:
        case CU_JIT_CACHE_MODE:
        case CU_JIT_POSITION_INDEPENDENT_CODE:
        case CU_JIT_MIN_CTA_PER_SM:
        case CU_JIT_MAX_THREADS_PER_BLOCK:
        case CU_JIT_OVERRIDE_DIRECTIVE_VALUES: return true;
        default: return false;
    }
}

JitOptions::JitOptions(std::span<const ImageOption> options, std::uint32_t info_log_bytes,
                       std::uint32_t error_log_bytes) {
    for (const ImageOption& option : options) {
        if (is_plain_jit_option(option.option)) {
            add(static_cast<CUjit_option>(option.option),
                reinterpret_cast<void*>(static_cast<std::uintptr_t>(option.value)));
        }
    }
    auto add_log = [this](Log& log, std::uint32_t bytes, CUjit_option buffer, CUjit_option size) {
        if (bytes != 0) {
            log.buffer.resize(std::min(bytes, kLogBytesMax));
            log.buffer.front() = kUntouched;
            add(buffer, log.buffer.data());
            log.size_index = values_.size();
            add(size, reinterpret_cast<void*>(log.buffer.size()));
        }
    };
    add_log(info_, info_log_bytes, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES);
    add_log(error_, error_log_bytes, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
    wall_time_index_ = names_.size();
    if (!names_.empty()) {
        add(CU_JIT_WALL_TIME, nullptr);
    }
}

void JitOptions::add(CUjit_option name, void* value) {
    names_.push_back(name);
    values_.push_back(value);
}

std::uint32_t JitOptions::size_of(const Log& log) const {
    // Drivers write the option's value as a number of 32 or of 64 bits.
    return log.buffer.empty() ? 0
                              : static_cast<std::uint32_t>(
                                    reinterpret_cast<std::uintptr_t>(values_[log.size_index]));
}

bool JitOptions::is_written(const Log& log) const {
    return !log.buffer.empty() &&
           (log.buffer.front() != kUntouched || size_of(log) != log.buffer.size());
}

std::string_view JitOptions::text_of(const Log& log) const {
    if (log.buffer.empty() || log.buffer.front() == kUntouched) {
        return {};
    }
    const auto end = std::find(log.buffer.begin(), log.buffer.end(), '\0');
    return {log.buffer.data(), static_cast<std::size_t>(end - log.buffer.begin())};
}

cuda::wire_hand::JitLogs JitOptions::logs(std::string* text) const {
    const std::string_view info = text_of(info_);
    const std::string_view error = text_of(error_);
    text->assign(info).append(error);
    cuda::wire_hand::JitLogs logs{};
    logs.info_log_bytes = static_cast<std::uint32_t>(info.size());
    logs.error_log_bytes = static_cast<std::uint32_t>(error.size());
    logs.info_size = size_of(info_);
    logs.error_size = size_of(error_);
    logs.written = (is_written(info_) ? cuda::wire_hand::kInfoLogWritten : 0) |
                   (is_written(error_) ? cuda::wire_hand::kErrorLogWritten : 0);
    logs.wall_time_ms = wall_time_ms();
    return logs;
}

float JitOptions::wall_time_ms() const {
    float value = 0.0f;
    if (wall_time_index_ < values_.size()) {
        std::memcpy(&value, &values_[wall_time_index_], sizeof(value));
    }
    return value;
}

}  // namespace gantry::worker
