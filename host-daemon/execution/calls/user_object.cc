// User objects: references that the guest and its graphs hold. The driver counts them, and calls
// when there is none any more; what must be made again elsewhere is in the book
// (objects/user_object_book.h).
#include "host-daemon/execution/calls/graph_calls.h"

namespace gantry::worker {

CUresult on_cuUserObjectCreate(CallContext& context, const wire::cuUserObjectCreate_call& wanted,
                               std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    // All of them: an object that could not be given back would live for ever.
    const driver::DriverApi& api = call.api();
    if (api.cuUserObjectCreate == nullptr || api.cuUserObjectRetain == nullptr ||
        api.cuUserObjectRelease == nullptr || api.cuGraphRetainUserObject == nullptr ||
        api.cuGraphReleaseUserObject == nullptr) {
        return call.unsupported(call.op());
    }
    if (wanted.destroy == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = call.reserve(HandleKind::kUserObject, wanted.object);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    // A restore sets the guest's references later, and holds the object until all is made.
    const unsigned held = call.is_replay() ? 1 : 0;
    const unsigned count = call.is_replay() ? 0 : wanted.count;
    UserObjectBook& book = call.process().graphs.user_objects;
    const UserObjectBook::Made made = book.prepare(wanted.object, {wanted.destroy, wanted.pointer});
    CUuserObject native = nullptr;
    result = api.cuUserObjectCreate(&native, made.argument, made.run, count + held, wanted.flags);
    if (result != CUDA_SUCCESS) {
        book.drop(made);
        return result;
    }
    book.add(made, native, count, held);
    Object object;  // Of no context: it outlives them.
    object.handle = wanted.object;
    object.native = reinterpret_cast<std::uint64_t>(native);
    object.creation = call.recorded();
    object.creation.context = 0;
    return call.process().objects.insert(std::move(object)) ? CUDA_SUCCESS
                                                            : CUDA_ERROR_INVALID_HANDLE;
}

namespace served {

CUresult cuUserObjectRetain(CallContext& context, CUuserObject object, unsigned int count) {
    Call& call = as_call(context);
    const CUresult result = call.api().cuUserObjectRetain(object, count);
    if (result == CUDA_SUCCESS) {
        call.process().graphs.user_objects.retain(object, count);
    }
    return result;
}

CUresult cuUserObjectRelease(CallContext& context, CUuserObject object, unsigned int count) {
    Call& call = as_call(context);
    UserObjectBook& book = call.process().graphs.user_objects;
    if (!book.release(object, count)) {  // Before: the object may be gone behind the call.
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult result = call.api().cuUserObjectRelease(object, count);
    if (result != CUDA_SUCCESS) {
        book.retain(object, count);
    }
    return result;
}

CUresult cuGraphRetainUserObject(CallContext& context, CUgraph graph, CUuserObject object,
                                 unsigned int count, unsigned int flags) {
    Call& call = as_call(context);
    UserObjectBook& book = call.process().graphs.user_objects;
    const bool moves = flags == CU_GRAPH_USER_OBJECT_MOVE;
    if ((flags != 0 && !moves) || (moves && !book.release(object, count))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult result = call.api().cuGraphRetainUserObject(graph, object, count, flags);
    if (result == CUDA_SUCCESS) {
        book.retain(graph, object, count);
    } else if (moves) {
        book.retain(object, count);
    }
    return result;
}

CUresult cuGraphReleaseUserObject(CallContext& context, CUgraph graph, CUuserObject object,
                                  unsigned int count) {
    Call& call = as_call(context);
    UserObjectBook& book = call.process().graphs.user_objects;
    if (!book.release(graph, object, count)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult result = call.api().cuGraphReleaseUserObject(graph, object, count);
    if (result != CUDA_SUCCESS) {
        book.retain(graph, object, count);
    }
    return result;
}

}  // namespace served

}  // namespace gantry::worker
