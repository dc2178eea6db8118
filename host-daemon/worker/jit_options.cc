#include "host-daemon/worker/jit_options.h"

#include <algorithm>
#include <cstring>

namespace gantry::worker {
namespace {

using cuda::wire_hand::ImageOption;

constexpr std::uint32_t kLogBytesMax = 1u << 20;

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
        case CU_JIT_OVERRIDE_DIRECTIVE_VALUES:
            return true;
        default:
            return false;
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
    auto add_log = [this](std::vector<char>& log, std::uint32_t bytes, CUjit_option buffer,
                          CUjit_option size) {
        if (bytes != 0) {
            log.resize(std::min(bytes, kLogBytesMax));
            add(buffer, log.data());
            add(size, reinterpret_cast<void*>(log.size()));
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

std::string JitOptions::text(const std::vector<char>& log) {
    return {log.begin(), std::find(log.begin(), log.end(), '\0')};
}

float JitOptions::wall_time_ms() const {
    float value = 0.0f;
    if (wall_time_index_ < values_.size()) {
        std::memcpy(&value, &values_[wall_time_index_], sizeof(value));
    }
    return value;
}

}  // namespace gantry::worker
