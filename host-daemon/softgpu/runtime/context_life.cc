#include "host-daemon/softgpu/runtime/context_life.h"

#include "host-daemon/softgpu/code/module.h"
#include "host-daemon/softgpu/graph/capture.h"
#include "host-daemon/softgpu/memory/allocate.h"
#include "host-daemon/softgpu/memory/heap_memory.h"
#include "host-daemon/softgpu/streams/device_output.h"
#include "host-daemon/softgpu/streams/stream.h"
#include "proto/cuda/dark/dark.h"

namespace gantry::softgpu {

void start_context(Context& context) {
    context.legacy_stream =
        std::make_shared<Stream>(context.weak_from_this(), CU_STREAM_DEFAULT, 0);
    context.legacy_stream->legacy = true;
    Scheduler::instance().add(context, context.legacy_stream);
}

void reset_context(Context& context) {
    abandon_captures_of(context);
    Scheduler::instance().wait(Scheduler::instance().points_of(context));
    DeviceOutput::instance().flush();
    dark::forget_context(context.handle());
    auto doomed = context.forget();
    forget_libraries(context.id);
    for (const auto& [handle, object] : doomed) {
        object->retire();
        retract(*object);
    }
    doomed.clear();
    release_heap(context);
    free_all_of(context);
}

}  // namespace gantry::softgpu
