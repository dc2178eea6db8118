// What Program::link() makes of its texts: symbols resolved across them, kernels decoded.
// Immutable after link() except for the addresses that place() writes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "host-daemon/softgpu/engine/engine.h"
#include "host-daemon/softgpu/engine/kernel_code.h"
#include "host-daemon/softgpu/ptx/ast.h"

namespace gantry::softgpu {

enum class SymbolKind : std::uint8_t { kUndefined, kGlobal, kShared, kFunction, kBuiltin };

struct Symbol {
    SymbolKind kind = SymbolKind::kUndefined;
    std::uint32_t index = 0;  ///< globals / shared_variables / functions; kBuiltin: Builtin.
};

struct ProgramFunction {
    const ptx::Module* module = nullptr;
    std::uint32_t module_index = 0;
    const ptx::Function* function = nullptr;
    bool address_taken = false;
    /// What a kernel sees as this function's address: small numbers in steps of 8, never 0.
    [[nodiscard]] static std::uint64_t address(std::uint32_t index) {
        return 8 * (std::uint64_t{index} + 1);
    }
};

struct SharedVariable {
    const ptx::Variable* variable = nullptr;
};

struct GlobalDefinition {
    const ptx::Variable* variable = nullptr;
    std::uint32_t module_index = 0;
    std::uint32_t function = 0xffffffffU;  ///< Of a function's own .global variable.
    std::uint64_t address = 0;
};

struct LinkedProgram {
    std::vector<ptx::Module> modules;
    std::vector<std::unordered_map<std::string_view, Symbol>> symbols;  ///< Per module.
    std::vector<ProgramFunction> functions;
    std::vector<SharedVariable> shared_variables;
    std::vector<GlobalDefinition> global_definitions;  ///< Parallel to globals.
    /// (function, variable) of function-level .global/.const -> global; .shared -> shared.
    std::unordered_map<const ptx::Variable*, Symbol> function_symbols;
    std::vector<GlobalInfo> globals;
    std::vector<KernelInfo> kernels;
    std::vector<KernelCode> codes;                ///< Parallel to kernels.
    std::vector<std::uint32_t> kernel_functions;  ///< Parallel to kernels: into functions.
    std::unordered_map<std::string, std::uint32_t> kernel_names;
    std::unordered_map<std::string, std::uint32_t> global_names;
    std::vector<Refusal> refusals;
    bool placed = false;

    [[nodiscard]] Symbol find(std::uint32_t module_index, std::string_view name) const;
};

/// Resolves symbols: linker.cc.
[[nodiscard]] Result<void> resolve_symbols(LinkedProgram& program);

/// Decodes one kernel with all it may call: decoder.cc. Refused instructions are recorded in the
/// program and in KernelCode::refusal; malformed ones are an error.
[[nodiscard]] Result<void> decode_kernel(LinkedProgram& program, std::uint32_t kernel_index);

}  // namespace gantry::softgpu
