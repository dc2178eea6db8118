#include "host-daemon/execution/loading/placed_image.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "host-daemon/execution/code/jit_options.h"
#include "host-daemon/execution/loading/driver_load.h"
#include "host-daemon/softgpu/image/fatbin.h"

namespace gantry::worker {
namespace {

namespace image = softgpu::image;

using cuda::wire_hand::ImageKind;
using cuda::wire_hand::ImagePart;

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

}  // namespace

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

Result<void> place_image(GuestProcess& process, std::uint64_t handle,
                         const std::map<std::string, ModuleVariable>& variables, Others others) {
    const auto loaded = process.code.modules.get(handle);
    const std::uint64_t old = process.objects.native(
        handle, loaded && loaded->library ? HandleKind::kLibrary : HandleKind::kModule);
    if (!loaded || old == 0) {
        return Error{Code::kInternal, "module.load", "no such module to place"};
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
    // First, so that the driver puts what stays there where it was.
    unload_image(process.device.api(), loaded->library, old);
    process.objects.set_native(handle, 0);
    process.memory.device.remove_outside(handle);
    std::uint64_t native = 0;
    if (const CUresult result = load_placed(process, *loaded, *code, &native);
        result != CUDA_SUCCESS) {
        return driver::to_error(process.device.api(), result, "module.load",
                                "loading code with its variables where the program has them");
    }
    process.objects.set_native(handle, native);
    process.code.modules.set_placed(handle, std::move(code), variables, others == Others::kRefused);
    process.code.learn_variables(handle);
    return {};
}

}  // namespace gantry::worker
