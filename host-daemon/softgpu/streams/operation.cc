#include "host-daemon/softgpu/streams/operation.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/memory/kernel_reach.h"
#include "host-daemon/softgpu/memory/texture_table.h"
#include "host-daemon/softgpu/streams/condition.h"
#include "host-daemon/softgpu/streams/device_output.h"

namespace gantry::softgpu {
namespace {

/// What the engine asks of a context while a kernel runs.
class ContextServices final : public Services {
public:
    explicit ContextServices(Context& context) : context_(context) {}

    void print(std::string_view text) override {
        std::uint64_t fifo_bytes = 0;
        {
            const std::lock_guard lock(context_.mutex);
            context_.printf_used = true;
            fifo_bytes = context_.limits[CU_LIMIT_PRINTF_FIFO_SIZE];
        }
        DeviceOutput::instance().print(text, fifo_bytes);
    }
    void assertion_failed(std::string_view text) override {
        DeviceOutput::instance().assertion(text);
    }
    std::uint64_t heap_allocate(std::uint64_t size_bytes) override {
        return context_.heap.allocate(size_bytes);
    }
    void heap_free(std::uint64_t address) override { context_.heap.free(address); }
    void set_condition(std::uint64_t condition, std::uint32_t value) override {
        if (const auto known = Condition::find(condition); known != nullptr) {
            known->set(value);
        }
    }
    [[nodiscard]] const Reach& reach() const override { return kernel_reach(); }
    [[nodiscard]] const TextureUnit* textures() const override { return &TextureTable::instance(); }

private:
    Context& context_;
};

std::uint64_t next_grid_id() {
    static std::atomic<std::uint64_t> next{1};
    return next.fetch_add(1, std::memory_order_relaxed);
}

bool sticky(LaunchError error) {
    return error != LaunchError::kInvalidValue && error != LaunchError::kOutOfResources &&
           error != LaunchError::kCooperativeTooLarge;
}

bool satisfied(const CUstreamBatchMemOpParams& step) {
    const bool wide = step.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
    const std::uint64_t wanted = wide ? step.waitValue.value64 : step.waitValue.value;
    const std::uint64_t seen =
        wide ? std::atomic_ref(*reinterpret_cast<std::uint64_t*>(step.waitValue.address)).load()
             : std::atomic_ref(*reinterpret_cast<std::uint32_t*>(step.waitValue.address)).load();
    switch (step.waitValue.flags & 3U) {
        case CU_STREAM_WAIT_VALUE_GEQ:
            return wide ? static_cast<std::int64_t>(seen - wanted) >= 0
                        : static_cast<std::int32_t>(static_cast<std::uint32_t>(seen - wanted)) >= 0;
        case CU_STREAM_WAIT_VALUE_EQ: return seen == wanted;
        case CU_STREAM_WAIT_VALUE_AND: return (seen & wanted) != 0;
        default:
            return wide ? ~(seen | wanted) != 0 : ~static_cast<std::uint32_t>(seen | wanted) != 0;
    }
}

}  // namespace

HostCallbackScope::HostCallbackScope() {
    DeviceOutput::instance().flush();
    thread_state().in_host_callback = true;
}

HostCallbackScope::~HostCallbackScope() { thread_state().in_host_callback = false; }

void KernelOperation::run() const {
    ContextServices services(*context);
    LaunchConfig config;
    config.grid = grid;
    config.block = block;
    config.cluster = cluster;
    config.dynamic_shared_bytes = dynamic_shared_bytes;
    config.params = params;
    config.cooperative = cooperative;
    config.grid_id = next_grid_id();
    {
        // The engine's own default is roomier than CUDA's; a program can only ask for more.
        constexpr std::uint64_t kStackBytesMin = 65536;
        const std::lock_guard lock(context->mutex);
        config.stack_bytes_per_thread = static_cast<std::uint32_t>(
            std::max(kStackBytesMin, context->limits[CU_LIMIT_STACK_SIZE]));
    }
    const LaunchStatus status = softgpu::run(*function->program, function->index, config,
                                             context->device.residency(), services);
    if (status.ok()) {
        return;
    }
    const auto error = static_cast<CUresult>(status.error);
    if (sticky(status.error)) {
        set_poison(error, status.text);
        return;
    }
    report(status.text);
    const std::lock_guard lock(context->mutex);
    context->deferred_error = error;
}

void MemsetOperation::run() const {
    const std::uint64_t rows = std::max<std::uint64_t>(params.height, 1);
    const std::uint64_t row_bytes = params.width * params.elementSize;
    for (std::uint64_t y = 0; y < rows; ++y) {
        auto* row = reinterpret_cast<std::byte*>(params.dst + y * params.pitch);
        if (params.elementSize == 1) {
            std::memset(row, static_cast<int>(params.value & 0xff), row_bytes);
        } else if (params.elementSize == 2) {
            auto* at = reinterpret_cast<std::uint16_t*>(row);
            std::fill(at, at + params.width, static_cast<std::uint16_t>(params.value));
        } else {
            auto* at = reinterpret_cast<std::uint32_t*>(row);
            std::fill(at, at + params.width, params.value);
        }
    }
}

void HostOperation::run() const {
    const HostCallbackScope scope;
    params.fn(params.userData);
}

void CallbackOperation::run() const {
    const HostCallbackScope scope;
    callback(stream, CUDA_SUCCESS, user);
}

void CallbackOperation::skip(CUresult error) const {
    const HostCallbackScope scope;
    callback(stream, error, user);
}

void BatchMemoryOperation::run() const {
    for (const CUstreamBatchMemOpParams& step : steps) {
        switch (step.operation) {
            case CU_STREAM_MEM_OP_WAIT_VALUE_32:
            case CU_STREAM_MEM_OP_WAIT_VALUE_64:
                // The host or another stream will write it; look often at first, then less so.
                for (unsigned look = 0; !satisfied(step) && poison() == CUDA_SUCCESS; ++look) {
                    if (look < 1000) {
                        std::this_thread::yield();
                    } else {
                        std::this_thread::sleep_for(std::chrono::microseconds(50));
                    }
                }
                break;
            case CU_STREAM_MEM_OP_WRITE_VALUE_32:
                std::atomic_ref(*reinterpret_cast<std::uint32_t*>(step.writeValue.address))
                    .store(step.writeValue.value);
                break;
            case CU_STREAM_MEM_OP_WRITE_VALUE_64:
                std::atomic_ref(*reinterpret_cast<std::uint64_t*>(step.writeValue.address))
                    .store(step.writeValue.value64);
                break;
            default: std::atomic_thread_fence(std::memory_order_seq_cst); break;
        }
    }
}

CUresult wait_for(const std::shared_ptr<Stream>& stream, Context& context) {
    Scheduler::instance().wait(Scheduler::instance().points_before(stream));
    DeviceOutput::instance().flush();
    return take_error(context);
}

}  // namespace gantry::softgpu
