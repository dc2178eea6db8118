// Linear copies. The kind follows from the addresses: pageable bytes travel through the ring or the
// bulk area, everything else is copied by the device's driver.
#include "guest-shim/driver/memory/memcpy.h"

#include <time.h>

#include <cstring>

#include "guest-shim/driver/core/ranges.h"
#include "guest-shim/driver/memory/graph_copy.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/shim_marshal.h"
#include "proto/cuda/gen/wire_structs.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {
namespace {

constexpr std::uint64_t kUnwaitedBytes = 64ull << 10;

/// Both ends are memory of this process, page-locked perhaps: queued work may still write the
/// source or read the target. Natively no call returns before such a copy is done, asynchronous
/// ones and those that name an end a device's included (580.159, H100). Managed memory is an
/// exception there; here it is page-locked, so that the driver would have the worker's reader wait.
CUresult copy_on_host(std::uint64_t target, std::uint64_t source, std::uint64_t bytes,
                      CUstream stream) {
    const CUresult result = synchronize_stream(bits(stream));
    if (result == CUDA_SUCCESS) {
        std::memmove(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(source), bytes);
    }
    return result;
}

/// Waits a while for a stream to run dry. A stream that waits for this very thread (a kernel that
/// spins on a flag in page-locked memory) never does: then false.
bool runs_dry(CUstream stream) {
    constexpr int kRounds = 200;
    for (int round = 0; round < kRounds; ++round) {
        const CUresult result =
            call_status(cuda::Op::cuStreamQuery, cuda::wire::cuStreamQuery_call{bits(stream)});
        if (result != CUDA_ERROR_NOT_READY) {
            return result == CUDA_SUCCESS;
        }
        const timespec nap{0, 1'000'000};
        nanosleep(&nap, nullptr);
    }
    return false;
}

/// While a migration is announced, what the host writes into page-locked memory can escape the
/// hypervisor's dirty log. A copy to it then takes the way of pageable copies: this process writes
/// the bytes itself.
bool must_write_here(std::uint64_t target, std::uint64_t source, CUstream stream, bool blocking) {
    return __builtin_expect(is_in_pool(target) && session::migration_announced(), 0) &&
           !is_in_pool(source) && !captures_open() && (blocking || runs_dry(stream));
}

CUresult copy_by_driver(std::uint64_t target, std::uint64_t source, std::uint64_t bytes,
                        CUstream stream, bool blocking) {
    if (must_write_here(target, source, stream, blocking)) {
        return session::read_device(reinterpret_cast<void*>(target), source, bytes, bits(stream));
    }
    const cuda::wire::cuMemcpyAsync_call arguments{target, source, bytes, bits(stream)};
    // Between device addresses native does not block even in its synchronous form.
    const bool waits = blocking && (is_in_pool(target) || is_in_pool(source));
    if (waits) {
        session::wait_follows();
    }
    const CUresult result = post_args(cuda::Op::cuMemcpyAsync, arguments);
    return result == CUDA_SUCCESS && waits ? synchronize_stream(bits(stream)) : result;
}

}  // namespace

CUresult synchronize_stream(std::uint64_t stream) noexcept {
    if (session::is_synchronised(stream)) {
        return CUDA_SUCCESS;
    }
    const CUresult result =
        call_status(cuda::Op::cuStreamSynchronize, cuda::wire::cuStreamSynchronize_call{stream});
    if (result == CUDA_SUCCESS) {
        session::note_synchronised(stream);
    }
    return result;
}

