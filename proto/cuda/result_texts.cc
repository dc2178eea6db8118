// Names and sentences of result codes. The names are the ABI's; programs print the sentences, so
// they say what users of CUDA are used to reading. Shim and soft driver both compile this file.
// Libc only.
#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {
namespace {

struct ResultText {
    CUresult code;
    const char* name;
    const char* text;
};

#define GANTRY_RESULT(code, text) \
    { code, #code, text }

constexpr ResultText kResults[] = {
    GANTRY_RESULT(CUDA_SUCCESS, "no error"),
    GANTRY_RESULT(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    GANTRY_RESULT(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    GANTRY_RESULT(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    GANTRY_RESULT(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    GANTRY_RESULT(CUDA_ERROR_PROFILER_DISABLED,
                  "profiler disabled while using external profiling tool"),
    GANTRY_RESULT(CUDA_ERROR_PROFILER_NOT_INITIALIZED,
                  "profiler not initialized: call cudaProfilerInitialize()"),
    GANTRY_RESULT(CUDA_ERROR_PROFILER_ALREADY_STARTED, "profiler already started"),
    GANTRY_RESULT(CUDA_ERROR_PROFILER_ALREADY_STOPPED, "profiler already stopped"),
    GANTRY_RESULT(CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library"),
    GANTRY_RESULT(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER,
                  "API call is not supported in the installed CUDA driver"),
    GANTRY_RESULT(CUDA_ERROR_DEVICE_UNAVAILABLE,
                  "CUDA-capable device(s) is/are busy or unavailable"),
    GANTRY_RESULT(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    GANTRY_RESULT(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    GANTRY_RESULT(CUDA_ERROR_DEVICE_NOT_LICENSED, "device doesn't have valid Grid license"),
    GANTRY_RESULT(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    GANTRY_RESULT(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    GANTRY_RESULT(CUDA_ERROR_CONTEXT_ALREADY_CURRENT, "context already current"),
    GANTRY_RESULT(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
    GANTRY_RESULT(CUDA_ERROR_UNMAP_FAILED, "unmapping of buffer object failed"),
    GANTRY_RESULT(CUDA_ERROR_ARRAY_IS_MAPPED, "array is mapped"),
    GANTRY_RESULT(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"),
    GANTRY_RESULT(CUDA_ERROR_NO_BINARY_FOR_GPU,
                  "no kernel image is available for execution on the device"),
    GANTRY_RESULT(CUDA_ERROR_ALREADY_ACQUIRED, "resource already acquired"),
    GANTRY_RESULT(CUDA_ERROR_NOT_MAPPED, "resource not mapped"),
    GANTRY_RESULT(CUDA_ERROR_NOT_MAPPED_AS_ARRAY, "resource not mapped as array"),
    GANTRY_RESULT(CUDA_ERROR_NOT_MAPPED_AS_POINTER, "resource not mapped as pointer"),
    GANTRY_RESULT(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    GANTRY_RESULT(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture"),
    GANTRY_RESULT(CUDA_ERROR_CONTEXT_ALREADY_IN_USE,
                  "exclusive-thread device already in use by a different thread"),
    GANTRY_RESULT(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
                  "peer access is not supported between these two devices"),
    GANTRY_RESULT(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    GANTRY_RESULT(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, "invalid OpenGL or DirectX context"),
    GANTRY_RESULT(CUDA_ERROR_NVLINK_UNCORRECTABLE,
                  "uncorrectable NVLink error detected during the execution"),
    GANTRY_RESULT(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "PTX JIT compiler library not found"),
    GANTRY_RESULT(CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
                  "the provided PTX was compiled with an unsupported toolchain."),
    GANTRY_RESULT(CUDA_ERROR_JIT_COMPILATION_DISABLED, "PTX JIT compilation was disabled"),
    GANTRY_RESULT(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY,
                  "the provided execution affinity is not supported"),
    GANTRY_RESULT(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC,
                  "the provided PTX contains unsupported call to cudaDeviceSynchronize"),
    GANTRY_RESULT(CUDA_ERROR_CONTAINED,
                  "Invalid access of peer GPU memory over nvlink or a hardware error"),
    GANTRY_RESULT(CUDA_ERROR_INVALID_SOURCE, "device kernel image is invalid"),
    GANTRY_RESULT(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
    GANTRY_RESULT(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, "shared object symbol not found"),
    GANTRY_RESULT(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, "shared object initialization failed"),
    GANTRY_RESULT(CUDA_ERROR_OPERATING_SYSTEM,
                  "OS call failed or operation not supported on this OS"),
    GANTRY_RESULT(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    GANTRY_RESULT(CUDA_ERROR_ILLEGAL_STATE,
                  "the operation cannot be performed in the present state"),
    GANTRY_RESULT(CUDA_ERROR_LOSSY_QUERY, "attempted introspection would be semantically lossy"),
    GANTRY_RESULT(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    GANTRY_RESULT(CUDA_ERROR_NOT_READY, "device not ready"),
    GANTRY_RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    GANTRY_RESULT(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    GANTRY_RESULT(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
    GANTRY_RESULT(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING,
                  "launch uses incompatible texturing mode"),
    GANTRY_RESULT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    GANTRY_RESULT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    GANTRY_RESULT(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE,
                  "cannot set while device is active in this process"),
    GANTRY_RESULT(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    GANTRY_RESULT(CUDA_ERROR_ASSERT, "device-side assert triggered"),
    GANTRY_RESULT(CUDA_ERROR_TOO_MANY_PEERS, "peer mapping resources exhausted"),
    GANTRY_RESULT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                  "part or all of the requested memory range is already mapped"),
    GANTRY_RESULT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
                  "pointer does not correspond to a registered memory region"),
    GANTRY_RESULT(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error"),
    GANTRY_RESULT(CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered"),
    GANTRY_RESULT(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    GANTRY_RESULT(CUDA_ERROR_INVALID_ADDRESS_SPACE,
                  "operation not supported on global/shared address space"),
    GANTRY_RESULT(CUDA_ERROR_INVALID_PC, "invalid program counter"),
    GANTRY_RESULT(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    GANTRY_RESULT(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch"),
    GANTRY_RESULT(CUDA_ERROR_TENSOR_MEMORY_LEAK, "tensor memory not completely freed"),
    GANTRY_RESULT(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    GANTRY_RESULT(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    GANTRY_RESULT(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
    GANTRY_RESULT(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
                  "system has unsupported display driver / cuda driver combination"),
    GANTRY_RESULT(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
                  "forward compatibility was attempted on non supported HW"),
    GANTRY_RESULT(CUDA_ERROR_MPS_CONNECTION_FAILED,
                  "MPS client failed to connect to the MPS control daemon or the MPS server"),
    GANTRY_RESULT(CUDA_ERROR_MPS_RPC_FAILURE,
                  "the remote procedural call between the MPS server and the MPS client failed"),
    GANTRY_RESULT(CUDA_ERROR_MPS_SERVER_NOT_READY,
                  "MPS server is not ready to accept new MPS client requests"),
    GANTRY_RESULT(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED,
                  "the hardware resources required to create MPS client have been exhausted"),
    GANTRY_RESULT(
        CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED,
        "the hardware resources required to support device connections have been exhausted"),
    GANTRY_RESULT(CUDA_ERROR_MPS_CLIENT_TERMINATED,
                  "the MPS client has been terminated by the server"),
    GANTRY_RESULT(CUDA_ERROR_CDP_NOT_SUPPORTED,
                  "is using CUDA Dynamic Parallelism, but the current configuration, like MPS, "
                  "does not support it"),
    GANTRY_RESULT(CUDA_ERROR_CDP_VERSION_MISMATCH,
                  "unsupported interaction between different versions of CUDA Dynamic Parallelism"),
    GANTRY_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                  "operation not permitted when stream is capturing"),
    GANTRY_RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                  "operation failed due to a previous error during capture"),
    GANTRY_RESULT(CUDA_ERROR_STREAM_CAPTURE_MERGE,
                  "operation would result in a merge of separate capture sequences"),
    GANTRY_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
                  "capture was not ended in the same stream as it began"),
    GANTRY_RESULT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    GANTRY_RESULT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                  "dependency created on uncaptured work in another stream"),
    GANTRY_RESULT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                  "operation would make the legacy stream depend on a capturing blocking stream"),
    GANTRY_RESULT(CUDA_ERROR_CAPTURED_EVENT,
                  "operation not permitted on an event last recorded in a capturing stream"),
    GANTRY_RESULT(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
                  "attempt to terminate a thread-local capture sequence from another thread"),
    GANTRY_RESULT(CUDA_ERROR_TIMEOUT, "wait operation timed out"),
    GANTRY_RESULT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
                  "the graph update was not performed because it included "
                  "changes which violated constraints specific to instantiated graph update"),
    GANTRY_RESULT(CUDA_ERROR_EXTERNAL_DEVICE,
                  "an async error has occured in external entity outside of CUDA"),
    GANTRY_RESULT(CUDA_ERROR_INVALID_CLUSTER_SIZE,
                  "a kernel launch error has occurred due to cluster misconfiguration"),
    GANTRY_RESULT(
        CUDA_ERROR_FUNCTION_NOT_LOADED,
        "the function handle is not loaded when calling an API that requires a loaded function"),
    GANTRY_RESULT(CUDA_ERROR_INVALID_RESOURCE_TYPE,
                  "one or more resources passed in are not valid resource types for the operation"),
    GANTRY_RESULT(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
                  "one or more resources are insufficient or non-applicable for the operation"),
    GANTRY_RESULT(CUDA_ERROR_KEY_ROTATION, "an error happened during the key rotation sequence"),
    GANTRY_RESULT(CUDA_ERROR_UNKNOWN, "unknown error"),
};
#undef GANTRY_RESULT

CUresult answer(CUresult code, const char** out, const char* ResultText::*part) {
    if (out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = nullptr;
    for (const ResultText& known : kResults) {
        if (known.code == code) {
            *out = known.*part;
        }
    }
    return *out == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

}  // namespace

CUresult cuGetErrorString(CUresult error, const char** pStr) noexcept {
    return answer(error, pStr, &ResultText::text);
}

CUresult cuGetErrorName(CUresult error, const char** pStr) noexcept {
    return answer(error, pStr, &ResultText::name);
}

}  // namespace gantry::cuda_impl
