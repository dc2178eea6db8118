// Declarations of variables: their types, arrays, attributes and initial values.
#include <algorithm>
#include <bit>
#include <string>

#include "host-daemon/softgpu/ptx/parser_internal.h"

namespace gantry::softgpu::ptx {

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

bool Parser::parse_initializer_list(Variable& variable, std::uint32_t element, std::uint64_t stride,
                                    std::uint64_t& position) {
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

}  // namespace gantry::softgpu::ptx
