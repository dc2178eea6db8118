#include "host-daemon/execution/process/guest_code.h"

#include <set>

#include "host-daemon/execution/code/image_variables.h"

namespace gantry::worker {

/// Asks the driver for a variable. Forces a library that loads lazily.
std::optional<ModuleVariable> GuestCode::ask(const LoadedImage& loaded,
                                             const std::string& name) const {
    const driver::DriverApi& api = device_.api();
    CUdeviceptr address = 0;
    std::size_t bytes = 0;
    bool managed = false;
    CUresult result = CUDA_ERROR_NOT_FOUND;
    if (!loaded.library && api.cuModuleGetGlobal_v2 != nullptr) {
        const auto module = objects_.native_as<CUmodule>(loaded.handle, HandleKind::kModule);
        result = api.cuModuleGetGlobal_v2(&address, &bytes, module, name.c_str());
    } else if (loaded.library) {
        const auto library = objects_.native_as<CUlibrary>(loaded.handle, HandleKind::kLibrary);
        result = api.cuLibraryGetGlobal != nullptr
                     ? api.cuLibraryGetGlobal(&address, &bytes, library, name.c_str())
                     : result;
        if (result != CUDA_SUCCESS && api.cuLibraryGetManaged != nullptr) {
            managed = true;
            result = api.cuLibraryGetManaged(&address, &bytes, library, name.c_str());
        }
    }
    if (result != CUDA_SUCCESS) {
        return std::nullopt;
    }
    unsigned int is_managed = 0;
    if (api.cuPointerGetAttribute != nullptr) {
        api.cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address);
    }
    managed = managed || is_managed != 0;
    return ModuleVariable{name, address, bytes, managed};
}

/// Without the driver's help: the names that the image holds, one by one.
std::vector<ModuleVariable> GuestCode::ask_by_name(const LoadedImage& loaded) {
    std::vector<ModuleVariable> variables;
    // Part 0 is what the driver loads, unless it has to link the others, its relocatable inputs,
    // anew.
    std::set<std::string> names;
    const auto major = device_.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR).value_or(0);
    for (const auto& part : loaded.parts) {
        const auto bytes =
            std::span<const std::byte>(loaded.image->bytes).subspan(part.offset, part.bytes);
        ImageContents contents = contents_of(bytes, static_cast<unsigned>(major));
        names.merge(contents.variables);
        if (contents.prints) {
            note_printing();
        }
    }
    for (const std::string& name : names) {
        if (auto variable = ask(loaded, name); variable && variable->bytes != 0) {
            variables.push_back(std::move(*variable));
        }
    }
    return variables;
}

void GuestCode::set_variables(const LoadedImage& loaded, std::vector<ModuleVariable> variables) {
    for (const ModuleVariable& variable : variables) {
        memory_.add_outside(loaded.handle, variable.address, variable.bytes);
    }
    modules.set_variables(loaded.handle, std::move(variables));
}

void GuestCode::learn_printing(const LoadedImage& loaded) {
    const auto major = device_.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR).value_or(0);
    for (std::size_t i = 0; i < loaded.parts.size() && !may_print(); ++i) {
        const auto& part = loaded.parts[i];
        if (worker::may_print(
                std::span<const std::byte>(loaded.image->bytes).subspan(part.offset, part.bytes),
                static_cast<unsigned>(major))) {
            note_printing();
        }
    }
}

void GuestCode::learn_variables(std::uint64_t root) {
    const GantrySoftExtension* extension = device_.extension();
    const auto loaded = modules.get(root);
    if (!loaded || loaded->variables_known) {
        return;
    }
    if (extension == nullptr) {
        set_variables(*loaded, ask_by_name(*loaded));
        return;
    }
    CUmodule module = objects_.native_as<CUmodule>(root, HandleKind::kModule);
    if (loaded->library) {
        const auto library = objects_.native_as<CUlibrary>(root, HandleKind::kLibrary);
        if (device_.api().cuLibraryGetModule == nullptr ||
            device_.api().cuLibraryGetModule(&module, library) != CUDA_SUCCESS) {
            return;
        }
    }
    std::size_t count = 0;
    if (module == nullptr || extension->list_variables(module, nullptr, &count) != CUDA_SUCCESS) {
        return;
    }
    std::vector<GantrySoftVariable> listed(count);
    if (count != 0 && extension->list_variables(module, listed.data(), &count) != CUDA_SUCCESS) {
        return;
    }
    std::vector<ModuleVariable> variables;
    for (const GantrySoftVariable& variable : listed) {
        variables.push_back(
            {variable.name, variable.address, variable.bytes, variable.managed != 0});
    }
    set_variables(*loaded, std::move(variables));
}

std::optional<ModuleVariable> GuestCode::ask_driver(std::uint64_t root,
                                                    const std::string& name) const {
    const auto loaded = modules.get(root);
    return loaded ? ask(*loaded, name) : std::nullopt;
}

void GuestCode::settle_variables() {
    memory_.settle_outside();
    modules.settle_variables();
}

std::optional<std::uint64_t> GuestCode::variable_address(std::uint64_t root,
                                                         const std::string& name) const {
    if (const auto known = modules.variable(root, name)) {
        return known->address;
    }
    const auto loaded = modules.get(root);
    const auto variable = loaded ? ask(*loaded, name) : std::nullopt;
    return variable ? std::optional<std::uint64_t>(variable->address) : std::nullopt;
}

}  // namespace gantry::worker
