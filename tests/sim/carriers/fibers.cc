#include "tests/sim/carriers/fibers.h"

#include <utility>

#include "proto/base/assert.h"

#if defined(__SANITIZE_ADDRESS__)
#define GANTRY_SIM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GANTRY_SIM_ASAN 1
#endif
#endif
#ifdef GANTRY_SIM_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace gantry::sim {
namespace {

constexpr std::size_t kStackBytes = 256U << 10;

Fiber* running = nullptr;

std::vector<std::unique_ptr<std::byte[]>>& free_stacks() {
    static std::vector<std::unique_ptr<std::byte[]>> stacks;
    return stacks;
}

std::unique_ptr<std::byte[]> take_stack() {
    auto& stacks = free_stacks();
    if (stacks.empty()) {
        return std::unique_ptr<std::byte[]>(new std::byte[kStackBytes]);  // not initialised
    }
    auto stack = std::move(stacks.back());
    stacks.pop_back();
    return stack;
}

#ifdef GANTRY_SIM_ASAN
const void* thread_stack = nullptr;
std::size_t thread_stack_bytes = 0;
#endif

}  // namespace

Fiber::Fiber(std::function<void()> work) : work_(std::move(work)), stack_(take_stack()) {
    ::getcontext(&context_);
    context_.uc_stack.ss_sp = stack_.get();
    context_.uc_stack.ss_size = kStackBytes;
    context_.uc_link = nullptr;
    ::makecontext(&context_, &Fiber::enter, 0);
}

Fiber::~Fiber() {
    kill();
    free_stacks().push_back(std::move(stack_));
}

Fiber* Fiber::current() { return running; }

void Fiber::resume() {
    GANTRY_ASSERT(!is_done_ && running != this, "a fiber that has ended, or runs");
    outer_ = std::exchange(running, this);
#ifdef GANTRY_SIM_ASAN
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, stack_.get(), kStackBytes);
#endif
    ::swapcontext(&resumer_, &context_);
#ifdef GANTRY_SIM_ASAN
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
    running = outer_;
    if (is_done_) {
        work_ = nullptr;
    }
}

void Fiber::kill() {
    if (!is_done_) {
        is_killed_ = true;
        resume();
    }
}

void Fiber::suspend() {
    Fiber& self = *running;
#ifdef GANTRY_SIM_ASAN
    const bool is_outer = self.outer_ == nullptr;
    __sanitizer_start_switch_fiber(&self.fake_stack_,
                                   is_outer ? thread_stack : self.outer_->stack_.get(),
                                   is_outer ? thread_stack_bytes : kStackBytes);
#endif
    ::swapcontext(&self.context_, &self.resumer_);
#ifdef GANTRY_SIM_ASAN
    const void* from = nullptr;
    std::size_t bytes = 0;
    __sanitizer_finish_switch_fiber(self.fake_stack_, &from, &bytes);
    if (self.outer_ == nullptr) {
        thread_stack = from;
        thread_stack_bytes = bytes;
    }
#endif
    if (self.is_killed_) {
        throw Killed{};
    }
}

void Fiber::enter() {
    Fiber& self = *running;
#ifdef GANTRY_SIM_ASAN
    const void* from = nullptr;
    std::size_t bytes = 0;
    __sanitizer_finish_switch_fiber(nullptr, &from, &bytes);
    if (self.outer_ == nullptr) {
        thread_stack = from;
        thread_stack_bytes = bytes;
    }
#endif
    self.run();
    self.is_done_ = true;
#ifdef GANTRY_SIM_ASAN
    const bool is_outer = self.outer_ == nullptr;
    __sanitizer_start_switch_fiber(nullptr, is_outer ? thread_stack : self.outer_->stack_.get(),
                                   is_outer ? thread_stack_bytes : kStackBytes);
#endif
    ::swapcontext(&self.context_, &self.resumer_);
}

void Fiber::run() {
    if (is_killed_) {
        return;
    }
    try {
        work_();
    } catch (const Killed&) {  // it has unwound
    }
}

}  // namespace gantry::sim
