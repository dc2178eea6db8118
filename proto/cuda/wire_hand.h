// Payloads of the CUDA calls whose marshalling is written by hand on both sides: those that carry
// names, images, packed kernel arguments, callbacks, or structures with handles inside. Every other
// forwarded call has a generated structure (gen/wire_structs.h). Where a call has both, this file
// holds.
//
// WHAT. One structure per payload; the comment names the cuda::Op that carries it, then what trails
// it, then the answer. "post" has no answer, "call" has one.
// HANDLES. A handle is what the guest holds (handle_bits.h): the worker looks it up by its whole
// value. New handles are named by the guest in the call that makes the object.
// STREAMS. 0 and 1 are the legacy stream, 2 the calling lane's per-thread stream; other values are
// stream handles. Calls of the per-thread API arrive with 0 already turned into 2.
// ANSWERS. The fixed reply structure, padded to 8 bytes, then the reply's trailing bytes. When both
// fit in ReplyPage::payload they are all there; else the structure is inline and the trailing bytes
// are in the bulk extent that the command's header offers (CommandHeader::bulk_page, bulk_pages).
// If they fit in neither, the reply's `trailing_bytes` tells how many there are and nothing trails.
// HOSTILE. All of it comes from the guest: sizes, counts and offsets are checked before use.
#pragma once

#include <cstdint>

