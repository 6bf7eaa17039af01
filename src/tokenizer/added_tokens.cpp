#include "added_tokens.hpp"

#include <algorithm>

namespace ftmpi {

const AddedTokens::Node* AddedTokens::child(const Node& node, char byte) const {
    const auto at = std::lower_bound(node.children.begin(), node.children.end(), std::pair(byte, 0u));
    return at != node.children.end() && at->first == byte ? &nodes_[at->second] : nullptr;
}

void AddedTokens::add(std::string_view text, std::int32_t id) {
    std::size_t at = 0;
    for (const char byte : text) {
        if (const auto* next = child(nodes_[at], byte)) {
            at = static_cast<std::size_t>(next - nodes_.data());
        } else {
            auto& children = nodes_[at].children;
            const std::pair entry(byte, static_cast<std::uint32_t>(nodes_.size()));
            children.insert(std::lower_bound(children.begin(), children.end(), entry), entry);
            at = nodes_.size();
            nodes_.emplace_back();
        }
    }
    nodes_[at].id = id;
}

AddedTokens::Match AddedTokens::find(std::string_view text, std::size_t from) const {
    if (empty()) return {};
    for (std::size_t begin = from; begin < text.size(); ++begin) {
        Match match;
        const Node* node = &nodes_.front();
        for (std::size_t i = begin; i < text.size(); ++i) {
            node = child(*node, text[i]);
            if (!node) break;
            if (node->id >= 0) match = {begin, i + 1, node->id};
        }
        if (match.id >= 0) return match;
    }
    return {};
}

}  // namespace ftmpi
