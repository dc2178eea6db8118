// In C++ the ABI's enumerations have a fixed type: callers may pass any 32-bit value, and a value
// without a name must not be undefined behaviour. Part of abi.h; include that.
#pragma once

#ifdef __cplusplus
#define GANTRY_ABI_ENUM : int
#else
#define GANTRY_ABI_ENUM
#endif
