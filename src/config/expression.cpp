#include "expression.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

namespace ftmpi {

namespace {

constexpr std::size_t kLongest = 1 << 16;
constexpr std::size_t kMostSteps = 4096;
constexpr int kDeepest = 64;  ///< groups inside groups
constexpr int kUnbounded = -1;

using Set = std::bitset<256>;

struct Node {
    enum class Kind { set, begin, end, sequence, choice, repeat } kind = Kind::sequence;
    std::uint32_t set = 0;
    int least = 1, most = 1;
    std::vector<Node> parts;
};

Set range(unsigned char first, unsigned char last) {
    Set set;
    for (unsigned c = first; c <= last; ++c) set.set(c);
    return set;
}

/// What \d, \w, \s and their opposites stand for; empty for another letter.
Set class_of(char letter) {
    Set set;
    const char small = letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter + 32) : letter;
    if (small == 'd') set = range('0', '9');
    if (small == 'w') set = range('0', '9') | range('a', 'z') | range('A', 'Z') | range('_', '_');
    if (small == 's') set = range('\t', '\r') | range(' ', ' ');
    return small != letter && set.any() ? ~set : set;
}

}  // namespace

class ExpressionReader {
public:
    ExpressionReader(std::string_view text, Expression& out) : text_(text), out_(out) {}

    Expression::Kind read() {
        try {
            if (text_.size() > kLongest) stop(Expression::Kind::beyond);
            const Node root = choice(0);
            if (at_ < text_.size()) stop(Expression::Kind::malformed);  // a closing bracket too many
            emit(root);
            add({Expression::Step::Op::done});
        } catch (const Stop& stop) { return stop.kind; }
        return Expression::Kind::plain;
    }

private:
    using Op = Expression::Step::Op;
    struct Stop {
        Expression::Kind kind;
    };

    [[noreturn]] static void stop(Expression::Kind kind) { throw Stop{kind}; }
    bool more() const { return at_ < text_.size(); }
    char peek() const { return more() ? text_[at_] : '\0'; }
    bool take(std::string_view what) {
        if (text_.substr(at_, what.size()) != what) return false;
        at_ += what.size();
        return true;
    }

    Node choice(int depth) {
        if (depth > kDeepest) stop(Expression::Kind::beyond);
        Node node;
        node.kind = Node::Kind::choice;
        do node.parts.push_back(sequence(depth));
        while (take("|"));
        return node;
    }

    Node sequence(int depth) {
        Node node;
        while (more() && peek() != '|' && peek() != ')') node.parts.push_back(repeated(atom(depth)));
        return node;
    }

    Node atom(int depth) {
        if (take("(")) {
            if (peek() == '?' && !take("?:")) stop(Expression::Kind::beyond);
            Node node = choice(depth + 1);
            if (!take(")")) stop(Expression::Kind::malformed);
            return node;
        }
        if (take("^")) return anchor(Node::Kind::begin);
        if (take("$")) return anchor(Node::Kind::end);
        if (take("[")) return set_node(brackets());
        if (take(".")) return set_node(~range('\n', '\n'));
        const char c = text_[at_++];
        if (c == '*' || c == '+' || c == '?') stop(Expression::Kind::malformed);
        if (c == '\\') return set_node(escape());
        return set_node(range(static_cast<unsigned char>(c), static_cast<unsigned char>(c)));
    }

    Node repeated(Node node) {
        for (bool again = false;; again = true) {
            int least = 0, most = kUnbounded;
            if (take("+")) least = 1;
            else if (take("?")) most = 1;
            else if (!take("*") && !counts(least, most)) return node;
            if (again) stop(Expression::Kind::malformed);
            take("?");  // a lazy repeat matches the same texts
            Node repeat;
            repeat.kind = Node::Kind::repeat;
            repeat.least = least, repeat.most = most;
            repeat.parts.push_back(std::move(node));
            node = std::move(repeat);
        }
    }

