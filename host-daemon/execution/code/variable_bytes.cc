#include "host-daemon/execution/code/variable_bytes.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string>

#include "host-daemon/softgpu/image/elf_file.h"
#include "proto/base/saturating.h"

namespace gantry::worker {
namespace {

bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%';
}

/// Without comments, and with strings empty: what is in them declares nothing.
std::string plain_text(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t special = std::min(text.find_first_of("/\"", at), text.size());
        out.append(text, at, special - at);
        const std::string_view rest = text.substr(special);
        std::size_t end = 1;
        if (rest.starts_with("//")) {
            end = rest.find('\n');
        } else if (rest.starts_with("/*")) {
            end = rest.find("*/", 2);
            end = end == std::string_view::npos ? end : end + 2;
        } else if (rest.starts_with('"')) {
            end = rest.find_first_of("\"\n", 1);
            end = end == std::string_view::npos ? end : end + 1;
        } else {
            out.append(rest, 0, 1);
        }
        out += end != 1 ? " " : "";
        at = special + std::min(end, rest.size());
    }
    return out;
}

/// The declarators behind `.global` or `.const`.
class Declaration {
public:
    explicit Declaration(std::string_view text) : text_(text) {}

    std::uint64_t bytes() {
        read_qualifiers();
        std::uint64_t all = 0;
        do {
            all = sum(all, one());
        } while (accept(','));
        return all;
    }
    /// What is behind them.
    [[nodiscard]] std::string_view rest() const { return text_; }

private:
    void skip_space() {
        const auto is_space = [](unsigned char c) { return std::isspace(c) != 0; };
        const auto begin = std::find_if_not(text_.begin(), text_.end(), is_space);
        text_.remove_prefix(static_cast<std::size_t>(begin - text_.begin()));
    }
    bool accept(char c) {
        skip_space();
        const bool is_next = !text_.empty() && text_[0] == c;
        text_.remove_prefix(is_next ? 1 : 0);
        return is_next;
    }
    std::string_view word() {
        skip_space();
        const auto end = std::find_if_not(text_.begin(), text_.end(), is_word);
        const std::string_view out = text_.substr(0, static_cast<std::size_t>(end - text_.begin()));
        text_.remove_prefix(out.size());
        return out;
    }
    static std::uint64_t number(std::string_view digits) {
        int base = 10;
        if (digits.starts_with("0x") || digits.starts_with("0X")) {
            digits.remove_prefix(2);
            base = 16;
        } else if (digits.starts_with("0b") || digits.starts_with("0B")) {
            digits.remove_prefix(2);
            base = 2;
        } else if (digits.starts_with("0")) {
            base = 8;
        }
        std::uint64_t value = 0;
        std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
        return value;
    }
    /// `.b8` to `.b128`, `.f16x2`: the first number in it says the bits.
    static std::uint64_t element_bytes(std::string_view type) {
        constexpr std::uint64_t kHandle = 8;  // .texref, .samplerref, .surfref
        constexpr std::uint64_t kMost = 16;
        const std::size_t digit = type.find_first_of("0123456789");
        if (digit == std::string_view::npos) {
            return kHandle;
        }
        const std::size_t end = type.find_first_not_of("0123456789", digit);
        const std::uint64_t bits = number(type.substr(digit, end - digit));
        const std::uint64_t lanes = type.find("x2", digit) != std::string_view::npos   ? 2
                                    : type.find("x4", digit) != std::string_view::npos ? 4
                                                                                       : 1;
        return std::clamp<std::uint64_t>((bits * lanes + 7) / 8, 1, kMost);
    }
    void read_qualifiers() {
        while (accept('.')) {
            const std::string_view name = word();
            if (name == "align") {
                number(word());
            } else if (name == "v2" || name == "v4" || name == "v8") {
                vector_ = static_cast<std::uint64_t>(name[1] - '0');
            } else if (name == "attribute") {
                const std::size_t end = text_.find(')');
                text_.remove_prefix(end == std::string_view::npos ? text_.size() : end + 1);
            } else {
                element_ = element_bytes(name);
            }
        }
    }
    /// A name, its bounds and its initial value, whose elements count where a bound is left out.
    std::uint64_t one() {
        word();
        std::uint64_t count = 1;
        bool is_open = false;
        while (accept('[')) {
            const std::string_view bound = word();
            is_open = is_open || bound.empty();
            count = product(count, bound.empty() ? 1 : number(bound));
            const std::size_t end = text_.find_first_of("];");
            text_.remove_prefix(std::min(end, text_.size()));
            accept(']');
        }
        std::uint64_t values = 1;
        if (accept('=')) {
            int depth = 0;
            std::size_t at = 0;
            for (; at < text_.size() && text_[at] != ';'; ++at) {
                depth += text_[at] == '{' ? 1 : text_[at] == '}' ? -1 : 0;
                if (text_[at] == ',' && depth <= 0) {
                    break;
                }
                values += text_[at] == ',' ? 1 : 0;
            }
            text_.remove_prefix(at);
        }
        count = is_open ? product(count, values) : count;
        return product(product(count, element_), vector_);
    }

    std::string_view text_;
    std::uint64_t element_ = 1;
    std::uint64_t vector_ = 1;
};

bool is_extern(std::string_view before) {
    while (!before.empty() && std::isspace(static_cast<unsigned char>(before.back())) != 0) {
        before.remove_suffix(1);
    }
    return before.ends_with(".extern");
}

}  // namespace

std::uint64_t cubin_variable_bytes(std::span<const std::byte> cubin) {
    const auto elf = softgpu::image::ElfFile::open(cubin);
    std::uint64_t all = 0;
    if (!elf.ok()) {
        return all;
    }
    for (const Elf64_Shdr& section : elf->sections()) {
        if (elf->name_starts_with(section, ".nv.global") ||
            elf->name_starts_with(section, ".nv.constant3")) {
            all = sum(all, section.sh_size);
        }
    }
    return all;
}

std::uint64_t ptx_variable_bytes(std::string_view ptx) {
    const std::string plain = plain_text(ptx.substr(0, ptx.find('\0')));
    std::string_view text = plain;
    std::uint64_t all = 0;
    for (std::size_t at = text.find('.'); at != std::string_view::npos; at = text.find('.', at)) {
        const std::string_view behind = text.substr(at + 1);
        const std::size_t name_bytes = behind.starts_with("global")  ? 6
                                       : behind.starts_with("const") ? 5
                                                                     : 0;
        ++at;
        if (name_bytes == 0 || (at >= 2 && is_word(text[at - 2])) ||
            (behind.size() > name_bytes && is_word(behind[name_bytes]))) {
            continue;  // Of an instruction, as in ld.global.
        }
        Declaration declaration(behind.substr(name_bytes));
        all = sum(all, is_extern(text.substr(0, at - 1)) ? 0 : declaration.bytes());
        at = text.size() - declaration.rest().size();
    }
    return all;
}

}  // namespace gantry::worker
