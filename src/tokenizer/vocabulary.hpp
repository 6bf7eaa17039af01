// Token ids and the bytes they stand for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ftmpi {

/// Ids may have holes. Bytes are kept once, in one block; the table from bytes to ids is open addressing,
/// because a quarter of a million tokens are looked up three times each while the merges are read.
class Vocabulary {
public:
    static constexpr std::int64_t kMaxIds = 1
                                            << 24;  ///< ids at or above this are refused, to bound the memory
    static constexpr std::int32_t kNone = -1;

    void reserve(std::size_t tokens, std::size_t bytes);
    /// `bytes` is not empty and `id` is in 0..kMaxIds-1. False when the id is taken.
    bool set(std::int32_t id, std::string_view bytes);
    /// Makes find(bytes of id) == id. False when another id is found by these bytes already.
    bool index(std::int32_t id);

    std::int32_t find(std::string_view bytes) const;
    bool has(std::int32_t id) const {
        return id >= 0 && id < end() && places_[static_cast<std::size_t>(id)].length != 0;
    }
    std::string_view bytes(std::int32_t id) const;
    /// Bytes of the longest token, 0 without tokens.
    std::size_t longest() const { return longest_; }
    std::int32_t end() const { return static_cast<std::int32_t>(places_.size()); }

private:
    struct Place {
        std::uint32_t offset = 0;
        std::uint32_t length = 0;  ///< 0: no token has this id
    };
    std::size_t slot_of(std::string_view bytes) const;
    void grow();

    std::string block_;
    std::vector<Place> places_;
    std::vector<std::int32_t> slots_;  ///< a power of two of them, at most half in use
    std::size_t used_ = 0;
    std::size_t longest_ = 0;
};

}  // namespace ftmpi
