// Which handles are live, for generated marshalling (marshal_support.h).
#include "guest-shim/driver/core/objects.h"
#include "proto/cuda/marshal_support.h"

namespace gantry::marshal {

using namespace gantry::shim;

bool is_known(cuda::HandleKind kind, std::uint64_t handle) noexcept {
    switch (kind) {
        case HandleKind::kStream: return is_stream(reinterpret_cast<CUstream>(handle));
        case HandleKind::kEvent: return g_events.find(handle) != nullptr;
        case HandleKind::kGraphExec: return g_graph_execs.find(handle) != nullptr;
        case HandleKind::kKernel:
        case HandleKind::kFunction: return g_kernels.find(handle) != nullptr;
        case HandleKind::kModule:
        case HandleKind::kLibrary:
            return cuda::handle_kind(handle) == kind && g_modules.find(handle) != nullptr;
        case HandleKind::kContext: return find_context(handle) != nullptr;
        default: return true;
    }
}

}  // namespace gantry::marshal
