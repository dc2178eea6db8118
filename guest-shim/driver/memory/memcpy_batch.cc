// Batches of linear copies: the copies one after the other, which is one of the orders that a batch
// allows. Where the source may be read (attribute srcAccessOrder) is kept by every one of them.
#include "guest-shim/driver/memory/memcpy.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::shim {
namespace {

/// Groups of copies share an attribute: `starts` are the groups' first copies, rising from 0.
bool are_groups(const CUmemcpyAttributes_v1* attributes, const size_t* starts, size_t groups,
                size_t count) {
    if (attributes == nullptr || starts == nullptr || groups == 0 || groups > count ||
        starts[0] != 0) {
        return false;
    }
    for (size_t i = 0; i < groups; ++i) {
        const CUmemcpySrcAccessOrder order = attributes[i].srcAccessOrder;
        if ((i != 0 && (starts[i] <= starts[i - 1] || starts[i] >= count)) ||
            order < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || order > CU_MEMCPY_SRC_ACCESS_ORDER_ANY) {
            return false;
        }
    }
    return true;
}

}  // namespace
}  // namespace gantry::shim

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                               CUmemcpyAttributes_v1* attrs, size_t* attrIdxs, size_t numAttrs,
                               CUstream hStream) noexcept {
    // The legacy default stream is not allowed.
    if (dsts == nullptr || srcs == nullptr || sizes == nullptr || count == 0 ||
        bits(hStream) <= 1 || !are_groups(attrs, attrIdxs, numAttrs, count)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; ++i) {
        if (const CUresult result = copy_linear(dsts[i], srcs[i], sizes[i], hStream, false);
            result != CUDA_SUCCESS) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}

CUresult cuMemcpyBatchAsync(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                            CUmemcpyAttributes_v1* attrs, size_t* attrIdxs, size_t numAttrs,
                            size_t* failIdx, CUstream hStream) noexcept {
    if (failIdx != nullptr) {
        *failIdx = ~size_t{0};  // No copy of its own is at fault.
    }
    return cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, attrs, attrIdxs, numAttrs, hStream);
}

}  // namespace gantry::cuda_impl
