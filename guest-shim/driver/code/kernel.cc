// Kernels and functions: looked up once by name, with their attributes and parameter layout.
#include <cstdlib>
#include <cstring>

#include "guest-shim/driver/code/code.h"
#include "guest-shim/driver/code/launch.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/wire_structs.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {

constinit SlotTable<Kernel> g_kernels;

namespace {

using cuda::wire_hand::KernelParam;
using cuda::wire_hand::KernelReply;

constexpr std::uint32_t kMaxParams = 4096;
constexpr std::uint32_t kNamesBytes = 256u << 10;

Kernel* find_named(const Module& owner, const char* name) GANTRY_REQUIRES(*owner.mutex) {
    for (Kernel* kernel = g_kernels.find(owner.first_kernel); kernel != nullptr;
         kernel = g_kernels.find(kernel->next)) {
        if (!kernel->shares_parts && std::strcmp(kernel->name, name) == 0) {
            return kernel;
        }
    }
    return nullptr;
}

bool has_padding(const Kernel& kernel) {
    std::uint32_t covered = 0;
    for (std::uint32_t i = 0; i < kernel.param_count; ++i) {
        covered += kernel.params[i].bytes;
    }
    return covered != kernel.param_bytes;
}

/// Takes the host's answer; false when it makes no sense.
bool take_layout(Kernel* kernel, const KernelReply& reply, const KernelParam* params,
                 std::uint32_t params_bytes) {
    if (reply.param_count > kMaxParams || params_bytes < reply.param_count * sizeof(KernelParam)) {
        return false;
    }
    for (std::uint32_t i = 0; i < reply.param_count; ++i) {
        if (params[i].offset > reply.param_bytes ||
            params[i].bytes > reply.param_bytes - params[i].offset) {
            return false;
        }
    }
    kernel->params =
        static_cast<KernelParam*>(std::malloc(reply.param_count * sizeof(KernelParam) + 1));
    if (kernel->params == nullptr) {
        return false;
    }
    std::memcpy(kernel->params, params, reply.param_count * sizeof(KernelParam));
    kernel->param_count = reply.param_count;
    kernel->param_bytes = reply.param_bytes;
    kernel->layout_known = reply.layout_known != 0;
    kernel->has_padding = has_padding(*kernel);
    std::memcpy(kernel->attributes, reply.attributes, sizeof(kernel->attributes));
    std::memcpy(kernel->attribute_status, reply.attribute_status, sizeof(kernel->attribute_status));
    return true;
}

CUresult ask_host(Kernel* kernel, HandleKind kind) {
    const cuda::wire_hand::NameCall arguments{kernel->owner, kernel->handle};
    const cuda::Op op =
        kind == HandleKind::kKernel ? cuda::Op::cuLibraryGetKernel : cuda::Op::cuModuleGetFunction;
    auto* params = static_cast<KernelParam*>(std::malloc(kMaxParams * sizeof(KernelParam)));
    GANTRY_REFUSE_IF(params == nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    KernelReply reply{};
    std::uint32_t got = 0;
    CUresult result = session::call(op, &arguments, sizeof(arguments), kernel->name,
                                    static_cast<std::uint32_t>(std::strlen(kernel->name)), &reply,
                                    sizeof(reply), params, kMaxParams * sizeof(KernelParam), &got);
    if (result == CUDA_SUCCESS && !take_layout(kernel, reply, params, got)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    std::free(params);
    return result;
}

/// The record that holds a kernel's attributes: a twin's is its kernel.
Kernel* canonical(Kernel* kernel) {
    if (kernel != nullptr && kernel->shares_parts) {
        Kernel* original = g_kernels.find(kernel->twin);
        return original != nullptr ? original : kernel;
    }
    return kernel;
}

/// Libraries set the same value before every launch; a set value is the host's too.
bool has_attribute(const Kernel& kernel, int attribute, int value) {
    return kernel.attribute_status[attribute] == CUDA_SUCCESS &&
           kernel.attributes[attribute] == value;
}

/// What a kernel was set to holds for its function as well: a launch looks at whichever it is
/// given.
void note_attribute(Kernel* kernel, int attribute, int value) {
    Kernel* const both[] = {kernel, g_kernels.find(kernel->twin)};
    for (Kernel* one : both) {
        if (one != nullptr) {
            one->attributes[attribute] = value;
            one->attribute_status[attribute] = CUDA_SUCCESS;
        }
    }
}

/// Sets an attribute at the host. Libraries set a kernel's dynamic shared memory back and forth in
/// every step: what the driver has granted once it grants again, so that nobody waits for it.
template <typename Arguments>
CUresult set_attribute(Kernel* kernel, cuda::Op op, int attribute, int value,
                       const Arguments& arguments) {
    if (has_attribute(*kernel, attribute, value)) {
        return CUDA_SUCCESS;
    }
    const bool is_dynamic = attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    const bool is_granted = is_dynamic && value >= 0 && value <= kernel->granted_dynamic_bytes;
    const CUresult result = is_granted ? post_args(op, arguments) : call_status(op, arguments);
    if (result == CUDA_SUCCESS) {
        note_attribute(kernel, attribute, value);
        forget_accepted(kernel);
        if (is_dynamic && value > kernel->granted_dynamic_bytes) {
            kernel->granted_dynamic_bytes = value;
        }
    }
    return result;
}

CUresult get_attribute(int* out, int attribute, const void* function) {
    GANTRY_REFUSE_IF(out == nullptr, CUDA_ERROR_INVALID_VALUE);
    const Kernel* kernel = canonical(find_kernel(function));
    GANTRY_REFUSE_IF(kernel == nullptr, CUDA_ERROR_INVALID_HANDLE);
    if (attribute < 0 ||
        static_cast<std::uint32_t>(attribute) >= cuda::wire_hand::kFunctionAttributeCount) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (kernel->attribute_status[attribute] == CUDA_SUCCESS) {
        *out = kernel->attributes[attribute];
    }
    return static_cast<CUresult>(kernel->attribute_status[attribute]);
}

CUresult get_param(const void* function, size_t index, size_t* offset, size_t* size) {
    const Kernel* kernel = find_kernel(function);
    GANTRY_REFUSE_IF(kernel == nullptr, CUDA_ERROR_INVALID_HANDLE);
    GANTRY_REFUSE_IF(offset == nullptr || index >= kernel->param_count, CUDA_ERROR_INVALID_VALUE);
    *offset = kernel->params[index].offset;
    if (size != nullptr) {
        *size = kernel->params[index].bytes;
    }
    return CUDA_SUCCESS;
}

CUresult get_name(const char** name, const void* function) {
    const Kernel* kernel = find_kernel(function);
    GANTRY_REFUSE_IF(name == nullptr || function == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(kernel == nullptr, CUDA_ERROR_INVALID_HANDLE);
    *name = kernel->name;
    return CUDA_SUCCESS;
}

/// Calls visit(name) for each function of an owner; stops at the first error.
template <typename Visitor>
CUresult for_each_name(cuda::Op op, std::uint64_t owner, Visitor visit) {
    auto* names = static_cast<char*>(std::malloc(kNamesBytes + 1));
    GANTRY_REFUSE_IF(names == nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    cuda::wire_hand::NamesCall arguments{owner, 0, 0};
    cuda::wire_hand::NamesReply reply{};
    CUresult result = CUDA_SUCCESS;
    do {
        std::uint32_t got = 0;
        reply = {};
        result = session::call(op, &arguments, sizeof(arguments), nullptr, 0, &reply, sizeof(reply),
                               names, kNamesBytes, &got);
        names[got] = '\0';
        const char* name = names;
        for (std::uint32_t i = 0; i < reply.count && result == CUDA_SUCCESS; ++i) {
            if (name >= names + got) {
                result = CUDA_ERROR_UNKNOWN;
                break;
            }
            result = visit(name);
            name += std::strlen(name) + 1;
        }
        arguments.first += reply.count;
    } while (result == CUDA_SUCCESS && reply.count != 0 && arguments.first < reply.total);
    std::free(names);
    return result;
}

/// Fills an array with the handles of an owner's first functions.
CUresult enumerate(cuda::Op op, HandleKind kind, std::uint64_t owner, void** out, unsigned room) {
    if (out == nullptr || room == 0) {
        return out == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
    GANTRY_REFUSE_IF(g_modules.find(owner) == nullptr, CUDA_ERROR_INVALID_HANDLE);
    unsigned count = 0;
    return for_each_name(op, owner, [&](const char* name) {
        std::uint64_t handle = 0;
        if (count == room) {
            return CUDA_SUCCESS;
        }
        const CUresult result = get_kernel(owner, name, kind, &handle);
        out[count++] = reinterpret_cast<void*>(handle);
        return result;
    });
}

}  // namespace

CUresult get_kernel(std::uint64_t owner, const char* name, HandleKind kind,
                    std::uint64_t* handle) noexcept {
    GANTRY_REFUSE_IF(name == nullptr, CUDA_ERROR_INVALID_VALUE);
    Module* module = g_modules.find(owner);
    GANTRY_REFUSE_IF(module == nullptr, CUDA_ERROR_INVALID_HANDLE);
    session::Guard guard(*module->mutex);
    if (const Kernel* known = find_named(*module, name)) {
        *handle = known->handle;
        return CUDA_SUCCESS;
    }
    std::uint64_t made = 0;
    Kernel* kernel = g_kernels.create(kind, &made);
    char* copy = strdup(name);
    if (kernel == nullptr || copy == nullptr) {
        std::free(copy);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    kernel->handle = made;
    kernel->owner = owner;
    kernel->name = copy;
    if (const CUresult result = ask_host(kernel, kind); result != CUDA_SUCCESS) {
        g_kernels.destroy(made);
        std::free(copy);
        return result;
    }
    kernel->next = module->first_kernel;
    module->first_kernel = made;
    *handle = made;
    return CUDA_SUCCESS;
}

void forget_kernels(Module* owner) noexcept {
    session::Guard guard(*owner->mutex);
    Kernel* kernel = g_kernels.find(owner->first_kernel);
    while (kernel != nullptr) {
        Kernel* next = g_kernels.find(kernel->next);
        if (!kernel->shares_parts) {
            std::free(kernel->name);
            std::free(kernel->params);
        }
        g_kernels.destroy(kernel->handle);
        kernel = next;
    }
    owner->first_kernel = 0;
}

int visit_functions(void* module, dark::FunctionVisitor visitor, void* user) {
    int count = 0;
    for_each_name(cuda::Op::cuModuleEnumerateFunctions, bits(module), [&](const char* name) {
        std::uint64_t handle = 0;
        const CUresult result = get_kernel(bits(module), name, HandleKind::kFunction, &handle);
        if (result == CUDA_SUCCESS) {
            visitor(user, reinterpret_cast<void*>(handle), 0);
            ++count;
        }
        return result;
    });
    return count;
}

}  // namespace gantry::shim

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuModuleGetFunction(CUfunction* hfunc, CUmodule hmod, const char* name) noexcept {
    GANTRY_REFUSE_IF(hfunc == nullptr, CUDA_ERROR_INVALID_VALUE);
    std::uint64_t handle = 0;
    const CUresult result = get_kernel(bits(hmod), name, HandleKind::kFunction, &handle);
    if (result == CUDA_SUCCESS) {
        *hfunc = reinterpret_cast<CUfunction>(handle);
    }
    return result;
}

CUresult cuLibraryGetKernel(CUkernel* pKernel, CUlibrary library, const char* name) noexcept {
    GANTRY_REFUSE_IF(pKernel == nullptr, CUDA_ERROR_INVALID_VALUE);
    std::uint64_t handle = 0;
    const CUresult result = get_kernel(bits(library), name, HandleKind::kKernel, &handle);
    if (result == CUDA_SUCCESS) {
        *pKernel = reinterpret_cast<CUkernel>(handle);
    }
    return result;
}

CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned int numFunctions,
                                    CUmodule mod) noexcept {
    return enumerate(cuda::Op::cuModuleEnumerateFunctions, HandleKind::kFunction, bits(mod),
                     reinterpret_cast<void**>(functions), numFunctions);
}

CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int numKernels,
                                   CUlibrary lib) noexcept {
    return enumerate(cuda::Op::cuLibraryEnumerateKernels, HandleKind::kKernel, bits(lib),
                     reinterpret_cast<void**>(kernels), numKernels);
}

CUresult cuKernelGetFunction(CUfunction* pFunc, CUkernel kernel) noexcept {
    Kernel* original = find_kernel(kernel);
    if (pFunc == nullptr || original == nullptr) {
        return pFunc == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    }
    Module* owner = g_modules.find(original->owner);
    if (cuda::handle_kind(bits(kernel)) != HandleKind::kKernel || owner == nullptr) {
        *pFunc = reinterpret_cast<CUfunction>(kernel);
        return CUDA_SUCCESS;
    }
    session::Guard guard(*owner->mutex);
    if (original->twin == 0) {
        std::uint64_t handle = 0;
        Kernel* twin = g_kernels.create(HandleKind::kFunction, &handle);
        GANTRY_REFUSE_IF(twin == nullptr, CUDA_ERROR_OUT_OF_MEMORY);
        const cuda::wire::cuKernelGetFunction_call arguments{handle, bits(kernel)};
        const CUresult result = call_status(cuda::Op::cuKernelGetFunction, arguments);
        if (result != CUDA_SUCCESS) {
            g_kernels.destroy(handle);
            return result;
        }
        *twin = *original;
        twin->handle = handle;
        twin->twin = original->handle;
        twin->shares_parts = true;
        twin->next = owner->first_kernel;
        owner->first_kernel = handle;
        original->twin = handle;
    }
    *pFunc = reinterpret_cast<CUfunction>(original->twin);
    return CUDA_SUCCESS;
}

CUresult cuKernelGetLibrary(CUlibrary* pLib, CUkernel kernel) noexcept {
    const Kernel* found = find_kernel(kernel);
    if (pLib == nullptr || found == nullptr) {
        return pLib == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    }
    *pLib = reinterpret_cast<CUlibrary>(found->owner);
    return CUDA_SUCCESS;
}

CUresult cuFuncGetModule(CUmodule* hmod, CUfunction hfunc) noexcept {
    const Kernel* found = find_kernel(hfunc);
    if (hmod == nullptr || found == nullptr) {
        return hmod == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    }
    if (cuda::handle_kind(found->owner) == HandleKind::kLibrary) {
        return cuLibraryGetModule(hmod, reinterpret_cast<CUlibrary>(found->owner));
    }
    *hmod = reinterpret_cast<CUmodule>(found->owner);
    return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char** name, CUkernel hfunc) noexcept {
    return get_name(name, hfunc);
}

CUresult cuFuncGetName(const char** name, CUfunction hfunc) noexcept {
    return get_name(name, hfunc);
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t* paramOffset,
                              size_t* paramSize) noexcept {
    return get_param(kernel, paramIndex, paramOffset, paramSize);
}

CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t* paramOffset,
                            size_t* paramSize) noexcept {
    return get_param(func, paramIndex, paramOffset, paramSize);
}

CUresult cuFuncGetAttribute(int* pi, CUfunction_attribute attrib, CUfunction hfunc) noexcept {
    return get_attribute(pi, attrib, hfunc);
}

CUresult cuKernelGetAttribute(int* pi, CUfunction_attribute attrib, CUkernel kernel,
                              CUdevice dev) noexcept {
    GANTRY_REFUSE_IF(session::device_facts(dev) == nullptr, CUDA_ERROR_INVALID_DEVICE);
    return get_attribute(pi, attrib, kernel);
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) noexcept {
    Kernel* kernel = canonical(find_kernel(hfunc));
    GANTRY_REFUSE_IF(kernel == nullptr, CUDA_ERROR_INVALID_HANDLE);
    const int number = attrib;
    if (number < 0 ||
        static_cast<std::uint32_t>(number) >= cuda::wire_hand::kFunctionAttributeCount) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const cuda::wire::cuFuncSetAttribute_call arguments{bits(hfunc),
                                                        static_cast<std::uint32_t>(attrib), value};
    return set_attribute(kernel, cuda::Op::cuFuncSetAttribute, number, value, arguments);
}

CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel,
                              CUdevice dev) noexcept {
    GANTRY_REFUSE_IF(session::device_facts(dev) == nullptr, CUDA_ERROR_INVALID_DEVICE);
    Kernel* found = canonical(find_kernel(kernel));
    const int number = attrib;
    GANTRY_REFUSE_IF(found == nullptr, CUDA_ERROR_INVALID_HANDLE);
    if (number < 0 ||
        static_cast<std::uint32_t>(number) >= cuda::wire_hand::kFunctionAttributeCount) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    cuda::wire::cuKernelSetAttribute_call arguments{};
    arguments.attrib = static_cast<std::uint32_t>(attrib);
    arguments.val = val;
    arguments.kernel = bits(kernel);
    arguments.dev = dev;
    return set_attribute(found, cuda::Op::cuKernelSetAttribute, number, val, arguments);
}

}  // namespace gantry::cuda_impl
