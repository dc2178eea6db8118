// The ABI's facts as proto/cuda/abi.h has them.
#include "proto/cuda/abi.h"

#include "tests/conformance/cuda_abi/facts.h"

namespace {

const AbiFact kFacts[] = {
#include "abi_facts.inc"
};

}  // namespace

AbiFacts facts_ours() { return {kFacts, sizeof kFacts / sizeof kFacts[0]}; }