namespace gantry::cuda::wire_hand {

// ---- contexts -----------------------------------------------------------------------------------

/// cuDevicePrimaryCtxRetain: call -> status. Sent at the first retain only (the guest counts).
/// cuCtxCreate_v2 (all versions come as it): call -> status. The guest names the handle.
/// cuDevicePrimaryCtxSetFlags_v2: call -> status.
struct ContextCall {
    std::uint64_t context;
    std::uint32_t device;
    std::uint32_t flags;
};

/// cuDevicePrimaryCtxRelease_v2 (the last one), cuDevicePrimaryCtxReset_v2, cuCtxDestroy_v2: call
/// -> status.
struct ContextEndCall {
    std::uint64_t context;
    std::uint32_t device;
    std::uint32_t reserved;
};

// ---- images, modules, libraries -----------------------------------------------------------------

enum class ImageKind : std::uint32_t {
    kInvalid = 0,
    kFatbin = 1,  ///< Starts with the 16-byte fatbin header.
    kElf = 2,
    kPtx = 3,  ///< Text; a NUL is the last staged byte.
};

/// A part of a staged image. Part 0 is what the driver loads; for a prelinked (-rdc) wrapper the
/// parts after it are its relocatable inputs, for a backend that links PTX itself.
struct ImagePart {
    std::uint64_t offset;  ///< In the staged image, 8-aligned.
    std::uint64_t bytes;
    ImageKind kind;
    std::uint32_t reserved;
};

inline constexpr std::uint32_t kMaxImageParts = 4096;

/// A JIT or library option without a buffer (buffers and outputs stay in the guest).
struct ImageOption {
    std::uint32_t option;  ///< CUjit_option, or CUlibraryOption in LoadCall's second list.
    std::uint32_t reserved;
    std::uint64_t value;
};

/// cuModuleLoadDataEx (all cuModuleLoad* forms), cuLibraryLoadData: call -> LoadReply.
/// Trailing: ImagePart[part_count], ImageOption[jit_option_count + library_option_count].
struct LoadCall {
    std::uint64_t handle;    ///< New module or library.
    std::uint64_t image_id;  ///< Staged by kStageImage before; the load consumes it.
    std::uint64_t image_bytes;
    std::uint32_t part_count;
    std::uint32_t jit_option_count;
    std::uint32_t library_option_count;
    std::uint32_t info_log_bytes;  ///< The application's buffer sizes, 0 for none.
    std::uint32_t error_log_bytes;
    std::uint32_t reserved;
    std::uint64_t managed_address;  ///< Extent of the pinned pool for managed variables, or 0.
    std::uint64_t managed_bytes;
};

/// What the driver wrote for a JIT's log options: bytes of both logs in the trailing bytes, what it
/// put into the size options (whose meaning is the driver's), and which logs it wrote at all.
struct JitLogs {
    std::uint32_t info_log_bytes;
    std::uint32_t error_log_bytes;
    std::uint32_t info_size;
    std::uint32_t error_size;
    std::uint32_t written;  ///< kInfoLogWritten | kErrorLogWritten
    float wall_time_ms;
    std::uint32_t reserved;
};

inline constexpr std::uint32_t kInfoLogWritten = 1;
inline constexpr std::uint32_t kErrorLogWritten = 2;

/// Trailing: the info log, then the error log (no NULs).
///
/// Managed variables have to lie where the guest can touch them. When an image has some and the
/// call's extent does not hold them, the load fails with CUDA_ERROR_ILLEGAL_STATE and
/// managed_bytes tells how much is needed; the guest stages the image again and repeats the call
/// with an extent. A driver that cannot place variables leaves managed_bytes 0.
struct LoadReply {
    std::uint32_t trailing_bytes;
    JitLogs logs;
    std::uint64_t managed_bytes;
};

/// cuModuleGetFunction, cuLibraryGetKernel: call -> KernelReply. Trailing: name without NUL.
/// cuModuleGetGlobal_v2, cuLibraryGetGlobal, cuLibraryGetManaged: call -> GlobalReply.
struct NameCall {
    std::uint64_t owner;       ///< Module or library.
    std::uint64_t new_handle;  ///< Kernel or function to be made; 0 for globals.
};

inline constexpr std::uint32_t kFunctionAttributeCount = 16;  ///< CUfunction_attribute 0..15.

struct KernelParam {
    std::uint32_t offset;
    std::uint32_t bytes;
};

/// Trailing: KernelParam[param_count].
struct KernelReply {
    std::uint32_t trailing_bytes;
    std::uint32_t param_count;
    std::uint32_t param_bytes;   ///< Of the packed argument buffer: end of the last parameter.
    std::uint32_t layout_known;  ///< 0: neither driver nor image gave the layout.
    std::int32_t attributes[kFunctionAttributeCount];
    std::uint32_t attribute_status[kFunctionAttributeCount];
};

struct GlobalReply {
    std::uint64_t address;
    std::uint64_t bytes;
};

/// cuModuleEnumerateFunctions, cuLibraryEnumerateKernels: call -> NamesReply.
struct NamesCall {
    std::uint64_t owner;
    std::uint32_t first;  ///< Skip that many names.
    std::uint32_t reserved;
};

/// Trailing: names[count], each ended by a NUL; as many as fit, the guest asks again from there.
struct NamesReply {
    std::uint32_t trailing_bytes;
    std::uint32_t count;  ///< Names in this answer.
    std::uint32_t total;  ///< Names there are.
    std::uint32_t reserved;
};

// ---- JIT linking --------------------------------------------------------------------------------

/// cuLinkCreate_v2: call -> status. Trailing: ImageOption[option_count].
struct LinkCreateCall {
    std::uint64_t link;
    std::uint32_t option_count;
    std::uint32_t info_log_bytes;
    std::uint32_t error_log_bytes;
    std::uint32_t reserved;
};

/// cuLinkAddData_v2 (files too: the guest reads them): call -> LinkReply.
/// Trailing: name_bytes of name, padded to 8, then ImageOption[option_count].
struct LinkAddCall {
    std::uint64_t link;
    std::uint64_t image_id;  ///< Staged before.
    std::uint64_t image_bytes;
    std::uint32_t input_type;  ///< CUjitInputType.
    std::uint32_t name_bytes;
    std::uint32_t option_count;
    std::uint32_t reserved;
};

/// cuLinkComplete: call -> LinkReply with the cubin's bytes from `offset` in the bulk extent; the
/// guest asks until it has cubin_bytes. With kLinkLogs for an offset nothing is linked: the logs.
struct LinkCompleteCall {
    std::uint64_t link;
    std::uint64_t offset;
};

inline constexpr std::uint64_t kLinkLogs = ~std::uint64_t{0};

/// Trailing of cuLinkAddData_v2 and of cuLinkComplete with kLinkLogs: info log, then error log; of
/// any other cuLinkComplete: the cubin's bytes (then no logs).
struct LinkReply {
    std::uint32_t trailing_bytes;
    JitLogs logs;
    std::uint64_t cubin_bytes;
};

// ---- memory and events between processes --------------------------------------------------------

/// What a CUipcMemHandle or a CUipcEventHandle holds. The guest
/// may pass it on as it likes: whoever opens it has the token looked up among what processes of its
/// own VM offer.
struct ShareHandle {
    static constexpr std::uint32_t kMagic = 0x48534e47;  // "GNSH"
    std::uint32_t magic;
    std::uint32_t kind;  ///< control::ShareKind.
    std::uint64_t token_low;
    std::uint64_t token_high;
    std::uint64_t offset;  ///< Of the allocation in what is offered.
    std::uint64_t bytes;   ///< Of the allocation. Both 0 for an event.
    std::uint64_t reserved[3];
};
static_assert(sizeof(ShareHandle) == 64);

/// cuIpcCloseMemHandle: call -> IpcCloseReply.
struct IpcAddressCall {
    std::uint64_t address;
};

struct IpcCloseReply {
    std::uint64_t is_last;  ///< It was opened no more often than it is closed now.
};

/// cuIpcOpenEventHandle: call -> status.
struct IpcOpenEventCall {
    std::uint64_t event;  ///< The new event's handle.
    ShareHandle handle;
};

// ---- launches -----------------------------------------------------------------------------------

/// cuLaunchKernel, cuLaunchCooperativeKernel: post. Trailing: the packed arguments, laid out as
/// KernelReply told (or as the application's `extra` buffer was).
struct LaunchCall {
    std::uint64_t kernel;  ///< Kernel or function handle.
    std::uint64_t stream;
    std::uint32_t grid[3];
    std::uint32_t block[3];
    std::uint32_t shared_bytes;
    std::uint32_t param_bytes;
};
static_assert(sizeof(LaunchCall) == 48);

/// As CUlaunchAttribute: id, then the 64-byte value. Events inside are guest handles.
struct LaunchAttribute {
    std::uint32_t id;
    std::uint32_t reserved;
    std::uint64_t value[8];
};
static_assert(sizeof(LaunchAttribute) == 72);

inline constexpr std::uint32_t kMaxLaunchAttributes = 32;

/// cuLaunchKernelEx: post. Trailing: LaunchAttribute[attribute_count], then the packed arguments.
struct LaunchExCall {
    LaunchCall launch;
    std::uint32_t attribute_count;
    std::uint32_t reserved;
};

/// cuLaunchHostFunc: post (kHostFunction). cuStreamAddCallback: post (kStreamCallback).
struct HostFunctionCall {
    std::uint64_t stream;
    std::uint64_t function;
    std::uint64_t user_data;
    std::uint32_t flags;
    std::uint32_t kind;  ///< wire::CallbackKind.
};

/// cuOccupancyMaxPotentialClusterSize, cuOccupancyMaxActiveClusters: call -> OccupancyReply.
/// Trailing as LaunchExCall without arguments.
struct OccupancyReply {
    std::int32_t value;
    std::uint32_t reserved;
};

// ---- copies -------------------------------------------------------------------------------------

/// Linear copies use the generated structure of cuMemcpyAsync, posted; both addresses are device or
/// pinned-pool addresses. A copy whose native form blocks is followed by cuStreamSynchronize.
/// Pageable memory never reaches these: it travels by kWriteDevice and kReadDevice, or through a
/// pinned extent that the guest owns for the copy.

/// One end of a 2D or 3D copy.
struct CopyEnd {
    std::uint64_t x_bytes;
    std::uint64_t y;
    std::uint64_t z;
    std::uint64_t lod;
    std::uint64_t address;  ///< Device or pinned-pool address; 0 for an array.
    std::uint64_t array;    ///< Array handle, or 0.
    std::uint64_t pitch;
    std::uint64_t height;
};

/// cuMemcpy3DAsync_v2: post. All 2D, 3D, array and peer forms end here.
struct Copy3DCall {
    CopyEnd source;
    CopyEnd target;
    std::uint64_t width_bytes;
    std::uint64_t height;
    std::uint64_t depth;
    std::uint64_t stream;
};

// ---- graphs -------------------------------------------------------------------------------------

/// cuGraphAddKernelNode_v2, cuGraphKernelNodeSetParams_v2, cuGraphExecKernelNodeSetParams_v2: call
/// -> status. Trailing: u64 dependencies[dependency_count], then the packed arguments.
struct GraphKernelNodeCall {
    std::uint64_t graph;  ///< Graph, or graph exec for the exec form, or 0.
    std::uint64_t node;   ///< New node, or the one to change.
    std::uint32_t dependency_count;
    std::uint32_t reserved;
    LaunchCall launch;  ///< stream is 0.
};

/// Which ends of a graph's copy lie in the guest's pageable memory.
enum class PageableEnds : std::uint32_t { kNone = 0, kSource = 1, kTarget = 2, kBoth = 3 };

/// cuGraphAddMemcpyNode and its setters: call -> status. Trailing: u64 dependencies[].
///
/// A pageable end is a page-locked extent of the guest's in `copy`; whenever the graph runs, the
/// guest's host function `function(user_data)` moves the bytes between the extent and the pages:
/// before the copy (kSource), after it (kTarget), or instead of it (kBoth).
/// With `copy.stream`, which captures: graph and node are 0, and the node joins that capture.
struct GraphCopyNodeCall {
    std::uint64_t graph;
    std::uint64_t node;
    std::uint32_t dependency_count;
    PageableEnds pageable;
    std::uint64_t context;
    Copy3DCall copy;         ///< stream is 0 but for a capture.
    std::uint64_t function;  ///< As user_data: 0 with kNone.
    std::uint64_t user_data;
};

/// cuGraphAddHostNode and its setters: call -> status. Trailing: u64 dependencies[].
struct GraphHostNodeCall {
    std::uint64_t graph;
    std::uint64_t node;
    std::uint32_t dependency_count;
    std::uint32_t reserved;
    std::uint64_t function;
    std::uint64_t user_data;
};

/// cuGraphAddNode_v2, of a conditional node; other types go as the calls of their own. Call ->
/// status. Trailing: u64 dependencies[], then u64 bodies[size]: new handles of the node's graphs.
struct GraphConditionalNodeCall {
    std::uint64_t graph;
    std::uint64_t node;
    std::uint32_t dependency_count;
    std::uint32_t type;       ///< CUgraphConditionalNodeType
    std::uint64_t condition;  ///< The driver's value, as the guest has it.
    std::uint64_t context;    ///< 0: none was named.
    std::uint32_t size;
    std::uint32_t reserved;
};

/// cuGraphKernelNodeGetParams_v2: call -> GraphKernelNodeReply. cuGraphMemcpyNodeGetParams: call ->
/// GraphCopyNodeReply. cuGraphHostNodeGetParams: call -> GraphHostNodeReply. Of nodes that the
/// guest did not add itself, such as a capture's.
struct GraphNodeCall {
    std::uint64_t node;
};

/// Trailing: the packed arguments.
struct GraphKernelNodeReply {
    std::uint32_t trailing_bytes;
    std::uint32_t reserved;
    std::uint64_t graph;  ///< The graph that the node ends with: of a child graph's, the outermost.
    std::uint64_t context;
    LaunchCall launch;  ///< stream is 0.
};

struct GraphCopyNodeReply {
    Copy3DCall copy;          ///< stream is 0.
    std::uint64_t user_data;  ///< As in GraphCopyNodeCall: then `copy` says nothing. Else 0.
};

struct GraphHostNodeReply {
    std::uint64_t function;
    std::uint64_t user_data;
};

/// cuGraphGetNodes, cuGraphGetRootNodes, cuGraphGetEdges_v2, cuGraphNodeGetDependencies_v2,
/// cuGraphNodeGetDependentNodes_v2: call -> GraphListReply. A node that a capture made has no guest
/// handle yet: the worker names it by one of new_handle_count handles, each kHandleStep above the
/// one before (handle_bits.h).
struct GraphListCall {
    std::uint64_t graph;  ///< Or node.
    std::uint64_t first_new_handle;
    std::uint64_t new_handle_count;
    std::uint64_t capacity;
    std::uint32_t wants_edge_data;  ///< Without, a driver refuses where some is not zero.
    std::uint32_t reserved;
};

/// Trailing: u64 nodes[count] (edges: from[count], then to[count]), then CUgraphEdgeData[count] if
/// wanted.
struct GraphListReply {
    std::uint32_t trailing_bytes;
    std::uint32_t reserved;
    std::uint64_t count;
    std::uint64_t new_handles_used;
};

}  // namespace gantry::cuda::wire_hand
