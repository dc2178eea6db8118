// What generated dispatch needs of the worker. The worker implements both classes; generated code
// knows nothing else of it.
//
// Threads: a CallContext serves one command at a time on one thread (the consumer or a lane's
// executor). Failure: every function returns a CUresult for the guest; none of them throws. Input
// is hostile: a handle or a byte that does not fit is refused, never asserted on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "proto/cuda/abi_result.h"
#include "proto/cuda/handle_kinds.h"

namespace gantry::cuda {
enum class Op : std::uint16_t;
}  // namespace gantry::cuda

namespace gantry::driver {
struct DriverApi;
}  // namespace gantry::driver

namespace gantry::worker {

/// The command that made or configured an object: enough to do it again in another worker, since
/// guest handles do not change. Valid during the call only; keep a copy.
struct Recipe {
    cuda::Op op;
    std::span<const std::byte> args;
    std::span<const std::byte> trailing;
};

class CallContext {
public:
    virtual ~CallContext() = default;

    virtual const driver::DriverApi& driver() = 0;

    /// Guest handle -> the driver's value. For streams 0, 1 and 2 are the legacy stream and the
    /// calling lane's per-thread stream. kFunction accepts kernel handles too. Texture and surface
    /// objects are their own values. Unknown: CUDA_ERROR_INVALID_HANDLE.
    virtual CUresult resolve(cuda::HandleKind kind, std::uint64_t handle,
                             std::uint64_t* native) = 0;

    /// The driver's value -> guest handle, for calls that return an existing object.
    virtual CUresult guest_handle(cuda::HandleKind kind, std::uint64_t native,
                                  std::uint64_t* handle) = 0;

    /// The guest's number of a device -> the driver's. Numbers below 0 (the CPU, no device) are the
    /// same for both. Unknown: CUDA_ERROR_INVALID_DEVICE.
    virtual CUresult device(std::int32_t guest, std::int32_t* native) = 0;

    /// Called before an object is made: is the handle well-formed, of this kind and not in use?
    virtual CUresult reserve(cuda::HandleKind kind, std::uint64_t handle) = 0;
    /// A new object under the handle the guest chose. On failure the caller has nothing to undo.
    virtual CUresult bind(cuda::HandleKind kind, std::uint64_t handle, std::uint64_t native,
                          const Recipe& recipe) = 0;
    /// An object that the driver told of: the handle that it has, else it gets `new_handle`, which
    /// the guest offers for that.
    virtual CUresult name(cuda::HandleKind kind, std::uint64_t new_handle, std::uint64_t native,
                          const Recipe& recipe, std::uint64_t* handle) = 0;
    virtual void unbind(cuda::HandleKind kind, std::uint64_t handle) = 0;
    /// An object (for kContext with handle 0: the caller's current context) was configured.
    virtual void configured(cuda::HandleKind kind, std::uint64_t handle, const Recipe& recipe) = 0;

    /// No code for this call, or the driver lacks it. Counts; returns CUDA_ERROR_NOT_SUPPORTED.
    virtual CUresult unsupported(cuda::Op op) = 0;
    /// A command that no honest shim sends. Counts and logs; returns CUDA_ERROR_INVALID_VALUE.
    virtual CUresult malformed(cuda::Op op, const char* what) = 0;
};

/// The answer being built: the fixed part first, then trailing bytes.
class Reply {
public:
    virtual ~Reply() = default;
    virtual void fixed(std::span<const std::byte> bytes) = 0;
    virtual void trailing(std::span<const std::byte> bytes) = 0;

    template <typename T>
    void put(const T& value) {
        fixed(std::as_bytes(std::span(&value, 1)));
    }
};

}  // namespace gantry::worker
