// The soft GPU's execution engine: links PTX texts into a Program and runs its kernels on the CPU.
//
// Life of a program: Program::link() parses, links and decodes (an opcode or modifier outside the
// implemented set is refused here, by name and line) -> the caller allocates memory for every
// entry of globals() and calls place() with the addresses -> the caller copies the bytes of
// initial_bytes() there -> run() any number of times, from any number of threads.
//
// Addresses: global and constant addresses are addresses of this process, and every access through
// a global or generic address is held against what Services::reach() says a kernel may touch
// (reach.h) before it is made. .shared and .local addresses are offsets in a window; their generic
// form, and that of parameters, is no address of this process (windows.h).
//
// Threads: link() and the const members may be called from any thread; place() must not run
// concurrently with run() of the same program. run() blocks its caller, which works along with a
// process-wide pool (GANTRY_SOFT_THREADS threads in all per launch, default: one per core), so a
// launch always proceeds even if others keep the whole pool busy.
//
// Failure: bad PTX gives an Error "ptx:LINE:COLUMN: ...". A fault in a kernel (bad address,
// assert, trap) ends that launch with a LaunchStatus; memory keeps what had been written.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host-daemon/softgpu/engine/reach.h"
#include "host-daemon/softgpu/engine/texture.h"
#include "proto/base/result.h"

namespace gantry::softgpu {

/// What the engine needs to know of the device it imitates. The driver layer fills it from the
/// profile file. Defaults are an H200's.
struct DeviceProfile {
    int compute_capability_major = 9;
    int compute_capability_minor = 0;
    std::uint32_t sm_count = 132;
    std::uint32_t max_threads_per_sm = 2048;
    std::uint32_t max_blocks_per_sm = 32;
    std::uint32_t max_threads_per_block = 1024;
    std::uint32_t registers_per_sm = 65536;
    std::uint32_t shared_bytes_per_sm = 233472;
    std::uint32_t shared_bytes_per_block = 49152;
    std::uint32_t shared_bytes_per_block_optin = 232448;
    std::uint32_t reserved_shared_bytes_per_block = 1024;
    std::uint32_t clock_khz = 1980000;
};

struct Dim3 {
    std::uint32_t x = 1;
    std::uint32_t y = 1;
    std::uint32_t z = 1;
    [[nodiscard]] std::uint64_t count() const { return std::uint64_t{x} * y * z; }
};

struct ParameterInfo {
    std::uint32_t offset_bytes = 0;
    std::uint32_t size_bytes = 0;
    std::uint32_t align_bytes = 1;
};

struct KernelInfo {
    std::string name;
    std::vector<ParameterInfo> parameters;
    std::uint32_t parameter_bytes = 0;  ///< End of the last parameter; what `params` must hold.
    std::uint32_t static_shared_bytes = 0;
    std::uint32_t constant_bytes = 0;  ///< .const variables of the whole program.
    std::uint32_t local_bytes = 0;     ///< Per thread, frames of all functions it may call.
    std::uint32_t registers = 0;       ///< An estimate within 16..255, for occupancy.
    std::uint32_t max_threads_per_block = 1024;  ///< From .maxntid / .reqntid.
    Dim3 max_ntid{0, 0, 0};                      ///< 0,0,0: no directive.
    Dim3 req_ntid{0, 0, 0};                      ///< 0,0,0: no directive.
    Dim3 req_cluster{0, 0, 0};                   ///< 0,0,0: no directive.
    std::uint32_t min_blocks_per_sm = 0;
    int ptx_version = 90;      ///< 10 * major + minor of .version.
    int target_sm = 75;        ///< Number of .target.
    bool uses_printf = false;  ///< Itself or through a call.
    bool uses_device_heap = false;
    bool takes_function_addresses = false;  ///< Cannot move between unlike devices.
};

enum class GlobalSpace : std::uint8_t { kGlobal, kConstant };

struct GlobalInfo {
    std::string name;
    std::uint64_t size_bytes = 0;
    std::uint32_t align_bytes = 1;
    GlobalSpace space = GlobalSpace::kGlobal;
    bool managed = false;
    bool visible = true;  ///< Findable by name (cuModuleGetGlobal); false for file-local ones.
    bool holds_addresses = false;       ///< Its initial bytes depend on where globals are placed.
    bool initialized = false;           ///< Has an initialiser; else its initial bytes are zero.
    bool is_texture_reference = false;  ///< .texref/.samplerref/.surfref: 8 bytes, not supported.
};

/// An instruction that the engine does not implement.
struct Refusal {
    std::string function;
    std::string spelling;  ///< For example "wgmma.mma_async.sync.aligned...".
    std::string text;      ///< "ptx:LINE:COLUMN: ..."
};

enum class UnsupportedPolicy : std::uint8_t {
    kRefuseProgram,  ///< link() fails if any instruction is outside the implemented set.
    kRefuseKernel,   ///< link() succeeds; running a kernel that reaches one fails by name.
};

struct LinkOptions {
    UnsupportedPolicy unsupported = UnsupportedPolicy::kRefuseProgram;
};

struct PtxSource {
    std::string_view text;  ///< Copied as needed; may end before or at a NUL.
    std::string_view name;  ///< For messages; may be empty.
};

struct LinkedProgram;  // decoded form, private to the engine

class Program {
public:
    [[nodiscard]] static Result<std::unique_ptr<Program>> link(std::span<const PtxSource> sources,
                                                               const LinkOptions& options = {});
    ~Program();
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    [[nodiscard]] std::span<const KernelInfo> kernels() const;
    [[nodiscard]] std::span<const GlobalInfo> globals() const;
    [[nodiscard]] std::span<const Refusal> refusals() const;

