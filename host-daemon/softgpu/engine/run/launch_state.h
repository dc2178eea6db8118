// One running launch: shared by the threads that work on it.
#pragma once

#include <setjmp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "host-daemon/softgpu/engine/engine.h"
#include "host-daemon/softgpu/engine/linked.h"
#include "host-daemon/softgpu/engine/warp.h"

namespace gantry::softgpu {

class DeviceQueue;

struct LaunchState {
    const LinkedProgram* program = nullptr;
    const KernelCode* code = nullptr;
    const LaunchConfig* config = nullptr;
    const DeviceProfile* profile = nullptr;
    Services* services = nullptr;
    DeviceQueue* children = nullptr;      ///< Grids that this one launches.
    std::vector<std::uint8_t> params;     ///< 16-byte aligned start.
    std::vector<std::uint8_t> constants;  ///< Image with the launch's special registers filled.
    std::uint64_t blocks = 0;
    std::uint32_t threads = 0;
    std::uint32_t warps = 0;
    std::uint32_t asked_shared_bytes = 0;  ///< Static and dynamic.
    std::uint32_t reserved_shared = 0;     ///< Offset of the part reserved for the system.
    std::uint32_t shared_bytes = 0;        ///< Size of the window, the reserved part included.
    std::uint32_t local_stride = 0;
    std::uint64_t resident_limit = 0;  ///< Blocks that may live at once.
    alignas(64) std::atomic<std::uint64_t> next_block{0};
    std::atomic<std::uint64_t> live_blocks{0};
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> thread_instructions{0};
    std::atomic<std::uint64_t> warp_instructions{0};
    std::vector<std::uint32_t> grid_workspace;  ///< What envreg1/2 point to (cooperative grids).
    std::mutex fault_mutex;
    LaunchStatus status;  ///< Guarded by fault_mutex while threads run.

    void fail(LaunchError error, std::string text);
};

/// Recovery point of the thread that runs blocks; null while it does anything else.
struct RecoveryPoint {
    sigjmp_buf buffer;
    LaunchState* launch = nullptr;
    Block* block = nullptr;
    ThreadContext thread;
};

/// fault.cc: makes SIGSEGV and SIGBUS on engine threads end the launch: memory that kernels may
/// touch can go while they run.
void install_fault_handler();
void prepare_thread_for_faults();
[[nodiscard]] RecoveryPoint*& current_recovery();
[[nodiscard]] std::uint64_t last_fault_address();
/// Copies guest memory (regions may overlap) or fills it, for who has seen that kernels may touch
/// it. False if it went meanwhile: last_fault_address().
[[nodiscard]] bool copy_guest_memory(std::uint64_t to, std::uint64_t from, std::uint64_t size);
[[nodiscard]] bool fill_guest_memory(std::uint64_t to, std::uint8_t value, std::uint64_t size);

/// Suspends fault recovery, the FP mode and the thread's ReachScope while services run.
class ServiceCall {
public:
    explicit ServiceCall(Warp& warp);
    ~ServiceCall();
    ServiceCall(const ServiceCall&) = delete;
    ServiceCall& operator=(const ServiceCall&) = delete;
    [[nodiscard]] Services& services() const;

private:
    RecoveryPoint* saved_;
};

[[nodiscard]] bool launch_stopped(const Block& block);

/// worker.cc: the calling thread runs blocks of the launch until none is left.
void work_on(LaunchState& launch);

/// "kernel 'k', block (x,y,z), thread (x,y,z), PTX line L".
[[nodiscard]] std::string describe_place(const LaunchState& launch, const Block& block,
                                         std::uint32_t warp_index, std::uint32_t lane,
                                         const Inst* inst);

}  // namespace gantry::softgpu
