#include "host-daemon/execution/code/module_registry.h"

#include <algorithm>
#include <set>
#include <utility>

namespace gantry::worker {

void ModuleRegistry::add(LoadedImage image) {
    MutexLock lock(mutex_);
    if (image.load_order == 0) {
        image.load_order = next_load_order_;
    }
    next_load_order_ = std::max(next_load_order_, image.load_order) + 1;
    const std::uint64_t handle = image.handle;
    images_[handle] = std::move(image);
}

void ModuleRegistry::remove(std::uint64_t handle) {
    MutexLock lock(mutex_);
    images_.erase(handle);
}

void ModuleRegistry::clear() {
    MutexLock lock(mutex_);
    images_.clear();
}

std::optional<LoadedImage> ModuleRegistry::get(std::uint64_t handle) const {
    MutexLock lock(mutex_);
    const auto image = images_.find(handle);
    return image == images_.end() ? std::nullopt : std::optional<LoadedImage>(image->second);
}

std::vector<LoadedImage> ModuleRegistry::list() const {
    MutexLock lock(mutex_);
    std::vector<LoadedImage> images;
    for (const auto& [handle, image] : images_) {
        images.push_back(image);
    }
    std::sort(images.begin(), images.end(), [](const LoadedImage& a, const LoadedImage& b) {
        return a.load_order < b.load_order;
    });
    return images;
}

void ModuleRegistry::note_variable(std::uint64_t handle, ModuleVariable variable) {
    MutexLock lock(mutex_);
    if (const auto image = images_.find(handle); image != images_.end()) {
        image->second.variables[variable.name] = std::move(variable);
    }
}

void ModuleRegistry::note_asked(std::uint64_t handle, const std::string& name) {
    MutexLock lock(mutex_);
    if (const auto image = images_.find(handle); image != images_.end()) {
        if (const auto known = image->second.variables.find(name);
            known != image->second.variables.end()) {
            known->second.asked = true;
        }
    }
}

void ModuleRegistry::settle_variables() {
    MutexLock lock(mutex_);
    for (auto& [handle, image] : images_) {
        for (auto& [name, variable] : image.variables) {
            if (variable.lies_at != 0) {
                variable.address = std::exchange(variable.lies_at, 0);
            }
        }
    }
}

void ModuleRegistry::set_variables(std::uint64_t handle, std::vector<ModuleVariable> variables) {
    MutexLock lock(mutex_);
    if (const auto image = images_.find(handle); image != images_.end()) {
        image->second.variables_known = true;
        for (ModuleVariable& variable : variables) {
            ModuleVariable& known = image->second.variables[variable.name];
            variable.asked = variable.asked || known.asked;
            known = std::move(variable);
        }
    }
}

void ModuleRegistry::set_placed(std::uint64_t handle, std::shared_ptr<const PlacedCode> code,
                                std::map<std::string, ModuleVariable> variables, bool all) {
    MutexLock lock(mutex_);
    if (const auto image = images_.find(handle); image != images_.end()) {
        image->second.placed = std::move(code);
        image->second.variables = std::move(variables);
        image->second.variables_known = all;
    }
}

void ModuleRegistry::note_kernel(std::uint64_t handle, const std::string& name) {
    MutexLock lock(mutex_);
    if (const auto image = images_.find(handle);
        image != images_.end() && image->second.name.empty()) {
        image->second.name = name;
    }
}

std::optional<ModuleVariable> ModuleRegistry::find(std::uint64_t handle, const std::string& name,
                                                   bool placed_only) const {
    MutexLock lock(mutex_);
    const auto image = images_.find(handle);
    if (image == images_.end() || (placed_only && image->second.placed == nullptr)) {
        return std::nullopt;
    }
    const auto known = image->second.variables.find(name);
    return known == image->second.variables.end() ? std::nullopt
                                                  : std::optional<ModuleVariable>(known->second);
}

std::optional<ModuleVariable> ModuleRegistry::variable(std::uint64_t handle,
                                                       const std::string& name) const {
    return find(handle, name, false);
}

std::optional<ModuleVariable> ModuleRegistry::placed_variable(std::uint64_t handle,
                                                              const std::string& name) const {
    return find(handle, name, true);
}

std::uint64_t ModuleRegistry::image_bytes() const {
    MutexLock lock(mutex_);
    std::set<const Image*> counted;
    std::uint64_t bytes = 0;
    for (const auto& [handle, image] : images_) {
        if (image.image != nullptr && counted.insert(image.image.get()).second) {
            bytes += image.image->bytes.size();
        }
    }
    return bytes;
}

}  // namespace gantry::worker
