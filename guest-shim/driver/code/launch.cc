// Launches. The application's thread checks what native checks, packs the arguments straight into
// the ring and returns.
#include "guest-shim/driver/code/launch.h"

#include <cstring>

#include "proto/cuda/gen/impl.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {
namespace {

using cuda::wire_hand::LaunchAttribute;
using cuda::wire_hand::LaunchCall;
using cuda::wire_hand::LaunchExCall;

/// The `extra` form: a buffer that the application has packed itself.
struct Extra {
    const void* buffer = nullptr;
    std::size_t bytes = 0;
};

bool read_extra(void** extra, Extra* out) {
    const std::size_t* size = nullptr;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) {
            out->buffer = extra[1];
        } else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) {
            size = static_cast<const std::size_t*>(extra[1]);
        } else {
            return false;
        }
    }
    out->bytes = size != nullptr ? *size : 0;
    return out->bytes == 0 || out->buffer != nullptr;
}

bool extra_is_missing(const Kernel& kernel, void** list) {
    Extra extra;
    return kernel.layout_known && kernel.param_count != 0 && read_extra(list, &extra) &&
           extra.bytes == 0;
}

LaunchCall launch_call(const Kernel& kernel, const Shape& shape, CUstream stream,
                       std::uint32_t param_bytes) {
    LaunchCall call;
    call.kernel = kernel.handle;
    call.stream = bits(stream);
    std::memcpy(call.grid, shape.grid, sizeof(call.grid));
    std::memcpy(call.block, shape.block, sizeof(call.block));
    call.shared_bytes = shape.shared_bytes;
    call.param_bytes = param_bytes;
    return call;
}

CUresult launch(cuda::Op op, CUfunction function, const Shape& shape, CUstream stream,
                const Arguments& arguments) {
    Kernel* kernel = find_kernel(function);
    GANTRY_REFUSE_IF(__builtin_expect(kernel == nullptr || !is_stream(stream), 0),
                     CUDA_ERROR_INVALID_HANDLE);
    std::uint32_t param_bytes = 0;
    CUresult result = check_shape(*kernel, shape);
    if (__builtin_expect(result == CUDA_SUCCESS, 1)) {
        result = packed_bytes(*kernel, arguments, &param_bytes);
    }
    if (__builtin_expect(kernel->attributes[CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH] > 0, 0) &&
        result == CUDA_SUCCESS && !is_plain_launch(*kernel, shape, nullptr, 0)) {
        const LaunchCall call = launch_call(*kernel, shape, stream, param_bytes);
        return launched(launch_asking(op, &call, sizeof(call), shape, nullptr, 0, kernel, arguments,
                                      param_bytes),
                        stream);
    }
    session::Record record;
    if (__builtin_expect(result == CUDA_SUCCESS, 1)) {
        result = session::reserve(static_cast<std::uint16_t>(op), sizeof(LaunchCall), param_bytes,
                                  &record);
    }
    if (__builtin_expect(result != CUDA_SUCCESS, 0)) {
        return result;
    }
    const LaunchCall call = launch_call(*kernel, shape, stream, param_bytes);
    std::memcpy(record.args, &call, sizeof(call));
    pack(*kernel, arguments, record.trailing, param_bytes);
    return launched(session::finish(record), stream);
}

/// Native refuses a cooperative grid that cannot be resident at once before it queues anything.
CUresult check_resident(CUfunction function, const Shape& shape) {
    int blocks = 0;
    const std::uint64_t threads =
        static_cast<std::uint64_t>(shape.block[0]) * shape.block[1] * shape.block[2];
    if (threads == 0 || threads > 1024 ||
        cuda_impl::cuOccupancyMaxActiveBlocksPerMultiprocessor(
            &blocks, function, static_cast<int>(threads), shape.shared_bytes) != CUDA_SUCCESS) {
        return CUDA_SUCCESS;  // Another check says what is wrong.
    }
    const std::int32_t* limits = session::device_facts(current_device())->attributes;
    const auto resident =
        static_cast<std::uint64_t>(blocks) *
        static_cast<std::uint64_t>(limits[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT]);
    const std::uint64_t grid =
        static_cast<std::uint64_t>(shape.grid[0]) * shape.grid[1] * shape.grid[2];
    return grid > resident ? CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE : CUDA_SUCCESS;
}

