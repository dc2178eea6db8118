// Symbol resolution across PTX texts: .visible and .weak definitions, .common merging, .extern
// references, and names that are local to their text and may clash with others'.
#include <algorithm>
#include <map>
#include <span>

#include "host-daemon/softgpu/engine/linked.h"
#include "host-daemon/softgpu/ptx/parser.h"

namespace gantry::softgpu {
namespace {

using ptx::Linkage;
using ptx::Space;

constexpr std::uint32_t kNone = 0xffffffffU;

struct BuiltinName {
    std::string_view name;
    Builtin builtin;
};

constexpr BuiltinName kBuiltins[] = {
    {"vprintf", Builtin::kVprintf},
    {"__assertfail", Builtin::kAssertFail},
    {"malloc", Builtin::kMalloc},
    {"free", Builtin::kFree},
};

/// What cuda_device_runtime_api.h declares. The toolkit's own definitions call the card's
/// firmware, so these stand in for them. Streams and events only order grids, which run in launch
/// order in any case: recording, waiting and destroying have nothing to do.
constexpr BuiltinName kDeviceRuntime[] = {
    {"__cudaCDP2GetParameterBuffer", Builtin::kGetParameterBuffer},
    {"__cudaCDP2GetParameterBufferV2", Builtin::kGetParameterBufferV2},
    {"__cudaCDP2LaunchDevice", Builtin::kLaunchDevice},
    {"__cudaCDP2LaunchDevice_ptsz", Builtin::kLaunchDevice},
    {"__cudaCDP2LaunchDeviceV2", Builtin::kLaunchDeviceV2},
    {"__cudaCDP2LaunchDeviceV2_ptsz", Builtin::kLaunchDeviceV2},
    {"__cudaCDP2StreamCreateWithFlags", Builtin::kStreamCreate},
    {"__cudaCDP2StreamDestroy", Builtin::kAlreadyOrdered},
    {"__cudaCDP2StreamWaitEvent", Builtin::kAlreadyOrdered},
    {"__cudaCDP2StreamWaitEvent_ptsz", Builtin::kAlreadyOrdered},
    {"__cudaCDP2EventCreateWithFlags", Builtin::kEventCreate},
    {"__cudaCDP2EventRecord", Builtin::kAlreadyOrdered},
    {"__cudaCDP2EventRecord_ptsz", Builtin::kAlreadyOrdered},
    {"__cudaCDP2EventRecordWithFlags", Builtin::kAlreadyOrdered},
    {"__cudaCDP2EventRecordWithFlags_ptsz", Builtin::kAlreadyOrdered},
    {"__cudaCDP2EventDestroy", Builtin::kAlreadyOrdered},
    {"__cudaCDP2GetLastError", Builtin::kGetLastError},
    {"__cudaCDP2PeekAtLastError", Builtin::kPeekAtLastError},
    {"__cudaCDP2MemcpyAsync", Builtin::kCopyAsync},
    {"__cudaCDP2MemcpyAsync_ptsz", Builtin::kCopyAsync},
    {"__cudaCDP2MemsetAsync", Builtin::kFillAsync},
    {"__cudaCDP2MemsetAsync_ptsz", Builtin::kFillAsync},
    {"__cudaCDP2Malloc", Builtin::kDeviceMalloc},
    {"__cudaCDP2Free", Builtin::kDeviceFree},
    {"cudaGraphSetConditional", Builtin::kSetCondition},
};

Builtin builtin_of(std::string_view name, std::span<const BuiltinName> names) {
    for (const BuiltinName& entry : names) {
        if (entry.name == name) {
            return entry.builtin;
        }
    }
    return Builtin::kNone;
}

class Linker {
public:
    explicit Linker(LinkedProgram& program) : program_(program) {}

    Result<void> run() {
        program_.symbols.resize(program_.modules.size());
        for (std::uint32_t module = 0; module < program_.modules.size(); ++module) {
            GANTRY_TRY(define_variables(module));
            GANTRY_TRY(define_functions(module));
        }
        for (std::uint32_t module = 0; module < program_.modules.size(); ++module) {
            GANTRY_TRY(resolve_module(module));
        }
        mark_addresses_in_initializers();
        return {};
    }

private:
    static bool is_local(Linkage linkage) { return linkage == Linkage::kLocal; }