namespace {

/// What the ABI says of an end of a copy: the host's address, a device's, or whichever it is.
enum class Side { kHost, kDevice, kAny };

bool find_place(std::uint64_t address, std::uint64_t bytes, Side side, Place* out) {
    if (side != Side::kDevice && place_of(address, bytes, out)) {
        const bool is_nowhere = side == Side::kAny && out->host_side && !is_mapped_here(address);
        return !is_nowhere || place_on_device(address, bytes, out);
    }
    return place_on_device(address, bytes, out);
}

CUresult copy(std::uint64_t target, Side target_side, std::uint64_t source, Side source_side,
              std::uint64_t bytes, CUstream stream, bool blocking) {
    if (const CUresult closed = session::gate(); closed != CUDA_SUCCESS) {
        return closed;
    }
    GANTRY_REFUSE_IF(!is_stream(stream), CUDA_ERROR_INVALID_HANDLE);
    if (bytes == 0) {
        return CUDA_SUCCESS;
    }
    Place to;
    Place from;
    if (target == 0 || source == 0 || !find_place(target, bytes, target_side, &to) ||
        !find_place(source, bytes, source_side, &from)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool to_host = to.host_side || is_in_pool(to.address);
    const bool from_host = from.host_side || is_in_pool(from.address);
    if ((to.host_side || from.host_side) && !blocking && captures_open() && is_captured(stream)) {
        return capture_copy(shaped(target, source, bytes), stream);
    }
    if (to_host && from_host &&
        (to.host_side || from.host_side ||
         (to.is_host && from.is_host && !(captures_open() && is_captured(stream))))) {
        return copy_on_host(target, source, bytes, stream);
    }
    if (to.host_side) {
        const CUresult result = session::read_device(reinterpret_cast<void*>(target), from.address,
                                                     bytes, bits(stream));
        if (result == CUDA_SUCCESS) {
            session::note_synchronised(bits(stream));
        }
        return result;
    }
    if (from.host_side) {
        const CUresult result = session::write_device(
            to.address, reinterpret_cast<const void*>(source), bytes, bits(stream));
        // The bytes have left the application's memory. Native waits for the device no more than
        // this either, up to 64 KiB.
        const bool waits = blocking && bytes > kUnwaitedBytes;
        return result == CUDA_SUCCESS && waits ? synchronize_stream(bits(stream)) : result;
    }
    return copy_by_driver(to.address, from.address, bytes, stream, blocking);
}

CUresult to_device(CUdeviceptr target, const void* source, size_t bytes, CUstream stream,
                   bool blocking) {
    return copy(target, Side::kDevice, bits(source), Side::kHost, bytes, stream, blocking);
}

CUresult to_host(void* target, CUdeviceptr source, size_t bytes, CUstream stream, bool blocking) {
    return copy(bits(target), Side::kHost, source, Side::kDevice, bytes, stream, blocking);
}

CUresult on_device(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream,
                   bool blocking) {
    return copy(target, Side::kDevice, source, Side::kDevice, bytes, stream, blocking);
}

}  // namespace

CUresult copy_linear(std::uint64_t target, std::uint64_t source, std::uint64_t bytes,
                     CUstream stream, bool blocking) noexcept {
    return copy(target, Side::kAny, source, Side::kAny, bytes, stream, blocking);
}

}  // namespace gantry::shim

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuMemcpy(DefaultStream default_stream, CUdeviceptr dst, CUdeviceptr src,
                  size_t ByteCount) noexcept {
    return copy_linear(dst, src, ByteCount, default_stream_handle(default_stream), true);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount,
                       CUstream hStream) noexcept {
    return copy_linear(dst, src, ByteCount, hStream, false);
}

CUresult cuMemcpyHtoD_v2(DefaultStream default_stream, CUdeviceptr dstDevice, const void* srcHost,
                         size_t ByteCount) noexcept {
    return to_device(dstDevice, srcHost, ByteCount, default_stream_handle(default_stream), true);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount,
                              CUstream hStream) noexcept {
    return to_device(dstDevice, srcHost, ByteCount, hStream, false);
}

CUresult cuMemcpyDtoH_v2(DefaultStream default_stream, void* dstHost, CUdeviceptr srcDevice,
                         size_t ByteCount) noexcept {
    return to_host(dstHost, srcDevice, ByteCount, default_stream_handle(default_stream), true);
}

CUresult cuMemcpyDtoHAsync_v2(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                              CUstream hStream) noexcept {
    return to_host(dstHost, srcDevice, ByteCount, hStream, false);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                           CUcontext srcContext, size_t ByteCount, CUstream hStream) noexcept {
    if (find_context(bits(dstContext)) == nullptr || find_context(bits(srcContext)) == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    Place to{};
    Place from{};
    GANTRY_REFUSE_IF(ByteCount != 0 && (!place_on_device(dstDevice, ByteCount, &to) ||
                                        !place_on_device(srcDevice, ByteCount, &from)),
                     CUDA_ERROR_INVALID_VALUE);
    if (to.is_host && from.is_host) {
        return copy_linear(dstDevice, srcDevice, ByteCount, hStream, false);
    }
    return marshal::cuMemcpyPeerAsync(dstDevice, dstContext, srcDevice, srcContext, ByteCount,
                                      hStream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                              CUstream hStream) noexcept {
    return on_device(dstDevice, srcDevice, ByteCount, hStream, false);
}

CUresult cuMemcpyDtoD_v2(DefaultStream default_stream, CUdeviceptr dstDevice, CUdeviceptr srcDevice,
                         size_t ByteCount) noexcept {
    return on_device(dstDevice, srcDevice, ByteCount, default_stream_handle(default_stream), true);
}

}  // namespace gantry::cuda_impl
