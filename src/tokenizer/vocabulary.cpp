#include "vocabulary.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

#include "../error.hpp"

namespace ftmpi {

void Vocabulary::reserve(std::size_t tokens, std::size_t bytes) {
    block_.reserve(bytes);
    places_.reserve(tokens);
    slots_.assign(std::bit_ceil(tokens * 2 + 16), kNone);
}

bool Vocabulary::set(std::int32_t id, std::string_view bytes) {
    const auto at = static_cast<std::size_t>(id);
    if (at >= places_.size()) places_.resize(at + 1);
    if (places_[at].length != 0) return false;
    if (block_.size() + bytes.size() > std::numeric_limits<std::uint32_t>::max()) {
        throw Error(Exit::bad_input, "the tokens of the vocabulary together are longer than 4 GiB");
    }
    places_[at] = {static_cast<std::uint32_t>(block_.size()), static_cast<std::uint32_t>(bytes.size())};
    block_.append(bytes);
    longest_ = std::max(longest_, bytes.size());
    return true;
}

std::size_t Vocabulary::slot_of(std::string_view bytes) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t slot = std::hash<std::string_view>{}(bytes)&mask;
    while (slots_[slot] != kNone && this->bytes(slots_[slot]) != bytes) slot = (slot + 1) & mask;
    return slot;
}

void Vocabulary::grow() {
    const std::vector<std::int32_t> old = std::move(slots_);
    slots_.assign(std::bit_ceil(old.size() * 2 + 16), kNone);
    for (const auto id : old) {
        if (id != kNone) slots_[slot_of(bytes(id))] = id;
    }
}

bool Vocabulary::index(std::int32_t id) {
    if ((used_ + 1) * 2 > slots_.size()) grow();
    auto& slot = slots_[slot_of(bytes(id))];
    if (slot != kNone) return slot == id;
    slot = id;
    ++used_;
    return true;
}

std::int32_t Vocabulary::find(std::string_view bytes) const {
    return slots_.empty() ? kNone : slots_[slot_of(bytes)];
}

std::string_view Vocabulary::bytes(std::int32_t id) const {
    if (id < 0 || id >= end()) return {};
    const auto& place = places_[static_cast<std::size_t>(id)];
    return std::string_view(block_).substr(place.offset, place.length);
}

}  // namespace ftmpi