/// Attributes that name objects are checked here; the value travels as the ABI has it.
CUresult read_attributes(const CUlaunchConfig& config, CUfunction function, const Shape& shape,
                         LaunchAttribute* out) {
    for (unsigned i = 0; i < config.numAttrs; ++i) {
        const CUlaunchAttribute& attribute = config.attrs[i];
        out[i].id = static_cast<std::uint32_t>(attribute.id);
        out[i].reserved = 0;
        static_assert(sizeof(attribute.value) == sizeof(out[i].value));
        std::memcpy(out[i].value, &attribute.value, sizeof(attribute.value));
        GANTRY_REFUSE_IF(attribute.id == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE,
                         CUDA_ERROR_NOT_SUPPORTED);
        if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && attribute.value.cooperative != 0) {
            if (const CUresult result = check_resident(function, shape); result != CUDA_SUCCESS) {
                return result;
            }
        }
        if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT ||
            attribute.id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT) {
            session::stop_following_events();  // The kernel records them.
        }
    }
    return CUDA_SUCCESS;
}

CUresult launch_ex(const CUlaunchConfig& config, CUfunction function, const Arguments& arguments) {
    Kernel* kernel = find_kernel(function);
    GANTRY_REFUSE_IF(kernel == nullptr || !is_stream(config.hStream), CUDA_ERROR_INVALID_HANDLE);
    if (config.numAttrs > cuda::wire_hand::kMaxLaunchAttributes ||
        (config.numAttrs != 0 && config.attrs == nullptr)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Shape shape{{config.gridDimX, config.gridDimY, config.gridDimZ},
                      {config.blockDimX, config.blockDimY, config.blockDimZ},
                      config.sharedMemBytes};
    LaunchAttribute attributes[cuda::wire_hand::kMaxLaunchAttributes];
    std::uint32_t param_bytes = 0;
    CUresult result = check_shape(*kernel, shape);
    result = result != CUDA_SUCCESS ? result : read_attributes(config, function, shape, attributes);
    result = result != CUDA_SUCCESS ? result : packed_bytes(*kernel, arguments, &param_bytes);
    const auto attribute_bytes =
        static_cast<std::uint32_t>(config.numAttrs * sizeof(LaunchAttribute));
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const LaunchExCall call{launch_call(*kernel, shape, config.hStream, param_bytes),
                            config.numAttrs, 0};
    if (!is_plain_launch(*kernel, shape, config.attrs, config.numAttrs)) {
        return launched(launch_asking(cuda::Op::cuLaunchKernelEx, &call, sizeof(call), shape,
                                      attributes, attribute_bytes, kernel, arguments, param_bytes),
                        config.hStream);
    }
    session::Record record;
    result = session::reserve(static_cast<std::uint16_t>(cuda::Op::cuLaunchKernelEx),
                              sizeof(LaunchExCall), attribute_bytes + param_bytes, &record);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    std::memcpy(record.args, &call, sizeof(call));
    std::memcpy(record.trailing, attributes, attribute_bytes);
    pack(*kernel, arguments, record.trailing + attribute_bytes, param_bytes);
    return launched(session::finish(record), config.hStream);
}

}  // namespace

