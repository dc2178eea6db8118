// The state of running warps and blocks, as the handlers see it.
//
// Lanes of a warp that stand at one instruction form a fragment (pc, mask); the running one is
// held in Warp itself, the others in `fragments`. A handler that cannot simply go on (a branch
// that splits, a barrier, an exit, a fault) stores fragments or an event here and returns
// stop_instruction().
//
// One block is run by one thread at a time, so nothing here is atomic; blocks move between no
// threads.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "host-daemon/softgpu/engine/engine.h"
#include "host-daemon/softgpu/engine/inst.h"
#include "host-daemon/softgpu/engine/reach.h"

namespace gantry::softgpu {

struct KernelCode;
struct Block;
struct LaunchState;

inline constexpr int kLanes = 32;
inline constexpr std::uint32_t kAllLanes = 0xffffffffU;
inline constexpr int kBarriers = 16;

enum class FragmentState : std::uint8_t {
    kRunnable,
    kWarpSync,  ///< Waits for lanes named in a member mask; its instruction runs again.
    kBarrier,   ///< Waits at a block barrier; ip is the instruction behind it.
};

struct Fragment {
    const Inst* ip = nullptr;
    std::uint32_t mask = 0;
    FragmentState state = FragmentState::kRunnable;
    std::uint8_t barrier = 0;
    const Inst* reduction = nullptr;  ///< The bar.red whose result is due on release.
};

/// Per OS thread while it runs blocks.
struct ThreadContext {
    std::uint32_t fp_mode = 0;
    const Inst* inst = nullptr;  ///< Last instruction that touched memory, for fault reports.
    bool yield = false;          ///< Ends the block's slice.
    std::uint32_t polls = 0;     ///< Loads that may be part of a spin loop since the slice began.
    ReachCache reach;            ///< Only inside the thread's ReachScope.
    void set_fp_mode(std::uint32_t mode) {
        if (mode != fp_mode) [[unlikely]] {
            switch_fp_mode(mode);
        }
    }
    void switch_fp_mode(std::uint32_t mode);
};

struct ReturnRecord {
    const Inst* ip = nullptr;
    std::uint32_t frame = 0;
    std::uint32_t extra = 0;
    std::uint32_t function = 0;
    bool restore = false;  ///< The callee's registers were saved for this lane.
};

struct Warp {
    std::uint8_t* file = nullptr;
    std::uint32_t mask = 0;  ///< Lanes of the running fragment.
    std::uint32_t dead = 0;  ///< Exited or never existing lanes.
    bool full = false;       ///< mask | dead is all lanes: registers of all lanes may be written.
    bool force_sync = false;
    bool at_kernel_end = false;
    std::uint32_t index = 0;
    ThreadContext* thread = nullptr;
    Block* block = nullptr;
    std::uint8_t* local = nullptr;
    std::uint32_t local_stride = 0;
    std::uint32_t fragment_count = 0;
    std::array<Fragment, kLanes + 1> fragments;
    std::array<std::uint32_t, kLanes> frame{};        ///< Start of the current function's locals.
    std::array<std::uint32_t, kLanes> frame_extra{};  ///< alloca'd bytes of the current function.
    std::array<std::uint32_t, kLanes> returned_frame{};  ///< Of the call that just returned.
    std::array<std::uint16_t, kLanes> depth{};
    std::vector<std::array<ReturnRecord, kLanes>> returns;
    std::array<std::vector<std::uint8_t>, kLanes> saved_registers;
    std::array<std::vector<std::uint16_t>, kLanes> active_functions;
    std::uint32_t divergent_run = 0;  ///< Instructions of the lowest fragment with others ready.
    std::uint32_t fair_run = 0;       ///< Left of another fragment's turn.
    std::uint32_t fair_lanes = 0;     ///< Whose turn it is.
    const Inst* fair_ip = nullptr;    ///< Where the last turn was given.
    std::uint64_t thread_instructions = 0;
    std::uint64_t warp_instructions = 0;
    std::uint32_t carry = 0;  ///< Lanes' carry flags (add.cc and its kin).

    [[nodiscard]] bool alive() const { return dead != kAllLanes; }
    void set_mask(std::uint32_t lanes) {
        mask = lanes;
        full = (lanes | dead) == kAllLanes;
    }
    void push(const Inst* ip, std::uint32_t lanes, FragmentState state = FragmentState::kRunnable) {
        Fragment& fragment = fragments[fragment_count++];
        fragment.ip = ip;
        fragment.mask = lanes;
        fragment.state = state;
        fragment.reduction = nullptr;
    }
    template <typename T>
    [[nodiscard]] T* slot(std::uint32_t offset) const {
        return reinterpret_cast<T*>(file + offset);
    }
    [[nodiscard]] std::uint32_t& predicate(std::uint32_t offset) const {
        return *slot<std::uint32_t>(offset);
    }
};

struct Barrier {
    std::uint32_t arrived = 0;   ///< Threads.
    std::uint32_t expected = 0;  ///< 0: every thread of the block.
    std::uint32_t popc = 0;
    bool all = true;
    bool any = false;
    std::array<std::uint32_t, kLanes> warp_lanes{};  ///< Arrived lanes per warp.
};

struct Block {
    LaunchState* launch = nullptr;
    const KernelCode* code = nullptr;
    std::uint64_t index = 0;
    std::uint32_t x = 0, y = 0, z = 0;
    std::uint32_t threads = 0;
    std::uint32_t exited = 0;
    std::uint32_t live_warps = 0;
    std::uint32_t sm = 0;
    std::uint8_t* shared = nullptr;
    std::uint32_t shared_bytes = 0;
    std::uint8_t* local = nullptr;
    std::uint64_t local_total = 0;
    const std::uint8_t* params = nullptr;
    std::uint32_t param_bytes = 0;
    std::array<Barrier, kBarriers> barriers;
    std::vector<Warp> warps;
    std::uint32_t next_warp = 0;
    void* async_state = nullptr;  ///< reserved for asynchronous copies that are still open
};

/// Ends the launch: records the first fault and unwinds to the block's run loop. Handlers that
/// call it must hold nothing that needs a destructor.
[[noreturn]] void raise_fault(Warp& warp, const Inst* inst, LaunchError error, std::uint32_t lane,
                              std::uint64_t address, const char* what);

}  // namespace gantry::softgpu
