#include "guest-shim/driver/code/jit_options.h"
#include "proto/cuda/refuse_if.h"

#include <cstring>

namespace gantry::shim {

CUresult JitOptions::add(std::uint32_t option, std::uint64_t value) noexcept {
    GANTRY_REFUSE_IF(sent_count_ == kMaxOptions, CUDA_ERROR_INVALID_VALUE);
    sent_[sent_count_++] = cuda::wire_hand::ImageOption{option, 0, value};
    return CUDA_SUCCESS;
}

CUresult JitOptions::read(unsigned count, const CUjit_option* options, void** values) noexcept {
    GANTRY_REFUSE_IF(count != 0 && (options == nullptr || values == nullptr),
                     CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < count; ++i) {
        const auto value = reinterpret_cast<std::uint64_t>(values[i]);
        switch (options[i]) {
            case CU_JIT_WALL_TIME: wall_time_ = &values[i]; continue;
            case CU_JIT_INFO_LOG_BUFFER: info_.buffer = static_cast<char*>(values[i]); continue;
            case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
                info_.capacity = static_cast<std::uint32_t>(value);
                info_.size_out = &values[i];
                continue;
            case CU_JIT_ERROR_LOG_BUFFER: error_.buffer = static_cast<char*>(values[i]); continue;
            case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
                error_.capacity = static_cast<std::uint32_t>(value);
                error_.size_out = &values[i];
                continue;
            case CU_JIT_GLOBAL_SYMBOL_NAMES:
            case CU_JIT_GLOBAL_SYMBOL_ADDRESSES:
            case CU_JIT_GLOBAL_SYMBOL_COUNT: return CUDA_ERROR_NOT_SUPPORTED;
            default: break;
        }
        if (const CUresult result = add(static_cast<std::uint32_t>(options[i]), value);
            result != CUDA_SUCCESS) {
            return result;
        }
    }
    if (info_.buffer == nullptr) {
        info_.capacity = 0;
    }
    if (error_.buffer == nullptr) {
        error_.capacity = 0;
    }
    return CUDA_SUCCESS;
}

void JitOptions::put_log(const Log& log, const char* text, std::uint32_t bytes,
                         std::uint32_t size) noexcept {
    if (log.capacity != 0) {
        const std::uint32_t kept = bytes < log.capacity ? bytes : log.capacity;
        std::memcpy(log.buffer, text, kept);
        if (kept < log.capacity) {
            log.buffer[kept] = '\0';
        }
    }
    if (log.size_out != nullptr) {
        *log.size_out = reinterpret_cast<void*>(static_cast<std::uint64_t>(size));
    }
}

void JitOptions::put_back(const cuda::wire_hand::JitLogs& logs, const char* text,
                          std::uint32_t got) noexcept {
    const std::uint32_t info = logs.info_log_bytes < got ? logs.info_log_bytes : got;
    const std::uint32_t error =
        logs.error_log_bytes < got - info ? logs.error_log_bytes : got - info;
    if ((logs.written & cuda::wire_hand::kInfoLogWritten) != 0) {
        put_log(info_, text, info, logs.info_size);
    }
    if ((logs.written & cuda::wire_hand::kErrorLogWritten) != 0) {
        put_log(error_, text + info, error, logs.error_size);
    }
    if (wall_time_ != nullptr) {
        std::memcpy(wall_time_, &logs.wall_time_ms, sizeof(logs.wall_time_ms));
    }
}

}  // namespace gantry::shim