CUresult check_shape(const Kernel& kernel, const Shape& shape) noexcept {
    const wire::DeviceFacts* facts = session::device_facts(current_device());
    GANTRY_REFUSE_IF(facts == nullptr, CUDA_ERROR_INVALID_CONTEXT);
    const std::int32_t* limits = facts->attributes;
    for (int axis = 0; axis < 3; ++axis) {
        const auto grid_most =
            static_cast<std::uint32_t>(limits[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + axis]);
        const auto block_most =
            static_cast<std::uint32_t>(limits[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + axis]);
        if (shape.grid[axis] == 0 || shape.grid[axis] > grid_most || shape.block[axis] == 0 ||
            shape.block[axis] > block_most) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    const std::uint64_t threads =
        static_cast<std::uint64_t>(shape.block[0]) * shape.block[1] * shape.block[2];
    if (threads > static_cast<std::uint64_t>(limits[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK])) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::int32_t kernel_threads = kernel.attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
    if (kernel_threads > 0 && threads > static_cast<std::uint64_t>(kernel_threads)) {
        return CUDA_ERROR_INVALID_VALUE;  // As an H200 answers beyond the kernel's launch bounds.
    }
    const std::int32_t dynamic_most =
        kernel.attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES];
    if (kernel.attribute_status[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] == CUDA_SUCCESS &&
        shape.shared_bytes > static_cast<std::uint32_t>(dynamic_most)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult packed_bytes(const Kernel& kernel, const Arguments& arguments,
                      std::uint32_t* bytes) noexcept {
    GANTRY_REFUSE_IF(arguments.params != nullptr && arguments.extra != nullptr,
                     CUDA_ERROR_INVALID_VALUE);
    if (arguments.params != nullptr) {
        if (!kernel.layout_known) {
            return CUDA_ERROR_NOT_SUPPORTED;  // Neither driver nor image tells the layout.
        }
        *bytes = kernel.param_bytes;
        return CUDA_SUCCESS;
    }
    if (arguments.extra != nullptr) {
        Extra extra;
        const bool missing = extra_is_missing(kernel, arguments.extra);
        GANTRY_REFUSE_IF(missing || !read_extra(arguments.extra, &extra) || extra.bytes > 1u << 16,
                         CUDA_ERROR_INVALID_VALUE);
        if (kernel.layout_known && extra.bytes > kernel.param_bytes) {
            return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;  // As seen on an H200.
        }
        // A shorter buffer is accepted as well, on an H200 too: the rest is zero.
        *bytes = kernel.layout_known ? kernel.param_bytes : static_cast<std::uint32_t>(extra.bytes);
        return CUDA_SUCCESS;
    }
    *bytes = 0;
    return kernel.layout_known && kernel.param_count != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

void pack(const Kernel& kernel, const Arguments& arguments, std::byte* out,
          std::uint32_t bytes) noexcept {
    if (arguments.params == nullptr) {
        Extra extra;
        if (bytes != 0 && arguments.extra != nullptr && read_extra(arguments.extra, &extra)) {
            const std::size_t given = extra.bytes < bytes ? extra.bytes : bytes;
            std::memcpy(out, extra.buffer, given);
            std::memset(out + given, 0, bytes - given);
        }
        return;
    }
    if (kernel.has_padding) {
        std::memset(out, 0, bytes);
    }
    for (std::uint32_t i = 0; i < kernel.param_count; ++i) {
        std::memcpy(out + kernel.params[i].offset, arguments.params[i], kernel.params[i].bytes);
    }
}

}  // namespace gantry::shim

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                        unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                        unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                        void** kernelParams, void** extra) noexcept {
    const Shape shape{
        {gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes};
    return launch(cuda::Op::cuLaunchKernel, f, shape, hStream, {kernelParams, extra});
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                   unsigned int gridDimZ, unsigned int blockDimX,
                                   unsigned int blockDimY, unsigned int blockDimZ,
                                   unsigned int sharedMemBytes, CUstream hStream,
                                   void** kernelParams) noexcept {
    const Shape shape{
        {gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes};
    const Kernel* kernel = find_kernel(f);
    GANTRY_REFUSE_IF(kernel == nullptr, CUDA_ERROR_INVALID_HANDLE);
    if (const CUresult result = check_resident(f, shape); result != CUDA_SUCCESS) {
        return result;
    }
    return launch(cuda::Op::cuLaunchCooperativeKernel, f, shape, hStream, {kernelParams, nullptr});
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS_v1* launchParamsList,
                                              unsigned int numDevices,
                                              unsigned int flags) noexcept {
    constexpr unsigned int kFlags = CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC |
                                    CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC;
    // One launch a device, and there is one: nothing else to synchronise with.
    GANTRY_REFUSE_IF(launchParamsList == nullptr || numDevices != 1 || (flags & ~kFlags) != 0,
                     CUDA_ERROR_INVALID_VALUE);
    const CUDA_LAUNCH_PARAMS_v1& one = launchParamsList[0];
    if (bits(one.hStream) <= bits(CU_STREAM_PER_THREAD)) {
        return CUDA_ERROR_INVALID_HANDLE;  // It takes streams that were created only.
    }
    return cuLaunchCooperativeKernel(one.function, one.gridDimX, one.gridDimY, one.gridDimZ,
                                     one.blockDimX, one.blockDimY, one.blockDimZ,
                                     one.sharedMemBytes, one.hStream, one.kernelParams);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                          void** extra) noexcept {
    GANTRY_REFUSE_IF(config == nullptr, CUDA_ERROR_INVALID_VALUE);
    return launch_ex(*config, f, {kernelParams, extra});
}

}  // namespace gantry::cuda_impl
