"""What the generator knows of ABI types: how a C type crosses the wire.

Structures that cross as they are must stand in STRUCTS with size and alignment; the generated code
asserts both against proto/cuda/abi.h, so a wrong number here does not compile.
"""

SCALARS = {
    "int": "i32", "unsigned int": "u32", "size_t": "u64", "unsigned long long": "u64",
    "unsigned short": "u16", "unsigned char": "u8", "float": "f32", "cuuint32_t": "u32",
    "cuuint64_t": "u64", "CUdevice": "i32", "CUdeviceptr": "u64", "CUdeviceptr_v1": "u32",
    "CUlogIterator": "u32", "CUtexObject_v1": "u64", "CUsurfObject_v1": "u64",
    "CUgraphConditionalHandle": "u64",
    "CUmemGenericAllocationHandle": "u64", "CUmemGenericAllocationHandle_v1": "u64",
}

WIRE = {  # wire type: (C++ type, size)
    "u8": ("std::uint8_t", 1), "u16": ("std::uint16_t", 2), "u32": ("std::uint32_t", 4),
    "i32": ("std::int32_t", 4), "u64": ("std::uint64_t", 8), "f32": ("float", 4),
}

STRUCTS = {
    "CUuuid": (16, 1),
    "CUDA_ARRAY_DESCRIPTOR_v2": (24, 8),
    "CUDA_ARRAY3D_DESCRIPTOR_v2": (40, 8),
    "CUDA_ARRAY_SPARSE_PROPERTIES_v1": (48, 8),
    "CUDA_ARRAY_MEMORY_REQUIREMENTS_v1": (32, 8),
    "CUDA_MEMCPY2D_v2": (128, 8),
    "CUDA_MEMCPY3D_v2": (200, 8),
    "CUDA_MEMCPY3D": (200, 8),
    "CUDA_MEMCPY3D_PEER_v1": (200, 8),
    "CUDA_RESOURCE_DESC_v1": (144, 8),
    "CUDA_TEXTURE_DESC_v1": (104, 4),
    "CUDA_RESOURCE_VIEW_DESC_v1": (112, 8),
    "CUmemLocation": (8, 4),
    "CUmemLocation_v1": (8, 4),
    "CUmemAllocationProp_v1": (32, 8),
    "CUmemAccessDesc_v1": (12, 4),
    "CUmemPoolProps_v1": (88, 8),
    "CUexecAffinityParam": (8, 4),
    "CUdevResource": (144, 4),
    "CUstreamAttrValue_v1": (64, 8),
    "CUkernelNodeAttrValue_v1": (64, 8),
    "CUDA_MEMSET_NODE_PARAMS_v1": (40, 8),
    "CUDA_HOST_NODE_PARAMS_v1": (16, 8),
    "CUgraphEdgeData": (8, 1),
    "CUstreamBatchMemOpParams": (48, 8),
    "CUgraphNodeParams": (256, 8),
    "CUipcMemHandle_v1": (64, 1),
    "CUipcEventHandle_v1": (64, 1),
    # Aligned to 128 in the ABI; crosses as 128 bytes so that records need no such alignment.
    "CUtensorMap": (128, 8),
}

HANDLE_TYPES = (
    "CUcontext", "CUmodule", "CUlibrary", "CUkernel", "CUfunction", "CUstream", "CUevent",
    "CUmemoryPool", "CUarray", "CUmipmappedArray", "CUtexref", "CUsurfref", "CUgraph",
    "CUgraphNode", "CUgraphExec", "CUlinkState", "CUuserObject", "CUexternalMemory",
    "CUexternalSemaphore", "CUgreenCtx", "CUdevResourceDesc", "CUasyncCallbackHandle",
    "CUlogsCallbackHandle", "CUgraphicsResource", "CUeglStreamConnection")


class UnknownType(Exception):
    """A type that cannot cross the wire as it is."""


def is_struct(ctype):
    return ctype in STRUCTS


def is_enum(ctype):
    return (ctype.startswith("CU") and ctype not in SCALARS and ctype not in STRUCTS
            and ctype not in HANDLE_TYPES)


def wire_type(ctype):
    """Wire type name of a scalar or enumeration."""
    if ctype in SCALARS:
        return SCALARS[ctype]
    if ctype in HANDLE_TYPES:
        return "u64"
    if is_enum(ctype):
        return "u32"
    raise UnknownType(ctype)


def element_bytes(ctype):
    if ctype in STRUCTS:
        return STRUCTS[ctype][0]
    return WIRE[wire_type(ctype)][1]
