// Moves a guest from one worker process to another on this host, over the control protocol alone
// (host-daemon/replacement). The guest notices a pause and nothing else.
#pragma once

#include "host-daemon/worker/worker_link.h"

namespace gantry::worker {

replacement::Outcome replace_worker(WorkerLink& old_worker, WorkerLink& fresh,
                                    const replacement::Options& options);

}  // namespace gantry::worker
