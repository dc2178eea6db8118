// A call may name a context by one of its arguments: that of a stream, an event or memory. NVIDIA's
// driver takes that one where the thread has none current, and so do the calls whose row of the API
// table has a line `context_of`.
#pragma once

#include "guest-shim/session/session.h"
#include "proto/cuda/abi.h"

namespace gantry::shim {

/// Makes the context of this object current. False where it names none: a default stream, or
/// anything that is not known here (context/context.cc).
bool lend_context_of(CUstream stream) noexcept;
bool lend_context_of(CUevent event) noexcept;
bool lend_context_of(CUdeviceptr address) noexcept;
bool lend_context_of(const void* address) noexcept;

}  // namespace gantry::shim

namespace gantry::cuda_impl {

/// The context of the first of `of` that names one is the thread's as long as this lives, where the
/// thread has none. Costs one load where it has.
class LentContext {
public:
    template <typename... Of>
    explicit LentContext(Of... of) noexcept
        : is_lent_(__builtin_expect(session::current_context() == 0, 0) &&
                   (shim::lend_context_of(of) || ...)) {}
    LentContext(const LentContext&) = delete;
    LentContext& operator=(const LentContext&) = delete;
    ~LentContext() {
        if (__builtin_expect(is_lent_, 0)) {
            session::pop_context();
        }
    }

private:
    const bool is_lent_;
};

}  // namespace gantry::cuda_impl