    /// Index into kernels() or globals(); names are as in PTX (mangled).
    [[nodiscard]] std::optional<std::uint32_t> find_kernel(std::string_view name) const;
    [[nodiscard]] std::optional<std::uint32_t> find_global(std::string_view name) const;

    /// Gives every global its address, in the order of globals(). Must precede run() if there are
    /// any. May be repeated (a restore) while no launch of this program runs.
    [[nodiscard]] Result<void> place(std::span<const std::uint64_t> addresses);

    /// The bytes a global starts with; `out` must have its size. Needs place() first if
    /// holds_addresses. Function addresses are small numbers, as on hardware.
    [[nodiscard]] Result<void> initial_bytes(std::uint32_t global_index,
                                             std::span<std::byte> out) const;

    [[nodiscard]] const LinkedProgram& linked() const { return *linked_; }

private:
    explicit Program(std::unique_ptr<LinkedProgram> linked);
    std::unique_ptr<LinkedProgram> linked_;
};

/// What a running kernel may ask of its surroundings. All members are called from engine threads,
/// concurrently; a pointer may be null where noted.
class Services {
public:
    virtual ~Services() = default;
    /// Text of one device printf call, already formatted.
    virtual void print(std::string_view text) = 0;
    /// Message of a failed device assert, complete with newline, as CUDA words it (for stderr).
    virtual void assertion_failed(std::string_view text) = 0;
    /// Device heap; 0 when full. The returned memory must be within reach().
    virtual std::uint64_t heap_allocate(std::uint64_t size_bytes) = 0;
    virtual void heap_free(std::uint64_t address) = 0;
    /// What kernels may touch. Nothing else is read or written for them.
    [[nodiscard]] virtual const Reach& reach() const = 0;
    /// May be null: then every texture and surface handle is unknown.
    [[nodiscard]] virtual const TextureUnit* textures() const { return nullptr; }
    /// cudaGraphSetConditional. An unknown condition is nobody's.
    virtual void set_condition(std::uint64_t, std::uint32_t) {}
};

struct LaunchConfig {
    Dim3 grid;
    Dim3 block;
    Dim3 cluster{1, 1, 1};
    std::uint32_t dynamic_shared_bytes = 0;
    std::span<const std::byte> params;          ///< Packed by KernelInfo offsets; copied.
    bool cooperative = false;                   ///< All blocks live at once; grid sync works.
    std::uint64_t grid_id = 0;                  ///< %gridid.
    std::uint32_t stack_bytes_per_thread = 0;   ///< Limit for alloca and recursion; 0: 64 KiB.
    const std::atomic<bool>* cancel = nullptr;  ///< Polled; true ends the launch (kCancelled).
};

/// Values are the CUresult the driver reports.
enum class LaunchError : int {
    kNone = 0,
    kInvalidValue = 1,  ///< Bad configuration; nothing ran.
    kIllegalAddress = 700,
    kOutOfResources = 701,
    kAssert = 710,
    kHardwareStackError = 714,
    kIllegalInstruction = 715,
    kMisalignedAddress = 716,
    kInvalidAddressSpace = 717,
    kInvalidPc = 718,
    kTrap = 719,
    kCooperativeTooLarge = 720,
    kCancelled = -1,
};

struct LaunchStatus {
    LaunchError error = LaunchError::kNone;
    std::string text;  ///< Empty without an error; else names kernel, block, thread, PTX line.
    std::uint64_t thread_instructions = 0;
    std::uint64_t warp_instructions = 0;
    [[nodiscard]] bool ok() const { return error == LaunchError::kNone; }
};

/// Runs one kernel to its end. See the header comment for threads.
[[nodiscard]] LaunchStatus run(const Program& program, std::uint32_t kernel_index,
                               const LaunchConfig& config, const DeviceProfile& profile,
                               Services& services);

/// Blocks of this shape that fit on one SM of the profile (what cuOccupancy... reports).
[[nodiscard]] std::uint32_t max_blocks_per_sm(const KernelInfo& kernel,
                                              std::uint32_t threads_per_block,
                                              std::uint32_t dynamic_shared_bytes,
                                              const DeviceProfile& profile);

/// Threads that work on a launch, its caller included (GANTRY_SOFT_THREADS or the cores).
[[nodiscard]] unsigned engine_thread_count();

}  // namespace gantry::softgpu
