// ModuleRegistry: what was loaded from which image, and where its variables lie.
//
// Modules and libraries are objects like others (objects.h); this is what a restore needs beside
// that: the image as the application gave it, the load order, and the address of every variable the
// guest may know. Threads: all calls lock. Failure: none of its own.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host-daemon/execution/code/image_store.h"
#include "proto/base/mutex.h"
#include "proto/cuda/wire_hand.h"

namespace gantry::worker {

struct ModuleVariable {
    std::string name;
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    bool managed = false;
    bool asked = false;  ///< The program was told its address.
    /// While a state is taken in: where the driver has it, since nobody knows `address`; 0: there.
    std::uint64_t lies_at = 0;
    friend bool operator==(const ModuleVariable&, const ModuleVariable&) = default;
};

struct PlacedCode;  // placed_image.h

struct LoadedImage {
    std::uint64_t handle = 0;  ///< Module or library.
    bool library = false;
    std::uint64_t context = 0;
    ImagePtr image;
    std::vector<cuda::wire_hand::ImagePart> parts;
    std::vector<cuda::wire_hand::ImageOption> jit_options;
    std::vector<cuda::wire_hand::ImageOption> library_options;
    std::uint64_t load_order = 0;
    std::string name;  ///< First kernel asked for: what a person would recognise it by.
    std::map<std::string, ModuleVariable> variables;
    bool variables_known = false;  ///< All of them, as the driver's extension lists them.
    std::shared_ptr<const PlacedCode> placed;  ///< What is loaded in the image's place, if so.
};

class ModuleRegistry {
public:
    void add(LoadedImage image);
    void remove(std::uint64_t handle);
    void clear();
    [[nodiscard]] std::optional<LoadedImage> get(std::uint64_t handle) const;
    /// In load order.
    [[nodiscard]] std::vector<LoadedImage> list() const;
    void note_variable(std::uint64_t handle, ModuleVariable variable);
    /// The program is told where it lies.
    void note_asked(std::uint64_t handle, const std::string& name);
    void set_variables(std::uint64_t handle, std::vector<ModuleVariable> variables);
    /// Those that the driver has elsewhere lie there from now on.
    void settle_variables();
    /// `code` was loaded, with these variables; `all`: there are no others.
    void set_placed(std::uint64_t handle, std::shared_ptr<const PlacedCode> code,
                    std::map<std::string, ModuleVariable> variables, bool all);
    void note_kernel(std::uint64_t handle, const std::string& name);
    /// What is known of one variable, without a copy of all.
    [[nodiscard]] std::optional<ModuleVariable> variable(std::uint64_t handle,
                                                         const std::string& name) const;
    /// The same of code that was put in an image's place: the driver does not know of it.
    [[nodiscard]] std::optional<ModuleVariable> placed_variable(std::uint64_t handle,
                                                                const std::string& name) const;
    [[nodiscard]] std::uint64_t image_bytes() const;

private:
    [[nodiscard]] std::optional<ModuleVariable> find(std::uint64_t handle, const std::string& name,
                                                     bool placed_only) const;

    mutable Mutex mutex_;
    std::map<std::uint64_t, LoadedImage> images_ GANTRY_GUARDED_BY(mutex_);
    std::uint64_t next_load_order_ GANTRY_GUARDED_BY(mutex_) = 1;
};

}  // namespace gantry::worker
