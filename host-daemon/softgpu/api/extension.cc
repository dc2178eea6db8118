#include "host-daemon/softgpu/api/extension.h"

#include <algorithm>
#include <cstring>

#include "host-daemon/softgpu/code/module.h"
#include "host-daemon/softgpu/core/driver.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/memory/arena.h"
#include "host-daemon/softgpu/memory/heap_memory.h"
#include "host-daemon/softgpu/memory/texture_create.h"
#include "host-daemon/softgpu/streams/device_output.h"
#include "proto/cuda/soft_extension.h"

namespace gantry::softgpu {
namespace {

constexpr std::uint32_t kStateMagic = 0x31535347;  // "GSS1"

struct StateHead {
    std::uint32_t magic;
    std::uint32_t reserved;
    std::uint64_t heap_base;
    std::uint64_t heap_bytes;
    std::uint64_t book_bytes;
    std::uint64_t text_bytes;
};

GantrySoftOutput g_output = nullptr;
void* g_output_user = nullptr;

CUresult place(const GantrySoftPlacement* places, size_t count, Placement how) {
    GANTRY_REFUSE_IF(count != 0 && places == nullptr, CUDA_ERROR_INVALID_VALUE);
    Placements wanted;
    for (size_t i = 0; i < count; ++i) {
        GANTRY_REFUSE_IF(places[i].name == nullptr || places[i].address == 0,
                         CUDA_ERROR_INVALID_VALUE);
        how.address = places[i].address;
        wanted[places[i].name] = how;
    }
    add_next_placement(wanted);
    return CUDA_SUCCESS;
}

CUresult place_next_load(const GantrySoftPlacement* places, size_t count) {
    return place(places, count, {0, false, true});
}

CUresult place_next_load_in(const GantrySoftPlacement* places, size_t count, int initialise) {
    return place(places, count, {0, true, initialise != 0});
}

CUresult list_managed(CUlibrary handle, GantrySoftVariable* out, size_t* count) {
    const auto library = find<Library>(handle);
    if (library == nullptr || count == nullptr) {
        return library == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    const auto managed = library->managed_variables();
    if (!managed.ok()) {
        *count = 0;  // Its first use tells why.
        return CUDA_SUCCESS;
    }
    static thread_local std::vector<GlobalInfo> listed;  // Keeps the names alive.
    listed = *managed;
    for (size_t i = 0; out != nullptr && i < std::min(*count, listed.size()); ++i) {
        out[i] = {listed[i].name.c_str(), 0, listed[i].size_bytes, 1, listed[i].visible ? 1 : 0};
    }
    *count = listed.size();
    return CUDA_SUCCESS;
}

CUresult list_variables(CUmodule handle, GantrySoftVariable* out, size_t* count) {
    const auto module = find<Module>(handle);
    if (module == nullptr || count == nullptr) {
        return module == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    const auto& globals = module->globals();
    if (out != nullptr) {
        for (size_t i = 0; i < std::min(*count, globals.size()); ++i) {
            const PlacedGlobal& global = globals[i];
            out[i] = {global.name.c_str(), global.address, global.bytes, global.managed ? 1 : 0,
                      global.visible ? 1 : 0};
        }
    }
    *count = globals.size();
    return CUDA_SUCCESS;
}

CUresult module_traits(CUmodule handle, uint32_t* traits) {
    const auto module = find<Module>(handle);
    if (module == nullptr || traits == nullptr) {
        return module == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    *traits = 0;
    for (const KernelInfo& kernel : module->program().kernels()) {
        *traits |= kernel.uses_device_heap ? std::uint32_t{GANTRY_SOFT_MODULE_USES_HEAP} : 0U;
        *traits |= kernel.uses_printf ? std::uint32_t{GANTRY_SOFT_MODULE_USES_PRINTF} : 0U;
        *traits |= kernel.takes_function_addresses
                       ? std::uint32_t{GANTRY_SOFT_MODULE_FUNCTION_ADDRESSES}
                       : 0U;
    }
    return CUDA_SUCCESS;
}

CUresult list_private_ranges(CUcontext handle, GantrySoftRange* out, size_t* count) {
    const auto context = find<Context>(handle);
    if (context == nullptr || count == nullptr) {
        return context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
    }
    const size_t there = context->heap.bytes() != 0 ? 1 : 0;
    if (out != nullptr && *count >= 1 && there == 1) {
        out[0] = {context->heap.base(), context->heap.bytes()};
    }
    *count = there;
    return CUDA_SUCCESS;
}

CUresult save_private_state(CUcontext handle, void* out, size_t* bytes) {
    const auto context = find<Context>(handle);
    if (context == nullptr || bytes == nullptr) {
        return context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
    }
    const std::string book = context->heap.state();
    const std::string text = DeviceOutput::instance().pending();
    const StateHead head = {kStateMagic,           0,           context->heap.base(),
                            context->heap.bytes(), book.size(), text.size()};
    const size_t total = sizeof head + book.size() + text.size();
    if (out != nullptr) {
        GANTRY_REFUSE_IF(*bytes < total, CUDA_ERROR_INVALID_VALUE);
        auto* to = static_cast<char*>(out);
        std::memcpy(to, &head, sizeof head);
        std::memcpy(to + sizeof head, book.data(), book.size());
        std::memcpy(to + sizeof head + book.size(), text.data(), text.size());
    }
    *bytes = total;
    return CUDA_SUCCESS;
}

CUresult restore_private_state(CUcontext handle, const void* state, size_t bytes) {
    const auto context = find<Context>(handle);
    StateHead head;
    GANTRY_REFUSE_IF(context == nullptr, CUDA_ERROR_INVALID_CONTEXT);
    GANTRY_REFUSE_IF(state == nullptr || bytes < sizeof head, CUDA_ERROR_INVALID_VALUE);
    std::memcpy(&head, state, sizeof head);
    const size_t rest = bytes - sizeof head;
    if (head.magic != kStateMagic || head.book_bytes > rest ||
        head.text_bytes != rest - head.book_bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto* body = static_cast<const char*>(state) + sizeof head;
    if (head.heap_bytes != 0) {
        GANTRY_REFUSE_IF(!ensure_heap_at(*context, {head.heap_base, head.heap_bytes}),
                         CUDA_ERROR_OUT_OF_MEMORY);
        GANTRY_REFUSE_IF(!context->heap.restore(std::string(body, head.book_bytes)),
                         CUDA_ERROR_INVALID_VALUE);
    }
    DeviceOutput::instance().restore({body + head.book_bytes, head.text_bytes});
    return CUDA_SUCCESS;
}

CUresult create_texture_at(CUtexObject wanted, const CUDA_RESOURCE_DESC* resource,
                           const CUDA_TEXTURE_DESC* texture, const CUDA_RESOURCE_VIEW_DESC* view) {
    GANTRY_CURRENT(context);
    CUtexObject made = 0;
    return wanted == 0 ? CUDA_ERROR_INVALID_VALUE
                       : create_texture(*context, resource, texture, view, wanted, made);
}

CUresult create_surface_at(CUsurfObject wanted, const CUDA_RESOURCE_DESC* resource) {
    GANTRY_CURRENT(context);
    CUsurfObject made = 0;
    return wanted == 0 ? CUDA_ERROR_INVALID_VALUE
                       : create_surface(*context, resource, wanted, made);
}

void forward_report(void*, const char* text, std::size_t bytes) {
    g_output(g_output_user, 3, text, bytes);
}

CUresult set_output(GantrySoftOutput sink, void* user) {
    g_output = sink;
    g_output_user = user;
    DeviceOutput::instance().set_sink(sink, user);
    set_report_sink(sink != nullptr ? forward_report : nullptr, nullptr);
    return CUDA_SUCCESS;
}

CUresult flush_output() {
    DeviceOutput::instance().flush();
    return CUDA_SUCCESS;
}

CUresult show_attributes(CUdevice ordinal, const CUdevice_attribute* numbers, const int* values,
                         size_t count) {
    GANTRY_CU(check_ready());
    Device* const device = device_of(ordinal);
    GANTRY_REFUSE_IF(device == nullptr, CUDA_ERROR_INVALID_DEVICE);
    GANTRY_REFUSE_IF(count != 0 && (numbers == nullptr || values == nullptr),
                     CUDA_ERROR_INVALID_VALUE);
    DeviceProfile shown = device->profile.engine;
    for (size_t i = 0; i < count; ++i) {
        GANTRY_REFUSE_IF(!show_attribute(numbers[i], values[i], shown), CUDA_ERROR_INVALID_VALUE);
    }
    device->show(shown);
    return CUDA_SUCCESS;
}

const GantrySoftExtension kTable = {
    sizeof(GantrySoftExtension),
    1,
    GANTRY_SOFT_HOST_ADDRESSABLE,
    place_next_load,
    list_variables,
    module_traits,
    list_private_ranges,
    save_private_state,
    restore_private_state,
    create_texture_at,
    create_surface_at,
    set_output,
    flush_output,
    place_next_load_in,
    list_managed,
    show_attributes,
};

}  // namespace

const void* extension_table(const std::uint8_t uuid[16]) {
    const bool wanted = std::memcmp(uuid, kGantrySoftExtensionId.bytes, 16) == 0;
    return wanted && !Arena::instance().is_foreign() ? &kTable : nullptr;
}

}  // namespace gantry::softgpu
