// Program: linking, placing of globals, initial bytes.
#include <cstring>

#include "host-daemon/softgpu/engine/linked.h"
#include "host-daemon/softgpu/ptx/parser.h"

namespace gantry::softgpu {
namespace {

void describe_kernel(LinkedProgram& program, std::uint32_t function_index) {
    const ProgramFunction& entry = program.functions[function_index];
    const ptx::Function& function = *entry.function;
    KernelInfo info;
    info.name = function.name;
    std::uint32_t offset = 0;
    for (const ptx::Variable& parameter : function.signature.params) {
        offset = (offset + parameter.align - 1) / parameter.align * parameter.align;
        info.parameters.push_back(
            {offset, static_cast<std::uint32_t>(parameter.size), parameter.align});
        offset += static_cast<std::uint32_t>(parameter.size);
    }
    info.parameter_bytes = offset;
    const auto dim = [](const ptx::Dim& from) { return Dim3{from.x, from.y, from.z}; };
    info.max_ntid = dim(function.maxntid);
    info.req_ntid = dim(function.reqntid);
    info.req_cluster = dim(function.reqcluster);
    info.min_blocks_per_sm = function.minctapersm;
    if (info.req_ntid.count() != 0) {
        info.max_threads_per_block = static_cast<std::uint32_t>(info.req_ntid.count());
    } else if (info.max_ntid.count() != 0) {
        info.max_threads_per_block = static_cast<std::uint32_t>(info.max_ntid.count());
    }
    info.ptx_version = entry.module->version;
    info.target_sm = entry.module->target;
    program.kernel_names.emplace(info.name, static_cast<std::uint32_t>(program.kernels.size()));
    program.kernels.push_back(std::move(info));
    program.kernel_functions.push_back(function_index);
}

std::uint32_t constant_bytes(const LinkedProgram& program) {
    std::uint64_t sum = 0;
    for (const GlobalInfo& global : program.globals) {
        sum += global.space == GlobalSpace::kConstant ? global.size_bytes : 0;
    }
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(sum, 0xffffffffU));
}

/// Functions whose address some instruction takes: needed before indirect calls are decoded.
void mark_address_taken(LinkedProgram& program) {
    for (const ProgramFunction& entry : program.functions) {
        const ptx::Function& function = *entry.function;
        for (const ptx::Instruction& instruction : function.instructions) {
            if (instruction.spelling.substr(0, 4) == "call") {
                continue;
            }
            for (std::uint32_t i = 0; i < instruction.operand_count; ++i) {
                const ptx::Operand& operand = function.operands[instruction.first_operand + i];
                if (operand.kind != ptx::OperandKind::kSymbol) {
                    continue;
                }
                const Symbol symbol = program.find(entry.module_index, operand.name);
                if (symbol.kind == SymbolKind::kFunction) {
                    program.functions[symbol.index].address_taken = true;
                }
            }
        }
    }
}

/// Of PTX, 10 * major + minor: that of the CUDA version which the driver shows.
constexpr int kNewestVersion = 90;

std::string version_text(int version) {
    return std::to_string(version / 10) + "." + std::to_string(version % 10);
}

}  // namespace

Program::Program(std::unique_ptr<LinkedProgram> linked) : linked_(std::move(linked)) {}
Program::~Program() = default;

Result<std::unique_ptr<Program>> Program::link(std::span<const PtxSource> sources,
                                               const LinkOptions& options) {
    auto linked = std::make_unique<LinkedProgram>();
    for (const PtxSource& source : sources) {
        GANTRY_ASSIGN(ptx::Module module, ptx::parse(source.text, source.name));
        if (module.version > kNewestVersion) {
            return Error{Code::kUnimplemented, "ptx.version",
                         std::string(source.name) + ": PTX of version " +
                             version_text(module.version) + "; this driver reads up to " +
                             version_text(kNewestVersion) +
                             ": build with CUDA 13.0 or an older toolkit"};
        }
        linked->modules.push_back(std::move(module));
    }
    GANTRY_TRY(resolve_symbols(*linked));
    mark_address_taken(*linked);
    for (std::uint32_t i = 0; i < linked->functions.size(); ++i) {
        if (linked->functions[i].function->is_entry) {
            describe_kernel(*linked, i);
        }
    }
    linked->codes.resize(linked->kernels.size());
    const std::uint32_t constants = constant_bytes(*linked);
    for (std::uint32_t i = 0; i < linked->kernels.size(); ++i) {
        linked->codes[i].name = linked->kernels[i].name;
        linked->kernels[i].constant_bytes = constants;
        GANTRY_TRY(decode_kernel(*linked, i));
        if (!linked->refusals.empty() && options.unsupported == UnsupportedPolicy::kRefuseProgram) {
            return Error{Code::kUnimplemented, "ptx.unsupported", linked->refusals.front().text};
        }
    }
    for (std::uint32_t i = 0; i < linked->globals.size(); ++i) {
        linked->global_names.emplace(linked->globals[i].name, i);
    }
    return std::unique_ptr<Program>(new Program(std::move(linked)));
}

