#include "host-daemon/execution/loading/placed_image.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "host-daemon/execution/base/log.h"
#include "host-daemon/execution/code/jit_options.h"
#include "host-daemon/execution/code/placed_cubin.h"
#include "host-daemon/execution/loading/driver_load.h"
#include "host-daemon/softgpu/image/elf_file.h"
#include "host-daemon/softgpu/image/fatbin.h"

namespace gantry::worker {
namespace {

namespace image = softgpu::image;

using cuda::wire_hand::ImageKind;
using cuda::wire_hand::ImagePart;

Error no_module() { return Error{Code::kInternal, "module.load", "no such module to place"}; }

Error no_ptx() {
    return Error{Code::kFailedPrecondition, "module.globals.not_movable",
                 "it has no PTX for this device that could be compiled with its variables where "
                 "the program has them"};
}

std::span<const std::byte> bytes_of(const LoadedImage& loaded, const ImagePart& part) {
    return std::span<const std::byte>(loaded.image->bytes).subspan(part.offset, part.bytes);
}

/// The newest that the device can run; all, where they are units of one program.
Result<void> append_fatbin(std::span<const std::byte> bytes, unsigned capability,
                           std::vector<std::string>* units) {
    GANTRY_ASSIGN(const auto entries, image::list_entries(bytes));
    const image::FatbinEntry* best = nullptr;
    bool linked = false;
    for (const image::FatbinEntry& entry : entries) {
        if (entry.kind != image::EntryKind::kPtx || entry.target > capability) {
            continue;
        }
        if ((entry.flags & image::kFlagLinkedUnits) != 0) {
            GANTRY_ASSIGN(std::string text, image::entry_payload(entry));
            units->push_back(std::move(text));
            linked = true;
        } else if (best == nullptr || best->target < entry.target) {
            best = &entry;
        }
    }
    if (best != nullptr && !linked) {
        GANTRY_ASSIGN(std::string text, image::entry_payload(*best));
        units->push_back(std::move(text));
    }
    return best != nullptr || linked ? Result<void>{} : Result<void>(no_ptx());
}

std::string_view text_of(std::span<const std::byte> bytes) {
    const auto* text = reinterpret_cast<const char*>(bytes.data());
    return {text, strnlen(text, bytes.size())};
}

void set_bytes(const void* from, std::size_t bytes, ImageKind kind, PlacedCode* code) {
    const auto* first = static_cast<const std::byte*>(from);
    code->image.bytes.assign(first, first + bytes);
    ImagePart part{};
    part.bytes = bytes;
    part.kind = kind;
    code->parts = {part};
}

/// One text is loaded as such, several are linked.
Result<void> compile(GuestProcess& process, const std::vector<std::string>& units,
                     PlacedCode* code) {
    if (units.size() == 1) {
        set_bytes(units[0].c_str(), units[0].size() + 1, ImageKind::kPtx, code);
        return {};
    }
    Link link(process.device, {}, 0, 0);
    const MutexLock lock(link.mutex);
    CUresult result = link.create();
    for (const std::string& unit : units) {
        Link::Input input;
        input.type = CU_JIT_INPUT_PTX;
        auto text = std::make_shared<Image>();
        const auto* first = reinterpret_cast<const std::byte*>(unit.c_str());
        text->bytes.assign(first, first + unit.size() + 1);
        input.bytes = text->bytes.size();
        input.image = std::move(text);
        if (result == CUDA_SUCCESS) {
            result = link.add(std::move(input));
        }
    }
    if (result == CUDA_SUCCESS) {
        result = link.complete();
    }
    if (result != CUDA_SUCCESS) {
        return driver::to_error(process.device.api(), result, "module.load",
                                "linking code with its variables where the program has them");
    }
    set_bytes(link.cubin().data(), link.cubin().size(), ImageKind::kElf, code);
    return {};
}

/// Loads `code` as `loaded` was loaded; `native`: the driver's handle.
CUresult load_placed(GuestProcess& process, const LoadedImage& loaded, const PlacedCode& code,
                     std::uint64_t* native) {
    JitOptions options(loaded.jit_options, 0, 0);
    const CUresult result = process.contexts.enter(loaded.context);
    return result != CUDA_SUCCESS
               ? result
               : hand_to_driver(process, code.image, code.parts, loaded.library, options, native);
}

/// Loads `code` in place of what the driver has of the module.
Result<void> load_instead(GuestProcess& process, const LoadedImage& loaded,
                          const PlacedCode& code) {
    const HandleKind kind = loaded.library ? HandleKind::kLibrary : HandleKind::kModule;
    const std::uint64_t old = process.objects.native(loaded.handle, kind);
    // First, so that the driver puts what stays there where it was.
    if (old != 0) {
        unload_image(process.device.api(), loaded.library, old);
    }
    process.objects.set_native(loaded.handle, 0);
    process.memory.device.remove_outside(loaded.handle);
    std::uint64_t native = 0;
    if (const CUresult result = load_placed(process, loaded, code, &native);
        result != CUDA_SUCCESS) {
        return driver::to_error(process.device.api(), result, "module.load",
                                "loading code with its variables where the program has them");
    }
    process.objects.set_native(loaded.handle, native);
    return {};
}

/// What is to become of a module's variables, seen where the driver has them now.
struct VariablePlan {
    Variables variables;                ///< With lies_at, where that is elsewhere.
    VariableShifts shifts;              ///< Of those that its machine code names.
    std::vector<VariableRange> ranges;  ///< That need memory of their own.
};

Error bound(const ModuleVariable& variable, const std::string& why) {
    return Error{Code::kFailedPrecondition, "module.globals.not_movable",
                 fmt::format("variable {} of {} bytes must lie at {:#x}, since the program may "
                             "have stored its address: {}",
                             variable.name, variable.bytes, variable.address, why)};
}

Result<VariablePlan> plan_variables(const GuestProcess& process, std::uint64_t handle,
                                    const Variables& wanted, const CubinVariables& how) {
    VariablePlan plan;
    for (auto [name, variable] : wanted) {
        const auto here = process.code.ask_driver(handle, name);
        const bool is_named = how.named.contains(name);
        variable.lies_at = 0;
        if (!here || here->bytes != variable.bytes) {
            return bound(variable, "the driver has none of that name and size");
        }
        if (here->address != variable.address) {
            const bool is_known = is_named || variable.asked;
            if (here->managed || variable.managed || (is_known && how.constants.contains(name))) {
                return bound(variable, "it lies in a constant bank or in managed memory, and at " +
                                           fmt::format("{:#x} here", here->address));
            }
            if (is_named) {
                plan.shifts.emplace(name, variable.address - here->address);
            }
            if (is_known) {
                plan.ranges.push_back({variable.address, variable.bytes});
            } else {
                variable.lies_at = here->address;
            }
        }
        plan.variables.emplace(name, std::move(variable));
    }
    return plan;
}

/// By the relocations of its machine code.
Result<void> place_machine_code(GuestProcess& process, std::uint64_t handle,
                                const Variables& wanted) {
    constexpr int kTriesMax = 4;
    const auto loaded = process.code.modules.get(handle);
    if (!loaded || loaded->parts.empty()) {
        return no_module();
    }
    // Part 0 of several is what a linker made of the others.
    const std::span<const std::byte> bytes = bytes_of(*loaded, loaded->parts.front());
    const unsigned capability = process.device.compute_capability();
    GANTRY_ASSIGN(const CubinVariables how, image_variables(bytes, capability));
    auto code = std::make_shared<PlacedCode>();
    // Of what is loaded. Where a driver may have compiled PTX instead, its code is not the one that
    // was looked at.
    std::optional<VariableShifts> in_code;
    if (!ptx_units(*loaded, capability).ok()) {
        in_code.emplace();
    }
    for (int tries = 0; tries < kTriesMax; ++tries) {
        GANTRY_ASSIGN(VariablePlan plan, plan_variables(process, handle, wanted, how));
        // Memory that is there already stays, so that the driver puts nothing else there.
        GANTRY_ASSIGN(code->memory, process.code.variable_memory.hold(plan.ranges));
        if (in_code == plan.shifts) {
            process.memory.device.remove_outside(handle);
            process.code.modules.set_placed(handle, std::move(code), std::move(plan.variables),
                                            true);
            return {};
        }
        GANTRY_ASSIGN(const std::vector<std::byte> placed,
                      placed_machine_code(bytes, capability, plan.shifts));
        set_bytes(placed.data(), placed.size(),
                  image::is_elf(placed) ? ImageKind::kElf : ImageKind::kFatbin, code.get());
        GANTRY_TRY(load_instead(process, *loaded, *code));
        in_code = std::move(plan.shifts);
    }
    return Error{Code::kFailedPrecondition, "module.globals.not_now",
                 fmt::format("the driver put the variables elsewhere each of {} times", kTriesMax)};
}

/// The first of `variables` that is not where the program has it.
const ModuleVariable* first_elsewhere(const GuestProcess& process, std::uint64_t handle,
                                      const Variables& variables) {
    const auto found = std::find_if(variables.begin(), variables.end(), [&](const auto& entry) {
        return process.code.variable_address(handle, entry.first) !=
               std::optional<std::uint64_t>(entry.second.address);
    });
    return found == variables.end() ? nullptr : &found->second;
}

}  // namespace

Result<void> bring_back_variables(GuestProcess& process, std::uint64_t handle,
                                  const Variables& variables) {
    process.code.learn_variables(handle);
    Variables managed;
    for (const auto& [name, variable] : variables) {
        if (gantry::wire::is_pinned_address(variable.address)) {
            managed.emplace(name, variable);
        }
    }
    if (!managed.empty()) {
        GANTRY_TRY(place_image(process, handle, managed, Others::kStay));
    }
    const ModuleVariable* moved = first_elsewhere(process, handle, variables);
    if (moved == nullptr) {
        return {};
    }
    const auto here = process.code.variable_address(handle, moved->name);
    log_line("variable %s lies at %#llx, and must lie at %#llx: its code is changed for that",
             moved->name.c_str(), static_cast<unsigned long long>(here.value_or(0)),
             static_cast<unsigned long long>(moved->address));
    // Managed ones are in code compiled from PTX already.
    if (!managed.empty()) {
        return place_image(process, handle, variables, Others::kRefused);
    }
    Result<void> placed = place_machine_code(process, handle, variables);
    const auto loaded = process.code.modules.get(handle);
    // Compiled code would need the same memory.
    if (placed.ok() || placed.error().reason == "module.globals.not_now" || !loaded ||
        !ptx_units(*loaded, process.device.compute_capability()).ok()) {
        return placed;
    }
    log_line("its PTX is compiled: %s", placed.error().to_string().c_str());
    return place_image(process, handle, variables, Others::kRefused);
}

Result<std::vector<std::string>> ptx_units(const LoadedImage& loaded, unsigned capability) {
    std::vector<std::string> units;
    // Part 0 of several is what a linker made of the others.
    const std::size_t first = loaded.parts.size() == 1 ? 0 : 1;
    for (std::size_t i = first; i < loaded.parts.size(); ++i) {
        const ImagePart& part = loaded.parts[i];
        if (part.kind == ImageKind::kFatbin) {
            GANTRY_TRY(append_fatbin(bytes_of(loaded, part), capability, &units));
        } else if (part.kind == ImageKind::kPtx) {
            units.emplace_back(text_of(bytes_of(loaded, part)));
        } else {
            return no_ptx();
        }
    }
    return units;
}

Result<void> place_image(GuestProcess& process, std::uint64_t handle, const Variables& variables,
                         Others others) {
    const auto loaded = process.code.modules.get(handle);
    if (!loaded) {
        return no_module();
    }
    VariablePlaces places;
    std::vector<VariableRange> ranges;
    for (const auto& [name, variable] : variables) {
        places.emplace(name, variable.address);
        if (!gantry::wire::is_pinned_address(variable.address)) {
            ranges.push_back({variable.address, variable.bytes});
        }
    }
    GANTRY_ASSIGN(std::vector<std::string> units,
                  ptx_units(*loaded, process.device.compute_capability()));
    for (std::string& unit : units) {
        GANTRY_ASSIGN(unit, placed_ptx(unit, places, others));
    }
    auto code = std::make_shared<PlacedCode>();
    GANTRY_TRY(compile(process, units, code.get()));
    GANTRY_ASSIGN(code->memory, process.code.variable_memory.hold(ranges));
    GANTRY_TRY(load_instead(process, *loaded, *code));
    process.code.modules.set_placed(handle, std::move(code), variables, others == Others::kRefused);
    process.code.learn_variables(handle);
    return {};
}

}  // namespace gantry::worker
