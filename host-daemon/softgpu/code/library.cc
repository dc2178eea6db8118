#include <set>

#include "host-daemon/softgpu/code/module.h"
#include "host-daemon/softgpu/core/driver.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/memory/map.h"

namespace gantry::softgpu {
namespace {

struct Registry {
    std::mutex mutex;
    std::set<Library*> libraries;
};

Registry& registry() {
    static auto* all = new Registry;
    return *all;
}

}  // namespace

CUresult Kernel::function_in(const std::shared_ptr<Context>& context,
                             std::shared_ptr<Function>& function) {
    {
        const std::lock_guard lock(mutex_);
        const auto known = cache_.find(context->id);
        if (known != cache_.end() && !known->second->module.expired()) {
            function = known->second;
            return CUDA_SUCCESS;
        }
    }
    const auto owner = library.lock();
    GANTRY_REFUSE_IF(owner == nullptr, CUDA_ERROR_INVALID_HANDLE);
    std::shared_ptr<Module> module;
    GANTRY_CU(owner->module_in(context, module));
    function = module->function(name);
    GANTRY_REFUSE_IF(function == nullptr, CUDA_ERROR_NOT_FOUND);
    function->library_kernel.store(as<CUkernel>());
    const std::lock_guard lock(mutex_);
    cache_[context->id] = function;
    return CUDA_SUCCESS;
}

Library::Library(Result<image::Contents> contents)
    : Object(kKind), contents_(std::move(contents)), placement_(take_next_placement()) {
    const std::lock_guard lock(registry().mutex);
    registry().libraries.insert(this);
}

Library::~Library() {
    {
        const std::lock_guard lock(registry().mutex);
        registry().libraries.erase(this);
    }
    for (const auto& [name, managed] : managed_) {
        if (managed.block != nullptr) {
            MemoryMap::instance().erase(managed.address, MemoryKind::kManaged);
        }
    }
}

void forget_libraries(std::uint64_t context_id) {
    std::vector<std::shared_ptr<Library>> libraries;
    {
        const std::lock_guard lock(registry().mutex);
        for (Library* library : registry().libraries) {
            if (auto alive = library->weak_from_this().lock()) {
                libraries.push_back(std::move(alive));
            }
        }
    }
    for (const auto& library : libraries) {
        library->forget(context_id);
    }
}

CUresult Library::module_in(const std::shared_ptr<Context>& context,
                            std::shared_ptr<Module>& module, std::string* log) {
    const std::lock_guard lock(mutex_);
    if (const auto known = modules_.find(context->id); known != modules_.end()) {
        module = known->second;
        return CUDA_SUCCESS;
    }
    const auto fail = [log](const Error& error) {
        report_refusal(error.text);
        if (log != nullptr) {
            *log = error.text;
        }
        return cuda_error(error);
    };
    if (!contents_.ok()) {
        return fail(contents_.error());
    }
    auto loaded = Module::load(context, *contents_, this, placement_);
    if (!loaded.ok()) {
        return fail(loaded.error());
    }
    module = *loaded;
    HandleTable::instance().publish(module);
    modules_[context->id] = module;
    return CUDA_SUCCESS;
}

CUresult Library::kernel(const std::string& name, std::shared_ptr<Kernel>& kernel) {
    {
        const std::lock_guard lock(mutex_);
        if (const auto known = kernels_.find(name); known != kernels_.end()) {
            kernel = known->second;
            return CUDA_SUCCESS;
        }
    }
    // A kernel may be asked for without a current context: device 0 then says what exists.
    const auto& stack = thread_state().stack;
    const auto context =
        stack.empty() || stack.back() == nullptr ? driver().devices[0]->primary : stack.back();
    std::shared_ptr<Module> module;
    GANTRY_CU(module_in(context, module));
    GANTRY_REFUSE_IF(!module->program().find_kernel(name), CUDA_ERROR_NOT_FOUND);
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Kernel>& slot = kernels_[name];
    if (slot == nullptr) {
        slot = std::make_shared<Kernel>(weak_from_this(), name);
        HandleTable::instance().publish(slot);
    }
    kernel = slot;
    return CUDA_SUCCESS;
}

CUresult Library::kernels(std::vector<std::shared_ptr<Kernel>>& kernels) {
    const auto& stack = thread_state().stack;
    const auto context =
        stack.empty() || stack.back() == nullptr ? driver().devices[0]->primary : stack.back();
    std::shared_ptr<Module> module;
    GANTRY_CU(module_in(context, module));
    for (const KernelInfo& info : module->program().kernels()) {
        std::shared_ptr<Kernel> each;
        GANTRY_CU(kernel(info.name, each));
        kernels.push_back(std::move(each));
    }
    return CUDA_SUCCESS;
}

Result<std::uint64_t> Library::managed_address(Device& device, const GlobalInfo& info,
                                               const Placement& wanted, bool& fresh) {
    const auto known = managed_.find(info.name);
    fresh = known == managed_.end();
    if (!fresh) {
        return known->second.address;
    }
    if (wanted.borrowed) {
        managed_[info.name] = {wanted.address, nullptr};
        return wanted.address;
    }
    auto block = std::make_unique<GlobalBlock>(device);
    GANTRY_ASSIGN(const std::vector<std::uint64_t> addresses,
                  block->allocate({{info.size_bytes, info.align_bytes, wanted.address}}));
    MemoryRange range;
    range.base = addresses[0];
    range.bytes = std::max<std::uint64_t>(info.size_bytes, 1);
    range.kind = MemoryKind::kManaged;
    range.device = device.ordinal;
    range.context = device.primary->handle();
    range.flags = CU_MEM_ATTACH_GLOBAL;
    MemoryMap::instance().insert(range);
    managed_[info.name] = {addresses[0], std::move(block)};
    return addresses[0];
}

Result<std::vector<GlobalInfo>> Library::managed_variables() const {
    std::vector<GlobalInfo> managed;
    std::vector<PtxSource> sources;
    bool named = false;
    if (!contents_.ok()) {
        return managed;  // Its first use tells why.
    }
    for (const image::PtxUnit& unit : contents_->units) {
        sources.push_back({unit.text, unit.name});
        named = named || unit.text.find(".managed") != std::string::npos;
    }
    if (!named) {
        return managed;
    }
    LinkOptions options;
    options.unsupported = UnsupportedPolicy::kRefuseKernel;
    GANTRY_ASSIGN(const std::unique_ptr<Program> program, Program::link(sources, options));
    for (const GlobalInfo& info : program->globals()) {
        if (info.managed) {
            managed.push_back(info);
        }
    }
    return managed;
}

void Library::unload() {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, kernel] : kernels_) {
        retract(*kernel);
    }
    kernels_.clear();
    for (const auto& [context, module] : modules_) {
        module->retire();
        retract(*module);
    }
    modules_.clear();
}

void Library::forget(std::uint64_t context_id) {
    const std::lock_guard lock(mutex_);
    const auto known = modules_.find(context_id);
    if (known != modules_.end()) {
        known->second->retire();
        retract(*known->second);
        modules_.erase(known);
    }
}

}  // namespace gantry::softgpu
