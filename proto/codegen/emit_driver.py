"""driver_api_table.h/.cc: a loaded CUDA driver as a table of typed function pointers."""

from emit_common import end_namespace, header, source, wrap
from emit_entry import targets


def driver_api_h(calls):
    text = header("A loaded CUDA driver: a typed pointer per call, null where it has none.",
                  ["<cstddef>", "proto/cuda/abi.h"], "gantry::driver")
    text += """struct DriverApi {
    /// Fills the table by dlsym of the exact symbol names from a dlopen handle; returns how many
    /// were found. The handle must outlive the table. Not thread-safe; call once.
    std::size_t load(void* library) noexcept;

"""
    for call in targets(calls):
        types = [p.ctype for p in call.params]
        text += wrap(f"    CUresult (*{call.symbol})(", types, ") = nullptr;")
    text += "};\n"
    return text + end_namespace("gantry::driver")


def driver_api_cc(calls):
    text = source("Loads a CUDA driver's entry points by name.",
                  ["<dlfcn.h>", "<cstring>", "proto/cuda/gen/driver_api_table.h"])
    text += """namespace gantry::driver {
namespace {

template <typename Function>
std::size_t find(void* library, const char* name, Function** out) noexcept {
    void* const symbol = dlsym(library, name);
    static_assert(sizeof symbol == sizeof *out);
    std::memcpy(out, &symbol, sizeof symbol);
    return symbol != nullptr ? 1 : 0;
}

}  // namespace

std::size_t DriverApi::load(void* library) noexcept {
    std::size_t found = 0;
"""
    for call in targets(calls):
        line = f'    found += find(library, "{call.symbol}", &{call.symbol});\n'
        if len(line) > 101:
            line = (f'    found += find(library, "{call.symbol}",\n'
                    f"                  &{call.symbol});\n")
        text += line
    text += "    return found;\n}\n"
    return text + end_namespace("gantry::driver")
