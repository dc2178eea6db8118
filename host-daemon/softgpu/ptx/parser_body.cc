#include <string>

#include "host-daemon/softgpu/ptx/parser_internal.h"

namespace gantry::softgpu::ptx {
namespace {

bool is_state_space(std::string_view name) {
    return name == "reg" || name == "local" || name == "shared" || name == "param" ||
           name == "global" || name == "const";
}

/// "%r12" -> prefix "%r", number 12. False without trailing digits (or too many).
bool split_numbered(std::string_view name, std::string_view& prefix, std::uint32_t& number) {
    std::size_t begin = name.size();
    while (begin > 0 && name[begin - 1] >= '0' && name[begin - 1] <= '9') {
        --begin;
    }
    if (begin == name.size() || begin == 0 || name.size() - begin > 9) {
        return false;
    }
    number = 0;
    for (const char c : name.substr(begin)) {
        number = number * 10 + static_cast<std::uint32_t>(c - '0');
    }
    prefix = name.substr(0, begin);
    return true;
}

}  // namespace

std::uint32_t Parser::append(const Operand& operand) {
    function_->operands.push_back(operand);
    return static_cast<std::uint32_t>(function_->operands.size() - 1);
}

std::uint32_t Parser::add_register(Type type) {
    function_->registers.push_back({type});
    return static_cast<std::uint32_t>(function_->registers.size() - 1);
}

std::optional<std::uint32_t> Parser::find_register(std::string_view name) const {
    std::string_view prefix;
    std::uint32_t number = 0;
    const bool numbered = split_numbered(name, prefix, number);
    for (std::size_t depth = scopes_.size(); depth-- > 0;) {
        const Scope& scope = scopes_[depth];
        if (numbered) {
            const auto range = scope.ranges.find(prefix);
            if (range != scope.ranges.end() && number < range->second.count) {
                return range->second.first + number;
            }
        }
        const auto exact = scope.registers.find(name);
        if (exact != scope.registers.end()) {
            return exact->second;
        }
    }
    return std::nullopt;
}

bool Parser::resolve_name(const Token& word, Operand& out) {
    out.where = word.where;
    out.name = word.text;
    if (word.text == "_") {
        out.kind = OperandKind::kSink;
        return true;
    }
    if (const auto reg = find_register(word.text)) {
        out.kind = OperandKind::kRegister;
        out.index = *reg;
        return true;
    }
    for (std::size_t depth = scopes_.size(); depth-- > 0;) {
        const auto variable = scopes_[depth].variables.find(word.text);
        if (variable != scopes_[depth].variables.end()) {
            out.kind = OperandKind::kVariable;
            out.index = variable->second;
            return true;
        }
    }
    if (word.text == "WARP_SZ") {
        out.kind = OperandKind::kInteger;
        out.value = 32;
        return true;
    }
    out.kind = word.text.front() == '%' ? OperandKind::kSpecial : OperandKind::kPending;
    return true;
}

void Parser::adopt_children(Operand& out, const std::vector<Operand>& children) {
    out.first_child = static_cast<std::uint32_t>(function_->operands.size());
    out.child_count = static_cast<std::uint32_t>(children.size());
    for (const Operand& child : children) {
        const std::uint32_t index = append(child);
        if (child.kind == OperandKind::kPending) {
            scopes_.back().pending.push_back(index);
        }
    }
}

bool Parser::parse_children(Operand& out, char close) {
    std::vector<Operand> children;
    while (!accept(close)) {
        children.emplace_back();
        if (!parse_operand(children.back())) {
            return false;
        }
        if (!accept(',') && !lexer_.peek().is(close)) {
            return expect(close);
        }
    }
    adopt_children(out, children);
    return true;
}

bool Parser::parse_address(Operand& out) {
    out.kind = OperandKind::kAddress;
    std::vector<Operand> children;
    do {
        children.emplace_back();
        Operand& part = children.back();
        if (lexer_.peek().kind == TokenKind::kInteger || lexer_.peek().is('-')) {
            part.kind = OperandKind::kInteger;
            part.where = lexer_.peek().where;
            if (!parse_integer(part.value)) {
                return false;
            }
            continue;
        }
        if (!parse_simple_operand(part)) {
            return false;
        }
        if ((lexer_.peek().is('+') || lexer_.peek().is('-')) && !parse_integer(part.value)) {
            return false;
        }
    } while (accept(','));
    adopt_children(out, children);
    return expect(']');
}

bool Parser::parse_simple_operand(Operand& out) {
    const Nesting nesting(*this);
    if (nesting.too_deep()) {
        return fail_here("the operand is nested too deeply");
    }
    const Token token = lexer_.peek();
    out.where = token.where;
    switch (token.kind) {
        case TokenKind::kWord: {
            const Token word = lexer_.take();
            if (!resolve_name(word, out)) {
                return false;
            }
            static constexpr std::string_view kParts[] = {"b0", "b1", "b2", "b3", "h0", "h1"};
            for (std::uint8_t i = 0; i < 6 && out.kind == OperandKind::kRegister; ++i) {
                if (accept_directive(kParts[i])) {
                    out.part = static_cast<std::uint8_t>(i + 1);
                    break;
                }
            }
            return true;
        }
        case TokenKind::kFloat32:
        case TokenKind::kFloat64:
            out.kind =
                token.kind == TokenKind::kFloat32 ? OperandKind::kFloat32 : OperandKind::kFloat64;
            out.value = lexer_.take().value;
            return true;
        case TokenKind::kInteger: out.kind = OperandKind::kInteger; return parse_integer(out.value);
        default: break;
    }
    if (accept('{')) {
        out.kind = OperandKind::kVector;
        return parse_children(out, '}');
    }
    if (accept('[')) {
        return parse_address(out);
    }
    if (accept('(')) {
        out.kind = OperandKind::kList;
        return parse_children(out, ')');
    }
    return fail(token.where, "expected an operand, found '" + std::string(token.text) + "'");
}

bool Parser::parse_operand(Operand& out) {
    if (accept('!')) {
        if (!parse_simple_operand(out)) {
            return false;
        }
        out.negated = true;
    } else if (lexer_.peek().is('-') || lexer_.peek().is('~')) {
        const Token sign = lexer_.take();
        if (!parse_simple_operand(out)) {
            return false;
        }
        if (out.kind == OperandKind::kInteger) {
            out.value = sign.is('-') ? 0 - out.value : ~out.value;
        } else if (out.kind == OperandKind::kFloat64 && sign.is('-')) {
            out.value ^= std::uint64_t{1} << 63;
        } else if (out.kind == OperandKind::kFloat32 && sign.is('-')) {
            out.value ^= std::uint64_t{1} << 31;
        } else {
            return fail(sign.where, "a sign must stand before a number");
        }
    } else if (!parse_simple_operand(out)) {
        return false;
    }
    if ((out.kind == OperandKind::kVariable || out.kind == OperandKind::kPending) &&
        (lexer_.peek().is('+') || lexer_.peek().is('-'))) {
        if (!parse_integer(out.value)) {
            return false;
        }
    }
    if (lexer_.peek().is('|')) {
        lexer_.take();
        std::vector<Operand> both(2);
        both[0] = out;
        if (!parse_simple_operand(both[1])) {
            return false;
        }
        out = Operand{};
        out.kind = OperandKind::kPair;
        out.where = both[0].where;
        adopt_children(out, both);
    }
    return true;
}

bool Parser::declare_registers(const Declaration& declaration) {
    const Variable& variable = declaration.variable;
    if (variable.vector != 1) {
        return fail(variable.where, "vector registers are not supported: use scalar registers");
    }
    Scope& scope = scopes_.back();
    if (declaration.range_count == 0) {
        scope.registers[variable.name] = add_register(variable.type);
        return true;
    }
    RegisterRange range;
    range.first = static_cast<std::uint32_t>(function_->registers.size());
    range.count = declaration.range_count;
    if (range.first + std::uint64_t{range.count} > 20'000'000) {
        return fail(variable.where, "too many registers");
    }
    function_->registers.resize(range.first + range.count, Register{variable.type});
    scope.ranges[variable.name] = range;
    return true;
}

bool Parser::parse_local_declaration(std::string_view space_name) {
    const Space space = space_name == "reg"      ? Space::kReg
                        : space_name == "local"  ? Space::kLocal
                        : space_name == "shared" ? Space::kShared
                        : space_name == "param"  ? Space::kParam
                        : space_name == "const"  ? Space::kConst
                                                 : Space::kGlobal;
    Declaration declaration;
    if (!parse_declaration(space, declaration)) {
        return false;
    }
    while (true) {
        if (space == Space::kReg) {
            if (!declare_registers(declaration)) {
                return false;
            }
        } else {
            Variable variable = declaration.variable;
            if (accept('=') && !parse_initializer(variable)) {
                return false;
            }
            scopes_.back().variables[variable.name] =
                static_cast<std::uint32_t>(function_->variables.size());
            function_->variables.push_back(std::move(variable));
        }
        if (!accept(',')) {
            return expect(';');
        }
        Variable& next = declaration.variable;
        next.where = lexer_.peek().where;
        if (!take_word(next.name, "a name")) {
            return false;
        }
        next.size = std::uint64_t{size_of(next.type)} * next.vector;
        declaration.range_count = 0;
        if (accept('<')) {
            std::uint64_t count = 0;
            if (!parse_integer(count) || !expect('>')) {
                return false;
            }
            declaration.range_count =
                static_cast<std::uint32_t>(std::min<std::uint64_t>(count, 10'000'000));
        } else if (!parse_array_bounds(next)) {
            return false;
        }
    }
}

bool Parser::parse_prototype(std::string_view name) {
    Prototype prototype;
    prototype.name = name;
    if (lexer_.peek().is('(') && !parse_parameters(prototype.signature.returns)) {
        return false;
    }
    std::string_view ignored;
    if (!take_word(ignored, "_") ||
        (lexer_.peek().is('(') && !parse_parameters(prototype.signature.params))) {
        return false;
    }
    while (lexer_.peek().kind == TokenKind::kDirective) {
        lexer_.take();  // .noreturn and the like
    }
    function_->prototypes.push_back(std::move(prototype));
    return expect(';');
}

bool Parser::parse_target_list(std::string_view name) {
    TargetList list;
    list.name = name;
    std::vector<Operand> targets;
    do {
        Operand target;
        target.kind = OperandKind::kPending;
        target.where = lexer_.peek().where;
        if (!take_word(target.name, "a label")) {
            return false;
        }
        targets.push_back(target);
    } while (accept(','));
    Operand all;
    adopt_children(all, targets);
    list.first_operand = all.first_child;
    list.count = all.child_count;
    function_->targets.push_back(list);
    return expect(';');
}

bool Parser::parse_label_or_list(const Token& word) {
    if (accept_directive("callprototype")) {
        return parse_prototype(word.text);
    }
    if (accept_directive("branchtargets") || accept_directive("calltargets")) {
        return parse_target_list(word.text);
    }
    const auto next = static_cast<std::uint32_t>(function_->instructions.size());
    if (!scopes_.back().labels.emplace(word.text, next).second) {
        return fail(word.where, "label " + std::string(word.text) + " is defined twice");
    }
    return true;
}

bool Parser::parse_instruction() {
    Instruction instruction;
    if (accept('@')) {
        if (lexer_.peek().is('@')) {
            lexer_.skip_line();
            return true;
        }
        instruction.guard_negated = accept('!');
        const Token name = lexer_.take();
        const auto reg = find_register(name.text);
        if (!reg || function_->registers[*reg].type != Type::kPred) {
            return fail(name.where, "'" + std::string(name.text) + "' is not a predicate register");
        }
        instruction.guard = *reg;
    }
    const Token word = lexer_.take();
    instruction.where = word.where;
    if (word.kind != TokenKind::kWord) {
        return fail(word.where, "expected an instruction, found '" + std::string(word.text) + "'");
    }
    if (instruction.guard == kNoGuard && accept(':')) {
        return parse_label_or_list(word);
    }
    instruction.spelling = lexer_.take_spelling(word);
    std::vector<Operand> operands;
    while (!accept(';')) {
        operands.emplace_back();
        if (!parse_operand(operands.back())) {
            return false;
        }
        if (!accept(',') && !lexer_.peek().is(';')) {
            // The result list of a call is followed by no comma in some writers' output.
            return expect(';');
        }
    }
    Operand all;
    adopt_children(all, operands);
    instruction.first_operand = all.first_child;
    instruction.operand_count = all.child_count;
    function_->instructions.push_back(instruction);
    return true;
}

bool Parser::close_scope() {
    Scope closing = std::move(scopes_.back());
    scopes_.pop_back();
    for (const std::uint32_t index : closing.pending) {
        Operand& operand = function_->operands[index];
        const auto label = closing.labels.find(operand.name);
        if (label != closing.labels.end()) {
            operand.kind = OperandKind::kLabel;
            operand.index = label->second;
        } else if (!scopes_.empty()) {
            scopes_.back().pending.push_back(index);
        } else {
            bool known = module_names_.count(operand.name) != 0;
            for (const Prototype& prototype : function_->prototypes) {
                known = known || prototype.name == operand.name;
            }
            for (const TargetList& list : function_->targets) {
                known = known || list.name == operand.name;
            }
            if (!known) {
                return fail(operand.where, "unknown name '" + std::string(operand.name) + "'");
            }
            operand.kind = OperandKind::kSymbol;
        }
    }
    return true;
}

bool Parser::parse_statement() {
    const Token& token = lexer_.peek();
    if (token.kind == TokenKind::kDirective) {
        const Token directive = lexer_.take();
        if (is_state_space(directive.text)) {
            return parse_local_declaration(directive.text);
        }
        if (directive.text == "loc" || directive.text == "file") {
            lexer_.skip_line();
            return true;
        }
        if (directive.text == "pragma") {
            while (!lexer_.peek().is(';') && lexer_.peek().kind != TokenKind::kEnd) {
                lexer_.take();
            }
            return expect(';');
        }
        return fail(directive.where, "unknown directive ." + std::string(directive.text));
    }
    if (accept(';')) {
        return true;
    }
    return parse_instruction();
}

bool Parser::parse_body() {
    if (!expect('{')) {
        return false;
    }
    std::size_t depth = 1;
    while (depth > 0) {
        if (lexer_.peek().kind == TokenKind::kEnd) {
            return fail_here("the text ends inside function " + std::string(function_->name));
        }
        if (accept('{')) {
            scopes_.emplace_back();
            ++depth;
        } else if (accept('}')) {
            if (!close_scope()) {
                return false;
            }
            --depth;
        } else if (!parse_statement()) {
            return false;
        }
    }
    return true;
}

}  // namespace gantry::softgpu::ptx
