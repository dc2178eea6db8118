// The soft GPU's settings in the environment: GANTRY_SOFT_PROFILE, _MEMORY, _THREADS, _ISA and _LOG
// (README.md says what each does). This holds their names and values; who uses one reads it.
#pragma once

#include "proto/base/result.h"

namespace gantry::softgpu {

/// Refuses (settings.value) an environment, NULL-ended as `environ`, with a GANTRY_ name that no
/// part of Gantry knows, or with a value of ours that is none: a misspelt setting must not pass for
/// one.
/// GANTRY_SOFT_PROFILE and GANTRY_SOFT_MEMORY are checked where profiles are loaded.
Result<void> check_settings(const char* const* environment);

}  // namespace gantry::softgpu
