#include "host-daemon/execution/code/placed_ptx.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "host-daemon/softgpu/ptx/lexer.h"
#include "host-daemon/softgpu/ptx/parser.h"

namespace gantry::worker {
namespace {

namespace ptx = softgpu::ptx;

bool is_call(const ptx::Instruction& instruction) {
    return instruction.spelling == "call" || instruction.spelling.starts_with("call.");
}

/// Calls `see` with each symbol whose address an instruction uses; a call only names a function.
template <typename See>
void for_each_symbol(const ptx::Function& function, const ptx::Instruction& instruction,
                     const See& see) {
    if (is_call(instruction)) {
        return;
    }
    std::vector<std::pair<std::uint32_t, std::uint32_t>> ranges = {
        {instruction.first_operand, instruction.operand_count}};
    while (!ranges.empty()) {
        const auto [first, count] = ranges.back();
        ranges.pop_back();
        for (std::uint32_t i = first; i < first + count; ++i) {
            const ptx::Operand& operand = function.operands[i];
            if (operand.child_count != 0) {
                ranges.emplace_back(operand.first_child, operand.child_count);
            }
            if (operand.kind == ptx::OperandKind::kSymbol) {
                see(operand);
            }
        }
    }
}

bool begins_declaration(std::string_view directive) {
    return directive == "visible" || directive == "extern" || directive == "weak" ||
           directive == "common" || directive == "global" || directive == "const";
}

class Placer {
public:
    Placer(const ptx::Module& module, const VariablePlaces& places, Others others)
        : module_(module), text_(*module.text), places_(places), others_(others) {}

    Result<std::string> run() {
        for (const ptx::Variable& variable : module_.variables) {
            const bool is_const = variable.space == ptx::Space::kConst;
            const bool has_address = is_const || variable.space == ptx::Space::kGlobal;
            if (places_.contains(variable.name)) {
                gone_.insert(offset_of(variable.name));
                places_const_ = places_const_ || is_const;
            } else if (has_address && variable.type < ptx::Type::kTexref) {
                left_.emplace(variable.name, is_const);
            }
        }
        drop_declarations();
        for (const ptx::Function& function : module_.functions) {
            if (function.has_body) {
                GANTRY_TRY(place_in(function));
            }
        }
        return edited();
    }

private:
    struct Edit {
        std::size_t offset = 0;
        std::size_t bytes = 0;
        std::string text;
    };

    static Error refuse(const std::string& why) {
        return Error{Code::kFailedPrecondition, "module.globals.not_movable",
                     "its variables cannot be put where the program has them: " + why};
    }

    [[nodiscard]] std::size_t offset_of(std::string_view part) const {
        return static_cast<std::size_t>(part.data() - text_.data());
    }

    /// From the first directive of each statement to its semicolon.
    void drop_declarations() {
        constexpr std::size_t kNone = std::string_view::npos;
        ptx::Lexer lexer(text_);
        std::size_t begin = kNone;
        bool drops = false;
        for (int depth = 0;;) {
            const ptx::Token token = lexer.take();
            if (token.kind == ptx::TokenKind::kEnd) {
                return;
            }
            depth += token.is('{') ? 1 : token.is('}') ? -1 : 0;
            if (depth != 0) {
                continue;
            }
            if (token.kind == ptx::TokenKind::kDirective && begin == kNone &&
                begins_declaration(token.text)) {
                begin = offset_of(token.text) - 1;  // Its dot.
            } else if (token.kind == ptx::TokenKind::kDirective &&
                       (token.text == "func" || token.text == "entry")) {
                begin = kNone;
            } else if (token.kind == ptx::TokenKind::kWord) {
                drops = drops || gone_.contains(offset_of(token.text));
            } else if (token.is(';')) {
                if (drops && begin != kNone) {
                    edits_.push_back({begin, offset_of(token.text) + 1 - begin, {}});
                }
                begin = kNone;
                drops = false;
            }
        }
    }

    Result<void> place_in(const ptx::Function& function) {
        std::map<std::uint64_t, std::string> registers;
        std::string_view used;
        for (const ptx::Instruction& instruction : function.instructions) {
            for_each_symbol(function, instruction, [&](const ptx::Operand& operand) {
                used = may_stay(operand.name) ? used : operand.name;
                place_symbol(operand, &registers);
            });
            make_global(instruction);
        }
        if (!used.empty()) {
            return refuse(fmt::format("nobody knows where {} lies", used));
        }
        if (!registers.empty()) {
            declare(function, registers);
        }
        return {};
    }

