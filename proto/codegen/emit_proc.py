"""proc_table.h/.cc: the (name, version, flags) -> entry point lookup behind cuGetProcAddress."""

from emit_common import end_namespace, header, source


def proc_table_h():
    text = header("Lookup behind cuGetProcAddress. Libc only, no allocation, any thread.",
                  ["<cstdint>"], "gantry::cuda")
    text += """/// Values are those of CUdriverProcAddressQueryResult.
enum class ProcStatus : std::uint32_t {
    kFound = 0,
    kSymbolNotFound = 1,
    kVersionNotSufficient = 2,
};

/// The bit of `flags` that asks for entry points on the per-thread default stream.
inline constexpr std::uint64_t kProcPerThread = 2;

/// Finds the entry point of `name` for `version` (such as 12020). Of the name's versions not above
/// the asked one the highest is taken; with kProcPerThread only its per-thread versions count, if
/// it has any. Stores null when the answer is not kFound. A null name is not found. The answers
/// were compared with driver 580.159 for all rows, both kinds of stream, all versions of a name.
ProcStatus find_proc(const char* name, int version, std::uint64_t flags, void** entry) noexcept;

/// cuGetProcAddress as that driver answers it, as a CUresult number: a name or version that is not
/// there is success with a null entry and says why in `status` (may be null); a version above the
/// driver's own, an unknown flag or a null argument is an invalid value and changes nothing.
int get_proc_address(const char* name, void** entry, int version, std::uint64_t flags,
                     ProcStatus* status, int driver_version) noexcept;

/// The first ABI, without the status: what is not there is CUDA_ERROR_NOT_FOUND and leaves the
/// entry as it was.
int get_proc_address_v1(const char* name, void** entry, int version, std::uint64_t flags,
                        int driver_version) noexcept;
"""
    return text + end_namespace("gantry::cuda")


def proc_table_cc(calls):
    rows = sorted((row.name, row.version, row.stream, row.symbol)
                  for call in calls if call.exported for row in call.rows)
    text = source("The rows of the driver API, sorted by name and version.",
                  ["<cstddef>", "<cstring>", "proto/cuda/gen/exports.h",
                   "proto/cuda/gen/proc_table.h"])
    text += """namespace gantry::cuda {
namespace {

struct Row {
    const char* name;
    int version;
    bool per_thread;
    void (*entry)();
};

#define GANTRY_ROW(name, version, per_thread, symbol) \\
    {name, version, per_thread, reinterpret_cast<void (*)()>(&::symbol)}

const Row kRows[] = {
"""
    for name, version, stream, symbol in rows:
        text += (f'    GANTRY_ROW("{name}", {version}, {"true" if stream else "false"}, '
                 f"{symbol}),\n")
    text += """};

#undef GANTRY_ROW

/// First row of `name`, or the end.
std::size_t first_row(const char* name) noexcept {
    std::size_t low = 0;
    std::size_t high = sizeof kRows / sizeof kRows[0];
    while (low < high) {
        const std::size_t middle = low + (high - low) / 2;
        if (std::strcmp(kRows[middle].name, name) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

}  // namespace

ProcStatus find_proc(const char* name, int version, std::uint64_t flags, void** entry) noexcept {
    *entry = nullptr;
    if (name == nullptr) {
        return ProcStatus::kSymbolNotFound;
    }
    const Row* plain = nullptr;
    const Row* per_thread = nullptr;
    bool known = false;
    bool has_twin = false;
    const std::size_t end = sizeof kRows / sizeof kRows[0];
    for (std::size_t i = first_row(name); i < end && std::strcmp(kRows[i].name, name) == 0; ++i) {
        known = true;
        has_twin = has_twin || kRows[i].per_thread;
        if (kRows[i].version <= version) {  // Rows of a name are sorted: the last one wins.
            (kRows[i].per_thread ? per_thread : plain) = &kRows[i];
        }
    }
    if (!known) {
        return ProcStatus::kSymbolNotFound;
    }
    const Row* const chosen = has_twin && (flags & kProcPerThread) != 0 ? per_thread : plain;
    if (chosen == nullptr) {
        return ProcStatus::kVersionNotSufficient;
    }
    *entry = reinterpret_cast<void*>(chosen->entry);
    return ProcStatus::kFound;
}

int get_proc_address(const char* name, void** entry, int version, std::uint64_t flags,
                     ProcStatus* status, int driver_version) noexcept {
    constexpr std::uint64_t kKnownFlags = 3;
    if (name == nullptr || entry == nullptr || version > driver_version || flags > kKnownFlags) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const ProcStatus found = find_proc(name, version, flags, entry);
    if (status != nullptr) {
        *status = found;
    }
    return CUDA_SUCCESS;
}

int get_proc_address_v1(const char* name, void** entry, int version, std::uint64_t flags,
                        int driver_version) noexcept {
    void* found = nullptr;
    const int result = get_proc_address(name, entry != nullptr ? &found : nullptr, version, flags,
                                        nullptr, driver_version);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (found == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    *entry = found;
    return CUDA_SUCCESS;
}
"""
    return text + end_namespace("gantry::cuda")
