// Results of calls, the sticky error, and what the driver tells a person.
// Thread-safe.
#pragma once

#include <cstddef>
#include <string>

#include "proto/cuda/abi.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::softgpu {

/// The sticky error, or 0. Once set it stays until the process ends.
CUresult poison();
void set_poison(CUresult error, const std::string& text);

/// A sentence for a person: to stderr (unless GANTRY_SOFT_LOG=off) and to the extension's reader.
void report(const std::string& text);
/// Reports what the program learns from a result, or from the JIT error log, only if
/// GANTRY_SOFT_LOG=refusals asks for it.
void report_refusal(const std::string& text);
void set_report_sink(void (*sink)(void* user, const char* text, std::size_t bytes), void* user);

}  // namespace gantry::softgpu

/// Returns from the function with the result of a step that did not succeed.
#define GANTRY_CU(expression)                                                       \
    do {                                                                            \
        if (const CUresult gantry_cu_ = (expression); gantry_cu_ != CUDA_SUCCESS) { \
            return gantry_cu_;                                                      \
        }                                                                           \
    } while (0)
