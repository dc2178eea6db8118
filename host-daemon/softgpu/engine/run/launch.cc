// run(): checks the configuration, fills what is the same for all blocks, and lets the caller
// and idle threads of the pool work on the launch until it is done.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <thread>

#include "host-daemon/softgpu/engine/run/device_queue.h"
#include "host-daemon/softgpu/engine/run/launch_state.h"
#include "host-daemon/softgpu/engine/run/scheduler.h"
#include "host-daemon/softgpu/engine/windows.h"

namespace gantry::softgpu {
namespace {

/// Threads that help callers of run(). Started at first use, joined never: the process ends
/// with them idle.
class Pool {
public:
    static Pool& instance() {
        static auto* const pool = new Pool;
        return *pool;
    }

    /// Offers the launch to up to `helpers` idle threads; `done` counts those that took it.
    void offer(LaunchState* launch, unsigned helpers) {
        const std::lock_guard lock(mutex_);
        start_threads();
        offers_.push_back({launch, helpers});
        if (helpers == 1) {
            wake_.notify_one();
        } else {
            wake_.notify_all();
        }
    }

    /// Withdraws the offer and waits until every helper has left the launch.
    void finish(LaunchState* launch) {
        std::unique_lock lock(mutex_);
        std::erase_if(offers_, [launch](const Offer& offer) { return offer.launch == launch; });
        idle_.wait(lock, [&] {
            return std::find(working_.begin(), working_.end(), launch) == working_.end();
        });
    }

private:
    struct Offer {
        LaunchState* launch;
        unsigned helpers;
    };

    void start_threads() {
        while (threads_ + 1 < engine_thread_count()) {
            std::thread([this] { serve(); }).detach();
            ++threads_;
        }
    }

