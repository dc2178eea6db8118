// Kernels and functions around their bodies: parameters and performance directives.
#include <string>

#include "host-daemon/softgpu/ptx/parser_internal.h"

namespace gantry::softgpu::ptx {

bool Parser::parse_parameters(std::vector<Variable>& out) {
    if (!expect('(')) {
        return false;
    }
    while (!accept(')')) {
        Space space = Space::kParam;
        if (accept_directive("reg")) {
            space = Space::kReg;
        } else if (!accept_directive("param")) {
            return fail_here("expected .param or .reg");
        }
        Declaration declaration;
        if (!parse_declaration(space, declaration, true)) {
            return false;
        }
        out.push_back(std::move(declaration.variable));
        if (!accept(',') && !lexer_.peek().is(')')) {
            return expect(')');
        }
    }
    return true;
}

bool Parser::parse_dim(Dim& out) {
    out = {1, 1, 1};
    std::uint32_t* const parts[3] = {&out.x, &out.y, &out.z};
    for (std::uint32_t* part : parts) {
        std::uint64_t value = 0;
        if (!parse_integer(value)) {
            return false;
        }
        *part = static_cast<std::uint32_t>(value);
        if (!accept(',')) {
            break;
        }
    }
    return true;
}

bool Parser::parse_performance_directives(Function& function) {
    while (lexer_.peek().kind == TokenKind::kDirective) {
        const Token directive = lexer_.take();
        Dim dim;
        bool good = true;
        if (directive.text == "maxntid") {
            good = parse_dim(function.maxntid);
        } else if (directive.text == "reqntid") {
            good = parse_dim(function.reqntid);
        } else if (directive.text == "reqnctapercluster") {
            good = parse_dim(function.reqcluster);
        } else if (directive.text == "minnctapersm" || directive.text == "maxnctapersm") {
            good = parse_dim(dim);
            function.minctapersm = dim.x;
        } else if (directive.text == "maxnreg") {
            good = parse_dim(dim);
            function.maxnreg = dim.x;
        } else if (directive.text == "maxclusterrank" || directive.text == "local_maxnreg") {
            good = parse_dim(dim);
        } else if (directive.text == "pragma") {
            while (!lexer_.peek().is(';') && lexer_.peek().kind != TokenKind::kEnd) {
                lexer_.take();
            }
            good = expect(';');
        } else if (directive.text == "attribute") {
            Variable ignored;
            good = parse_attribute(ignored);
        } else if (directive.text != "noreturn" && directive.text != "explicitcluster" &&
                   directive.text != "blocksareclusters") {
            return fail(directive.where, "unknown directive ." + std::string(directive.text));
        }
        if (!good) {
            return false;
        }
    }
    return true;
}

void Parser::adopt_formals(Function& function) {
    Scope& scope = scopes_.back();
    for (const std::vector<Variable>* list :
         {&function.signature.returns, &function.signature.params}) {
        for (const Variable& formal : *list) {
            const auto index = static_cast<std::uint32_t>(function.variables.size());
            function.variables.push_back(formal);
            std::uint32_t reg = kNoGuard;
            if (formal.space == Space::kReg) {
                reg = add_register(formal.type);
                scope.registers[formal.name] = reg;
            } else {
                scope.variables[formal.name] = index;
            }
            function.formal_registers.push_back(reg);
        }
    }
}

bool Parser::parse_function(Linkage linkage, bool is_entry) {
    Function function;
    function.linkage = linkage;
    function.is_entry = is_entry;
    if (accept_directive("attribute")) {
        Variable ignored;
        if (!parse_attribute(ignored)) {
            return false;
        }
    }
    if (!is_entry && lexer_.peek().is('(') && !parse_parameters(function.signature.returns)) {
        return false;
    }
    function.where = lexer_.peek().where;
    if (!take_word(function.name, "a function name")) {
        return false;
    }
    if (lexer_.peek().is('(') && !parse_parameters(function.signature.params)) {
        return false;
    }
    if (!parse_performance_directives(function)) {
        return false;
    }
    module_names_.emplace(function.name, true);
    if (lexer_.peek().is('{')) {
        function.has_body = true;
        function_ = &function;
        scopes_.clear();
        scopes_.emplace_back();
        adopt_formals(function);
        if (!parse_body()) {
            return false;
        }
        function_ = nullptr;
    } else if (!expect(';')) {
        return false;
    }
    module_.functions.push_back(std::move(function));
    return true;
}

}  // namespace gantry::softgpu::ptx