    std::uint32_t add_global(const ptx::Variable& variable, std::uint32_t module) {
        GlobalInfo info;
        info.name = variable.name;
        info.size_bytes = variable.size;
        info.align_bytes = variable.align;
        info.space =
            variable.space == Space::kConst ? GlobalSpace::kConstant : GlobalSpace::kGlobal;
        info.managed = variable.managed;
        info.visible = !is_local(variable.linkage);
        info.initialized = !variable.init.empty();
        info.is_texture_reference = variable.type >= ptx::Type::kTexref;
        for (const ptx::Initializer& value : variable.init) {
            info.holds_addresses = info.holds_addresses || !value.symbol.empty();
        }
        program_.globals.push_back(std::move(info));
        program_.global_definitions.push_back({&variable, module, kNone, 0});
        return static_cast<std::uint32_t>(program_.globals.size() - 1);
    }

    void replace_global(std::uint32_t index, const ptx::Variable& variable, std::uint32_t module) {
        const std::uint32_t last = add_global(variable, module);
        program_.globals[index] = std::move(program_.globals[last]);
        program_.global_definitions[index] = program_.global_definitions[last];
        program_.globals.pop_back();
        program_.global_definitions.pop_back();
    }

    Result<void> define_variables(std::uint32_t module) {
        for (const ptx::Variable& variable : program_.modules[module].variables) {
            if (variable.space == Space::kShared) {
                GANTRY_TRY(define_shared(variable, module));
                continue;
            }
            if (variable.linkage == Linkage::kExtern) {
                continue;
            }
            if (is_local(variable.linkage)) {
                const std::uint32_t index = add_global(variable, module);
                program_.symbols[module][variable.name] = {SymbolKind::kGlobal, index};
                program_.global_names.emplace(variable.name, index);
                continue;
            }
            GANTRY_TRY(define_shared_name(variable, module));
        }
        return {};
    }

    Result<void> define_shared(const ptx::Variable& variable, std::uint32_t module) {
        const bool external = variable.linkage == Linkage::kExtern;
        auto& symbols = program_.symbols[module];
        if (external && symbols.count(variable.name) != 0) {
            return {};
        }
        program_.shared_variables.push_back({&variable});
        const Symbol symbol{SymbolKind::kShared,
                            static_cast<std::uint32_t>(program_.shared_variables.size() - 1)};
        symbols[variable.name] = symbol;
        if (!external && !is_local(variable.linkage)) {
            shared_definitions_.emplace(variable.name, symbol);
        }
        return {};
    }

    /// A definition that other texts can see.
    Result<void> define_shared_name(const ptx::Variable& variable, std::uint32_t module) {
        const auto found = definitions_.find(variable.name);
        if (found == definitions_.end()) {
            const std::uint32_t index = add_global(variable, module);
            definitions_[variable.name] = index;
            program_.symbols[module][variable.name] = {SymbolKind::kGlobal, index};
            program_.global_names[std::string(variable.name)] = index;
            return {};
        }
        const std::uint32_t index = found->second;
        const ptx::Variable& other = *program_.global_definitions[index].variable;
        const bool new_strong = variable.linkage == Linkage::kVisible;
        const bool old_strong = other.linkage == Linkage::kVisible;
        if (new_strong && old_strong) {
            return ptx::error_at(program_.modules[module].name, variable.where,
                                 "ptx.duplicate_symbol",
                                 "variable '" + std::string(variable.name) +
                                     "' is also defined in another text of this link");
        }
        if (new_strong || (!old_strong && variable.size > other.size)) {
            replace_global(index, variable, module);
        }
        program_.symbols[module][variable.name] = {SymbolKind::kGlobal, index};
        return {};
    }

