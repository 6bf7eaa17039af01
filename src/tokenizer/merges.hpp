// Byte pair encoding of one piece of text.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace ftmpi {

/// The merges in their order. encode() joins, as long as there is one, the pair of neighbours whose merge
/// comes first in that order, the leftmost where several do.
class Merges {
public:
    Merges() { byte_ids_.fill(-1); }

    void reserve(std::size_t merges);
    void set_byte(unsigned char byte, std::int32_t id) { byte_ids_[byte] = id; }
    std::int32_t byte_id(unsigned char byte) const { return byte_ids_[byte]; }
    /// Appends a merge, the next in order. False when this pair has one already.
    bool add(std::int32_t left, std::int32_t right, std::int32_t joined);

    /// Working memory of encode(), to be kept between pieces.
    struct Scratch {
        struct Symbol {
            std::int32_t id;  ///< -1: joined to the symbol on its left
            std::int32_t previous;
            std::int32_t next;
        };
        std::vector<Symbol> symbols;
        std::vector<std::uint64_t> queue;
    };

    /// Appends the ids of `piece`, n bytes, in O(n log n) steps and without recursion. A byte that has no
    /// token is Error(bad_input). Pieces are shorter than 2^31 bytes.
    void encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const;

private:
    struct Merge {
        std::int32_t left = -1;  ///< -1: free slot
        std::int32_t right = -1;
        std::uint32_t rank = kNoMerge;
        std::int32_t joined = -1;
    };
    static constexpr std::uint32_t kNoMerge = 0xFFFFFFFFu;

    const Merge& find(std::int32_t left, std::int32_t right) const;
    std::size_t slot_of(std::int32_t left, std::int32_t right) const;
    void grow(std::size_t slots);
    std::int32_t id_of_byte(char byte) const;

    std::array<std::int32_t, 256> byte_ids_;
    std::vector<Merge> slots_ = std::vector<Merge>(16);  ///< a power of two of them, at most half in use
    std::uint32_t count_ = 0;
};

}  // namespace ftmpi
