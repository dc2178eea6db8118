#include "host-daemon/replacement/options.h"

namespace gantry::replacement {

const char* to_string(Step step) {
    constexpr const char* kNames[] = {"checked",  "prepared", "frozen",   "final",
                                      "attached", "released", "activated"};
    return kNames[static_cast<int>(step)];
}

}  // namespace gantry::replacement
