// User objects: what an application wants to be told of when its last reference is gone, as the
// graphs that use it hold some. The host counts; the destructor runs here, as a host function does.
#include "guest-shim/driver/core/objects.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/wire_structs.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuUserObjectCreate(CUuserObject* object_out, void* ptr, CUhostFn destroy,
                            unsigned int initialRefcount, unsigned int flags) noexcept {
    GANTRY_REFUSE_IF(object_out == nullptr || destroy == nullptr || initialRefcount == 0 ||
                         flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC,
                     CUDA_ERROR_INVALID_VALUE);
    if (const CUresult result = session::start_callbacks(); result != CUDA_SUCCESS) {
        return result;
    }
    cuda::wire::cuUserObjectCreate_call call{};
    call.object = session::mint(HandleKind::kUserObject);
    call.pointer = bits(ptr);
    call.destroy = reinterpret_cast<std::uint64_t>(destroy);
    call.count = initialRefcount;
    call.flags = flags;
    const CUresult result = call_status(cuda::Op::cuUserObjectCreate, call);
    if (result == CUDA_SUCCESS) {
        *object_out = reinterpret_cast<CUuserObject>(call.object);
    }
    return result;
}

}  // namespace gantry::cuda_impl