    void serve() {
        std::unique_lock lock(mutex_);
        while (true) {
            wake_.wait(lock, [this] { return !offers_.empty(); });
            LaunchState* const launch = offers_.front().launch;
            if (--offers_.front().helpers == 0) {
                offers_.pop_front();
            }
            working_.push_back(launch);
            lock.unlock();
            work_on(*launch);
            lock.lock();
            working_.erase(std::find(working_.begin(), working_.end(), launch));
            idle_.notify_all();
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_;
    std::condition_variable idle_;
    std::deque<Offer> offers_;
    std::vector<LaunchState*> working_;
    unsigned threads_ = 0;
};

/// Where %reserved_smem_offset_1 points, from the start of the reserved part. Cooperative groups
/// keep 288 bytes there for tiles of several warps.
constexpr std::uint32_t kReservedSlotBytes = 512;

LaunchStatus refuse(LaunchError error, std::string text) {
    LaunchStatus status;
    status.error = error;
    status.text = std::move(text);
    return status;
}

void broadcast(std::vector<std::uint8_t>& image, std::uint32_t offset, bool wide,
               std::uint64_t value) {
    const std::size_t size = wide ? 8 : 4;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
        std::memcpy(&image[offset + lane * size], &value, size);
    }
}

/// Special registers that are the same for the whole launch.
std::uint64_t launch_special(const LaunchState& launch, Special what) {
    const LaunchConfig& config = *launch.config;
    const Dim3& cluster = config.cluster;
    switch (what) {
        case Special::kNtidX: return config.block.x;
        case Special::kNtidY: return config.block.y;
        case Special::kNtidZ: return config.block.z;
        case Special::kNctaidX: return config.grid.x;
        case Special::kNctaidY: return config.grid.y;
        case Special::kNctaidZ: return config.grid.z;
        case Special::kNwarpid: return launch.profile->max_threads_per_sm / kLanes;
        case Special::kNsmid: return launch.profile->sm_count;
        case Special::kGridid: return config.grid_id;
        case Special::kDynamicSharedSize: return config.dynamic_shared_bytes;
        case Special::kTotalSharedSize: return launch.asked_shared_bytes;
        case Special::kAggregateSharedSize:
            return launch.asked_shared_bytes + launch.profile->reserved_shared_bytes_per_block;
        case Special::kReservedSharedBegin: return launch.reserved_shared;
        case Special::kReservedSharedSlot1: return launch.reserved_shared + kReservedSlotBytes;
        case Special::kReservedSharedEnd:
            return launch.reserved_shared + launch.profile->reserved_shared_bytes_per_block;
        case Special::kReservedSharedCap: return launch.profile->reserved_shared_bytes_per_block;
        case Special::kEnvreg1: return kGridWindow >> 32;
        case Special::kEnvreg2: return kGridWindow & 0xffffffffU;
        case Special::kNclusteridX: return (config.grid.x + cluster.x - 1) / cluster.x;
        case Special::kNclusteridY: return (config.grid.y + cluster.y - 1) / cluster.y;
        case Special::kNclusteridZ: return (config.grid.z + cluster.z - 1) / cluster.z;
        case Special::kClusterNctaidX: return cluster.x;
        case Special::kClusterNctaidY: return cluster.y;
        case Special::kClusterNctaidZ: return cluster.z;
        case Special::kClusterNctarank: return cluster.count();
        default: return 0;
    }
}

LaunchStatus check(const KernelInfo& kernel, const KernelCode& code, const LaunchConfig& config,
                   const DeviceProfile& profile) {
    if (!code.refusal.empty()) {
        return refuse(LaunchError::kIllegalInstruction, code.refusal);
    }
    const std::uint64_t threads = config.block.count();
    if (threads == 0 || config.grid.count() == 0 || threads > profile.max_threads_per_block ||
        threads > kernel.max_threads_per_block) {
        return refuse(LaunchError::kInvalidValue,
                      "block of " + std::to_string(threads) + " threads: kernel '" + kernel.name +
                          "' allows 1 to " +
                          std::to_string(std::min(kernel.max_threads_per_block,
                                                  profile.max_threads_per_block)));
    }
    if (config.params.size() < kernel.parameter_bytes) {
        return refuse(LaunchError::kInvalidValue, "kernel '" + kernel.name + "' needs " +
                                                      std::to_string(kernel.parameter_bytes) +
                                                      " bytes of parameters, got " +
                                                      std::to_string(config.params.size()));
    }
    const std::uint64_t shared =
        std::uint64_t{kernel.static_shared_bytes} + config.dynamic_shared_bytes;
    if (shared > profile.shared_bytes_per_block_optin) {
        return refuse(LaunchError::kInvalidValue,
                      "kernel '" + kernel.name + "' asks for " + std::to_string(shared) +
                          " bytes of shared memory, the device has " +
                          std::to_string(profile.shared_bytes_per_block_optin));
    }
    if (config.cluster.count() != 1) {
        return refuse(LaunchError::kInvalidValue,
                      "clusters of more than one block are not supported by the soft GPU");
    }
    if (config.cooperative &&
        config.grid.count() > std::uint64_t{profile.sm_count} *
                                  max_blocks_per_sm(kernel, static_cast<std::uint32_t>(threads),
                                                    config.dynamic_shared_bytes, profile)) {
        return refuse(LaunchError::kCooperativeTooLarge,
                      "cooperative grid of " + std::to_string(config.grid.count()) +
                          " blocks does not fit on the device at once");
    }
    return {};
}

bool uses_reserved_shared(const KernelCode& code) {
    return std::any_of(code.specials.begin(), code.specials.end(), [](const SpecialSlot& slot) {
        return slot.what == Special::kReservedSharedBegin ||
               slot.what == Special::kReservedSharedSlot1;
    });
}

void prepare(LaunchState& launch, const KernelInfo& kernel) {
    const LaunchConfig& config = *launch.config;
    launch.threads = static_cast<std::uint32_t>(config.block.count());
    launch.warps = (launch.threads + kLanes - 1) / kLanes;
    launch.blocks = config.grid.count();
    launch.asked_shared_bytes = launch.code->static_shared_bytes + config.dynamic_shared_bytes;
    launch.shared_bytes = launch.asked_shared_bytes;
    if (uses_reserved_shared(*launch.code)) {
        // The card puts its part in front; nothing may depend on that, and behind leaves the
        // offsets of variables as they are.
        launch.reserved_shared = (launch.asked_shared_bytes + 15) / 16 * 16;
        launch.shared_bytes =
            launch.reserved_shared + launch.profile->reserved_shared_bytes_per_block;
    }
    std::uint32_t local = launch.code->local_bytes;
    if (launch.code->needs_stack) {
        local += config.stack_bytes_per_thread != 0 ? config.stack_bytes_per_thread : 65536;
    }
    // 64 bytes beyond the frames are what a call leaves free (exec/control.cc, enter).
    launch.local_stride = (local + 15) / 16 * 16 + 80;
    launch.resident_limit = std::max<std::uint64_t>(
        engine_thread_count(),
        std::uint64_t{launch.profile->sm_count} *
            std::max(1U, max_blocks_per_sm(kernel, launch.threads, config.dynamic_shared_bytes,
                                           *launch.profile)));
    launch.params.assign(config.params.size() + 16, 0);
    if (!config.params.empty()) {
        std::memcpy(launch.params.data(), config.params.data(), config.params.size());
    }
    // Two words: the barrier's counter and its padding, as cooperative groups use them.
    launch.grid_workspace.assign(64, 0);
    launch.constants = launch.code->constants;
    for (const SpecialSlot& slot : launch.code->specials) {
        broadcast(launch.constants, slot.offset - launch.code->constants_begin, slot.wide,
                  launch_special(launch, slot.what));
    }
}

}  // namespace

void LaunchState::fail(LaunchError error, std::string text) {
    const std::lock_guard lock(fault_mutex);
    if (status.error == LaunchError::kNone) {
        status.error = error;
        status.text = std::move(text);
    }
    stop.store(true, std::memory_order_relaxed);
}

bool launch_stopped(const Block& block) {
    LaunchState& launch = *block.launch;
    if (launch.config->cancel != nullptr && launch.config->cancel->load(std::memory_order_relaxed))
        [[unlikely]] {
        launch.fail(LaunchError::kCancelled, "the launch was cancelled");
    }
    return launch.stop.load(std::memory_order_relaxed);
}

std::uint64_t clock_khz(const Warp& warp) { return warp.block->launch->profile->clock_khz; }

bool is_constant_address(const Warp& warp, std::uint64_t address) {
    const LinkedProgram& program = *warp.block->launch->program;
    for (std::size_t i = 0; i < program.globals.size(); ++i) {
        if (program.globals[i].space == GlobalSpace::kConstant &&
            address - program.global_definitions[i].address < program.globals[i].size_bytes) {
            return true;
        }
    }
    return false;
}

unsigned engine_thread_count() {
    static const unsigned count = [] {
        if (const char* text = std::getenv("GANTRY_SOFT_THREADS"); text != nullptr) {
            const int wanted = std::atoi(text);
            if (wanted >= 1 && wanted <= 1024) {
                return static_cast<unsigned>(wanted);
            }
        }
        return std::max(1U, std::thread::hardware_concurrency());
    }();
    return count;
}

std::uint32_t max_blocks_per_sm(const KernelInfo& kernel, std::uint32_t threads_per_block,
                                std::uint32_t dynamic_shared_bytes, const DeviceProfile& profile) {
    if (threads_per_block == 0 || threads_per_block > profile.max_threads_per_block) {
        return 0;
    }
    const std::uint32_t warps = (threads_per_block + kLanes - 1) / kLanes;
    std::uint32_t blocks =
        std::min(profile.max_blocks_per_sm, profile.max_threads_per_sm / kLanes / warps);
    const std::uint32_t registers = (kernel.registers + 7) / 8 * 8 * kLanes * warps;
    if (registers != 0) {
        blocks = std::min(blocks, profile.registers_per_sm / registers);
    }
    const std::uint32_t shared = kernel.static_shared_bytes + dynamic_shared_bytes;
    if (shared > profile.shared_bytes_per_block_optin) {
        return 0;
    }
    const std::uint32_t held = (shared + profile.reserved_shared_bytes_per_block + 127) / 128 * 128;
    if (held != 0) {
        blocks = std::min(blocks, profile.shared_bytes_per_sm / held);
    }
    return blocks;
}

namespace {

LaunchStatus run_grid(const LinkedProgram& linked, std::uint32_t kernel_index,
                      const LaunchConfig& config, const DeviceProfile& profile, Services& services,
                      DeviceQueue& children) {
    if (kernel_index >= linked.kernels.size()) {
        return refuse(LaunchError::kInvalidValue, "no such kernel");
    }
    const KernelInfo& kernel = linked.kernels[kernel_index];
    const KernelCode& code = linked.codes[kernel_index];
    LaunchStatus status = check(kernel, code, config, profile);
    if (!status.ok()) {
        return status;
    }
    if (!linked.globals.empty() && !linked.placed) {
        return refuse(LaunchError::kInvalidValue, "the program's globals have no addresses yet");
    }
    install_fault_handler();
    LaunchState launch;
    launch.program = &linked;
    launch.code = &code;
    launch.config = &config;
    launch.profile = &profile;
    launch.services = &services;
    launch.children = &children;
    prepare(launch, kernel);
    const unsigned helpers = static_cast<unsigned>(
        std::min<std::uint64_t>(engine_thread_count() - 1, launch.blocks - 1));
    if (helpers > 0) {
        Pool::instance().offer(&launch, helpers);
    }
    work_on(launch);
    if (helpers > 0) {
        Pool::instance().finish(&launch);
    }
    launch.status.thread_instructions = launch.thread_instructions.load();
    launch.status.warp_instructions = launch.warp_instructions.load();
    return launch.status;
}

LaunchStatus run_family(const LinkedProgram& linked, std::uint32_t kernel_index,
                        const LaunchConfig& config, const DeviceProfile& profile,
                        Services& services, unsigned depth);

/// A copy or fill that a kernel asked for. On failure `bad` is the address.
bool copy_or_fill(const DeviceWork& work, const Reach& reach, std::uint64_t& bad) {
    const bool copies = work.kind == DeviceWork::Kind::kCopy;
    const ReachScope scope;
    ReachSpan span;
    bad = work.to;
    if (work.size == 0) {
        return true;
    }
    if (!reach.find(work.to, work.size, Touch::kWrite, span)) {
        return false;
    }
    bad = work.from;
    if (copies && !reach.find(work.from, work.size, Touch::kRead, span)) {
        return false;
    }
    const bool done = copies ? copy_guest_memory(work.to, work.from, work.size)
                             : fill_guest_memory(work.to, work.value, work.size);
    bad = done ? 0 : last_fault_address();
    return done;
}

LaunchStatus run_child(const LinkedProgram& linked, const DeviceWork& child,
                       const LaunchConfig& parent, const DeviceProfile& profile, Services& services,
                       unsigned depth) {
    if (child.kind != DeviceWork::Kind::kGrid) {
        std::uint64_t bad = 0;
        if (copy_or_fill(child, services.reach(), bad)) {
            return {};
        }
        char text[96];
        std::snprintf(text, sizeof text,
                      "illegal memory access at 0x%llx by a copy or fill that "
                      "a kernel asked for",
                      static_cast<unsigned long long>(bad));
        return refuse(LaunchError::kIllegalAddress, text);
    }
    LaunchConfig config = parent;
    config.grid = child.grid;
    config.block = child.block;
    config.cluster = {1, 1, 1};
    config.dynamic_shared_bytes = child.dynamic_shared_bytes;
    config.params = child.params;
    config.cooperative = false;
    return run_family(linked, child.kernel, config, profile, services, depth + 1);
}

/// Runs a grid and then, in order, what it launched, each with its own.
LaunchStatus run_family(const LinkedProgram& linked, std::uint32_t kernel_index,
                        const LaunchConfig& config, const DeviceProfile& profile,
                        Services& services, unsigned depth) {
    DeviceQueue children(depth);
    LaunchStatus status = run_grid(linked, kernel_index, config, profile, services, children);
    if (!status.ok()) {
        return status;
    }
    for (const std::unique_ptr<DeviceWork>& child : children.take()) {
        const LaunchStatus ended = run_child(linked, *child, config, profile, services, depth);
        status.thread_instructions += ended.thread_instructions;
        status.warp_instructions += ended.warp_instructions;
        if (!ended.ok()) {
            status.error = ended.error;
            status.text = ended.text;
            break;
        }
    }
    return status;
}

}  // namespace

LaunchStatus run(const Program& program, std::uint32_t kernel_index, const LaunchConfig& config,
                 const DeviceProfile& profile, Services& services) {
    return run_family(program.linked(), kernel_index, config, profile, services, 1);
}

}  // namespace gantry::softgpu
