// The parsed form of one PTX text. Names are views into the text that the Module owns; registers
// and variables are already resolved to indices, labels to instruction numbers. Calls and
// symbols of other texts stay names, for the linker.
//
// A Module is immutable after parse(); any thread may read it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gantry::softgpu::ptx {

enum class Type : std::uint8_t {
    kNone,
    kPred,
    kB8,
    kB16,
    kB32,
    kB64,
    kB128,
    kU8,
    kU16,
    kU32,
    kU64,
    kS8,
    kS16,
    kS32,
    kS64,
    kF16,
    kF16x2,
    kBf16,
    kBf16x2,
    kF32,
    kF64,
    kTexref,
    kSamplerref,
    kSurfref,
};

[[nodiscard]] std::uint32_t size_of(Type type);            ///< Bytes in memory; pred and none: 0.
[[nodiscard]] Type type_from_name(std::string_view name);  ///< "u32" -> kU32; else kNone.

enum class Space : std::uint8_t { kReg, kParam, kLocal, kShared, kGlobal, kConst };
enum class Linkage : std::uint8_t { kLocal, kVisible, kExtern, kWeak, kCommon };

struct Position {
    std::uint32_t line = 0;
    std::uint32_t column = 0;
};

/// One word of a variable's initialiser: a number, or the address of a symbol.
struct Initializer {
    std::uint64_t bits = 0;       ///< Little-endian image of the element, or the addend.
    std::string_view symbol;      ///< Empty for numbers.
    std::uint8_t byte_of = 0xff;  ///< For mask(symbol): which byte of the address; 0xff: whole.
};

struct Variable {
    std::string_view name;
    Space space = Space::kGlobal;
    Type type = Type::kNone;
    Linkage linkage = Linkage::kLocal;
    bool managed = false;
    bool unsized = false;  ///< name[]: size comes from elsewhere.
    bool is_array = false;
    std::uint32_t align = 0;   ///< Bytes; never 0 after parsing.
    std::uint64_t size = 0;    ///< Bytes.
    std::uint32_t vector = 1;  ///< .v2 / .v4 in a declaration.
    std::vector<Initializer> init;
    Position where;
};

enum class OperandKind : std::uint8_t {
    kRegister,  ///< index: register of the function
    kVariable,  ///< index: variable of the function; value: addend
    kSymbol,    ///< name: variable of the module or function of any text; value: addend
    kSpecial,   ///< name: "%tid.x"
    kLabel,     ///< index: instruction number
    kInteger,   ///< value
    kFloat32,   ///< value: bits of a float written 0f...
    kFloat64,   ///< value: bits of a double, written 0d... or decimal
    kSink,      ///< _
    kVector,    ///< {a, b, ...}: children
    kAddress,   ///< [base + value]: children (base first; texture addresses have several)
    kPair,      ///< p|q: children
    kList,      ///< (a, b): children, of a call
    kPending,   ///< Only while parsing: a name that may be a label.
};

struct Operand {
    OperandKind kind = OperandKind::kSink;
    bool negated = false;   ///< !p or -x
    std::uint8_t part = 0;  ///< Of a register: 1-4 for .b0 to .b3, 5-6 for .h0 and .h1; 0: all.
    std::uint32_t index = 0;
    std::uint32_t first_child = 0;  ///< In Function::operands.
    std::uint32_t child_count = 0;
    std::uint64_t value = 0;
    std::string_view name;
    Position where;
};

inline constexpr std::uint32_t kNoGuard = 0xffffffffU;

struct Instruction {
    std::string_view spelling;  ///< "ld.global.u32"
    Position where;
    std::uint32_t guard = kNoGuard;  ///< Register number.
    bool guard_negated = false;
    std::uint32_t first_operand = 0;
    std::uint32_t operand_count = 0;
};

struct Register {
    Type type = Type::kNone;
};

/// A .callprototype, or the parameters of a function.
struct Signature {
    std::vector<Variable> returns;
    std::vector<Variable> params;
};

struct Prototype {
    std::string_view name;
    Signature signature;
};

/// `name: .branchtargets a, b;` (labels become instruction numbers) or .calltargets (names).
struct TargetList {
    std::string_view name;
    std::uint32_t first_operand = 0;
    std::uint32_t count = 0;
};

struct Dim {
    std::uint32_t x = 0;
    std::uint32_t y = 0;
    std::uint32_t z = 0;
};

struct Function {
    std::string_view name;
    bool is_entry = false;
    bool has_body = false;
    Linkage linkage = Linkage::kLocal;
    Position where;
    Signature signature;  ///< Formals also stand in `variables` (or `registers`), see below.
    std::vector<Register> registers;
    /// Formals first (returns, then params; a .reg formal has its register in formal_registers),
    /// then what the body declares.
    std::vector<Variable> variables;
    std::vector<std::uint32_t> formal_registers;  ///< Per formal: register or kNoGuard.
    std::vector<Instruction> instructions;
    std::vector<Operand> operands;
    std::vector<Prototype> prototypes;
    std::vector<TargetList> targets;
    Dim maxntid;
    Dim reqntid;
    Dim reqcluster;
    std::uint32_t minctapersm = 0;
    std::uint32_t maxnreg = 0;
};

struct Alias {
    std::string_view name;
    std::string_view target;
};

struct Module {
    std::unique_ptr<std::string> text;
    std::string name;
    int version = 0;  ///< 10 * major + minor.
    int target = 0;   ///< Number behind sm_ or compute_.
    int address_size = 64;
    std::vector<Variable> variables;
    std::vector<Function> functions;
    std::vector<Alias> aliases;
};

}  // namespace gantry::softgpu::ptx
