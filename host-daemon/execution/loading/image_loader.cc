#include "host-daemon/execution/loading/image_loader.h"

#include "host-daemon/execution/base/log.h"
#include "host-daemon/execution/dispatch/handlers.h"
#include "host-daemon/execution/loading/driver_load.h"
#include "host-daemon/execution/loading/placed_image.h"

namespace gantry::worker {
namespace {

using cuda::wire_hand::ImageOption;
using cuda::wire_hand::ImagePart;
using cuda::wire_hand::LoadCall;
using cuda::wire_hand::LoadReply;

constexpr std::uint32_t kMostJitOptions = 64;

bool read_load(const LoadCall& load, std::span<const std::byte> trailing, LoadedImage* out) {
    if (load.part_count == 0 || load.part_count > cuda::wire_hand::kMaxImageParts ||
        load.jit_option_count > kMostJitOptions || load.library_option_count > kMostJitOptions) {
        return false;
    }
    auto parts = Call::read_array<ImagePart>(trailing, load.part_count);
    auto jit = Call::read_array<ImageOption>(trailing, load.jit_option_count);
    auto library = Call::read_array<ImageOption>(trailing, load.library_option_count);
    if (!parts || !jit || !library) {
        return false;
    }
    out->parts = std::move(*parts);
    out->jit_options = std::move(*jit);
    out->library_options = std::move(*library);
    return true;
}

/// Managed variables of something just loaded, by the driver's extension; none without it.
std::vector<ModuleVariable> managed_of(Call& call, bool library, std::uint64_t native) {
    const GantrySoftExtension* extension = call.process().device.extension();
    std::vector<GantrySoftVariable> listed(64);
    std::vector<ModuleVariable> managed;
    if (extension == nullptr) {
        return managed;
    }
    for (std::size_t room = 0; room < listed.size();) {
        room = listed.size();
        std::size_t count = room;
        const CUresult result = library
                                    ? extension->list_managed(reinterpret_cast<CUlibrary>(native),
                                                              listed.data(), &count)
                                    : extension->list_variables(reinterpret_cast<CUmodule>(native),
                                                                listed.data(), &count);
        listed.resize(result == CUDA_SUCCESS ? count : 0);
    }
    for (const GantrySoftVariable& variable : listed) {
        if (variable.managed != 0) {
            managed.push_back({variable.name, variable.address, variable.bytes, true});
        }
    }
    return managed;
}

/// Those of a driver without it, learnt with the others.
std::vector<ModuleVariable> managed_of(const LoadedImage& loaded) {
    std::vector<ModuleVariable> managed;
    for (const auto& [name, variable] : loaded.variables) {
        if (variable.managed) {
            managed.push_back(variable);
        }
    }
    return managed;
}

/// Gives each variable its place behind `address`; returns the bytes that all need.
std::uint64_t lay_out(std::vector<ModuleVariable>& managed, std::uint64_t address) {
    constexpr std::uint64_t kAlignBytes = 256;  // More than any variable asks for.
    std::uint64_t bytes = 0;
    for (ModuleVariable& variable : managed) {
        variable.address = address + bytes;
        bytes += gantry::wire::align_up(std::max<std::uint64_t>(variable.bytes, 1), kAlignBytes);
    }
    return bytes;
}

bool has_room(Call& call, const LoadCall& load, std::uint64_t needed_bytes) {
    return gantry::wire::is_pinned_address(load.managed_address) &&
           needed_bytes <= load.managed_bytes &&
           load.managed_address % gantry::wire::kPageBytes == 0 &&
           call.process().memory.device.owns(load.managed_address, load.managed_bytes);
}

/// Managed variables have to lie where the guest can touch them, in the extent that it gives with
/// the call: loads once more with them there, or tells how large the extent has to be.
CUresult place_managed(Call& call, const LoadCall& load, const LoadedImage& loaded,
                       JitOptions& options, std::uint64_t* native, LoadReply* answer) {
    std::vector<ModuleVariable> managed = managed_of(call, loaded.library, *native);
    if (managed.empty()) {
        return CUDA_SUCCESS;
    }
    const std::uint64_t needed = lay_out(managed, load.managed_address);
    unload_image(call.api(), loaded.library, *native);
    if (!has_room(call, load, needed)) {
        answer->managed_bytes = needed;
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    std::memset(reinterpret_cast<void*>(load.managed_address), 0, needed);
    std::vector<GantrySoftPlacement> places;
    for (const ModuleVariable& variable : managed) {
        places.push_back({variable.name.c_str(), variable.address});
    }
    call.process().device.extension()->place_next_load_in(places.data(), places.size(), 1);
    return hand_to_driver(call.process(), *loaded.image, loaded.parts, loaded.library, options,
                          native);
}

/// The same under a driver without the extension, of an image that is in the books: its code is
/// compiled for these places. An image without PTX stays as it is, and its managed variables are
/// refused to whoever asks for them.
CUresult place_managed_by_code(Call& call, const LoadCall& load, LoadReply* answer) {
    GuestProcess& process = call.process();
    const auto loaded = process.code.modules.get(load.handle);
    std::vector<ModuleVariable> managed = managed_of(*loaded);
    if (managed.empty() || !ptx_units(*loaded, process.device.compute_capability()).ok()) {
        return CUDA_SUCCESS;
    }
    const std::vector<ModuleVariable> before = managed;
    const std::uint64_t needed = lay_out(managed, load.managed_address);
    if (!has_room(call, load, needed)) {
        answer->managed_bytes = needed;
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    std::map<std::string, ModuleVariable> places;
    for (std::size_t i = 0; i < managed.size(); ++i) {
        void* to = reinterpret_cast<void*>(managed[i].address);
        if (const CUresult result =
                call.api().cuMemcpyDtoH_v2(to, before[i].address, before[i].bytes);
            result != CUDA_SUCCESS) {
            return result;
        }
        places.emplace(managed[i].name, managed[i]);
    }
    const auto placed = place_image(process, load.handle, places, Others::kStay);
    if (!placed.ok()) {
        log_line("managed variables: %s", placed.error().to_string().c_str());
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

/// What the driver says of the variables is the truth, where more of them than the image told.
CUresult charge_rest(Call& call, std::uint64_t handle) {
    GuestProcess& process = call.process();
    const auto loaded = process.code.modules.get(handle);
    std::uint64_t bytes = 0;
    for (const auto& [name, variable] : loaded->variables) {
        bytes += variable.managed ? 0 : variable.bytes;
    }
    const std::uint64_t charged = process.objects.charged(handle, Object::kOwnMemory);
    if (bytes <= charged) {
        return CUDA_SUCCESS;
    }
    const CUresult result = charge_memory(call, bytes - charged);
    if (result == CUDA_SUCCESS) {
        process.objects.charge(handle, Object::kOwnMemory, call.charged());
    }
    return result;
}

}  // namespace

CUresult load_image(Call& call, const LoadCall& load, std::span<const std::byte> trailing,
                    HandleKind kind, Reply& reply) {
    GuestProcess& process = call.process();
    LoadedImage loaded;
    loaded.handle = load.handle;
    loaded.library = kind == HandleKind::kLibrary;
    loaded.context = call.header().context;
    auto image = process.code.images.take(load.image_id, load.image_bytes);
    if (!image.ok() || !read_load(load, trailing, &loaded) ||
        call.reserve(kind, load.handle) != CUDA_SUCCESS) {
        return call.malformed(call.op(),
                              image.ok() ? "parts, options or handle" : "the image is not staged");
    }
    loaded.image = std::move(image).value();
    JitOptions options(loaded.jit_options, load.info_log_bytes, load.error_log_bytes);
    std::uint64_t native = 0;
    const auto afford = [&call](std::uint64_t variable_bytes) {
        return charge_memory(call, variable_bytes);
    };
    CUresult result = hand_to_driver(process, *loaded.image, loaded.parts, loaded.library, options,
                                     &native, afford);
    LoadReply answer{};
    if (result == CUDA_SUCCESS && !call.is_restore()) {
        result = place_managed(call, load, loaded, options, &native, &answer);
    }
    std::string logs;
    answer.logs = options.logs(&logs);
    answer.trailing_bytes = static_cast<std::uint32_t>(logs.size());
    if (result == CUDA_SUCCESS) {
        result = call.add_object(load.handle, native);
        if (process.device.extension() != nullptr) {
            process.code.learn_printing(loaded);  // Without one it is learnt with the variables.
        }
        process.code.modules.add(std::move(loaded));
        // Where the driver alone picks addresses, a library's variables are loaded at once: in the
        // order of loads, which a restore repeats, not in that of the questions for them.
        if (kind == HandleKind::kModule || process.device.extension() == nullptr) {
            process.code.learn_variables(load.handle);
        }
    }
    const bool is_made = result == CUDA_SUCCESS;
    if (is_made) {
        result = charge_rest(call, load.handle);
    }
    if (result == CUDA_SUCCESS && process.device.extension() == nullptr && !call.is_restore()) {
        result = place_managed_by_code(call, load, &answer);
    }
    if (is_made && result != CUDA_SUCCESS) {
        process.destroy_object(*process.objects.get(load.handle));
    }
    reply.put(answer);
    reply.trailing(std::as_bytes(std::span(logs)));
    return result;
}

}  // namespace gantry::worker
