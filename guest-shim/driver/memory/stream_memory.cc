// Values that a stream writes or waits for. Address and flags are checked here: the commands are
// posted, and an error of theirs would come back with a later call.
#include "guest-shim/driver/core/objects.h"
#include "guest-shim/driver/core/ranges.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/shim_marshal.h"

namespace gantry::shim {
namespace {

constexpr unsigned kWriteFlags = CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER;
constexpr unsigned kWaitFlags = CU_STREAM_WAIT_VALUE_NOR | CU_STREAM_WAIT_VALUE_FLUSH;

/// `send(address)` queues the operation on the device's name of a value of this size.
template <typename Send>
CUresult queue_value(CUstream stream, CUdeviceptr address, std::uint64_t bytes, unsigned flags,
                     unsigned known_flags, Send send) {
    if (!is_stream(stream)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    Place place;
    const bool fine = address != 0 && address % bytes == 0 && (flags & ~known_flags) == 0 &&
                      place_of(address, bytes, &place) && !place.host_side;
    return fine ? send(place.address) : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace
}  // namespace gantry::shim

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                 unsigned int flags) noexcept {
    return queue_value(stream, addr, sizeof(value), flags, kWriteFlags, [&](CUdeviceptr at) {
        return marshal::cuStreamWriteValue32_v2(stream, at, value, flags);
    });
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                 unsigned int flags) noexcept {
    return queue_value(stream, addr, sizeof(value), flags, kWriteFlags, [&](CUdeviceptr at) {
        return marshal::cuStreamWriteValue64_v2(stream, at, value, flags);
    });
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                unsigned int flags) noexcept {
    return queue_value(stream, addr, sizeof(value), flags, kWaitFlags, [&](CUdeviceptr at) {
        return marshal::cuStreamWaitValue32_v2(stream, at, value, flags);
    });
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                unsigned int flags) noexcept {
    return queue_value(stream, addr, sizeof(value), flags, kWaitFlags, [&](CUdeviceptr at) {
        return marshal::cuStreamWaitValue64_v2(stream, at, value, flags);
    });
}

}  // namespace gantry::cuda_impl
