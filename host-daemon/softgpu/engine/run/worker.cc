// A thread working on a launch: it takes blocks in rising order and runs one at a time to its
// end. A block that does not end within a slice may be waiting for another one: then further
// blocks are admitted beside it (up to what the profile's GPU would hold at once), and all live
// blocks take turns. A cooperative launch admits all its blocks at the start.
#include <sys/mman.h>
#include <xmmintrin.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "host-daemon/softgpu/engine/run/launch_state.h"
#include "host-daemon/softgpu/engine/run/scheduler.h"

namespace gantry::softgpu {
namespace {

constexpr std::uint64_t kFirstSlice = 400'000;  // warp instructions before others are admitted
constexpr std::uint64_t kSharedSlice = 20'000;

/// Memory of one block: register files and shared memory in one mapping, local memory in another
/// (large, mostly untouched). Reused from launch to launch by its thread.
class BlockMemory {
public:
    BlockMemory() = default;
    ~BlockMemory() {
        release(files_, file_bytes_);
        release(local_, local_bytes_);
    }
    BlockMemory(const BlockMemory&) = delete;
    BlockMemory& operator=(const BlockMemory&) = delete;

    bool reserve(std::size_t file_bytes, std::size_t local_bytes) {
        return grow(files_, file_bytes_, file_bytes) && grow(local_, local_bytes_, local_bytes);
    }
    [[nodiscard]] std::uint8_t* files() const { return files_; }
    [[nodiscard]] std::uint8_t* local() const { return local_; }
    [[nodiscard]] std::size_t file_bytes() const { return file_bytes_; }

private:
    static void release(std::uint8_t*& memory, std::size_t& size) {
        if (memory != nullptr) {
            munmap(memory, size);
        }
        memory = nullptr;
        size = 0;
    }
    static bool grow(std::uint8_t*& memory, std::size_t& size, std::size_t wanted) {
        if (wanted <= size) {
            return true;
        }
        release(memory, size);
        wanted = (wanted + 0xffff) & ~std::size_t{0xffff};
        void* made = mmap(nullptr, wanted, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (made == MAP_FAILED) {
            return false;
        }
        memory = static_cast<std::uint8_t*>(made);
        size = wanted;
        return true;
    }
    std::uint8_t* files_ = nullptr;
    std::size_t file_bytes_ = 0;
    std::uint8_t* local_ = nullptr;
    std::size_t local_bytes_ = 0;
};

struct BlockRun {
    Block block;
    BlockMemory memory;
    bool prepared = false;  ///< Launch-wide slots are filled.
};

/// Blocks of a thread that are free for the next launch. Kernels whose blocks wait for each other
/// have many alive at once, and mapping their memory anew at each launch costs more than they do.
class SpareBlocks {
public:
    void put(std::unique_ptr<BlockRun> run) {
        const std::size_t bytes = run->memory.file_bytes();
        if (blocks_.size() < kAlways || (bytes_ + bytes <= kBytesMax && blocks_.size() < kMost)) {
            run->prepared = false;
            bytes_ += bytes;
            blocks_.push_back(std::move(run));
        }
    }
    /// Null if there is none.
    std::unique_ptr<BlockRun> take() {
        if (blocks_.empty()) {
            return nullptr;
        }
        std::unique_ptr<BlockRun> run = std::move(blocks_.back());
        blocks_.pop_back();
        bytes_ -= run->memory.file_bytes();
        return run;
    }

private:
    static constexpr std::size_t kAlways = 4;
    static constexpr std::size_t kMost = 256;
    static constexpr std::size_t kBytesMax = std::size_t{64} << 20;
    std::vector<std::unique_ptr<BlockRun>> blocks_;
    std::size_t bytes_ = 0;
};

thread_local SpareBlocks spare_blocks;

class Worker {
public:
    explicit Worker(LaunchState& launch) : launch_(launch) {}
    void run();

private:
    bool admit();
    bool prepare(BlockRun& run);
    void start_block(BlockRun& run, std::uint64_t index);
    void fill_specials(Warp& warp, const SpecialSlot& slot) const;
    void fill_block_specials(BlockRun& run) const;
    void retire(std::size_t position);
    void run_slices();
    [[nodiscard]] std::uint64_t fair_share() const;

