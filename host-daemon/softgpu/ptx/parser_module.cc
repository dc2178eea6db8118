// A module's text: the directives of its outermost level, and the terms that all of it is made of.
#include <array>
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
    TypeName{"pred", Type::kPred, 0},       TypeName{"b8", Type::kB8, 1},
    TypeName{"b16", Type::kB16, 2},         TypeName{"b32", Type::kB32, 4},
    TypeName{"b64", Type::kB64, 8},         TypeName{"b128", Type::kB128, 16},
    TypeName{"u8", Type::kU8, 1},           TypeName{"u16", Type::kU16, 2},
    TypeName{"u32", Type::kU32, 4},         TypeName{"u64", Type::kU64, 8},
    TypeName{"s8", Type::kS8, 1},           TypeName{"s16", Type::kS16, 2},
    TypeName{"s32", Type::kS32, 4},         TypeName{"s64", Type::kS64, 8},
    TypeName{"f16", Type::kF16, 2},         TypeName{"f16x2", Type::kF16x2, 4},
    TypeName{"bf16", Type::kBf16, 2},       TypeName{"bf16x2", Type::kBf16x2, 4},
    TypeName{"f32", Type::kF32, 4},         TypeName{"f64", Type::kF64, 8},
    TypeName{"texref", Type::kTexref, 8},   TypeName{"samplerref", Type::kSamplerref, 8},
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

}  // namespace gantry::softgpu::ptx
