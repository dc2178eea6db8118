// A call may name a context by one of its arguments, which is then the thread's for that call where
// the thread has none: the rows of the API table with a line `context_of`.
#pragma once

#include "proto/cuda/abi.h"

namespace gantry::cuda_impl {

/// The context of the first of `of` that names one is the thread's as long as this lives, where the
/// thread has none.
class LentContext {
public:
    template <typename... Of>
    explicit LentContext(Of... of) noexcept : is_lent_(has_none() && (lend(of) || ...)) {}
    LentContext(const LentContext&) = delete;
    LentContext& operator=(const LentContext&) = delete;
    ~LentContext() {
        if (is_lent_) {
            take_back();
        }
    }

private:
    static bool has_none() noexcept;
    static bool lend(CUstream stream) noexcept;
    static bool lend(CUevent event) noexcept;
    static bool lend(CUdeviceptr address) noexcept;
    static bool lend(const void* address) noexcept;
    static void take_back() noexcept;

    const bool is_lent_;
};

}  // namespace gantry::cuda_impl
