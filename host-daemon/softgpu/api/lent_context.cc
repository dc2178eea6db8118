#include "host-daemon/softgpu/api/lent_context.h"

#include "host-daemon/softgpu/core/context.h"
#include "host-daemon/softgpu/core/driver.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/memory/map.h"
#include "host-daemon/softgpu/streams/event.h"
#include "host-daemon/softgpu/streams/stream.h"

namespace gantry::cuda_impl {
namespace {

bool push(std::shared_ptr<softgpu::Context> context) {
    if (context == nullptr) {
        return false;
    }
    softgpu::thread_state().stack.push_back(std::move(context));
    return true;
}

}  // namespace

bool LentContext::has_none() noexcept {
    if (softgpu::check_ready() != CUDA_SUCCESS) {
        return false;  // The call itself says why.
    }
    const auto& stack = softgpu::thread_state().stack;
    return stack.empty() || stack.back() == nullptr;
}

bool LentContext::lend(CUstream stream) noexcept {
    const auto found = softgpu::find<softgpu::Stream>(stream);
    return found != nullptr && push(found->context());
}

bool LentContext::lend(CUevent event) noexcept {
    const auto found = softgpu::find<softgpu::Event>(event);
    return found != nullptr && push(found->context.lock());
}

bool LentContext::lend(CUdeviceptr address) noexcept {
    const auto range = softgpu::MemoryMap::instance().find(address);
    return range && push(softgpu::find<softgpu::Context>(static_cast<CUcontext>(range->context)));
}

bool LentContext::lend(const void* address) noexcept {
    return lend(reinterpret_cast<CUdeviceptr>(address));
}

void LentContext::take_back() noexcept { softgpu::thread_state().stack.pop_back(); }

}  // namespace gantry::cuda_impl
