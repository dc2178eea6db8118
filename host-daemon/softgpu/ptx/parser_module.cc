#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <string>
#include <string_view>
#include <system_error>

#include "host-daemon/softgpu/ptx/parser_internal.h"

namespace gantry::softgpu::ptx {
namespace {

struct TypeName {
    std::string_view name;
    Type type;
    std::uint32_t size;
};

constexpr std::array kTypeNames{
    TypeName{"pred", Type::kPred, 0},    TypeName{"b8", Type::kB8, 1},
    TypeName{"b16", Type::kB16, 2},      TypeName{"b32", Type::kB32, 4},
    TypeName{"b64", Type::kB64, 8},      TypeName{"b128", Type::kB128, 16},
    TypeName{"u8", Type::kU8, 1},        TypeName{"u16", Type::kU16, 2},
    TypeName{"u32", Type::kU32, 4},      TypeName{"u64", Type::kU64, 8},
    TypeName{"s8", Type::kS8, 1},        TypeName{"s16", Type::kS16, 2},
    TypeName{"s32", Type::kS32, 4},      TypeName{"s64", Type::kS64, 8},
    TypeName{"f16", Type::kF16, 2},      TypeName{"f16x2", Type::kF16x2, 4},
    TypeName{"bf16", Type::kBf16, 2},    TypeName{"bf16x2", Type::kBf16x2, 4},
    TypeName{"f32", Type::kF32, 4},      TypeName{"f64", Type::kF64, 8},
    TypeName{"texref", Type::kTexref, 8}, TypeName{"samplerref", Type::kSamplerref, 8},
    TypeName{"surfref", Type::kSurfref, 8},
};

}  // namespace

std::uint32_t size_of(Type type) {
    for (const TypeName& entry : kTypeNames) {
        if (entry.type == type) {
            return entry.size;
        }
    }
    return 0;
}

Type type_from_name(std::string_view name) {
    for (const TypeName& entry : kTypeNames) {
        if (entry.name == name) {
            return entry.type;
        }
    }
    return Type::kNone;
}

Error error_at(std::string_view module_name, Position where, std::string reason,
               std::string_view message) {
    std::string text(module_name.empty() ? "ptx" : module_name);
    text += ":" + std::to_string(where.line) + ":" + std::to_string(where.column) + ": ";
    text += message;
    return {Code::kInvalidArgument, std::move(reason), std::move(text)};
}

Result<Module> parse(std::string_view text, std::string_view name) {
    Module module;
    module.text = std::make_unique<std::string>(text.substr(0, text.find('\0')));
    module.name = name;
    Parser parser(module);
    if (!parser.parse_module()) {
        return parser.take_error();
    }
    return module;
}

bool Parser::fail(Position where, std::string_view message) {
    if (!error_) {
        error_ = error_at(module_.name, where, "ptx.syntax", message);
    }
    return false;
}

bool Parser::accept(char punct) {
    if (!lexer_.peek().is(punct)) {
        return false;
    }
    lexer_.take();
    return true;
}

bool Parser::accept_directive(std::string_view name) {
    if (lexer_.peek().kind != TokenKind::kDirective || lexer_.peek().text != name) {
        return false;
    }
    lexer_.take();
    return true;
}

bool Parser::expect(char punct) {
    if (accept(punct)) {
        return true;
    }
    const Token& found = lexer_.peek();
    const std::string seen =
        found.kind == TokenKind::kEnd ? "the end of the text" : "'" + std::string(found.text) + "'";
    return fail(found.where, std::string("expected '") + punct + "', found " + seen);
}

bool Parser::take_word(std::string_view& out, std::string_view what) {
    if (lexer_.peek().kind != TokenKind::kWord) {
        return fail_here("expected " + std::string(what) + ", found '" +
                         std::string(lexer_.peek().text) + "'");
    }
    out = lexer_.take().text;
    return true;
}

bool Parser::parse_term(std::uint64_t& out) {
    const Nesting nesting(*this);
    if (nesting.too_deep()) {
        return fail_here("the expression is nested too deeply");
    }
    if (accept('-')) {
        if (!parse_term(out)) {
            return false;
        }
        out = 0 - out;
        return true;
    }
    if (accept('+')) {
        return parse_term(out);
    }
    if (accept('~')) {
        if (!parse_term(out)) {
            return false;
        }
        out = ~out;
        return true;
    }
    if (accept('(')) {
        return parse_integer(out) && expect(')');
    }
    if (lexer_.peek().kind == TokenKind::kWord && lexer_.peek().text == "WARP_SZ") {
        lexer_.take();
        out = 32;
        return true;
    }
    if (lexer_.peek().kind != TokenKind::kInteger) {
        return fail_here("expected an integer, found '" + std::string(lexer_.peek().text) + "'");
    }
    out = lexer_.take().value;
    return true;
}

bool Parser::parse_product(std::uint64_t& out) {
    if (!parse_term(out)) {
        return false;
    }
    while (lexer_.peek().is('*')) {
        lexer_.take();
        std::uint64_t right = 0;
        if (!parse_term(right)) {
            return false;
        }
        out *= right;
    }
    return true;
}

bool Parser::parse_integer(std::uint64_t& out) {
    if (!parse_product(out)) {
        return false;
    }
    while (lexer_.peek().is('+') || lexer_.peek().is('-')) {
        const bool minus = lexer_.take().is('-');
        std::uint64_t right = 0;
        if (!parse_product(right)) {
            return false;
        }
        out = minus ? out - right : out + right;
    }
    return true;
}

bool Parser::parse_module() {
    while (lexer_.peek().kind != TokenKind::kEnd) {
        if (lexer_.peek().kind == TokenKind::kDirective) {
            if (!parse_directive()) {
                return false;
            }
        } else if (lexer_.peek().is('@')) {
            lexer_.skip_line();  // @@DWARF lines of old compilers
        } else if (!accept(';')) {
            return fail_here("expected a directive such as .version or .visible, found '" +
                             std::string(lexer_.peek().text) + "'");
        }
    }
    if (module_.version == 0) {
        return fail_here("no .version directive: this is not PTX text");
    }
    return true;
}

namespace {

/// A whole number of at most three digits, as versions and targets have.
bool small_number(std::string_view text, int& out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc{} && end == text.data() + text.size() && out >= 0 && out < 1000;
}

}  // namespace

bool Parser::parse_version() {
    const Token number = lexer_.take();
    const std::size_t dot = number.text.find('.');
    if (number.kind != TokenKind::kFloat64 || dot == std::string_view::npos) {
        return fail(number.where, "expected a version such as 9.0");
    }
    int major = 0;
    int minor = 0;
    if (!small_number(number.text.substr(0, dot), major) ||
        !small_number(number.text.substr(dot + 1), minor)) {
        return fail(number.where, "expected a version such as 9.0");
    }
    module_.version = major * 10 + minor;
    return true;
}

bool Parser::parse_target() {
    do {
        std::string_view word;
        if (!take_word(word, "a target such as sm_90")) {
            return false;
        }
        const std::size_t digits = word.find("sm_") == 0 ? 3 : std::string_view::npos;
        if (digits != std::string_view::npos) {
            // A letter may follow the number: sm_90a.
            const std::size_t end = word.find_first_not_of("0123456789", digits);
            if (!small_number(word.substr(digits, end - digits), module_.target)) {
                return fail_here("expected a target such as sm_90");
            }
        }
    } while (accept(','));
    return true;
}

bool Parser::parse_directive() {
    const Token directive = lexer_.take();
    const std::string_view name = directive.text;
    if (name == "version") {
        return parse_version();
    }
    if (name == "target") {
        return parse_target();
    }
    if (name == "address_size") {
        const Token size = lexer_.take();
        if (size.kind != TokenKind::kInteger || size.value != 64) {
            return fail(size.where, "only .address_size 64 is supported");
        }
        return true;
    }
    if (name == "file" || name == "loc" || name == "pragma" || name == "ident") {
        lexer_.skip_line();
        return true;
    }
    if (name == "section") {
        while (!lexer_.peek().is('{') && lexer_.peek().kind != TokenKind::kEnd) {
            lexer_.take();
        }
        lexer_.take();
        lexer_.skip_braces();
        return true;
    }
    if (name == "alias") {
        Alias alias;
        if (!take_word(alias.name, "a function name") || !expect(',') ||
            !take_word(alias.target, "a function name") || !expect(';')) {
            return false;
        }
        module_.aliases.push_back(alias);
        return true;
    }
    Linkage linkage = Linkage::kLocal;
    std::string_view kind = name;
    if (name == "visible" || name == "extern" || name == "weak" || name == "common") {
        linkage = name == "visible"  ? Linkage::kVisible
                  : name == "extern" ? Linkage::kExtern
                  : name == "weak"   ? Linkage::kWeak
                                     : Linkage::kCommon;
        if (lexer_.peek().kind != TokenKind::kDirective) {
            return fail_here("expected .entry, .func or a state space behind ." +
                             std::string(name));
        }
        kind = lexer_.take().text;
    }
    if (kind == "entry" || kind == "func") {
        return parse_function(linkage, kind == "entry");
    }
    if (kind == "global" || kind == "const" || kind == "shared" || kind == "tex") {
        return parse_variables(linkage, kind);
    }
    return fail(directive.where, "unknown directive ." + std::string(kind));
}

bool Parser::parse_attribute(Variable& variable) {
    if (!expect('(')) {
        return false;
    }
    int depth = 1;
    while (depth > 0) {
        const Token token = lexer_.take();
        if (token.kind == TokenKind::kEnd) {
            return fail(token.where, "unclosed .attribute(");
        }
        if (token.kind == TokenKind::kDirective && token.text == "managed") {
            variable.managed = true;
        }
        depth += token.is('(') ? 1 : token.is(')') ? -1 : 0;
    }
    return true;
}

bool Parser::parse_array_bounds(Variable& variable) {
    std::uint64_t count = 1;
    while (accept('[')) {
        variable.is_array = true;
        if (accept(']')) {
            variable.unsized = true;
            continue;
        }
        std::uint64_t bound = 0;
        if (!parse_integer(bound) || !expect(']')) {
            return false;
        }
        if (bound != 0 && count > (std::uint64_t{1} << 40) / bound) {
            return fail(variable.where, "array is too large");
        }
        count *= bound;
    }
    variable.size *= count;
    return true;
}

bool Parser::parse_declaration(Space space, Declaration& out, bool name_optional) {
    Variable& variable = out.variable;
    variable.space = space;
    while (lexer_.peek().kind == TokenKind::kDirective) {
        const Token token = lexer_.take();
        const Type type = type_from_name(token.text);
        if (type != Type::kNone) {
            variable.type = type;
        } else if (token.text == "align") {
            std::uint64_t align = 0;
            if (!parse_integer(align)) {
                return false;
            }
            if (!std::has_single_bit(align) || align > 4096) {
                return fail(token.where, "alignment is not a power of two up to 4096");
            }
            variable.align = std::max(variable.align, static_cast<std::uint32_t>(align));
        } else if (token.text == "v2" || token.text == "v4" || token.text == "v8") {
            variable.vector = static_cast<std::uint32_t>(token.text[1] - '0');
        } else if (token.text == "attribute") {
            if (!parse_attribute(variable)) {
                return false;
            }
        } else if (token.text == "ptr") {
            // What a parameter points to: its own .align is that of the pointee.
            while (lexer_.peek().kind == TokenKind::kDirective) {
                const bool align = lexer_.take().text == "align";
                std::uint64_t ignored = 0;
                if (align && !parse_integer(ignored)) {
                    return false;
                }
            }
        } else {
            return fail(token.where, "unknown qualifier ." + std::string(token.text));
        }
    }
    variable.where = lexer_.peek().where;
    if (variable.type == Type::kNone) {
        return fail_here("declaration without a type");
    }
    const bool no_name = name_optional && lexer_.peek().kind != TokenKind::kWord;
    if (!no_name && !take_word(variable.name, "a name")) {
        return false;
    }
    variable.size = std::uint64_t{size_of(variable.type)} * variable.vector;
    if (variable.align == 0) {
        variable.align = std::max(1U, static_cast<std::uint32_t>(variable.size));
    }
    if (accept('<')) {
        std::uint64_t count = 0;
        if (!parse_integer(count) || !expect('>')) {
            return false;
        }
        if (count > 10'000'000) {
            return fail(variable.where, "too many registers");
        }
        out.range_count = static_cast<std::uint32_t>(count);
        return true;
    }
    return parse_array_bounds(variable);
}

bool Parser::parse_variables(Linkage linkage, std::string_view space_name) {
    const Space space = space_name == "const"    ? Space::kConst
                        : space_name == "shared" ? Space::kShared
                                                 : Space::kGlobal;
    Declaration first;
    if (space_name == "tex") {
        return fail_here(".tex variables are not supported: use texture objects");
    }
    if (!parse_declaration(space, first)) {
        return false;
    }
    first.variable.linkage = linkage;
    while (true) {
        Variable variable = first.variable;
        if (accept('=') && !parse_initializer(variable)) {
            return false;
        }
        if (variable.unsized && variable.init.empty() && linkage != Linkage::kExtern &&
            space != Space::kShared) {
            return fail(variable.where, "array without a size");
        }
        module_names_.emplace(variable.name, true);
        module_.variables.push_back(std::move(variable));
        if (!accept(',')) {
            return expect(';');
        }
        first.variable.where = lexer_.peek().where;
        if (!take_word(first.variable.name, "a name")) {
            return false;
        }
        first.variable.size = std::uint64_t{size_of(first.variable.type)} * first.variable.vector;
        first.variable.unsized = false;
        if (!parse_array_bounds(first.variable)) {
            return false;
        }
    }
}

bool Parser::parse_initializer(Variable& variable) {
    const std::uint32_t element = std::max(1U, size_of(variable.type));
    std::uint64_t position = 0;
    if (!lexer_.peek().is('{')) {
        return parse_initializer_value(variable, position);
    }
    if (!parse_initializer_list(variable, element, 0, position)) {
        return false;
    }
    if (variable.unsized) {
        variable.size = position * element;
        variable.unsized = false;
    }
    return true;
}

bool Parser::parse_initializer_list(Variable& variable, std::uint32_t element,
                                    std::uint64_t stride, std::uint64_t& position) {
    const Nesting nesting(*this);
    if (nesting.too_deep()) {
        return fail_here("the initialiser is nested too deeply");
    }
    if (!expect('{')) {
        return false;
    }
    while (!accept('}')) {
        if (lexer_.peek().is('{')) {
            if (!parse_initializer_list(variable, element, stride, position)) {
                return false;
            }
        } else if (!parse_initializer_value(variable, position)) {
            return false;
        }
        if (!accept(',') && !lexer_.peek().is('}')) {
            return expect('}');
        }
    }
    if (!variable.unsized && position * element > variable.size) {
        return fail(variable.where, "more initial values than elements");
    }
    return true;
}

bool Parser::parse_initializer_value(Variable& variable, std::uint64_t& position) {
    const Nesting nesting(*this);
    if (nesting.too_deep()) {
        return fail_here("the initialiser is nested too deeply");
    }
    Initializer value;
    const Token token = lexer_.peek();
    if (token.kind == TokenKind::kFloat32 || token.kind == TokenKind::kFloat64 ||
        (token.is('-') && size_of(variable.type) >= 2 &&
         (variable.type == Type::kF32 || variable.type == Type::kF64))) {
        const bool negative = accept('-');
        const Token number = lexer_.take();
        double real = std::bit_cast<double>(number.value);
        if (number.kind == TokenKind::kFloat32) {
            real = std::bit_cast<float>(static_cast<std::uint32_t>(number.value));
        } else if (number.kind == TokenKind::kInteger) {
            real = static_cast<double>(number.value);
        } else if (number.kind != TokenKind::kFloat64) {
            return fail(number.where, "expected a number");
        }
        real = negative ? -real : real;
        if (variable.type == Type::kF32) {
            value.bits = number.kind == TokenKind::kFloat32 && !negative
                             ? number.value
                             : std::bit_cast<std::uint32_t>(static_cast<float>(real));
        } else {
            value.bits = number.kind == TokenKind::kFloat64 && !negative
                             ? number.value
                             : std::bit_cast<std::uint64_t>(real);
        }
    } else if (token.kind == TokenKind::kWord && token.text != "WARP_SZ") {
        Token word = lexer_.take();
        const bool generic = word.text == "generic" && accept('(');
        if (generic && !take_word(word.text, "a symbol")) {
            return false;
        }
        if (generic && !expect(')')) {
            return false;
        }
        value.symbol = word.text;
        if ((lexer_.peek().is('+') || lexer_.peek().is('-')) && !parse_integer(value.bits)) {
            return false;
        }
    } else {
        if (!parse_integer(value.bits)) {
            return false;
        }
        if (accept('(')) {  // 0xFF00(generic(symbol)): one byte of an address
            const std::uint64_t mask = value.bits;
            if (!parse_initializer_value(variable, position)) {
                return false;
            }
            variable.init.back().byte_of =
                static_cast<std::uint8_t>(mask == 0 ? 0 : std::countr_zero(mask) / 8);
            return expect(')');
        }
        if (variable.type == Type::kF32) {
            value.bits = std::bit_cast<std::uint32_t>(static_cast<float>(value.bits));
        } else if (variable.type == Type::kF64) {
            value.bits = std::bit_cast<std::uint64_t>(static_cast<double>(value.bits));
        }
    }
    variable.init.push_back(value);
    ++position;
    return true;
}

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
