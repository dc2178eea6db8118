// The worker's sandbox: what a guest that took this process over could still do.
//
// lock_down() gives up every way to more privileges, then (unless told otherwise) allows only the
// system calls that a CUDA driver and the worker's own threads need; others fail with EPERM. Called
// after the driver was loaded and its context made, before the first guest byte is read.
// Threads: call once; applies to all threads of the process. Failure: reason `worker.sandbox`.
#pragma once

#include "proto/base/result.h"

namespace gantry::worker {

Result<void> lock_down(bool with_syscall_filter);

}  // namespace gantry::worker
