// Values that a stream writes or waits for. The address is checked here: the commands are posted,
// and an error of theirs would come back with a later call.
#include "guest-shim/driver/core/call_rules.h"
#include "guest-shim/driver/core/ranges.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim::rules {

CUresult stream_value(CUstream stream, CUdeviceptr* address, std::uint64_t bytes) noexcept {
    GANTRY_REFUSE_IF(!is_stream(stream), CUDA_ERROR_INVALID_HANDLE);
    Place place;
    if (*address == 0 || *address % bytes != 0 || !place_on_device(*address, bytes, &place)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *address = place.address;
    return CUDA_SUCCESS;
}

}  // namespace gantry::shim::rules
