// The link API: PTX (and fatbins with PTX) in, one loadable image out. The "cubin" is a fatbin that
// holds all PTX units; it is linked for good when it is loaded, but once here for its errors.
#include <memory>

#include "host-daemon/softgpu/code/jit_options.h"
#include "host-daemon/softgpu/code/module.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {
namespace {

class LinkState : public softgpu::Object {
public:
    static constexpr softgpu::ObjectKind kKind = softgpu::ObjectKind::kLink;
    LinkState() : Object(kKind) {}

    softgpu::JitOptions options;
    unsigned capability = 90;
    std::vector<softgpu::image::PtxUnit> units;
    std::string image;  ///< Valid for the program until cuLinkDestroy.
};

CUresult fail(LinkState& state, const Error& error) {
    softgpu::report_refusal(error.text);
    state.options.finish(error.text);
    return softgpu::cuda_error(error);
}

}  // namespace

CUresult cuLinkCreate_v2(unsigned int numOptions, CUjit_option* options, void** optionValues,
                         CUlinkState* stateOut) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(stateOut == nullptr, CUDA_ERROR_INVALID_VALUE);
    const auto state = std::make_shared<LinkState>();
    GANTRY_CU(state->options.read(numOptions, options, optionValues));
    state->capability = context->device.profile.capability();
    *stateOut = softgpu::publish<CUlinkState>(state);
    return CUDA_SUCCESS;
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t size,
                          const char* name, unsigned int, CUjit_option*, void**) noexcept {
    GANTRY_CURRENT(context);
    const auto found = softgpu::find<LinkState>(state);
    if (found == nullptr || !found->image.empty()) {
        return found == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    GANTRY_REFUSE_IF(
        data == nullptr || size == 0 || type < CU_JIT_INPUT_CUBIN || type > CU_JIT_INPUT_NVVM,
        CUDA_ERROR_INVALID_VALUE);
    auto contents = softgpu::image::read_image(data, size, found->capability);
    if (!contents.ok()) {
        return fail(*found, contents.error());
    }
    for (auto& unit : contents->units) {
        if (name != nullptr && unit.name == "ptx") {
            unit.name = name;
        }
        found->units.push_back(std::move(unit));
    }
    return CUDA_SUCCESS;
}

CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path,
                          unsigned int numOptions, CUjit_option* options,
                          void** optionValues) noexcept {
    GANTRY_REFUSE_IF(path == nullptr, CUDA_ERROR_INVALID_VALUE);
    std::string bytes;
    GANTRY_CU(softgpu::read_image_file(path, bytes));
    return cuLinkAddData_v2(state, type, bytes.data(), bytes.size(), path, numOptions, options,
                            optionValues);
}

CUresult cuLinkComplete(CUlinkState state, void** cubinOut, size_t* sizeOut) noexcept {
    GANTRY_CURRENT(context);
    const auto found = softgpu::find<LinkState>(state);
    if (found == nullptr || cubinOut == nullptr) {
        return found == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    std::vector<softgpu::PtxSource> sources;
    for (const auto& unit : found->units) {
        sources.push_back({unit.text, unit.name});
    }
    auto linked = softgpu::Program::link(sources);
    if (!linked.ok()) {
        return fail(*found, linked.error());
    }
    found->image = softgpu::image::pack_linked(found->units);
    found->options.finish("",
                          found->options.is_verbose() ? softgpu::describe_kernels(**linked) : "");
    *cubinOut = found->image.data();
    if (sizeOut != nullptr) {
        *sizeOut = found->image.size();
    }
    return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState state) noexcept {
    const auto found = softgpu::find<LinkState>(state);
    GANTRY_REFUSE_IF(found == nullptr, CUDA_ERROR_INVALID_HANDLE);
    softgpu::retract(*found);
    return CUDA_SUCCESS;
}

}  // namespace gantry::cuda_impl
