#include "host-daemon/execution/objects/op_traits.h"

#include "proto/cuda/gen/op_flags.h"
#include "proto/cuda/gen/op_table.h"
#include "proto/wire/control_ops.h"

namespace gantry::worker {
namespace {

std::uint8_t traits_of(cuda::Op op) {
    const std::uint32_t flags = cuda::op_flags(op);
    unsigned traits = 0;
    if ((flags & (cuda::kOpMayBlock | cuda::kOpSlow)) != 0) {
        traits |= kMayBlock | kTellsOfCompletion;
    }
    if ((flags & cuda::kOpEndsMemory) != 0) {
        traits |= kEndsMemory;
    }
    if ((flags & cuda::kOpEndsCode) != 0) {
        traits |= kEndsCode;
    }
    if ((flags & (cuda::kOpQueries | cuda::kOpTellsTime)) != 0) {
        traits |= kTellsOfCompletion;
    }
    if ((flags & cuda::kOpQueries) != 0 ||
        cuda::op_info(op).effect == cuda::OpEffect::kSynchronises) {
        traits |= kTellsOfEarlierErrors;
    }
    return static_cast<std::uint8_t>(traits);
}

std::array<std::uint8_t, cuda::kOpEnd> make_traits() {
    std::array<std::uint8_t, cuda::kOpEnd> traits{};
    for (std::uint16_t number = cuda::kFirstOp; number < cuda::kOpEnd; ++number) {
        traits[number] = traits_of(static_cast<cuda::Op>(number));
    }
    traits[static_cast<std::uint16_t>(wire::ControlOp::kReadDevice)] =
        kMayBlock | kTellsOfCompletion | kTellsOfEarlierErrors;
    return traits;
}

}  // namespace

const std::array<std::uint8_t, cuda::kOpEnd> kOpTraits = make_traits();

}  // namespace gantry::worker
