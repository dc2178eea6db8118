#include "host-daemon/replacement/report.h"

namespace gantry::replacement {

const char* to_string(Way way) {
    constexpr const char* kNames[] = {"hand_over", "peer", "staged"};
    return kNames[static_cast<int>(way)];
}

const char* to_string(Whom whom) {
    constexpr const char* kNames[] = {"old", "fresh"};
    return kNames[static_cast<int>(whom)];
}

}  // namespace gantry::replacement
