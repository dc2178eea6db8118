#include "host-daemon/replacement/replacement.h"

#include "host-daemon/replacement/copy.h"
#include "host-daemon/replacement/hand_over.h"

namespace gantry::replacement {

Outcome replace(Endpoint& old_worker, Endpoint& fresh, const Options& options) {
    if (options.way == Way::kHandOver) {
        return HandOver(old_worker, fresh, options).run();
    }
    return Copy(old_worker, fresh, options).run();
}

}  // namespace gantry::replacement
