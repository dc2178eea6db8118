// What a worker says to the share broker of its host: fixed records over a SOCK_SEQPACKET socket.
//
// A guest process that gives memory or an event to another one of its VM (cuIpc*) gets a token for
// it; its worker offers the memory's descriptor, or the driver's own handle of the event, to the
// broker under that token, and the other process's worker opens it there
// (proto/decisions/0006-memory-between-processes.md, 0007-events-between-processes.md).
//
// kOffer and kOpen and kCount are answered, in order; the others are not. Descriptors:
// of memory one beside kOffer, one beside the answer to kOpen. Both sides treat the other as
// hostile.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace gantry::control {

struct ShareToken {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    friend auto operator<=>(const ShareToken&, const ShareToken&) = default;
};

enum class ShareOp : std::uint32_t {
    kInvalid = 0,
    kOffer = 1,     ///< Of `kind`: the answer names its token.
    kWithdraw = 2,  ///< The token opens nothing more; who has opened it keeps it.
    kOpen = 3,      ///< Answered with what was offered, where it is of `kind`.
    kClose = 4,     ///< One kOpen less.
    kCount = 5,     ///< How often what this worker offers of `kind` is open, or, once each, was
                    ///< offered just now and nobody has opened it yet: in `bytes`.
    kAgain = 6,     ///< The token is given to somebody once more: offered just now, for kCount.
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
    kDeviceMemory = 1,  ///< A descriptor, as cuMemExportToShareableHandle gives it, of `bytes`.
    kEvent = 2,         ///< A `word`, as cuIpcGetEventHandle gives it.
};

using ShareWord = std::array<std::byte, 64>;

struct ShareRequest {
    ShareOp op = ShareOp::kInvalid;
    ShareKind kind = ShareKind::kInvalid;
    ShareToken token;
    std::uint64_t bytes = 0;
    ShareWord word{};
};

struct ShareReply {
    ShareStatus status = ShareStatus::kInvalid;
    ShareKind kind = ShareKind::kInvalid;
    ShareToken token;
    std::uint64_t bytes = 0;
    ShareWord word{};
};

static_assert(sizeof(ShareRequest) == 96 && sizeof(ShareReply) == 96);

}  // namespace gantry::control
