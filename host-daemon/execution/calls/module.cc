// Images, modules, libraries, kernels and variables.
#include "host-daemon/execution/dispatch/handlers.h"

#include "host-daemon/execution/base/log.h"
#include "host-daemon/execution/loading/image_loader.h"
#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {
namespace {

using cuda::wire_hand::GlobalReply;
using cuda::wire_hand::KernelParam;
using cuda::wire_hand::KernelReply;
using cuda::wire_hand::LoadCall;
using cuda::wire_hand::NameCall;
using cuda::wire_hand::NamesCall;
using cuda::wire_hand::NamesReply;

constexpr std::size_t kMostParams = 4096;

std::string name_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The kernel's parameter layout, as far as the driver tells it.
bool read_layout(const driver::DriverApi& api, HandleKind kind, std::uint64_t native,
                 std::vector<KernelParam>* params) {
    for (std::size_t index = 0; index < kMostParams; ++index) {
        std::size_t offset = 0;
        std::size_t bytes = 0;
        CUresult result = CUDA_ERROR_NOT_SUPPORTED;
        if (kind == HandleKind::kKernel && api.cuKernelGetParamInfo != nullptr) {
            result = api.cuKernelGetParamInfo(reinterpret_cast<CUkernel>(native), index, &offset,
                                              &bytes);
        } else if (kind == HandleKind::kFunction && api.cuFuncGetParamInfo != nullptr) {
            result = api.cuFuncGetParamInfo(reinterpret_cast<CUfunction>(native), index, &offset,
                                            &bytes);
        }
        if (result == CUDA_ERROR_INVALID_VALUE) {
            return true;
        }
        if (result != CUDA_SUCCESS) {
            return false;
        }
        params->push_back({static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(bytes)});
    }
    return false;
}

void describe_kernel(Call& call, HandleKind kind, std::uint64_t native, Reply& reply) {
    const driver::DriverApi& api = call.api();
    KernelReply answer{};
    for (std::uint32_t i = 0; i < cuda::wire_hand::kFunctionAttributeCount; ++i) {
        const auto attribute = static_cast<CUfunction_attribute>(i);
        int value = 0;
        CUresult result = CUDA_ERROR_NOT_SUPPORTED;
        if (kind == HandleKind::kKernel && api.cuKernelGetAttribute != nullptr) {
            result = api.cuKernelGetAttribute(&value, attribute, reinterpret_cast<CUkernel>(native),
                                              call.process().device.ordinal());
        } else if (kind == HandleKind::kFunction && api.cuFuncGetAttribute != nullptr) {
            result =
                api.cuFuncGetAttribute(&value, attribute, reinterpret_cast<CUfunction>(native));
        }
        answer.attributes[i] = value;
        answer.attribute_status[i] = static_cast<std::uint32_t>(result);
    }
    std::vector<KernelParam> params;
    answer.layout_known = read_layout(api, kind, native, &params) ? 1 : 0;
    answer.param_count = static_cast<std::uint32_t>(params.size());
    for (const KernelParam& param : params) {
        answer.param_bytes = std::max(answer.param_bytes, param.offset + param.bytes);
    }
    answer.trailing_bytes = static_cast<std::uint32_t>(params.size() * sizeof(KernelParam));
    reply.put(answer);
    reply.trailing(std::as_bytes(std::span(params)));
}

enum class Managed : bool { kNo, kYes };

/// Answers where a variable of `owner` lies, as one of the driver's entry points tells it.
template <typename Owner>
CUresult answer_variable(CallContext& context, HandleKind kind, const NameCall& wanted,
                         CUresult (*ask)(CUdeviceptr*, std::size_t*, Owner, const char*),
                         Managed managed, std::span<const std::byte> trailing, Reply& reply) {
    Call& call = as_call(context);
    GuestProcess& process = call.process();
    const auto owner = process.objects.native_as<Owner>(wanted.owner, kind);
    if (owner == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const std::string name = name_of(trailing);
    CUdeviceptr address = 0;
    std::size_t bytes = 0;
    const std::uint64_t root = process.objects.root_of(wanted.owner);
    const auto placed = process.code.modules.placed_variable(root, name);
    const CUresult result = placed ? CUDA_SUCCESS : ask(&address, &bytes, owner, name.c_str());
    GlobalReply answer{};
    if (placed) {
        answer.address = placed->address;
        answer.bytes = placed->bytes;
    } else if (result == CUDA_SUCCESS) {
        answer.address = address;
        answer.bytes = bytes;
        process.code.learn_variables(root);
        process.memory.device.add_outside(root, address, bytes);
        process.code.modules.note_variable(root, {name, address, bytes, managed == Managed::kYes});
    }
    process.code.modules.note_asked(root, name);
    reply.put(answer);
    return result;
}

/// Makes the handle of a kernel of `owner` and describes it.
template <typename Kernel, typename Owner>
CUresult answer_kernel(CallContext& context, HandleKind owner_kind, HandleKind kind,
                       const NameCall& wanted, CUresult (*get)(Kernel*, Owner, const char*),
                       std::span<const std::byte> trailing, Reply& reply) {
    Call& call = as_call(context);
    GuestProcess& process = call.process();
    const auto owner = process.objects.native_as<Owner>(wanted.owner, owner_kind);
    if (owner == nullptr || call.reserve(kind, wanted.new_handle) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const std::string name = name_of(trailing);
    Kernel kernel = nullptr;
    CUresult result = get(&kernel, owner, name.c_str());
    if (result == CUDA_SUCCESS) {
        const auto native = reinterpret_cast<std::uint64_t>(kernel);
        const std::uint64_t root = process.objects.root_of(wanted.owner);
        result = call.add_object(wanted.new_handle, native, wanted.owner);
        process.code.modules.note_kernel(root, name);
        describe_kernel(call, kind, native, reply);
        process.code.learn_variables(root);
    }
    return result;
}

}  // namespace

CUresult on_cuModuleLoadDataEx(CallContext& context, const wire::cuModuleLoadDataEx_call& load,
                               std::span<const std::byte> trailing, Reply& reply) {
    return load_image(as_call(context), load, trailing, HandleKind::kModule, reply);
}

CUresult on_cuLibraryLoadData(CallContext& context, const wire::cuLibraryLoadData_call& load,
                              std::span<const std::byte> trailing, Reply& reply) {
    return load_image(as_call(context), load, trailing, HandleKind::kLibrary, reply);
}

CUresult on_cuModuleGetFunction(CallContext& context, const wire::cuModuleGetFunction_call& wanted,
                                std::span<const std::byte> trailing, Reply& reply) {
    return answer_kernel(context, HandleKind::kModule, HandleKind::kFunction, wanted,
                         as_call(context).api().cuModuleGetFunction, trailing, reply);
}

CUresult on_cuLibraryGetKernel(CallContext& context, const wire::cuLibraryGetKernel_call& wanted,
                               std::span<const std::byte> trailing, Reply& reply) {
    return answer_kernel(context, HandleKind::kLibrary, HandleKind::kKernel, wanted,
                         as_call(context).api().cuLibraryGetKernel, trailing, reply);
}

CUresult on_cuModuleGetGlobal_v2(CallContext& context,
                                 const wire::cuModuleGetGlobal_v2_call& wanted,
                                 std::span<const std::byte> trailing, Reply& reply) {
    return answer_variable(context, HandleKind::kModule, wanted,
                           as_call(context).api().cuModuleGetGlobal_v2, Managed::kNo, trailing,
                           reply);
}

CUresult on_cuLibraryGetGlobal(CallContext& context, const wire::cuLibraryGetGlobal_call& wanted,
                               std::span<const std::byte> trailing, Reply& reply) {
    return answer_variable(context, HandleKind::kLibrary, wanted,
                           as_call(context).api().cuLibraryGetGlobal, Managed::kNo, trailing,
                           reply);
}

CUresult on_cuLibraryGetManaged(CallContext& context, const wire::cuLibraryGetManaged_call& wanted,
                                std::span<const std::byte> trailing, Reply& reply) {
    return answer_variable(context, HandleKind::kLibrary, wanted,
                           as_call(context).api().cuLibraryGetManaged, Managed::kYes, trailing,
                           reply);
}

namespace {

/// Answers with the names from `first` on, as many as fit.
void answer_names(Call& call, const std::vector<std::string>& names, std::uint32_t first,
                  Reply& reply) {
    std::uint64_t offset = 0;
    const std::size_t room = std::max<std::size_t>(
        call.offered_bulk(&offset).size(), gantry::wire::kReplyInlineBytes - sizeof(NamesReply));
    NamesReply answer{};
    answer.total = static_cast<std::uint32_t>(names.size());
    std::string text;
    for (std::size_t i = first; i < names.size(); ++i) {
        if (text.size() + names[i].size() + 1 > room) {
            break;
        }
        text += names[i];
        text += '\0';
        ++answer.count;
    }
    answer.trailing_bytes = static_cast<std::uint32_t>(text.size());
    reply.put(answer);
    reply.trailing(std::as_bytes(std::span(text)));
}

/// Answers with the names of all that `owner` holds, as one of the driver's three entry points
/// counts it, lists it and names an element of the list. Any of them may be missing.
template <typename Element, typename Owner>
CUresult answer_element_names(Call& call, Owner owner, CUresult (*count_of)(unsigned int*, Owner),
                              CUresult (*list)(Element*, unsigned int, Owner),
                              CUresult (*name_of)(const char**, Element), std::uint32_t first,
                              Reply& reply) {
    if (owner == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (count_of == nullptr || list == nullptr || name_of == nullptr) {
        return call.unsupported(call.op());
    }
    unsigned int count = 0;
    CUresult result = count_of(&count, owner);
    std::vector<Element> elements(count);
    if (result == CUDA_SUCCESS && count != 0) {
        result = list(elements.data(), count, owner);
    }
    std::vector<std::string> names;
    for (std::size_t i = 0; i < elements.size() && result == CUDA_SUCCESS; ++i) {
        const char* name = nullptr;
        result = name_of(&name, elements[i]);
        names.emplace_back(name != nullptr ? name : "");
    }
    if (result == CUDA_SUCCESS) {
        answer_names(call, names, first, reply);
    }
    return result;
}

}  // namespace

CUresult on_cuLibraryEnumerateKernels(CallContext& context,
                                      const wire::cuLibraryEnumerateKernels_call& wanted,
                                      std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    const driver::DriverApi& api = call.api();
    const auto library =
        call.process().objects.native_as<CUlibrary>(wanted.owner, HandleKind::kLibrary);
    return answer_element_names<CUkernel>(call, library, api.cuLibraryGetKernelCount,
                                          api.cuLibraryEnumerateKernels, api.cuKernelGetName,
                                          wanted.first, reply);
}

CUresult on_cuModuleEnumerateFunctions(CallContext& context,
                                       const wire::cuModuleEnumerateFunctions_call& wanted,
                                       std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    const driver::DriverApi& api = call.api();
    const auto module =
        call.process().objects.native_as<CUmodule>(wanted.owner, HandleKind::kModule);
    return answer_element_names<CUfunction>(call, module, api.cuModuleGetFunctionCount,
                                            api.cuModuleEnumerateFunctions, api.cuFuncGetName,
                                            wanted.first, reply);
}

}  // namespace gantry::worker
