// The ABI's facts as the installed toolkit has them.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaEGL.h>
#include <cudaGL.h>
#include <cudaProfiler.h>

#include "tests/conformance/cuda_abi/facts.h"

namespace {

const AbiFact kFacts[] = {
#include "abi_facts.inc"
};

}  // namespace

AbiFacts facts_toolkit() { return {kFacts, sizeof kFacts / sizeof kFacts[0]}; }