    Result<void> define_functions(std::uint32_t module) {
        for (const ptx::Function& function : program_.modules[module].functions) {
            if (!function.has_body) {
                continue;
            }
            define_function_variables(function, module);
            const auto index = static_cast<std::uint32_t>(program_.functions.size());
            ProgramFunction entry;
            entry.module = &program_.modules[module];
            entry.module_index = module;
            entry.function = &function;
            if (is_local(function.linkage) && !function.is_entry) {
                program_.functions.push_back(entry);
                program_.symbols[module][function.name] = {SymbolKind::kFunction, index};
                continue;
            }
            const auto found = function_definitions_.find(function.name);
            if (found == function_definitions_.end()) {
                program_.functions.push_back(entry);
                function_definitions_[function.name] = index;
                program_.symbols[module][function.name] = {SymbolKind::kFunction, index};
                continue;
            }
            ProgramFunction& other = program_.functions[found->second];
            const bool new_strong = function.linkage != Linkage::kWeak;
            const bool old_strong = other.function->linkage != Linkage::kWeak;
            if (new_strong && old_strong) {
                return ptx::error_at(program_.modules[module].name, function.where,
                                     "ptx.duplicate_symbol",
                                     "function '" + std::string(function.name) +
                                         "' is also defined in another text of this link");
            }
            if (new_strong) {
                other = entry;
            }
            program_.symbols[module][function.name] = {SymbolKind::kFunction, found->second};
        }
        return {};
    }

    void define_function_variables(const ptx::Function& function, std::uint32_t module) {
        for (const ptx::Variable& variable : function.variables) {
            if (variable.space == Space::kShared) {
                program_.shared_variables.push_back({&variable});
                program_.function_symbols[&variable] = {
                    SymbolKind::kShared,
                    static_cast<std::uint32_t>(program_.shared_variables.size() - 1)};
            } else if (variable.space == Space::kGlobal || variable.space == Space::kConst) {
                program_.function_symbols[&variable] = {SymbolKind::kGlobal,
                                                        add_global(variable, module)};
            }
        }
    }

    Result<void> resolve_module(std::uint32_t module) {
        auto& symbols = program_.symbols[module];
        const ptx::Module& text = program_.modules[module];
        for (const ptx::Variable& variable : text.variables) {
            if (symbols.count(variable.name) != 0) {
                resolve_extern_shared(variable, module);
                continue;
            }
            const auto found = definitions_.find(variable.name);
            if (found == definitions_.end()) {
                return ptx::error_at(
                    text.name, variable.where, "ptx.undefined_symbol",
                    "undefined external variable '" + std::string(variable.name) + "'");
            }
            symbols[variable.name] = {SymbolKind::kGlobal, found->second};
        }
        for (const ptx::Function& function : text.functions) {
            if (symbols.count(function.name) != 0) {
                continue;
            }
            const auto found = function_definitions_.find(function.name);
            Builtin builtin = builtin_of(function.name, kDeviceRuntime);
            if (builtin == Builtin::kNone && found != function_definitions_.end()) {
                symbols[function.name] = {SymbolKind::kFunction, found->second};
                continue;
            }
            if (builtin == Builtin::kNone) {
                builtin = builtin_of(function.name, kBuiltins);
            }
            if (builtin != Builtin::kNone) {
                symbols[function.name] = {SymbolKind::kBuiltin,
                                          static_cast<std::uint32_t>(builtin)};
            } else {
                symbols[function.name] = {SymbolKind::kUndefined, 0};
            }
        }
        for (const ptx::Alias& alias : text.aliases) {
            const auto target = symbols.find(alias.target);
            if (target != symbols.end()) {
                symbols[alias.name] = target->second;
            }
        }
        return {};
    }

    void resolve_extern_shared(const ptx::Variable& variable, std::uint32_t module) {
        if (variable.space != Space::kShared || variable.linkage != Linkage::kExtern) {
            return;
        }
        const auto found = shared_definitions_.find(variable.name);
        if (found != shared_definitions_.end()) {
            program_.symbols[module][variable.name] = found->second;
        }
    }

    void mark_addresses_in_initializers() {
        for (const GlobalDefinition& definition : program_.global_definitions) {
            for (const ptx::Initializer& value : definition.variable->init) {
                const Symbol symbol = program_.find(definition.module_index, value.symbol);
                if (symbol.kind == SymbolKind::kFunction) {
                    program_.functions[symbol.index].address_taken = true;
                }
            }
        }
    }

    LinkedProgram& program_;
    std::map<std::string_view, std::uint32_t> definitions_;
    std::map<std::string_view, std::uint32_t> function_definitions_;
    std::map<std::string_view, Symbol> shared_definitions_;
};

}  // namespace

Symbol LinkedProgram::find(std::uint32_t module_index, std::string_view name) const {
    const auto& table = symbols[module_index];
    const auto found = table.find(name);
    return found == table.end() ? Symbol{} : found->second;
}

Result<void> resolve_symbols(LinkedProgram& program) { return Linker(program).run(); }

}  // namespace gantry::softgpu
