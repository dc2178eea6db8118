#include "guest-shim/driver/jit_options.h"

#include <cstring>

namespace gantry::shim {

CUresult JitOptions::add(std::uint32_t option, std::uint64_t value) noexcept {
    if (sent_count_ == kMaxOptions) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sent_[sent_count_++] = cuda::wire_hand::ImageOption{option, 0, value};
    return CUDA_SUCCESS;
}

CUresult JitOptions::read(unsigned count, const CUjit_option* options, void** values) noexcept {
    if (count != 0 && (options == nullptr || values == nullptr)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned i = 0; i < count; ++i) {
        const auto value = reinterpret_cast<std::uint64_t>(values[i]);
        switch (options[i]) {
            case CU_JIT_WALL_TIME:
                wall_time_ = &values[i];
                continue;
            case CU_JIT_INFO_LOG_BUFFER:
                info_.buffer = static_cast<char*>(values[i]);
                continue;
            case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
                info_.capacity = static_cast<std::uint32_t>(value);
                info_.size_out = &values[i];
                continue;
            case CU_JIT_ERROR_LOG_BUFFER:
                error_.buffer = static_cast<char*>(values[i]);
                continue;
            case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
                error_.capacity = static_cast<std::uint32_t>(value);
                error_.size_out = &values[i];
                continue;
            case CU_JIT_GLOBAL_SYMBOL_NAMES:
            case CU_JIT_GLOBAL_SYMBOL_ADDRESSES:
            case CU_JIT_GLOBAL_SYMBOL_COUNT:
                return CUDA_ERROR_NOT_SUPPORTED;
            default:
                break;
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

void JitOptions::put_log(const Log& log, const char* text, std::uint32_t bytes) noexcept {
    if (log.capacity != 0) {
        const std::uint32_t kept = bytes < log.capacity ? bytes : log.capacity - 1;
        std::memcpy(log.buffer, text, kept);
        log.buffer[kept] = '\0';
        bytes = kept == 0 ? 0 : kept + 1;
    } else {
        bytes = 0;
    }
    if (log.size_out != nullptr) {
        *log.size_out = reinterpret_cast<void*>(static_cast<std::uint64_t>(bytes));
    }
}

void JitOptions::put_back(const char* logs, std::uint32_t info_bytes, std::uint32_t error_bytes,
                          float wall_time_ms) noexcept {
    put_log(info_, logs, info_bytes);
    put_log(error_, logs + info_bytes, error_bytes);
    if (wall_time_ != nullptr) {
        std::memcpy(wall_time_, &wall_time_ms, sizeof(wall_time_ms));
    }
}

}  // namespace gantry::shim
