// A CUDA context: streams, limits and driver-private memory on one device. How one starts and ends,
// for which every layer does its part: runtime/context_life.h.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "host-daemon/softgpu/core/device.h"
#include "host-daemon/softgpu/core/device_heap.h"
#include "host-daemon/softgpu/core/objects.h"
#include "proto/cuda/abi.h"

namespace gantry::softgpu {

class Stream;

class Context : public Object, public std::enable_shared_from_this<Context> {
public:
    static constexpr ObjectKind kKind = ObjectKind::kContext;
    Context(Device& device, unsigned flags, bool primary);

    /// Forgets what the program set and loaded; returns the modules, which still have handles.
    std::map<void*, std::shared_ptr<Object>> forget();

    Device& device;
    const bool primary;
    const std::uint64_t id;
    std::atomic<unsigned> flags;
    std::atomic<bool> alive{true};  ///< False once destroyed.
    unsigned api_version = 3020;

    std::shared_ptr<Stream> legacy_stream;
    std::vector<std::shared_ptr<Stream>> streams;  ///< Guarded by the scheduler's mutex.

    std::mutex mutex;  ///< Guards what follows.
    std::array<std::uint64_t, CU_LIMIT_MAX> limits{};
    CUfunc_cache cache_config = CU_FUNC_CACHE_PREFER_NONE;
    CUsharedconfig shared_config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
    std::map<void*, std::shared_ptr<Object>> modules;  ///< By handle.
    std::vector<Context*> peers;                       ///< With access enabled from here.
    int attach_count = 1;
    CUresult deferred_error = CUDA_SUCCESS;  ///< A launch that failed without being sticky.

    DeviceHeap heap;
    bool printf_used = false;
};

/// The error a synchronising call has to report: the sticky one, or the context's deferred one,
/// which it clears.
CUresult take_error(Context& context);

}  // namespace gantry::softgpu
