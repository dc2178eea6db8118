// Turns PTX text into tokens, one at a time. Comments and white space are skipped; lines and
// columns count from 1. The text must outlive the lexer. Not thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "host-daemon/softgpu/ptx/ast.h"

namespace gantry::softgpu::ptx {

enum class TokenKind : std::uint8_t {
    kEnd,
    kWord,       ///< name: letters, digits, _ $ %; special registers with their .x
    kDirective,  ///< .word, with ::parts; text without the dot
    kInteger,
    kFloat32,  ///< 0f and 8 digits
    kFloat64,  ///< 0d and 16 digits, or decimal
    kString,   ///< without quotes
    kPunct,    ///< one character
    kBad,
};

struct Token {
    TokenKind kind = TokenKind::kEnd;
    std::string_view text;
    std::uint64_t value = 0;
    Position where;
    [[nodiscard]] bool is(char punct) const {
        return kind == TokenKind::kPunct && text.front() == punct;
    }
};

class Lexer {
public:
    explicit Lexer(std::string_view text);
    [[nodiscard]] const Token& peek() const { return token_; }
    Token take();
    /// With a word just taken: extends it over directly following ".modifiers".
    [[nodiscard]] std::string_view take_spelling(const Token& word);
    /// Skips a raw block after its opening brace was taken (debug sections).
    void skip_braces();
    /// Skips to the end of the current line (old DWARF lines).
    void skip_line();

private:
    void advance();
    void skip_space();
    void lex_number();
    [[nodiscard]] bool is_fraction() const;
    void lex_decimal_float();
    void lex_word();
    void lex_directive();
    void lex_string();
    [[nodiscard]] char at(std::size_t position) const {
        return position < text_.size() ? text_[position] : '\0';
    }
    void finish(TokenKind kind, std::size_t begin, std::size_t end);

    std::string_view text_;
    std::size_t position_ = 0;
    std::uint32_t line_ = 1;
    std::size_t line_start_ = 0;
    Token token_;
};

}  // namespace gantry::softgpu::ptx
