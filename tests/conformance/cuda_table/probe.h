// What the probe library saw of the last call.
#pragma once

#include <cstddef>

#include "proto/cuda/abi.h"

// Values of *version that make the probe's cuDriverGetVersion do something else.
inline constexpr int kProbeFetch = -1;
inline constexpr int kProbeRefuse = -2;
inline constexpr int kProbeAllow = -3;
inline constexpr int kProbeOblige = -4;  // From now on every call succeeds and does nothing.

struct Probe {
    unsigned entered_op = 0;
    unsigned refused_op = 0;
    CUstream stream = nullptr;
    CUstream other_stream = nullptr;
    CUdeviceptr address = 0;
    unsigned value = 0;
    std::size_t count = 0;
};

/// The layout that cuDriverGetVersion(kProbeFetch) fills.
struct ProbeQuery {
    int version = kProbeFetch;
    int reserved = 0;
    Probe* probe = nullptr;
};
