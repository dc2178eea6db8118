#include "host-daemon/execution/objects/op_traits.h"

#include "proto/cuda/gen/op_flags.h"
#include "proto/cuda/gen/op_table.h"
#include "proto/wire/control_ops.h"

namespace gantry::worker {
namespace {

bool takes_long(cuda::Op op) {
    switch (op) {
        case cuda::Op::cuModuleLoadDataEx:
        case cuda::Op::cuLibraryLoadData:
        case cuda::Op::cuModuleGetFunction:
        case cuda::Op::cuLibraryGetKernel:
        case cuda::Op::cuLibraryGetModule:
        case cuda::Op::cuLibraryGetGlobal:
        case cuda::Op::cuLibraryGetManaged:
        case cuda::Op::cuLinkAddData_v2:
        case cuda::Op::cuLinkComplete:
        case cuda::Op::cuMemFreeHost:
        case cuda::Op::cuMemHostUnregister:
        case cuda::Op::cuDevicePrimaryCtxRelease_v2:
        case cuda::Op::cuDevicePrimaryCtxReset_v2:
        case cuda::Op::cuCtxDestroy_v2:
        case cuda::Op::cuMemcpy:
        case cuda::Op::cuMemcpy3D_v2: return true;
        default: return false;
    }
}

bool ends_memory(cuda::Op op) {
    return op == cuda::Op::cuModuleUnload || op == cuda::Op::cuLibraryUnload ||
           op == cuda::Op::cuArrayDestroy || op == cuda::Op::cuMipmappedArrayDestroy;
}

bool is_query(cuda::Op op) { return op == cuda::Op::cuEventQuery || op == cuda::Op::cuStreamQuery; }

bool tells_time(cuda::Op op) {
    return op == cuda::Op::cuEventElapsedTime || op == cuda::Op::cuEventElapsedTime_v2;
}

std::uint8_t traits_of(cuda::Op op) {
    unsigned traits = 0;
    if ((cuda::op_flags(op) & cuda::kOpMayBlock) != 0 || takes_long(op)) {
        traits |= kMayBlock | kTellsOfCompletion;
    }
    if (ends_memory(op)) {
        traits |= kEndsMemory;
    }
    if (is_query(op) || tells_time(op)) {
        traits |= kTellsOfCompletion;
    }
    if (is_query(op) || cuda::op_info(op).effect == cuda::OpEffect::kSynchronises) {
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
