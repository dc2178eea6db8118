#include "host-daemon/softgpu/code/module.h"

#include <cstdlib>
#include <cstring>

#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/memory/heap_memory.h"
#include "host-daemon/softgpu/memory/map.h"

namespace gantry::softgpu {
namespace {

thread_local Placements* t_placement = nullptr;

std::vector<PtxSource> sources_of(const image::Contents& contents) {
    std::vector<PtxSource> sources;
    for (const image::PtxUnit& unit : contents.units) {
        sources.push_back({unit.text, unit.name});
    }
    return sources;
}

MemoryRange range_of(const PlacedGlobal& global, const Device& device, void* context) {
    MemoryRange range;
    range.base = global.address;
    range.bytes = std::max<std::uint64_t>(global.bytes, 1);
    range.kind = global.managed ? MemoryKind::kManaged : MemoryKind::kGlobal;
    range.device = device.ordinal;
    range.context = context;
    range.flags = CU_MEM_ATTACH_GLOBAL;
    return range;
}

bool needs_heap(const Program& program) {
    for (const KernelInfo& kernel : program.kernels()) {
        if (kernel.uses_device_heap) {
            return true;
        }
    }
    return false;
}

}  // namespace

CUresult cuda_error(const Error& error) {
    GANTRY_REFUSE_IF(error.reason == "image.no_ptx", CUDA_ERROR_NO_BINARY_FOR_GPU);
    GANTRY_REFUSE_IF(error.reason.starts_with("image."), CUDA_ERROR_INVALID_IMAGE);
    GANTRY_REFUSE_IF(error.reason == "module.memory", CUDA_ERROR_OUT_OF_MEMORY);
    GANTRY_REFUSE_IF(error.reason == "module.place", CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(error.reason == "ptx.version", CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    return CUDA_ERROR_INVALID_PTX;
}

void add_next_placement(const Placements& places) {
    if (t_placement == nullptr) {
        t_placement = new Placements;
    }
    if (places.empty()) {
        t_placement->clear();
    }
    for (const auto& [name, place] : places) {
        (*t_placement)[name] = place;
    }
}

Placements take_next_placement() {
    Placements places;
    if (t_placement != nullptr) {
        places.swap(*t_placement);
    }
    return places;
}

bool eager_loading() {
    static const bool eager = [] {
        const char* mode = std::getenv("CUDA_MODULE_LOADING");
        return mode != nullptr && std::strcmp(mode, "EAGER") == 0;
    }();
    return eager;
}

Module::Module(const std::shared_ptr<Context>& context, std::shared_ptr<Program> program)
    : Object(kKind),
      context_(context),
      device_(context->device),
      program_(std::move(program)),
      block_(device_) {}

Module::~Module() {
    for (std::size_t i = 0; i < globals_.size(); ++i) {
        if (mine_[i] && globals_[i].address != 0) {
            MemoryMap::instance().erase(globals_[i].address, globals_[i].managed
                                                                 ? MemoryKind::kManaged
                                                                 : MemoryKind::kGlobal);
        }
    }
}

Result<std::shared_ptr<Module>> Module::load(const std::shared_ptr<Context>& context,
                                             const image::Contents& contents, Library* library,
                                             const Placements& wanted) {
    const std::vector<PtxSource> sources = sources_of(contents);
    // Large library images hold kernels that the program never runs: those that use something we
    // lack fail by name when launched. Small images are refused at once.
    LinkOptions options;
    constexpr std::size_t kLibraryLikeBytes = std::size_t{4} << 20;
    std::size_t text_bytes = 0;
    for (const PtxSource& source : sources) {
        text_bytes += source.text.size();
    }
    if (text_bytes >= kLibraryLikeBytes) {
        options.unsupported = UnsupportedPolicy::kRefuseKernel;
    }
    GANTRY_ASSIGN(std::unique_ptr<Program> linked, Program::link(sources, options));
    std::shared_ptr<Module> module(new Module(context, std::move(linked)));
    module->image_name = contents.units.empty() ? "" : contents.units.front().name;
    GANTRY_TRY(module->place_globals(library, context->handle(), wanted));
    GANTRY_TRY(module->initialise_globals());
    if (needs_heap(*module->program_)) {
        std::uint64_t heap_bytes = 0;
        {
            const std::lock_guard lock(context->mutex);
            heap_bytes = context->limits[CU_LIMIT_MALLOC_HEAP_SIZE];
        }
        if (!ensure_heap(*context, heap_bytes)) {
            return Error{Code::kResourceExhausted, "module.memory",
                         "No device memory for the kernel heap of " + std::to_string(heap_bytes) +
                             " bytes."};
        }
    }
    return module;
}

Result<void> Module::place_globals(Library* library, void* context, const Placements& wanted) {
    const auto infos = program_->globals();
    std::vector<GlobalNeed> needs;
    std::vector<std::size_t> owners;
    fresh_.assign(infos.size(), true);
    mine_.assign(infos.size(), true);
    globals_.resize(infos.size());
    for (std::size_t i = 0; i < infos.size(); ++i) {
        const GlobalInfo& info = infos[i];
        globals_[i] = {info.name, 0, info.size_bytes, info.managed, info.visible};
        const auto place = wanted.find(info.name);
        const Placement there = place == wanted.end() ? Placement{} : place->second;
        if (info.managed && library != nullptr) {
            bool fresh = false;
            GANTRY_ASSIGN(globals_[i].address,
                          library->managed_address(device_, info, there, fresh));
            fresh_[i] = fresh && there.initialise;
            mine_[i] = false;
            continue;
        }
        if (there.borrowed) {
            globals_[i].address = there.address;
            fresh_[i] = there.initialise;
            mine_[i] = false;
            continue;
        }
        needs.push_back({info.size_bytes, info.align_bytes, there.address});
        owners.push_back(i);
    }
    GANTRY_ASSIGN(const std::vector<std::uint64_t> addresses, block_.allocate(needs));
    for (std::size_t i = 0; i < owners.size(); ++i) {
        globals_[owners[i]].address = addresses[i];
    }
    std::vector<std::uint64_t> all;
    for (std::size_t i = 0; i < globals_.size(); ++i) {
        all.push_back(globals_[i].address);
        if (mine_[i]) {
            MemoryMap::instance().insert(range_of(globals_[i], device_, context));
        }
    }
    return program_->place(all);
}

Result<void> Module::initialise_globals() {
    const auto infos = program_->globals();
    for (std::uint32_t i = 0; i < infos.size(); ++i) {
        if (!infos[i].initialized || !fresh_[i] || infos[i].size_bytes == 0) {
            continue;
        }
        auto* memory = reinterpret_cast<std::byte*>(globals_[i].address);
        GANTRY_TRY(program_->initial_bytes(i, {memory, infos[i].size_bytes}));
    }
    return {};
}

void Module::retire() {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, function] : functions_) {
        retract(*function);
    }
}

std::shared_ptr<Function> Module::function(const std::string& name) {
    const std::lock_guard lock(mutex_);
    if (const auto known = functions_.find(name); known != functions_.end()) {
        return known->second;
    }
    const auto index = program_->find_kernel(name);
    if (!index) {
        return nullptr;
    }
    auto function = std::make_shared<Function>(weak_from_this(), program_, *index, device_);
    HandleTable::instance().publish(function);
    functions_[name] = function;
    return function;
}

std::vector<std::shared_ptr<Function>> Module::functions() {
    std::vector<std::shared_ptr<Function>> all;
    for (const KernelInfo& info : program_->kernels()) {
        all.push_back(function(info.name));
    }
    return all;
}

const PlacedGlobal* Module::global(const std::string& name) const {
    const auto index = program_->find_global(name);
    return index ? &globals_[*index] : nullptr;  // nvcc looks file-local variables up as well.
}

std::string describe_kernels(const Program& program) {
    std::string text;
    for (const KernelInfo& kernel : program.kernels()) {
        text += "info    : entry function '" + kernel.name +
                "': " + std::to_string(kernel.parameter_bytes) + " bytes of parameters, " +
                std::to_string(kernel.static_shared_bytes) + " bytes shared, " +
                std::to_string(kernel.local_bytes) + " bytes local\n";
    }
    return text;
}

CUresult load_module_image(const std::shared_ptr<Context>& context, const void* image,
                           CUmodule* module, std::string* log) {
    const auto fail = [log](const Error& error) {
        report_refusal(error.text);
        if (log != nullptr) {
            *log = error.text;
        }
        return cuda_error(error);
    };
    const auto wanted = take_next_placement();
    auto contents = image::read_image(image, context->device.profile.capability());
    if (!contents.ok()) {
        return fail(contents.error());
    }
    auto loaded = Module::load(context, *contents, nullptr, wanted);
    if (!loaded.ok()) {
        return fail(loaded.error());
    }
    *module = publish<CUmodule>(*loaded);
    const std::lock_guard lock(context->mutex);
    context->modules[*module] = *loaded;
    return CUDA_SUCCESS;
}

}  // namespace gantry::softgpu
