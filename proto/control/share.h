// What a worker says to the share broker of its host: fixed records over a SOCK_SEQPACKET socket.
//
// A guest process that gives memory to another one of its VM (cuIpc*, shareable handles) gets a
// token for it; its worker offers the memory's descriptor to the broker under that token, and the
// other process's worker opens it there (proto/decisions/0006-memory-between-processes.md).
//
// kOffer and kOpen and kCount are answered, in order; kWithdraw and kClose are not. Descriptors:
// one beside kOffer, one beside the answer to kOpen. Both sides treat the other as hostile.
#pragma once

#include <cstdint>

namespace gantry::control {

struct ShareToken {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    friend auto operator<=>(const ShareToken&, const ShareToken&) = default;
};

enum class ShareOp : std::uint32_t {
    kInvalid = 0,
    kOffer = 1,     ///< A descriptor of `bytes`: the answer names its token.
    kWithdraw = 2,  ///< The token opens nothing more; who has opened it keeps it.
    kOpen = 3,      ///< Answered with a descriptor.
    kClose = 4,     ///< One kOpen less.
    kCount = 5,     ///< How often what this worker offers is open: in `bytes` of the answer.
};

enum class ShareStatus : std::uint32_t {
    kInvalid = 0,
    kDone = 1,
    kUnknown = 2,  ///< No such token, for this worker.
    kOwn = 3,      ///< It is the asking worker's own.
    kFull = 4,
    kMalformed = 5,
};

enum class ShareKind : std::uint32_t {
    kInvalid = 0,
    kDeviceMemory = 1,  ///< As cuMemExportToShareableHandle gives it.
    kEventPage = 2,     ///< Memory of the host.
};

struct ShareRequest {
    ShareOp op = ShareOp::kInvalid;
    ShareKind kind = ShareKind::kInvalid;
    ShareToken token;
    std::uint64_t bytes = 0;
};

struct ShareReply {
    ShareStatus status = ShareStatus::kInvalid;
    ShareKind kind = ShareKind::kInvalid;
    ShareToken token;
    std::uint64_t bytes = 0;
};

static_assert(sizeof(ShareRequest) == 32 && sizeof(ShareReply) == 32);

}  // namespace gantry::control
