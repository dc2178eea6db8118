// unless_exhausted: calls what makes threads, and turns their refusal by the system into an Error.
//
// The standard library tells by an exception that there is no thread (RLIMIT_NPROC, pids.max) or no
// memory. Where a tenant's program is the reason, that is its refusal and not the end of whoever
// serves the others. Failure: kUnavailable, reason `daemon.threads`; what `make` had begun is
// undone by its own destructors. Threads: any.
#pragma once

#include <new>
#include <system_error>
#include <type_traits>

#include "proto/base/result.h"

namespace gantry {

template <typename Make>
Result<std::invoke_result_t<Make>> unless_exhausted(Make make) {
    constexpr char kReason[] = "daemon.threads";
    try {
        if constexpr (std::is_void_v<std::invoke_result_t<Make>>) {
            make();
            return {};
        } else {
            return make();
        }
    } catch (const std::system_error& error) {
        return Error{Code::kUnavailable, kReason,
                     std::string("the system makes no more threads: ") + error.what()};
    } catch (const std::bad_alloc&) {
        return Error{Code::kUnavailable, kReason, "the system gives no more memory"};
    }
}

}  // namespace gantry