    LaunchState& launch_;
    RecoveryPoint point_;
    std::vector<std::unique_ptr<BlockRun>> live_;
    std::vector<std::unique_ptr<BlockRun>> free_;
    std::size_t turn_ = 0;
    unsigned caller_fp_state_ = 0;
    bool no_more_ = false;
};

template <typename T>
void broadcast(std::uint8_t* slot, T value) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
        std::memcpy(slot + lane * sizeof(T), &value, sizeof(T));
    }
}

void put(Warp& warp, const SpecialSlot& slot, std::uint64_t value) {
    if (slot.wide) {
        broadcast<std::uint64_t>(warp.file + slot.offset, value);
    } else {
        broadcast<std::uint32_t>(warp.file + slot.offset, static_cast<std::uint32_t>(value));
    }
}

void put_lane(Warp& warp, const SpecialSlot& slot, std::uint32_t lane, std::uint32_t value) {
    if (slot.wide) {
        warp.slot<std::uint64_t>(slot.offset)[lane] = value;
    } else {
        warp.slot<std::uint32_t>(slot.offset)[lane] = value;
    }
}

/// Special registers that differ between the lanes or warps of a block, the same in all blocks.
void Worker::fill_specials(Warp& warp, const SpecialSlot& slot) const {
    const Dim3& size = launch_.config->block;
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
        const std::uint32_t thread = warp.index * kLanes + lane;
        std::uint32_t value = 0;
        switch (slot.what) {
            case Special::kTidX: value = thread % size.x; break;
            case Special::kTidY: value = thread / size.x % size.y; break;
            case Special::kTidZ: value = thread / size.x / size.y; break;
            case Special::kLaneid: value = lane; break;
            case Special::kWarpid: value = warp.index; break;
            case Special::kLanemaskEq: value = 1U << lane; break;
            case Special::kLanemaskLt: value = (1U << lane) - 1; break;
            case Special::kLanemaskLe: value = (1U << lane) | ((1U << lane) - 1); break;
            case Special::kLanemaskGt: value = ~((1U << lane) | ((1U << lane) - 1)); break;
            case Special::kLanemaskGe: value = ~((1U << lane) - 1); break;
            default: return;
        }
        put_lane(warp, slot, lane, value);
    }
}

bool Worker::prepare(BlockRun& run) {
    const KernelCode& code = *launch_.code;
    Block& block = run.block;
    const std::size_t file_bytes = (code.file_bytes + 127) / 64 * 64;
    const std::size_t shared_begin = file_bytes * launch_.warps;
    block.local_total = std::uint64_t{launch_.local_stride} * kLanes * launch_.warps;
    if (!run.memory.reserve(shared_begin + launch_.shared_bytes + 64, block.local_total + 64)) {
        launch_.fail(LaunchError::kOutOfResources,
                     "not enough host memory for the registers and local memory of a block");
        return false;
    }
    block.launch = &launch_;
    block.code = &code;
    block.threads = launch_.threads;
    block.shared = run.memory.files() + shared_begin;
    block.shared_bytes = launch_.shared_bytes;
    block.local = run.memory.local();
    block.params = launch_.params.data();
    block.param_bytes = static_cast<std::uint32_t>(launch_.config->params.size());
    block.warps.resize(launch_.warps);
    for (std::uint32_t i = 0; i < launch_.warps; ++i) {
        Warp& warp = block.warps[i];
        warp.index = i;
        warp.block = &block;
        warp.thread = &point_.thread;
        warp.file = run.memory.files() + file_bytes * i;
        warp.local_stride = launch_.local_stride;
        warp.local = block.local + std::uint64_t{launch_.local_stride} * kLanes * i;
        if (!launch_.constants.empty()) {
            std::memcpy(warp.file + code.constants_begin, launch_.constants.data(),
                        launch_.constants.size());
        }
        for (const SpecialSlot& slot : code.specials) {
            fill_specials(warp, slot);
        }
    }
    return true;
}

void Worker::fill_block_specials(BlockRun& run) const {
    Block& block = run.block;
    const Dim3& cluster = launch_.config->cluster;
    for (const SpecialSlot& slot : launch_.code->specials) {
        std::uint64_t value = 0;
        switch (slot.what) {
            case Special::kCtaidX: value = block.x; break;
            case Special::kCtaidY: value = block.y; break;
            case Special::kCtaidZ: value = block.z; break;
            case Special::kSmid: value = block.sm; break;
            case Special::kClusteridX: value = block.x / cluster.x; break;
            case Special::kClusteridY: value = block.y / cluster.y; break;
            case Special::kClusteridZ: value = block.z / cluster.z; break;
            default: continue;
        }
        for (Warp& warp : block.warps) {
            put(warp, slot, value);
        }
    }
}

void Worker::start_block(BlockRun& run, std::uint64_t index) {
    Block& block = run.block;
    const Dim3& grid = launch_.config->grid;
    block.index = index;
    block.x = static_cast<std::uint32_t>(index % grid.x);
    block.y = static_cast<std::uint32_t>(index / grid.x % grid.y);
    block.z = static_cast<std::uint32_t>(index / grid.x / grid.y);
    block.sm = static_cast<std::uint32_t>(index % launch_.profile->sm_count);
    block.exited = 0;
    block.live_warps = launch_.warps;
    block.barriers.fill(Barrier{});
    fill_block_specials(run);
    const Inst* const entry = &launch_.code->code[launch_.code->entry];
    for (Warp& warp : block.warps) {
        const std::uint32_t first = warp.index * kLanes;
        const std::uint32_t lanes = std::min<std::uint32_t>(kLanes, launch_.threads - first);
        const std::uint32_t mask = lanes == kLanes ? kAllLanes : (1U << lanes) - 1;
        warp.dead = ~mask;
        warp.fragment_count = 0;
        warp.push(entry, mask);
        warp.force_sync = false;
        warp.divergent_run = 0;
        warp.fair_run = 0;
        warp.carry = 0;
        warp.frame.fill(0);
        warp.frame_extra.fill(0);
        warp.depth.fill(0);
        warp.thread_instructions = 0;
        warp.warp_instructions = 0;
        if (launch_.code->needs_stack) {
            for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
                warp.saved_registers[lane].clear();
                warp.active_functions[lane].clear();
            }
        }
    }
}

