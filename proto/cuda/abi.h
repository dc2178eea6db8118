// The CUDA driver ABI as of CUDA 13.0: result codes, handles, enumerations, structures, constants.
//
// These are facts of a binary interface, written down so that Gantry builds where NVIDIA's toolkit
// is absent. Names are the ABI's own, in the global namespace; values and layouts are held against
// a toolkit's cuda.h by tests/conformance where one is installed. Never include this header and
// NVIDIA's cuda.h in one translation unit. Usable from C11 and C++, on 64-bit little-endian hosts.
//
// The functions are not declared here: proto/cuda/driver_api/ lists them and the generator writes
// their declarations.
#pragma once

#ifdef CUDA_VERSION
#error "proto/cuda/abi.h and NVIDIA's cuda.h must not meet in one translation unit"
#endif

#include "proto/cuda/abi_constants.h"
#include "proto/cuda/abi_enums_device.h"
#include "proto/cuda/abi_enums_execution.h"
#include "proto/cuda/abi_enums_memory.h"
#include "proto/cuda/abi_graphics.h"
#include "proto/cuda/abi_handles.h"
#include "proto/cuda/abi_result.h"
#include "proto/cuda/abi_structs_execution.h"
#include "proto/cuda/abi_structs_memory.h"
