// Names and texts of result codes. The texts are our own; the names are ABI.
#include <cstddef>

#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {
namespace {

struct ErrorText {
    CUresult code;
    const char* name;
    const char* text;
};

#define GANTRY_ERROR(code, text) \
    { code, #code, text }
constexpr ErrorText kErrors[] = {
    GANTRY_ERROR(CUDA_SUCCESS, "no error"),
    GANTRY_ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    GANTRY_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    GANTRY_ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    GANTRY_ERROR(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    GANTRY_ERROR(CUDA_ERROR_PROFILER_DISABLED, "profiler disabled"),
    GANTRY_ERROR(CUDA_ERROR_PROFILER_NOT_INITIALIZED, "profiler not initialized"),
    GANTRY_ERROR(CUDA_ERROR_PROFILER_ALREADY_STARTED, "profiler already started"),
    GANTRY_ERROR(CUDA_ERROR_PROFILER_ALREADY_STOPPED, "profiler already stopped"),
    GANTRY_ERROR(CUDA_ERROR_STUB_LIBRARY, "stub library"),
    GANTRY_ERROR(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, "call requires newer driver"),
    GANTRY_ERROR(CUDA_ERROR_DEVICE_UNAVAILABLE, "device unavailable"),
    GANTRY_ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    GANTRY_ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    GANTRY_ERROR(CUDA_ERROR_DEVICE_NOT_LICENSED, "device not licensed"),
    GANTRY_ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    GANTRY_ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    GANTRY_ERROR(CUDA_ERROR_CONTEXT_ALREADY_CURRENT, "context already current"),
    GANTRY_ERROR(CUDA_ERROR_MAP_FAILED, "map failed"),
    GANTRY_ERROR(CUDA_ERROR_UNMAP_FAILED, "unmap failed"),
    GANTRY_ERROR(CUDA_ERROR_ARRAY_IS_MAPPED, "array is mapped"),
    GANTRY_ERROR(CUDA_ERROR_ALREADY_MAPPED, "already mapped"),
    GANTRY_ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for this device"),
    GANTRY_ERROR(CUDA_ERROR_ALREADY_ACQUIRED, "already acquired"),
    GANTRY_ERROR(CUDA_ERROR_NOT_MAPPED, "not mapped"),
    GANTRY_ERROR(CUDA_ERROR_NOT_MAPPED_AS_ARRAY, "not mapped as array"),
    GANTRY_ERROR(CUDA_ERROR_NOT_MAPPED_AS_POINTER, "not mapped as pointer"),
    GANTRY_ERROR(CUDA_ERROR_ECC_UNCORRECTABLE, "ecc uncorrectable"),
    GANTRY_ERROR(CUDA_ERROR_UNSUPPORTED_LIMIT, "unsupported limit"),
    GANTRY_ERROR(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, "context already in use"),
    GANTRY_ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access unsupported"),
    GANTRY_ERROR(CUDA_ERROR_INVALID_PTX, "PTX that does not compile"),
    GANTRY_ERROR(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, "invalid graphics context"),
    GANTRY_ERROR(CUDA_ERROR_NVLINK_UNCORRECTABLE, "nvlink uncorrectable"),
    GANTRY_ERROR(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "jit compiler not found"),
    GANTRY_ERROR(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "unsupported ptx version"),
    GANTRY_ERROR(CUDA_ERROR_JIT_COMPILATION_DISABLED, "jit compilation disabled"),
    GANTRY_ERROR(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, "unsupported exec affinity"),
    GANTRY_ERROR(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC, "unsupported devside sync"),
    GANTRY_ERROR(CUDA_ERROR_CONTAINED, "contained"),
    GANTRY_ERROR(CUDA_ERROR_INVALID_SOURCE, "invalid source"),
    GANTRY_ERROR(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
    GANTRY_ERROR(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, "shared object symbol not found"),
    GANTRY_ERROR(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, "shared object init failed"),
    GANTRY_ERROR(CUDA_ERROR_OPERATING_SYSTEM, "operating system"),
    GANTRY_ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    GANTRY_ERROR(CUDA_ERROR_ILLEGAL_STATE, "illegal state"),
    GANTRY_ERROR(CUDA_ERROR_LOSSY_QUERY, "lossy query"),
    GANTRY_ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    GANTRY_ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    GANTRY_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "illegal memory access in a kernel"),
    GANTRY_ERROR(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    GANTRY_ERROR(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out"),
    GANTRY_ERROR(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, "launch incompatible texturing"),
    GANTRY_ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access already enabled"),
    GANTRY_ERROR(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access not enabled"),
    GANTRY_ERROR(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "primary context active"),
    GANTRY_ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the context is destroyed"),
    GANTRY_ERROR(CUDA_ERROR_ASSERT, "device-side assert triggered"),
    GANTRY_ERROR(CUDA_ERROR_TOO_MANY_PEERS, "too many peers"),
    GANTRY_ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "host memory already registered"),
    GANTRY_ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "host memory not registered"),
    GANTRY_ERROR(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error"),
    GANTRY_ERROR(CUDA_ERROR_ILLEGAL_INSTRUCTION, "illegal instruction in a kernel"),
    GANTRY_ERROR(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address in a kernel"),
    GANTRY_ERROR(CUDA_ERROR_INVALID_ADDRESS_SPACE, "invalid address space"),
    GANTRY_ERROR(CUDA_ERROR_INVALID_PC, "invalid pc"),
    GANTRY_ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    GANTRY_ERROR(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch"),
    GANTRY_ERROR(CUDA_ERROR_TENSOR_MEMORY_LEAK, "tensor memory leak"),
    GANTRY_ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    GANTRY_ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    GANTRY_ERROR(CUDA_ERROR_SYSTEM_NOT_READY, "system not ready"),
    GANTRY_ERROR(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "system driver mismatch"),
    GANTRY_ERROR(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "compat not supported on device"),
    GANTRY_ERROR(CUDA_ERROR_MPS_CONNECTION_FAILED, "mps connection failed"),
    GANTRY_ERROR(CUDA_ERROR_MPS_RPC_FAILURE, "mps rpc failure"),
    GANTRY_ERROR(CUDA_ERROR_MPS_SERVER_NOT_READY, "mps server not ready"),
    GANTRY_ERROR(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, "mps max clients reached"),
    GANTRY_ERROR(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, "mps max connections reached"),
    GANTRY_ERROR(CUDA_ERROR_MPS_CLIENT_TERMINATED, "mps client terminated"),
    GANTRY_ERROR(CUDA_ERROR_CDP_NOT_SUPPORTED, "cdp not supported"),
    GANTRY_ERROR(CUDA_ERROR_CDP_VERSION_MISMATCH, "cdp version mismatch"),
    GANTRY_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                 "operation not permitted when stream is capturing"),
    GANTRY_ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                 "an earlier operation has invalidated the capture"),
    GANTRY_ERROR(CUDA_ERROR_STREAM_CAPTURE_MERGE, "stream capture merge"),
    GANTRY_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "stream capture unmatched"),
    GANTRY_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "stream capture unjoined"),
    GANTRY_ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "stream capture isolation"),
    GANTRY_ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "stream capture implicit"),
    GANTRY_ERROR(CUDA_ERROR_CAPTURED_EVENT, "captured event"),
    GANTRY_ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "stream capture wrong thread"),
    GANTRY_ERROR(CUDA_ERROR_TIMEOUT, "timeout"),
    GANTRY_ERROR(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "graph exec update failure"),
    GANTRY_ERROR(CUDA_ERROR_EXTERNAL_DEVICE, "external device"),
    GANTRY_ERROR(CUDA_ERROR_INVALID_CLUSTER_SIZE, "invalid cluster size"),
    GANTRY_ERROR(CUDA_ERROR_FUNCTION_NOT_LOADED, "function not loaded"),
    GANTRY_ERROR(CUDA_ERROR_INVALID_RESOURCE_TYPE, "invalid resource type"),
    GANTRY_ERROR(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "invalid resource configuration"),
    GANTRY_ERROR(CUDA_ERROR_KEY_ROTATION, "key rotation"),
    GANTRY_ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};
#undef GANTRY_ERROR

const ErrorText* find_error(CUresult code) {
    for (const ErrorText& error : kErrors) {
        if (error.code == code) {
            return &error;
        }
    }
    return nullptr;
}

CUresult answer(CUresult code, const char** out, const char* ErrorText::*part) {
    if (out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const ErrorText* error = find_error(code);
    *out = error == nullptr ? nullptr : error->*part;
    return error == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

}  // namespace

CUresult cuGetErrorString(CUresult error, const char** pStr) noexcept {
    return answer(error, pStr, &ErrorText::text);
}

CUresult cuGetErrorName(CUresult error, const char** pStr) noexcept {
    return answer(error, pStr, &ErrorText::name);
}

}  // namespace gantry::cuda_impl