bool Worker::admit() {
    if (no_more_ || launch_.stop.load(std::memory_order_relaxed)) {
        return false;
    }
    if (launch_.live_blocks.fetch_add(1) >= launch_.resident_limit && !live_.empty()) {
        launch_.live_blocks.fetch_sub(1);
        return false;
    }
    const std::uint64_t index = launch_.next_block.fetch_add(1, std::memory_order_relaxed);
    if (index >= launch_.blocks) {
        launch_.live_blocks.fetch_sub(1);
        no_more_ = true;
        return false;
    }
    std::unique_ptr<BlockRun> run;
    if (!free_.empty()) {
        run = std::move(free_.back());
        free_.pop_back();
    } else {
        run = spare_blocks.take();
        if (run == nullptr) {
            run = std::make_unique<BlockRun>();
        }
    }
    if (!run->prepared && !prepare(*run)) {
        return false;
    }
    run->prepared = true;
    start_block(*run, index);
    live_.push_back(std::move(run));
    return true;
}

void Worker::retire(std::size_t position) {
    std::uint64_t threads = 0;
    std::uint64_t warps = 0;
    for (const Warp& warp : live_[position]->block.warps) {
        threads += warp.thread_instructions;
        warps += warp.warp_instructions;
    }
    launch_.thread_instructions.fetch_add(threads, std::memory_order_relaxed);
    launch_.warp_instructions.fetch_add(warps, std::memory_order_relaxed);
    launch_.live_blocks.fetch_sub(1);
    free_.push_back(std::move(live_[position]));
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(position));
}

std::uint64_t Worker::fair_share() const {
    // All blocks of a cooperative grid live at once; each thread takes its part of them.
    const std::uint64_t threads = engine_thread_count();
    return (launch_.blocks + threads - 1) / threads;
}

void Worker::run_slices() {
    const bool cooperative = launch_.config->cooperative;
    while (!launch_.stop.load(std::memory_order_relaxed)) {
        if (cooperative) {
            while (live_.size() < fair_share() && admit()) {
            }
        }
        if (live_.empty() && !admit()) {
            return;
        }
        turn_ = turn_ < live_.size() ? turn_ : 0;
        Block& block = live_[turn_]->block;
        point_.block = &block;
        const bool alone = live_.size() == 1;
        const SliceEnd end =
            run_block(block, alone && !cooperative ? kFirstSlice : kSharedSlice, alone && no_more_);
        point_.block = nullptr;
        switch (end) {
            case SliceEnd::kFinished: retire(turn_); break;
            case SliceEnd::kBudget:
                if (turn_ + 1 >= live_.size()) {
                    admit();  // somebody may be waiting for a block that has not begun
                }
                ++turn_;
                break;
            case SliceEnd::kStopped: return;
            case SliceEnd::kDeadlock:
                launch_.fail(LaunchError::kTrap,
                             "all warps of a block wait at barriers that nobody can complete: " +
                                 describe_place(launch_, block, 0, 0, nullptr));
                return;
        }
    }
}

void Worker::run() {
    prepare_thread_for_faults();
    const ReachScope scope;
    // The caller's thread may have its own idea of rounding and flushing.
    caller_fp_state_ = _mm_getcsr();
    point_.thread.switch_fp_mode(kFpNearest);
    point_.launch = &launch_;
    const int jumped = sigsetjmp(point_.buffer, 0);
    if (jumped == 0) {
        current_recovery() = &point_;
        run_slices();
    } else {
        current_recovery() = nullptr;
        point_.thread.switch_fp_mode(kFpNearest);
        if (jumped != 3) {
            const Inst* inst = point_.thread.inst;
            char text[96];
            std::snprintf(text, sizeof text, "illegal memory access at 0x%llx: ",
                          static_cast<unsigned long long>(last_fault_address()));
            launch_.fail(LaunchError::kIllegalAddress,
                         text + describe_place(launch_, *point_.block, 0, 0, inst));
        }
    }
    current_recovery() = nullptr;
    _mm_setcsr(caller_fp_state_);
    for (std::unique_ptr<BlockRun>& run : live_) {
        free_.push_back(std::move(run));
    }
    for (std::unique_ptr<BlockRun>& run : free_) {
        spare_blocks.put(std::move(run));
    }
}

}  // namespace

void work_on(LaunchState& launch) { Worker(launch).run(); }

}  // namespace gantry::softgpu
