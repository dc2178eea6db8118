// DriverLibrary: a CUDA driver, loaded by path and initialised. The only door to a driver's code.
//
// Invariant: after load() every entry point of kRequired is present, the driver is new enough and
// cuInit has succeeded. Optional entry points may be null; their users check.
// Owner: the worker's process, for its whole life (a CUDA driver cannot be unloaded safely).
// Threads: load() once; the table is immutable afterwards. Failure: reasons `driver.absent`,
// `driver.too_old`, `driver.symbol_missing`, `driver.init`, `driver.device`.
#pragma once

#include <memory>
#include <string>

#include "proto/base/result.h"
#include "proto/cuda/abi.h"
#include "proto/cuda/gen/driver_api_table.h"

namespace gantry::driver {

/// What cuDriverGetVersion says from release 535 on: the oldest driver with all that we need.
inline constexpr int kDriverVersionMin = 12020;

class DriverLibrary {
public:
    /// `path`: file or soname; empty: libcuda.so.1 by the dynamic linker's search.
    static Result<std::unique_ptr<DriverLibrary>> load(const std::string& path);

    [[nodiscard]] const DriverApi& api() const { return api_; }
    [[nodiscard]] int version() const { return version_; }
    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] int device_count() const { return device_count_; }
    /// Export table by its 16-byte id, or null when the driver does not serve it.
    [[nodiscard]] const void* export_table(const unsigned char id[16]) const;

private:
    DriverLibrary() = default;
    Result<void> check_symbols() const;
    Result<void> initialise();

    DriverApi api_;
    std::string path_;
    int version_ = 0;
    int device_count_ = 0;
};

/// "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory", as the driver puts it.
[[nodiscard]] std::string describe(const DriverApi& api, CUresult result);

/// An Error when `result` is none; `what` names the call and its object.
[[nodiscard]] Error to_error(const DriverApi& api, CUresult result, const char* reason,
                             const std::string& what);

/// Results that poison a context: every later call of it gives the same one.
[[nodiscard]] bool is_sticky(CUresult result);

}  // namespace gantry::driver
