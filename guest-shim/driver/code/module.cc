// Loading and unloading modules and libraries, their globals, and what they contain.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "guest-shim/driver/code/code.h"
#include "guest-shim/driver/code/image.h"
#include "guest-shim/driver/code/jit_options.h"
#include "guest-shim/driver/core/ranges.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/wire_structs.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {

constinit SlotTable<Module> g_modules;

namespace {

using cuda::wire_hand::ImageOption;
using cuda::wire_hand::ImagePart;

/// Parts, then options, as LoadCall's trailing bytes; malloc'ed.
std::byte* pack_trailing(const ImageList& list, const JitOptions& options, std::uint32_t* bytes) {
    const std::size_t parts = list.count * sizeof(ImagePart);
    const std::size_t rest = options.sent_count() * sizeof(ImageOption);
    auto* packed = static_cast<std::byte*>(std::malloc(parts + rest + 1));
    if (packed != nullptr) {
        for (std::uint32_t i = 0; i < list.count; ++i) {
            std::memcpy(packed + i * sizeof(ImagePart), &list.items[i].part, sizeof(ImagePart));
        }
        std::memcpy(packed + parts, options.sent(), rest);
    }
    *bytes = static_cast<std::uint32_t>(parts + rest);
    return packed;
}

/// Where managed variables go; what is needed when they do not fit.
struct ManagedExtent {
    void* address = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t needed = 0;
};

CUresult load_staged(cuda::Op op, std::uint64_t handle, const ImageList& list,
                     std::uint32_t jit_count, JitOptions* options, ManagedExtent* managed) {
    cuda::wire_hand::LoadCall arguments{};
    arguments.handle = handle;
    arguments.managed_address = bits(managed->address);
    arguments.managed_bytes = managed->bytes;
    if (const CUresult result = stage(list, &arguments.image_id); result != CUDA_SUCCESS) {
        return result;
    }
    arguments.image_bytes = list.total_bytes;
    arguments.part_count = list.count;
    arguments.jit_option_count = jit_count;
    arguments.library_option_count = options->sent_count() - jit_count;
    arguments.info_log_bytes = options->info_capacity();
    arguments.error_log_bytes = options->error_capacity();
    const std::uint32_t log_capacity = arguments.info_log_bytes + arguments.error_log_bytes;
    std::uint32_t trailing_bytes = 0;
    std::byte* trailing = pack_trailing(list, *options, &trailing_bytes);
    auto* logs = static_cast<char*>(std::calloc(1, log_capacity + 1));
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (trailing != nullptr && logs != nullptr) {
        cuda::wire_hand::LoadReply reply{};
        std::uint32_t got = 0;
        result = session::call(op, &arguments, sizeof(arguments), trailing, trailing_bytes, &reply,
                               sizeof(reply), logs, log_capacity, &got);
        options->put_back(reply.logs, logs, got);
        managed->needed = reply.managed_bytes;
    }
    std::free(trailing);
    std::free(logs);
    return result;
}

/// Loads, and loads again with room for managed variables when the image turns out to have some.
CUresult load_with_managed(cuda::Op op, Module* module, const ImageList& list,
                           std::uint32_t jit_count, JitOptions* options) {
    ManagedExtent managed;
    CUresult result = load_staged(op, module->handle, list, jit_count, options, &managed);
    if (result != CUDA_ERROR_ILLEGAL_STATE || managed.needed == 0) {
        return result;
    }
    managed.bytes = managed.needed;
    if (const CUresult taken = take_extent(managed.bytes, 0, &managed.address);
        taken != CUDA_SUCCESS) {
        return taken;
    }
    result = load_staged(op, module->handle, list, jit_count, options, &managed);
    if (result == CUDA_SUCCESS) {
        module->managed = managed.address;
    } else {
        return_extent(managed.address);
    }
    return result;
}

session::FutexMutex* new_mutex() {
    void* memory = std::malloc(sizeof(session::FutexMutex));
    return memory == nullptr ? nullptr : new (memory) session::FutexMutex;
}

void forget_module(Module* module) {
    forget_kernels(module);
    remove_ranges_of(module->handle);
    // The mutex stays: a thread may still be looking at it. It is a few bytes per loaded image.
    g_modules.destroy(module->handle);
}

/// Posts the unload, then gives the managed variables' extent back: in this order the host has let
/// go of it before it is used again.
template <typename Call>
CUresult unload_on_host(cuda::Op op, const Call& arguments, void* managed) {
    const CUresult result = post_args(op, arguments);
    if (managed != nullptr) {
        return_extent(managed);
    }
    return result;
}

CUresult load_file(const char* path, char** bytes) {
    std::size_t count = 0;
    return read_file(path, bytes, &count);
}

CUresult get_global(cuda::Op op, std::uint64_t owner, const char* name, CUdeviceptr* address,
                    size_t* bytes) {
    GANTRY_REFUSE_IF(name == nullptr || (address == nullptr && bytes == nullptr),
                     CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(g_modules.find(owner) == nullptr, CUDA_ERROR_INVALID_HANDLE);
    const cuda::wire_hand::NameCall arguments{owner, 0};
    cuda::wire_hand::GlobalReply reply{};
    const CUresult result = session::call(op, &arguments, sizeof(arguments), name,
                                          static_cast<std::uint32_t>(std::strlen(name)), &reply,
                                          sizeof(reply), nullptr, 0, nullptr);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    // A module's are found with the others.
    const bool managed = op == cuda::Op::cuLibraryGetManaged || is_in_pool(reply.address);
    Range range{};
    range.address = reply.address;
    range.bytes = reply.bytes;
    range.kind = managed ? RangeKind::kManaged : RangeKind::kGlobal;
    range.context = session::current_context();
    range.device = current_device();
    range.owner = owner;
    if (managed && !is_in_pool(reply.address)) {
        return CUDA_ERROR_NOT_SUPPORTED;  // Memory that this process cannot reach.
    }
    add_range(&range);
    if (address != nullptr) {
        *address = reply.address;
    }
    if (bytes != nullptr) {
        *bytes = reply.bytes;
    }
    return CUDA_SUCCESS;
}

}  // namespace

CUresult read_file(const char* path, char** bytes, std::size_t* count) noexcept {
    GANTRY_REFUSE_IF(path == nullptr, CUDA_ERROR_INVALID_VALUE);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status {};
    if (fd < 0 || fstat(fd, &status) != 0) {
        if (fd >= 0) {
            close(fd);
        }
        return CUDA_ERROR_FILE_NOT_FOUND;
    }
    const auto size = static_cast<std::size_t>(status.st_size);
    auto* memory = static_cast<char*>(std::malloc(size + 1));
    std::size_t got = 0;
    while (memory != nullptr && got < size) {
        const ssize_t piece = read(fd, memory + got, size - got);
        if (piece <= 0) {
            break;
        }
        got += static_cast<std::size_t>(piece);
    }
    close(fd);
    if (memory == nullptr || got != size) {
        std::free(memory);
        return memory == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_FILE_NOT_FOUND;
    }
    memory[size] = '\0';
    *bytes = memory;
    *count = size;
    return CUDA_SUCCESS;
}

CUresult load_image(cuda::Op op, HandleKind kind, const void* image, unsigned jit_count,
                    const CUjit_option* jit_options, void** jit_values, unsigned library_count,
                    const CUlibraryOption* library_options, void** library_values,
                    std::uint64_t* handle) noexcept {
    JitOptions options;
    CUresult result = options.read(jit_count, jit_options, jit_values);
    const std::uint32_t jit_sent = options.sent_count();
    // Values may be missing: cuBLASLt gives "binary is preserved" without any, natively too.
    GANTRY_REFUSE_IF(library_count != 0 && library_options == nullptr, CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < library_count && result == CUDA_SUCCESS; ++i) {
        if (library_options[i] == CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE) {
            continue;  // Host functions of the guest mean nothing on the host.
        }
        result = options.add(static_cast<std::uint32_t>(library_options[i]),
                             library_values != nullptr ? bits(library_values[i]) : 0);
    }
    ImageList list;
    if (result == CUDA_SUCCESS) {
        result = list_image(image, &list);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    Module* module = g_modules.create(kind, handle);
    session::FutexMutex* mutex = new_mutex();
    GANTRY_REFUSE_IF(module == nullptr || mutex == nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    module->handle = *handle;
    module->context = kind == HandleKind::kModule ? session::current_context() : 0;
    module->mutex = mutex;
    result = load_with_managed(op, module, list, jit_sent, &options);
    if (result != CUDA_SUCCESS) {
        g_modules.destroy(*handle);
    }
    return result;
}

void forget_modules_of(std::uint64_t context) noexcept {
    g_modules.for_each([&](std::uint64_t, Module* module) {
        if (module->context == context) {
            void* managed = module->managed;
            forget_module(module);
            if (managed != nullptr) {
                return_extent(managed);
            }
        }
    });
}

}  // namespace gantry::shim

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int numOptions,
                            CUjit_option* options, void** optionValues) noexcept {
    GANTRY_REFUSE_IF(module == nullptr, CUDA_ERROR_INVALID_VALUE);
    std::uint64_t handle = 0;
    const CUresult result =
        load_image(cuda::Op::cuModuleLoadDataEx, HandleKind::kModule, image, numOptions, options,
                   optionValues, 0, nullptr, nullptr, &handle);
    if (result == CUDA_SUCCESS) {
        *module = reinterpret_cast<CUmodule>(handle);
    }
    return result;
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) noexcept {
    return cuModuleLoadDataEx(module, image, 0, nullptr, nullptr);
}

CUresult cuModuleLoadFatBinary(CUmodule* module, const void* fatCubin) noexcept {
    return cuModuleLoadDataEx(module, fatCubin, 0, nullptr, nullptr);
}

CUresult cuModuleLoad(CUmodule* module, const char* fname) noexcept {
    char* bytes = nullptr;
    if (const CUresult result = load_file(fname, &bytes); result != CUDA_SUCCESS) {
        return result;
    }
    const CUresult result = cuModuleLoadDataEx(module, bytes, 0, nullptr, nullptr);
    std::free(bytes);
    return result;
}

CUresult cuModuleUnload(CUmodule hmod) noexcept {
    Module* module = g_modules.find(bits(hmod));
    GANTRY_REFUSE_IF(module == nullptr || cuda::handle_kind(bits(hmod)) != HandleKind::kModule,
                     CUDA_ERROR_INVALID_HANDLE);
    void* managed = module->managed;
    forget_module(module);
    return unload_on_host(cuda::Op::cuModuleUnload, cuda::wire::cuModuleUnload_call{bits(hmod)},
                          managed);
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) noexcept {
    GANTRY_REFUSE_IF(mode == nullptr, CUDA_ERROR_INVALID_VALUE);
    // Read once: applications may not change it after the first call.
    static std::atomic<int> cached{0};
    int known = cached.load(std::memory_order_relaxed);
    if (known == 0) {
        const char* setting = std::getenv("CUDA_MODULE_LOADING");
        const bool eager = setting != nullptr && std::strcmp(setting, "EAGER") == 0;
        known = eager ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
        cached.store(known, std::memory_order_relaxed);
    }
    *mode = static_cast<CUmoduleLoadingMode>(known);
    return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jitOptions,
                           void** jitOptionsValues, unsigned int numJitOptions,
                           CUlibraryOption* libraryOptions, void** libraryOptionValues,
                           unsigned int numLibraryOptions) noexcept {
    GANTRY_REFUSE_IF(library == nullptr, CUDA_ERROR_INVALID_VALUE);
    std::uint64_t handle = 0;
    const CUresult result = load_image(
        cuda::Op::cuLibraryLoadData, HandleKind::kLibrary, code, numJitOptions, jitOptions,
        jitOptionsValues, numLibraryOptions, libraryOptions, libraryOptionValues, &handle);
    if (result == CUDA_SUCCESS) {
        *library = reinterpret_cast<CUlibrary>(handle);
    }
    return result;
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* fileName, CUjit_option* jitOptions,
                               void** jitOptionsValues, unsigned int numJitOptions,
                               CUlibraryOption* libraryOptions, void** libraryOptionValues,
                               unsigned int numLibraryOptions) noexcept {
    char* bytes = nullptr;
    if (const CUresult result = load_file(fileName, &bytes); result != CUDA_SUCCESS) {
        return result;
    }
    const CUresult result =
        cuLibraryLoadData(library, bytes, jitOptions, jitOptionsValues, numJitOptions,
                          libraryOptions, libraryOptionValues, numLibraryOptions);
    std::free(bytes);
    return result;
}

CUresult cuLibraryUnload(CUlibrary library) noexcept {
    Module* module = g_modules.find(bits(library));
    GANTRY_REFUSE_IF(module == nullptr || cuda::handle_kind(bits(library)) != HandleKind::kLibrary,
                     CUDA_ERROR_INVALID_HANDLE);
    std::uint64_t twin_handle = 0;
    {
        session::Guard guard(*module->mutex);
        twin_handle = module->module;
    }
    Module* twin = g_modules.find(twin_handle);
    if (twin != nullptr) {
        forget_module(twin);
    }
    void* managed = module->managed;
    forget_module(module);
    return unload_on_host(cuda::Op::cuLibraryUnload,
                          cuda::wire::cuLibraryUnload_call{bits(library)}, managed);
}

CUresult cuLibraryGetModule(CUmodule* pMod, CUlibrary library) noexcept {
    Module* owner = g_modules.find(bits(library));
    if (pMod == nullptr || owner == nullptr) {
        return pMod == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    }
    session::Guard guard(*owner->mutex);
    if (owner->module == 0) {
        std::uint64_t handle = 0;
        Module* module = g_modules.create(HandleKind::kModule, &handle);
        session::FutexMutex* mutex = new_mutex();
        GANTRY_REFUSE_IF(module == nullptr || mutex == nullptr, CUDA_ERROR_OUT_OF_MEMORY);
        module->handle = handle;
        module->library = bits(library);
        module->mutex = mutex;
        const cuda::wire::cuLibraryGetModule_call arguments{handle, bits(library)};
        const CUresult result = call_status(cuda::Op::cuLibraryGetModule, arguments);
        if (result != CUDA_SUCCESS) {
            g_modules.destroy(handle);
            return result;
        }
        owner->module = handle;
    }
    *pMod = reinterpret_cast<CUmodule>(owner->module);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* dptr, size_t* bytes, CUmodule hmod,
                              const char* name) noexcept {
    return get_global(cuda::Op::cuModuleGetGlobal_v2, bits(hmod), name, dptr, bytes);
}

CUresult cuLibraryGetGlobal(CUdeviceptr* dptr, size_t* bytes, CUlibrary library,
                            const char* name) noexcept {
    return get_global(cuda::Op::cuLibraryGetGlobal, bits(library), name, dptr, bytes);
}

CUresult cuLibraryGetManaged(CUdeviceptr* dptr, size_t* bytes, CUlibrary library,
                             const char* name) noexcept {
    return get_global(cuda::Op::cuLibraryGetManaged, bits(library), name, dptr, bytes);
}

}  // namespace gantry::cuda_impl