    /// `{n}`, `{n,}` or `{n,m}`; a brace that begins none of them is a literal, as it is in Python.
    bool counts(int& least, int& most) {
        const auto begin = at_;
        const auto number = [&](int& n) {
            if (peek() < '0' || peek() > '9') return false;
            for (n = 0; peek() >= '0' && peek() <= '9'; ++at_) n = std::min(n * 10 + (peek() - '0'), 100'000);
            return true;
        };
        if (take("{") && number(least)) {
            most = least;
            if (take(",")) number(most = kUnbounded);
            if (take("}")) {
                if (most != kUnbounded && most < least) stop(Expression::Kind::malformed);
                return true;
            }
        }
        at_ = begin;
        return false;
    }

    static Node anchor(Node::Kind kind) {
        Node node;
        node.kind = kind;
        return node;
    }

    Node set_node(const Set& set) {
        Node node;
        node.kind = Node::Kind::set;
        node.set = static_cast<std::uint32_t>(out_.sets_.size());
        out_.sets_.push_back(set);
        return node;
    }

    /// What follows a backslash.
    Set escape() {
        if (!more()) stop(Expression::Kind::malformed);
        const char c = text_[at_++];
        if (const auto set = class_of(c); set.any()) return set;
        static constexpr std::pair<char, char> controls[] = {
            {'n', '\n'}, {'t', '\t'}, {'r', '\r'}, {'f', '\f'}, {'v', '\v'}};
        for (const auto& [letter, control] : controls)
            if (c == letter)
                return range(static_cast<unsigned char>(control), static_cast<unsigned char>(control));
        const bool special = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (special) stop(Expression::Kind::beyond);
        return range(static_cast<unsigned char>(c), static_cast<unsigned char>(c));
    }

    Set brackets() {
        const bool inverted = take("^");
        Set set;
        for (bool first = true; first || peek() != ']'; first = false) {
            if (!more()) stop(Expression::Kind::malformed);
            const char c = text_[at_++];
            Set part = range(static_cast<unsigned char>(c), static_cast<unsigned char>(c));
            if (c == '\\') part = escape();
            else if (static_cast<unsigned char>(c) >= 0x80)
                stop(Expression::Kind::beyond);  // a character of several bytes
            if (part.count() == 1 && peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
                ++at_;
                const char end = text_[at_++];
                Set last = range(static_cast<unsigned char>(end), static_cast<unsigned char>(end));
                if (end == '\\') last = escape();
                if (last.count() != 1) stop(Expression::Kind::malformed);
                const auto low = static_cast<unsigned>(part._Find_first()),
                           high = static_cast<unsigned>(last._Find_first());
                if (low > high || high >= 0x80)
                    stop(low > high ? Expression::Kind::malformed : Expression::Kind::beyond);
                part = range(static_cast<unsigned char>(low), static_cast<unsigned char>(high));
            }
            set |= part;
        }
        ++at_;
        return inverted ? ~set : set;
    }

    std::uint32_t add(Expression::Step step) {
        if (out_.steps_.size() >= kMostSteps) stop(Expression::Kind::beyond);
        const auto at = static_cast<std::uint32_t>(out_.steps_.size());
        if (step.op == Op::bytes || step.op == Op::begin || step.op == Op::end) step.next = at + 1;
        out_.steps_.push_back(step);
        return at;
    }
    std::uint32_t here() const { return static_cast<std::uint32_t>(out_.steps_.size()); }

    // Every fragment ends where the next one begins, so an empty body still needs a step to stand on in a
    // repeat.
    void emit(const Node& node) {
        switch (node.kind) {
            case Node::Kind::set: add({Op::bytes, 0, node.set}); break;
            case Node::Kind::begin: add({Op::begin}); break;
            case Node::Kind::end: add({Op::end}); break;
            case Node::Kind::sequence:
                for (const auto& part : node.parts) emit(part);
                break;
            case Node::Kind::choice: emit_choice(node); break;
            case Node::Kind::repeat: emit_repeat(node); break;
        }
    }

    void emit_choice(const Node& node) {
        std::vector<std::uint32_t> exits;
        for (std::size_t i = 0; i < node.parts.size(); ++i) {
            const bool last = i + 1 == node.parts.size();
            const auto fork = last ? 0 : add({Op::split});
            if (!last) out_.steps_[fork].next = fork + 1;
            emit(node.parts[i]);
            if (last) break;
            exits.push_back(add({Op::split}));  // both ways lead to the end
            out_.steps_[fork].other = here();
        }
        for (const auto at : exits) out_.steps_[at].next = out_.steps_[at].other = here();
    }

    void emit_repeat(const Node& node) {
        const auto& body = node.parts.front();
        for (int i = 0; i < node.least; ++i) {
            const auto before = here();
            emit(body);
            if (here() == before) break;  // nothing, however often
        }
        if (node.most == kUnbounded) {
            const auto fork = add({Op::split});
            out_.steps_[fork].next = fork + 1;
            emit(body);
            const auto back = add({Op::split});
            out_.steps_[back].next = out_.steps_[back].other = fork;
            out_.steps_[fork].other = here();
            return;
        }
        std::vector<std::uint32_t> forks;
        for (int i = node.least; i < node.most; ++i) {
            forks.push_back(add({Op::split}));
            out_.steps_[forks.back()].next = forks.back() + 1;
            emit(body);
        }
        for (const auto fork : forks) out_.steps_[fork].other = here();
    }

    std::string_view text_;
    Expression& out_;
    std::size_t at_ = 0;
};

Expression::Expression(std::string_view text) { kind_ = ExpressionReader(text, *this).read(); }

bool Expression::looks_at_end() const {
    return std::any_of(steps_.begin(), steps_.end(),
                       [](const Step& step) { return step.op == Step::Op::end; });
}

bool Expression::matches_start(std::string_view text) const {
    auto patience = std::numeric_limits<std::uint64_t>::max();
    return matches_start(text, patience);
}

bool Expression::matches_start(std::string_view text, std::uint64_t& patience) const {
    const auto spend = [&](std::uint64_t n) { patience -= std::min(patience, n); };
    spend(steps_.size());
    std::vector<std::uint32_t> now, next, open;
    std::vector<std::size_t> seen(steps_.size(), 0);  // 1 + the place where a step was last reached
    const auto reach = [&](std::uint32_t first, std::size_t at, std::vector<std::uint32_t>& list) {
        open.assign(1, first);
        while (!open.empty()) {
            const auto i = open.back();
            open.pop_back();
            spend(1);
            if (seen[i] == at + 1) continue;
            seen[i] = at + 1;
            const auto& step = steps_[i];
            switch (step.op) {
                case Step::Op::done: return true;
                case Step::Op::bytes: list.push_back(i); break;
                case Step::Op::split: open.push_back(step.other), open.push_back(step.next); break;
                case Step::Op::begin:
                    if (at == 0) open.push_back(step.next);
                    break;
                case Step::Op::end:
                    if (at == text.size()) open.push_back(step.next);
                    break;
            }
        }
        return false;
    };
    if (reach(0, 0, now)) return true;
    for (std::size_t at = 0; at < text.size() && !now.empty() && patience > 0; ++at) {
        next.clear();
        spend(now.size());
        for (const auto i : now)
            if (sets_[steps_[i].other][static_cast<unsigned char>(text[at])] &&
                reach(steps_[i].next, at + 1, next))
                return true;
        now.swap(next);
    }
    return false;
}

}  // namespace ftmpi
