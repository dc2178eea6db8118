// SessionSource and SessionSink: what the runners of a move need of a session's two ends, beyond
// the engine's StateSource and StateSink. gantryd's are the workers (worker_state.h); tests/sim has
// others.
#pragma once

#include <string>
#include <vector>

#include "migration/engine/state.h"

namespace gantry::supervisor {

class SessionSource : public engine::StateSource {
public:
    [[nodiscard]] virtual std::vector<engine::PartId> parts() const = 0;
    /// False: its program has ended. From any thread.
    [[nodiscard]] virtual bool has(engine::PartId part) const = 0;
    /// A serialised control.ImageList with the part's images but for those in `known` (32 bytes
    /// each).
    virtual Result<std::string> images(engine::PartId part,
                                       const std::vector<std::string>& known) = 0;
};

class SessionSink : public engine::StateSink {
public:
    /// Images that arrived for the part; used with its next graph.
    virtual void add_images(engine::PartId part, std::string image_list) = 0;
    /// The final state has come, with these parts: the programs of all others have ended.
    virtual void keep_only(const std::vector<engine::PartId>& parts) = 0;
};

}  // namespace gantry::supervisor
