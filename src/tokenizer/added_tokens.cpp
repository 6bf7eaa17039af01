#include "added_tokens.hpp"

namespace ftmpi {

const AddedTokens::Node* AddedTokens::child(const Node& node, char byte) const {
    for (const auto& [key, index] : node.children) {
        if (key == byte) return &nodes_[index];
    }
    return nullptr;
}

void AddedTokens::add(std::string_view text, std::int32_t id) {
    std::size_t at = 0;
    for (const char byte : text) {
        if (const auto* next = child(nodes_[at], byte)) {
            at = static_cast<std::size_t>(next - nodes_.data());
        } else {
            nodes_[at].children.emplace_back(byte, static_cast<std::uint32_t>(nodes_.size()));
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
