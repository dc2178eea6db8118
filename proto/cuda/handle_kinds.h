// Kinds of guest-visible handle. The kind is part of the wire contract and of the snapshot, so
// numbers are append-only; 0 is never valid on the wire.
#pragma once

#include <cstdint>

namespace gantry::cuda {

enum class HandleKind : std::uint8_t {
    kInvalid = 0,
    kContext = 1,
    kModule = 2,
    kLibrary = 3,
    kKernel = 4,
    // A CUfunction, or a CUkernel that the caller passes where the ABI says CUfunction.
    kFunction = 5,
    kStream = 6,
    kEvent = 7,
    kMemPool = 8,
    kArray = 9,
    kMipmappedArray = 10,
    kTexObject = 11,
    kSurfObject = 12,
    kTexRef = 13,
    kSurfRef = 14,
    kGraph = 15,
    kGraphNode = 16,
    kGraphExec = 17,
    kLinkState = 18,
    kVmmAllocation = 19,
    kUserObject = 20,
    kExternalMemory = 21,
    kExternalSemaphore = 22,
    kGreenContext = 23,
    kResourceDesc = 24,
    kConditional = 25,
    kGraphDeviceNode = 26,
    kAsyncCallback = 27,
    kLogsCallback = 28,
    kGraphicsResource = 29,
    kEglConnection = 30,
    kCount = 31,
};

}  // namespace gantry::cuda
