// Ending objects whatever their kind: a context's end and a restore that follows a newer graph.
#include <mutex>

#include "host-daemon/execution/process/guest_process.h"

namespace gantry::worker {
namespace {

template <typename Handle>
void end(CUresult (*function)(Handle), std::uint64_t native) {
    if (function != nullptr && native != 0) {
        function(reinterpret_cast<Handle>(native));
    }
}

/// Of its own, outside the arena: nobody may be copying it while it ends.
bool has_memory(HandleKind kind) {
    return kind == HandleKind::kModule || kind == HandleKind::kLibrary ||
           kind == HandleKind::kArray || kind == HandleKind::kMipmappedArray;
}

}  // namespace

void GuestProcess::destroy_object(const Object& object) {
    const driver::DriverApi& api = device.api();
    LayoutHold layout;
    if (has_memory(object.kind())) {
        layout = memory.device.hold_layout();
    }
    if (object.kind() == HandleKind::kModule || object.kind() == HandleKind::kLibrary) {
        launches.forget_all();
    }
    switch (object.parent == 0 ? object.kind() : HandleKind::kInvalid) {
        case HandleKind::kStream:
            streams.leave(reinterpret_cast<CUstream>(object.native));
            end(api.cuStreamDestroy_v2, object.native);
            graphs.captures.end(object.handle);
            break;
        case HandleKind::kEvent:
            channel.event_board.forget(object.handle);
            end(api.cuEventDestroy_v2, object.native);
            shares.events.ended(object.handle);
            break;
        case HandleKind::kModule: end(api.cuModuleUnload, object.native); break;
        case HandleKind::kLibrary: end(api.cuLibraryUnload, object.native); break;
        case HandleKind::kArray: end(api.cuArrayDestroy, object.native); break;
        case HandleKind::kMipmappedArray: end(api.cuMipmappedArrayDestroy, object.native); break;
        case HandleKind::kGraph:
            graphs.book.forget_graph(reinterpret_cast<CUgraph>(object.native));
            end(api.cuGraphDestroy, object.native);
            break;
        case HandleKind::kGraphExec: end(api.cuGraphExecDestroy, object.native); break;
        case HandleKind::kLinkState: end(api.cuLinkDestroy, object.native); break;
        case HandleKind::kUserObject:
            if (const unsigned left = graphs.user_objects.silence(object.handle); left != 0) {
                api.cuUserObjectRelease(reinterpret_cast<CUuserObject>(object.native), left);
            }
            break;
        case HandleKind::kTexObject:
            if (api.cuTexObjectDestroy != nullptr) {
                api.cuTexObjectDestroy(object.native);
            }
            break;
        case HandleKind::kSurfObject:
            if (api.cuSurfObjectDestroy != nullptr) {
                api.cuSurfObjectDestroy(object.native);
            }
            break;
        case HandleKind::kContext:
            if (object.native != reinterpret_cast<std::uint64_t>(device.context()) &&
                api.cuCtxDestroy_v2 != nullptr) {
                (void)streams.end_context(reinterpret_cast<CUcontext>(object.native));
            }
            break;
        default: break;  // Ends with its parent.
    }
    forget_object(object.handle);
}

}  // namespace gantry::worker
