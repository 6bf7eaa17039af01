// Added tokens: texts that become one id wherever they stand, before the text is cut into pieces.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace ftmpi {

/// A byte trie that finds the leftmost and there the longest token.
class AddedTokens {
public:
    /// `text` is not empty and was not added before.
    void add(std::string_view text, std::int32_t id);
    bool empty() const { return nodes_.size() == 1; }

    struct Match {
        std::size_t begin = 0;
        std::size_t end = 0;
        std::int32_t id = -1;  ///< -1: no token from `from` on
    };
    /// The first match in `text` that begins at or after `from`.
    Match find(std::string_view text, std::size_t from) const;

private:
    struct Node {
        std::int32_t id = -1;
        std::vector<std::pair<char, std::uint32_t>> children;  ///< by rising byte
    };
    const Node* child(const Node& node, char byte) const;

    std::vector<Node> nodes_ = std::vector<Node>(1);
};

}  // namespace ftmpi