    /// Constants that stay cannot be told from those that are global memory now.
    [[nodiscard]] bool may_stay(std::string_view name) const {
        const auto left = left_.find(name);
        return left == left_.end() ||
               (others_ == Others::kStay && !(left->second && places_const_));
    }

    /// `name` or `name+4` becomes a register that holds that address.
    void place_symbol(const ptx::Operand& operand,
                      std::map<std::uint64_t, std::string>* registers) {
        const auto place = places_.find(operand.name);
        if (place == places_.end()) {
            return;
        }
        const std::size_t begin = offset_of(operand.name);
        ptx::Lexer lexer(std::string_view(text_).substr(begin));
        std::size_t end = begin + lexer.take().text.size();
        std::uint64_t address = place->second;
        if (lexer.peek().is('+') || lexer.peek().is('-')) {
            const bool adds = lexer.take().is('+');
            const ptx::Token number = lexer.take();
            if (number.kind == ptx::TokenKind::kInteger) {
                address += adds ? number.value : 0 - number.value;
                end = offset_of(number.text) + number.text.size();
            }
        }
        std::string& name = (*registers)[address];
        if (name.empty()) {
            name = fmt::format("%gantry_place{}", registers->size() - 1);
        }
        edits_.push_back({begin, end - begin, name});
    }

    /// What reads constants reads global memory.
    void make_global(const ptx::Instruction& instruction) {
        const std::string_view spelling = instruction.spelling;
        const bool reads = spelling.starts_with("ld.") || spelling.starts_with("ldu.") ||
                           spelling.starts_with("cvta.");
        const std::size_t at = spelling.find(".const");
        if (places_const_ && reads && at != std::string_view::npos) {
            edits_.push_back(
                {offset_of(spelling) + at, std::string_view(".const").size(), ".global"});
        }
    }

    /// At the beginning of the body.
    void declare(const ptx::Function& function,
                 const std::map<std::uint64_t, std::string>& registers) {
        const std::size_t from = offset_of(function.name);
        ptx::Lexer lexer(std::string_view(text_).substr(from));
        ptx::Token token = lexer.take();
        while (!token.is('{') && token.kind != ptx::TokenKind::kEnd) {
            token = lexer.take();
        }
        std::string text = fmt::format("\n.reg .u64 %gantry_place<{}>;\n", registers.size());
        for (const auto& [address, name] : registers) {
            text += fmt::format("mov.u64 {}, {:#x};\n", name, address);
        }
        edits_.push_back({offset_of(token.text) + 1, 0, std::move(text)});
    }

    std::string edited() {
        std::sort(edits_.begin(), edits_.end(),
                  [](const Edit& a, const Edit& b) { return a.offset < b.offset; });
        std::string out;
        std::size_t at = 0;
        for (const Edit& edit : edits_) {
            out.append(text_, at, edit.offset - at);
            out += edit.text;
            at = edit.offset + edit.bytes;
        }
        out.append(text_, at);
        return out;
    }

    const ptx::Module& module_;
    const std::string& text_;
    const VariablePlaces& places_;
    const Others others_;
    std::set<std::size_t> gone_;             ///< Offsets of names whose declarations go.
    std::map<std::string_view, bool> left_;  ///< Without a place; whether it is a constant.
    bool places_const_ = false;
    std::vector<Edit> edits_;
};

}  // namespace

Result<std::string> placed_ptx(std::string_view text, const VariablePlaces& places, Others others) {
    GANTRY_ASSIGN(const ptx::Module module, ptx::parse(text));
    return Placer(module, places, others).run();
}

Result<std::string> stored_function(std::string_view text) {
    GANTRY_ASSIGN(const ptx::Module module, ptx::parse(text));
    std::set<std::string_view> functions;
    for (const ptx::Function& function : module.functions) {
        functions.insert(function.name);
    }
    for (const ptx::Variable& variable : module.variables) {
        for (const ptx::Initializer& word : variable.init) {
            if (functions.contains(word.symbol)) {
                return std::string(word.symbol);
            }
        }
    }
    std::string found;
    for (const ptx::Function& function : module.functions) {
        for (const ptx::Instruction& instruction : function.instructions) {
            for_each_symbol(function, instruction, [&](const ptx::Operand& operand) {
                if (functions.contains(operand.name)) {
                    found = operand.name;
                }
            });
        }
    }
    return found;
}

}  // namespace gantry::worker
