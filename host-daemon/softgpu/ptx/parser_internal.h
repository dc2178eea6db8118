// The parser's state, shared by its two halves: parser_module.cc (directives, declarations,
// initialisers) and parser_body.cc (function bodies). Members that parse return false after
// recording the first error.
#pragma once

#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "host-daemon/softgpu/ptx/lexer.h"
#include "host-daemon/softgpu/ptx/parser.h"

namespace gantry::softgpu::ptx {

class Parser {
public:
    Parser(Module& module) : module_(module), lexer_(*module.text) {}
    [[nodiscard]] bool parse_module();
    [[nodiscard]] Error take_error() { return std::move(*error_); }

private:
    struct RegisterRange {
        std::uint32_t first = 0;
        std::uint32_t count = 0;
    };
    /// Names of one { } block of a function.
    struct Scope {
        std::unordered_map<std::string_view, std::uint32_t> registers;
        std::unordered_map<std::string_view, RegisterRange> ranges;  ///< %r<100>, by prefix.
        std::unordered_map<std::string_view, std::uint32_t> variables;
        std::unordered_map<std::string_view, std::uint32_t> labels;
        std::vector<std::uint32_t> pending;  ///< Operands that may be labels of this scope.
    };
    struct Declaration {
        Variable variable;
        std::uint32_t range_count = 0;  ///< %r<N>
    };

    // Shared helpers.
    bool fail(Position where, std::string_view message);
    bool fail_here(std::string_view message) { return fail(lexer_.peek().where, message); }
    bool expect(char punct);
    bool accept(char punct);
    bool accept_directive(std::string_view name);
    bool take_word(std::string_view& out, std::string_view what);
    bool parse_integer(std::uint64_t& out);
    bool parse_term(std::uint64_t& out);
    bool parse_product(std::uint64_t& out);

    // Module level.
    bool parse_directive();
    bool parse_version();
    bool parse_target();
    bool parse_variables(Linkage linkage, std::string_view space);
    bool parse_declaration(Space space, Declaration& out, bool name_optional = false);
    bool parse_array_bounds(Variable& variable);
    bool parse_initializer(Variable& variable);
    bool parse_initializer_list(Variable& variable, std::uint32_t element, std::uint64_t stride,
                                std::uint64_t& position);
    bool parse_initializer_value(Variable& variable, std::uint64_t& position);
    bool parse_attribute(Variable& variable);
    bool parse_function(Linkage linkage, bool is_entry);
    bool parse_parameters(std::vector<Variable>& out);
    bool parse_performance_directives(Function& function);
    bool parse_dim(Dim& out);
    void adopt_formals(Function& function);

    // Function bodies.
    bool parse_body();
    bool parse_statement();
    bool parse_local_declaration(std::string_view space);
    bool declare_registers(const Declaration& declaration);
    bool parse_instruction();
    bool parse_label_or_list(const Token& word);
    bool parse_target_list(std::string_view name);
    bool parse_prototype(std::string_view name);
    bool parse_operand(Operand& out);
    bool parse_simple_operand(Operand& out);
    bool parse_address(Operand& out);
    bool parse_children(Operand& out, char close);
    bool resolve_name(const Token& word, Operand& out);
    std::optional<std::uint32_t> find_register(std::string_view name) const;
    std::uint32_t append(const Operand& operand);
    std::uint32_t add_register(Type type);
    bool close_scope();
    void adopt_children(Operand& out, const std::vector<Operand>& children);

    /// Nesting of operands and expressions, bounded so that no text can exhaust the stack.
    struct Nesting {
        explicit Nesting(Parser& parser) : parser_(parser) { ++parser_.nesting_; }
        ~Nesting() { --parser_.nesting_; }
        Nesting(const Nesting&) = delete;
        Nesting& operator=(const Nesting&) = delete;
        [[nodiscard]] bool too_deep() const { return parser_.nesting_ > 100; }
        Parser& parser_;
    };

    Module& module_;
    Lexer lexer_;
    int nesting_ = 0;
    std::optional<Error> error_;
    Function* function_ = nullptr;
    std::vector<Scope> scopes_;
    std::unordered_map<std::string_view, bool> module_names_;
};

}  // namespace gantry::softgpu::ptx
