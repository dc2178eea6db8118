// Loaded code: modules, functions, libraries, kernels.
//
// A Module is a linked program placed in one context's memory. A Library is an image that becomes
// a module in each context that uses it, at the first use (lazy) or at once (eager); its
// __managed__ variables exist once. A Kernel is a library's entry by name; a Function is the
// module's. Kernel handles are accepted wherever a function handle is.
// Threads: loading is serialised per library; attributes of a function are atomic.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "host-daemon/softgpu/code/global_block.h"
#include "host-daemon/softgpu/core/context.h"
#include "host-daemon/softgpu/core/objects.h"
#include "host-daemon/softgpu/engine/engine.h"
#include "host-daemon/softgpu/image/image.h"

namespace gantry::softgpu {

class Library;
class Module;

/// The CUDA error for an Error of image reading, linking or placing.
CUresult cuda_error(const Error& error);

class Function : public Object {
public:
    static constexpr ObjectKind kKind = ObjectKind::kFunction;
    Function(std::weak_ptr<Module> module, std::shared_ptr<Program> program, std::uint32_t index,
             Device& device);

    [[nodiscard]] const KernelInfo& info() const { return program->kernels()[index]; }
    /// CUfunction_attribute; false for an unknown one.
    bool attribute(int attribute, int& value) const;
    CUresult set_attribute(int attribute, int value);

    const std::weak_ptr<Module> module;
    const std::shared_ptr<Program> program;  ///< Keeps code alive while launches run.
    const std::uint32_t index;
    Device& device;
    std::atomic<CUkernel> library_kernel{nullptr};  ///< What its library calls it, once asked for.
    std::atomic<int> max_dynamic_shared;
    std::atomic<int> carveout{-1};
    std::atomic<int> cluster_must_be_set{0};
    std::array<std::atomic<int>, 3> cluster{};
    std::atomic<int> nonportable_cluster{0};
    std::atomic<int> cluster_policy{0};
};

/// Where a variable is wanted.
struct Placement {
    std::uint64_t address = 0;
    bool borrowed = false;   ///< The memory is the program's: nothing is mapped or freed.
    bool initialise = true;  ///< Borrowed memory may not be there yet.
};
using Placements = std::map<std::string, Placement>;

struct PlacedGlobal {
    std::string name;
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    bool managed = false;
    bool visible = true;
};

class Module : public Object, public std::enable_shared_from_this<Module> {
public:
    static constexpr ObjectKind kKind = ObjectKind::kModule;
    ~Module() override;

    /// Links, places and initialises. `library` supplies managed variables and may be null.
    static Result<std::shared_ptr<Module>> load(const std::shared_ptr<Context>& context,
                                                const image::Contents& contents, Library* library,
                                                const Placements& wanted);

    void retire() override;
    std::shared_ptr<Function> function(const std::string& name);
    [[nodiscard]] const PlacedGlobal* global(const std::string& name) const;
    [[nodiscard]] const std::vector<PlacedGlobal>& globals() const { return globals_; }
    std::vector<std::shared_ptr<Function>> functions();
    [[nodiscard]] std::shared_ptr<Context> context() const { return context_.lock(); }
    [[nodiscard]] const Program& program() const { return *program_; }

    int loading_mode = CU_MODULE_LAZY_LOADING;
    std::string image_name;

private:
    Module(const std::shared_ptr<Context>& context, std::shared_ptr<Program> program);
    Result<void> place_globals(Library* library, void* context, const Placements& wanted);
    Result<void> initialise_globals();

    const std::weak_ptr<Context> context_;
    Device& device_;
    const std::shared_ptr<Program> program_;
    std::vector<PlacedGlobal> globals_;
    std::vector<bool> fresh_;  ///< Per global: to be initialised now.
    std::vector<bool> mine_;   ///< Per global: in block_; else it is its library's.
    GlobalBlock block_;
    std::mutex mutex_;
    std::map<std::string, std::shared_ptr<Function>> functions_;
};

class Kernel : public Object {
public:
    static constexpr ObjectKind kKind = ObjectKind::kKernel;
    Kernel(std::weak_ptr<Library> library_in, std::string name_in)
        : Object(kKind), library(std::move(library_in)), name(std::move(name_in)) {}

    const std::weak_ptr<Library> library;
    const std::string name;
    /// The function in this context, loading the library there if need be.
    CUresult function_in(const std::shared_ptr<Context>& context,
                         std::shared_ptr<Function>& function);

private:
    std::mutex mutex_;
    std::map<std::uint64_t, std::shared_ptr<Function>> cache_;  ///< By context id.
};

class Library : public Object, public std::enable_shared_from_this<Library> {
public:
    static constexpr ObjectKind kKind = ObjectKind::kLibrary;
    /// Takes the thread's next placement, if one is set.
    explicit Library(Result<image::Contents> contents);
    ~Library() override;

    /// `log`: what is wrong with its code, if anything.
    CUresult module_in(const std::shared_ptr<Context>& context, std::shared_ptr<Module>& module,
                       std::string* log = nullptr);
    CUresult kernel(const std::string& name, std::shared_ptr<Kernel>& kernel);
    CUresult kernels(std::vector<std::shared_ptr<Kernel>>& kernels);
    /// A managed variable's address, made at first use; the same in every context. `fresh` is
    /// true for the caller that made it and has to initialise it. Only from the Module::load() that
    /// module_in() calls with the mutex held.
    Result<std::uint64_t> managed_address(Device& device, const GlobalInfo& info,
                                          const Placement& wanted, bool& fresh);
    /// Its managed variables, wherever they will lie; empty at once when no code names one.
    Result<std::vector<GlobalInfo>> managed_variables() const;
    /// Makes its kernels invalid and drops its modules.
    void unload();
    /// A context is being reset: its module goes.
    void forget(std::uint64_t context_id);

private:
    struct Managed {
        std::uint64_t address = 0;
        std::unique_ptr<GlobalBlock> block;
    };
    std::mutex mutex_;
    const Result<image::Contents> contents_;
    std::map<std::uint64_t, std::shared_ptr<Module>> modules_;  ///< By context id.
    std::map<std::string, std::shared_ptr<Kernel>> kernels_;
    std::map<std::string, Managed> managed_;
    const Placements placement_;
};

/// A context is being reset: its modules of all libraries go.
void forget_libraries(std::uint64_t context_id);

/// Accepts a CUfunction or a CUkernel.
CUresult resolve_function(const std::shared_ptr<Context>& context, const void* handle,
                          std::shared_ptr<Function>& function);

/// Loads an image the way cuModuleLoadData does; publishes the module. `log` gets the sentence.
CUresult load_module_image(const std::shared_ptr<Context>& context, const void* image,
                           CUmodule* module, std::string* log);
/// True when CUDA_MODULE_LOADING asks for eager loading.
bool eager_loading();

/// Wanted places of variables by name, for the next module or library that this thread loads
/// (extension); see proto/cuda/soft_extension.h. An empty map forgets what was set.
void add_next_placement(const Placements& places);
Placements take_next_placement();

/// What a verbose info log says: a line for each entry function.
std::string describe_kernels(const Program& program);

}  // namespace gantry::softgpu
