#include "host-daemon/softgpu/code/jit_options.h"
#include "host-daemon/softgpu/core/errors.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

namespace gantry::softgpu {

CUresult JitOptions::read(unsigned count, CUjit_option* options, void** values) {
    GANTRY_REFUSE_IF(count != 0 && (options == nullptr || values == nullptr),
                     CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < count; ++i) {
        const auto number = reinterpret_cast<std::uint64_t>(values[i]);
        switch (options[i]) {
            case CU_JIT_WALL_TIME: wall_time_slot_ = &values[i]; break;
            case CU_JIT_LOG_VERBOSE: verbose_ = (number & 0xffffffff) != 0; break;
            case CU_JIT_INFO_LOG_BUFFER: info_buffer_ = static_cast<char*>(values[i]); break;
            case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
                info_capacity_ = static_cast<std::uint32_t>(number);
                info_size_slot_ = &values[i];
                break;
            case CU_JIT_ERROR_LOG_BUFFER: error_buffer_ = static_cast<char*>(values[i]); break;
            case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
                error_capacity_ = static_cast<std::uint32_t>(number);
                error_size_slot_ = &values[i];
                break;
            default:
                GANTRY_REFUSE_IF(options[i] < 0 || options[i] >= CU_JIT_NUM_OPTIONS,
                                 CUDA_ERROR_INVALID_VALUE);
                break;  // Code generation options mean nothing to an interpreter.
        }
    }
    return CUDA_SUCCESS;
}

void JitOptions::write_log(char* buffer, std::uint64_t capacity, void** size_slot,
                           const std::string& text) {
    std::uint64_t written = 0;
    if (buffer != nullptr && capacity > 0) {
        written = std::min<std::uint64_t>(text.size(), capacity - 1);
        std::memcpy(buffer, text.data(), written);
        buffer[written] = '\0';
    }
    if (size_slot != nullptr) {
        *size_slot = reinterpret_cast<void*>(written);
    }
}

void JitOptions::finish(const std::string& error_log, const std::string& info_log) {
    write_log(info_buffer_, info_capacity_, info_size_slot_, info_log);
    write_log(error_buffer_, error_capacity_, error_size_slot_, error_log);
    if (wall_time_slot_ != nullptr) {
        const std::chrono::duration<float, std::milli> elapsed =
            std::chrono::steady_clock::now() - start_;
        const float milliseconds = elapsed.count();
        std::memcpy(static_cast<void*>(wall_time_slot_), &milliseconds, sizeof milliseconds);
    }
}

CUresult read_image_file(const char* path, std::string& bytes) {
    const std::ifstream file(path, std::ios::binary);
    GANTRY_REFUSE_IF(!file, CUDA_ERROR_FILE_NOT_FOUND);
    std::ostringstream contents;
    contents << file.rdbuf();
    bytes = contents.str();
    return CUDA_SUCCESS;
}

}  // namespace gantry::softgpu
