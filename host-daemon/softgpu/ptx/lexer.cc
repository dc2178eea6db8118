#include "host-daemon/softgpu/ptx/lexer.h"

#include <bit>
#include <cstdlib>
#include <cstring>

namespace gantry::softgpu::ptx {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' ||
           c == '$' || c == '%';
}

int hex_value(char c) {
    if (is_digit(c)) {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

}  // namespace

Lexer::Lexer(std::string_view text) : text_(text) { advance(); }

Token Lexer::take() {
    Token taken = token_;
    advance();
    return taken;
}

void Lexer::finish(TokenKind kind, std::size_t begin, std::size_t end) {
    token_.kind = kind;
    token_.text = text_.substr(begin, end - begin);
    position_ = end;
}

void Lexer::skip_space() {
    while (position_ < text_.size()) {
        const char c = text_[position_];
        if (c == '\n') {
            ++line_;
            line_start_ = ++position_;
        } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') {
            ++position_;
        } else if (c == '/' && at(position_ + 1) == '/') {
            const std::size_t end = text_.find('\n', position_);
            position_ = end == std::string_view::npos ? text_.size() : end;
        } else if (c == '/' && at(position_ + 1) == '*') {
            position_ += 2;
            while (position_ < text_.size() &&
                   !(text_[position_] == '*' && at(position_ + 1) == '/')) {
                if (text_[position_] == '\n') {
                    ++line_;
                    line_start_ = position_ + 1;
                }
                ++position_;
            }
            position_ = std::min(position_ + 2, text_.size());
        } else {
            return;
        }
    }
}

void Lexer::advance() {
    skip_space();
    token_.value = 0;
    token_.where = {line_, static_cast<std::uint32_t>(position_ - line_start_ + 1)};
    if (position_ >= text_.size()) {
        finish(TokenKind::kEnd, text_.size(), text_.size());
        return;
    }
    const char c = text_[position_];
    if (is_digit(c) || (c == '.' && is_fraction())) {
        lex_number();
    } else if (is_word(c)) {
        lex_word();
    } else if (c == '.' && is_word(at(position_ + 1))) {
        lex_directive();
    } else if (c == '"') {
        lex_string();
    } else {
        finish(std::strchr("{}()[]<>,;:=+-*/|&!~@^?.%", c) != nullptr ? TokenKind::kPunct
                                                                      : TokenKind::kBad,
               position_, position_ + 1);
    }
}

/// ".5" is a number, ".2d" and ".16x256b" are modifiers.
bool Lexer::is_fraction() const {
    std::size_t end = position_ + 1;
    while (is_digit(at(end))) {
        ++end;
    }
    return end > position_ + 1 && (!is_word(at(end)) || at(end) == 'e' || at(end) == 'E');
}

void Lexer::lex_decimal_float() {
    std::size_t end = position_;
    while (is_digit(at(end)) || at(end) == '.') {
        ++end;
    }
    if (at(end) == 'e' || at(end) == 'E') {
        ++end;
        if (at(end) == '+' || at(end) == '-') {
            ++end;
        }
        while (is_digit(at(end))) {
            ++end;
        }
    }
    const std::string digits(text_.substr(position_, end - position_));
    token_.value = std::bit_cast<std::uint64_t>(std::strtod(digits.c_str(), nullptr));
    finish(TokenKind::kFloat64, position_, end);
}

void Lexer::lex_number() {
    const std::size_t begin = position_;
    const char second = at(begin + 1);
    std::size_t digits = begin;
    unsigned base = 10;
    TokenKind kind = TokenKind::kInteger;
    std::size_t exact_digits = 0;
    if (at(begin) == '0' && (second == 'x' || second == 'X')) {
        base = 16;
        digits += 2;
    } else if (at(begin) == '0' &&
               (second == 'f' || second == 'F' || second == 'd' || second == 'D')) {
        const bool single = second == 'f' || second == 'F';
        kind = single ? TokenKind::kFloat32 : TokenKind::kFloat64;
        exact_digits = single ? 8 : 16;
        base = 16;
        digits += 2;
    } else if (at(begin) == '0' && (second == 'b' || second == 'B')) {
        base = 2;
        digits += 2;
    } else if (at(begin) == '0' && is_digit(second)) {
        base = 8;
    }
    std::size_t end = digits;
    std::uint64_t value = 0;
    while (hex_value(at(end)) >= 0 && static_cast<unsigned>(hex_value(at(end))) < base) {
        value = value * base + static_cast<unsigned>(hex_value(at(end)));
        ++end;
    }
    if (base == 10 || base == 8) {
        if (at(end) == '.' || at(end) == 'e' || at(end) == 'E') {
            lex_decimal_float();
            return;
        }
    }
    const bool bad = end == digits || (exact_digits != 0 && end - digits != exact_digits);
    if (kind == TokenKind::kInteger && (at(end) == 'U' || at(end) == 'u')) {
        ++end;
    }
    token_.value = value;
    finish(bad || is_word(at(end)) ? TokenKind::kBad : kind, begin, end);
}

void Lexer::lex_word() {
    std::size_t end = position_;
    while (is_word(at(end))) {
        ++end;
    }
    // %tid.x and its like are one name.
    if (text_[position_] == '%' && at(end) == '.' && !is_word(at(end + 2)) &&
        (at(end + 1) == 'x' || at(end + 1) == 'y' || at(end + 1) == 'z' || at(end + 1) == 'w')) {
        end += 2;
    }
    finish(TokenKind::kWord, position_, end);
}

void Lexer::lex_directive() {
    const std::size_t begin = position_ + 1;
    std::size_t end = begin;
    while (is_word(at(end)) || (at(end) == ':' && at(end + 1) == ':' && is_word(at(end + 2)))) {
        end += at(end) == ':' ? 2 : 1;
    }
    finish(TokenKind::kDirective, begin, end);
}

void Lexer::lex_string() {
    const std::size_t begin = position_ + 1;
    std::size_t end = begin;
    while (end < text_.size() && text_[end] != '"' && text_[end] != '\n') {
        end += text_[end] == '\\' ? 2 : 1;
    }
    if (at(end) != '"') {
        finish(TokenKind::kBad, position_, std::min(end, text_.size()));
        return;
    }
    finish(TokenKind::kString, begin, end);
    position_ = end + 1;
}

std::string_view Lexer::take_spelling(const Token& word) {
    const auto begin = static_cast<std::size_t>(word.text.data() - text_.data());
    std::size_t end = begin + word.text.size();
    while (token_.kind == TokenKind::kDirective &&
           static_cast<std::size_t>(token_.text.data() - text_.data()) == end + 1) {
        end += 1 + token_.text.size();
        advance();
    }
    return text_.substr(begin, end - begin);
}

void Lexer::skip_braces() {
    int depth = 1;
    while (depth > 0 && token_.kind != TokenKind::kEnd) {
        if (token_.is('{')) {
            ++depth;
        } else if (token_.is('}')) {
            --depth;
        }
        advance();
    }
}

void Lexer::skip_line() {
    const std::uint32_t line = token_.where.line;
    while (token_.kind != TokenKind::kEnd && token_.where.line == line) {
        advance();
    }
}

}  // namespace gantry::softgpu::ptx
