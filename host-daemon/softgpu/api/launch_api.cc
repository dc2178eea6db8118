// Launches and occupancy.
#include <algorithm>

#include "host-daemon/softgpu/core/context.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/streams/enqueue.h"
#include "host-daemon/softgpu/streams/launch.h"
#include "host-daemon/softgpu/streams/stream.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {
namespace {

using softgpu::Function;
using softgpu::LaunchShape;

constexpr std::uint32_t kWarp = 32;

CUresult launch(const void* function, const LaunchShape& shape, CUstream stream_handle,
                void** kernel_params, void** extra, const CUlaunchAttribute* attributes,
                unsigned attribute_count) {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, stream_handle);
    const auto owner = stream->context();
    GANTRY_REFUSE_IF(owner == nullptr, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    std::shared_ptr<softgpu::KernelOperation> operation;
    GANTRY_CU(softgpu::make_launch(owner, function, shape, kernel_params, extra, attributes,
                                   attribute_count, operation));
    return softgpu::launched(softgpu::enqueue(stream, std::move(operation)), stream, *context);
}

CUresult current_function(CUfunction handle, std::shared_ptr<Function>& function) {
    GANTRY_CURRENT(context);
    return softgpu::resolve_function(context, handle, function);
}

bool block_size_valid(const Function& function, int block_size) {
    return block_size > 0 && static_cast<std::uint32_t>(block_size) <=
                                 function.device.profile.engine.max_threads_per_block;
}

}  // namespace

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                        unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                        unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                        void** kernelParams, void** extra) noexcept {
    const LaunchShape shape{
        {gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes};
    return launch(f, shape, hStream, kernelParams, extra, nullptr, 0);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                          void** extra) noexcept {
    GANTRY_REFUSE_IF(config == nullptr || (config->numAttrs != 0 && config->attrs == nullptr),
                     CUDA_ERROR_INVALID_VALUE);
    const LaunchShape shape{{config->gridDimX, config->gridDimY, config->gridDimZ},
                            {config->blockDimX, config->blockDimY, config->blockDimZ},
                            config->sharedMemBytes};
    return launch(f, shape, config->hStream, kernelParams, extra, config->attrs, config->numAttrs);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                   unsigned int gridDimZ, unsigned int blockDimX,
                                   unsigned int blockDimY, unsigned int blockDimZ,
                                   unsigned int sharedMemBytes, CUstream hStream,
                                   void** kernelParams) noexcept {
    CUlaunchAttribute cooperative{};
    cooperative.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    cooperative.value.cooperative = 1;
    const LaunchShape shape{
        {gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes};
    return launch(f, shape, hStream, kernelParams, nullptr, &cooperative, 1);
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS_v1* launchParamsList,
                                              unsigned int numDevices,
                                              unsigned int flags) noexcept {
    constexpr unsigned int kFlags = CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC |
                                    CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC;
    GANTRY_REFUSE_IF(launchParamsList == nullptr || numDevices == 0 || (flags & ~kFlags) != 0,
                     CUDA_ERROR_INVALID_VALUE);
    if (numDevices != 1) {
        return CUDA_ERROR_NOT_SUPPORTED;  // Grids that synchronise with those of other devices.
    }
    const CUDA_LAUNCH_PARAMS_v1& one = launchParamsList[0];
    if (one.hStream == nullptr || one.hStream == CU_STREAM_LEGACY ||
        one.hStream == CU_STREAM_PER_THREAD) {
        return CUDA_ERROR_INVALID_HANDLE;  // It takes streams that were created only.
    }
    return cuLaunchCooperativeKernel(one.function, one.gridDimX, one.gridDimY, one.gridDimZ,
                                     one.blockDimX, one.blockDimY, one.blockDimZ,
                                     one.sharedMemBytes, one.hStream, one.kernelParams);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* numBlocks, CUfunction func,
                                                              int blockSize, size_t dynamicSMemSize,
                                                              unsigned int flags) noexcept {
    std::shared_ptr<Function> function;
    GANTRY_CU(current_function(func, function));
    GANTRY_REFUSE_IF(
        numBlocks == nullptr || (flags & ~1U) != 0 || !block_size_valid(*function, blockSize),
        CUDA_ERROR_INVALID_VALUE);
    *numBlocks =
        softgpu::resident_blocks(*function, static_cast<std::uint32_t>(blockSize), dynamicSMemSize);
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, CUfunction func, int blockSize,
                                                     size_t dynamicSMemSize) noexcept {
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize,
                                                                dynamicSMemSize, 0);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* minGridSize, int* blockSize,
                                                   CUfunction func,
                                                   CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                   size_t dynamicSMemSize, int blockSizeLimit,
                                                   unsigned int) noexcept {
    std::shared_ptr<Function> function;
    GANTRY_CU(current_function(func, function));
    GANTRY_REFUSE_IF(minGridSize == nullptr || blockSize == nullptr, CUDA_ERROR_INVALID_VALUE);
    int limit = 0;
    function->attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, limit);
    if (blockSizeLimit > 0) {
        limit = std::min(limit, blockSizeLimit);
    }
    int best_threads = 0;
    *blockSize = 0;
    *minGridSize = 0;
    const int first =
        (limit + static_cast<int>(kWarp) - 1) / static_cast<int>(kWarp) * static_cast<int>(kWarp);
    for (int size = first; size > 0; size -= static_cast<int>(kWarp)) {
        const int tried = std::min(size, limit);
        const std::size_t dynamic = blockSizeToDynamicSMemSize != nullptr
                                        ? blockSizeToDynamicSMemSize(tried)
                                        : dynamicSMemSize;
        const int blocks =
            softgpu::resident_blocks(*function, static_cast<std::uint32_t>(tried), dynamic);
        if (blocks * tried > best_threads) {
            best_threads = blocks * tried;
            *blockSize = tried;
            *minGridSize = blocks * static_cast<int>(function->device.residency().sm_count);
        }
    }
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(int* minGridSize, int* blockSize, CUfunction func,
                                          CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                          size_t dynamicSMemSize, int blockSizeLimit) noexcept {
    return cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func,
                                                     blockSizeToDynamicSMemSize, dynamicSMemSize,
                                                     blockSizeLimit, 0);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* dynamicSmemSize, CUfunction func,
                                                 int numBlocks, int blockSize) noexcept {
    std::shared_ptr<Function> function;
    GANTRY_CU(current_function(func, function));
    GANTRY_REFUSE_IF(
        dynamicSmemSize == nullptr || numBlocks <= 0 || !block_size_valid(*function, blockSize),
        CUDA_ERROR_INVALID_VALUE);
    const auto& profile = function->device.residency();
    const std::uint64_t per_block =
        profile.shared_bytes_per_sm / static_cast<unsigned>(numBlocks) / 128 * 128;
    const std::uint64_t taken =
        profile.reserved_shared_bytes_per_block + function->info().static_shared_bytes;
    const std::uint64_t available = per_block > taken ? per_block - taken : 0;
    *dynamicSmemSize = std::min<std::uint64_t>(
        available, static_cast<std::uint64_t>(function->max_dynamic_shared.load()));
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialClusterSize(int* clusterSize, CUfunction func,
                                            const CUlaunchConfig* config) noexcept {
    std::shared_ptr<Function> function;
    GANTRY_CU(current_function(func, function));
    GANTRY_REFUSE_IF(clusterSize == nullptr || config == nullptr, CUDA_ERROR_INVALID_VALUE);
    *clusterSize = 1;  // A block by itself: the device has no others.
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int* numClusters, CUfunction func,
                                      const CUlaunchConfig* config) noexcept {
    std::shared_ptr<Function> function;
    GANTRY_CU(current_function(func, function));
    GANTRY_REFUSE_IF(numClusters == nullptr || config == nullptr, CUDA_ERROR_INVALID_VALUE);
    std::uint64_t cluster = 1;
    for (unsigned i = 0; i < config->numAttrs; ++i) {
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            const auto& dim = config->attrs[i].value.clusterDim;
            cluster = std::uint64_t{dim.x} * dim.y * dim.z;
        }
    }
    GANTRY_REFUSE_IF(cluster == 0 || cluster > 16, CUDA_ERROR_INVALID_CLUSTER_SIZE);
    if (cluster > 1) {
        *numClusters = 0;
        return CUDA_SUCCESS;
    }
    const std::uint32_t threads = config->blockDimX * config->blockDimY * config->blockDimZ;
    const auto blocks = static_cast<std::uint64_t>(
        softgpu::resident_blocks(*function, threads, config->sharedMemBytes));
    *numClusters = static_cast<int>(blocks * function->device.residency().sm_count);
    return CUDA_SUCCESS;
}

}  // namespace gantry::cuda_impl