std::span<const KernelInfo> Program::kernels() const { return linked_->kernels; }
std::span<const GlobalInfo> Program::globals() const { return linked_->globals; }
std::span<const Refusal> Program::refusals() const { return linked_->refusals; }

std::optional<std::uint32_t> Program::find_kernel(std::string_view name) const {
    const auto found = linked_->kernel_names.find(std::string(name));
    return found == linked_->kernel_names.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::uint32_t> Program::find_global(std::string_view name) const {
    const auto found = linked_->global_names.find(std::string(name));
    return found == linked_->global_names.end() ? std::nullopt : std::optional(found->second);
}

Result<void> Program::place(std::span<const std::uint64_t> addresses) {
    if (addresses.size() != linked_->globals.size()) {
        return Error{Code::kInvalidArgument, "softgpu.place",
                     "place() got " + std::to_string(addresses.size()) + " addresses for " +
                         std::to_string(linked_->globals.size()) + " globals"};
    }
    for (std::size_t i = 0; i < addresses.size(); ++i) {
        if (addresses[i] % linked_->globals[i].align_bytes != 0) {
            return Error{Code::kInvalidArgument, "softgpu.place",
                         "the address of '" + linked_->globals[i].name + "' is not aligned to " +
                             std::to_string(linked_->globals[i].align_bytes)};
        }
        linked_->global_definitions[i].address = addresses[i];
    }
    for (KernelCode& code : linked_->codes) {
        for (const AddressSlot& slot : code.addresses) {
            const std::uint64_t value = addresses[slot.global] + slot.addend;
            const std::size_t size = slot.wide ? 8 : 4;
            for (std::size_t lane = 0; lane < 32; ++lane) {
                std::memcpy(&code.constants[slot.offset + lane * size], &value, size);
            }
        }
    }
    linked_->placed = true;
    return {};
}

Result<void> Program::initial_bytes(std::uint32_t global_index, std::span<std::byte> out) const {
    if (global_index >= linked_->globals.size() ||
        out.size() != linked_->globals[global_index].size_bytes) {
        return Error{Code::kInvalidArgument, "softgpu.initial_bytes",
                     "no such global, or the buffer has another size"};
    }
    std::memset(out.data(), 0, out.size());
    const GlobalDefinition& definition = linked_->global_definitions[global_index];
    const ptx::Variable& variable = *definition.variable;
    const std::uint32_t element = std::max(1U, ptx::size_of(variable.type));
    std::size_t position = 0;
    for (const ptx::Initializer& value : variable.init) {
        std::uint64_t bits = value.bits;
        if (!value.symbol.empty()) {
            const Symbol symbol = linked_->find(definition.module_index, value.symbol);
            if (symbol.kind == SymbolKind::kGlobal) {
                if (!linked_->placed) {
                    return Error{Code::kFailedPrecondition, "softgpu.initial_bytes",
                                 "the initial bytes of '" + std::string(variable.name) +
                                     "' hold addresses: place() must come first"};
                }
                bits += linked_->global_definitions[symbol.index].address;
            } else if (symbol.kind == SymbolKind::kFunction) {
                bits += ProgramFunction::address(symbol.index);
            } else {
                return Error{Code::kInvalidArgument, "ptx.undefined_symbol",
                             "'" + std::string(variable.name) + "' is initialised with '" +
                                 std::string(value.symbol) + "', which is not defined"};
            }
            if (value.byte_of != 0xff) {
                bits >>= 8U * value.byte_of;
            }
        }
        if (position + element > out.size()) {
            break;
        }
        std::memcpy(out.data() + position, &bits, std::min<std::size_t>(element, 8));
        position += element;
    }
    return {};
}

}  // namespace gantry::softgpu
