// GuestCode: the code of one guest process: images, modules, their variables and the linker's
// states, and what their kernels need of a device.
//
// The contents of a module's variables move like other memory, so it has to be known where they
// lie: a driver with an extension lists them once the module is loaded; others are asked by name.
//
// Owner: GuestProcess. Threads: any. Failure: what a driver does not tell is not known.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "host-daemon/execution/code/image_store.h"
#include "host-daemon/execution/code/link_book.h"
#include "host-daemon/execution/code/module_registry.h"
#include "host-daemon/execution/memory/device_memory.h"
#include "host-daemon/execution/memory/variable_memory.h"
#include "host-daemon/execution/objects/objects.h"
#include "host-daemon/execution/process/device_use.h"

namespace gantry::worker {

class GuestCode {
public:
    GuestCode(Device& device, const ObjectTable& objects, DeviceMemory& memory,
              std::uint64_t image_bytes)
        : images(image_bytes),
          variable_memory(device),
          device_use(device, objects),
          device_(device),
          objects_(objects),
          memory_(memory) {}
    GuestCode(const GuestCode&) = delete;
    GuestCode& operator=(const GuestCode&) = delete;

    ImageStore images;
    VariableMemory variable_memory;
    ModuleRegistry modules;
    LinkBook links;
    DeviceUse device_use;

    /// Code that may print was loaded: drivers give its text out in calls that synchronise.
    [[nodiscard]] bool may_print() const { return may_print_.load(std::memory_order_relaxed); }
    /// Checks whether the image's kernels print.
    void learn_printing(const LoadedImage& loaded);
    /// Asks the driver's extension where the variables of a module or library lie, once it is
    /// loaded into the current context. Without the extension only variables asked for by name are
    /// known.
    void learn_variables(std::uint64_t root);
    /// The driver's answer alone, whatever is in the books. Forces a library that loads lazily.
    [[nodiscard]] std::optional<ModuleVariable> ask_driver(std::uint64_t root,
                                                           const std::string& name) const;
    /// The state that was taken in is complete: variables lie where the driver has them.
    void settle_variables();
    /// Where a variable lies now; asks the driver by name where its extension does not list it.
    [[nodiscard]] std::optional<std::uint64_t> variable_address(std::uint64_t root,
                                                                const std::string& name) const;

private:
    void note_printing() { may_print_.store(true, std::memory_order_relaxed); }
    [[nodiscard]] std::optional<ModuleVariable> ask(const LoadedImage& loaded,
                                                    const std::string& name) const;
    [[nodiscard]] std::vector<ModuleVariable> ask_by_name(const LoadedImage& loaded);
    void set_variables(const LoadedImage& loaded, std::vector<ModuleVariable> variables);

    Device& device_;
    const ObjectTable& objects_;
    DeviceMemory& memory_;
    std::atomic<bool> may_print_{false};
};

}  // namespace gantry::worker
