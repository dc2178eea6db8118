// Every row's signature against the toolkit's PFN_ typedefs: it holds if this file compiles.
#define __CUDA_API_VERSION_INTERNAL
#include <cudaEGLTypedefs.h>
#include <cudaGLTypedefs.h>
#include <cudaProfilerTypedefs.h>
#include <cudaTypedefs.h>
#include <cudaVDPAUTypedefs.h>

#include <type_traits>

#include "signatures.inc"
