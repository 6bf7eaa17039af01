#include "merges.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <random>
#include <string>

#include "../error.hpp"

namespace ftmpi {

namespace {

/// Drawn anew in each process, so that no file can choose pairs that all meet in one slot.
std::uint64_t random_odd() {
    std::random_device source;
    return std::uint64_t{source()} << 32 | source() | 1;
}

}  // namespace

void Merges::reserve(std::size_t merges) { grow(std::bit_ceil(merges * 2 + 16)); }

std::size_t Merges::slot_of(std::int32_t left, std::int32_t right) const {
    static const std::uint64_t factor = random_odd();
    const std::size_t mask = slots_.size() - 1;
    const auto key = static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
                     static_cast<std::uint32_t>(right);
    auto slot = static_cast<std::size_t>((key * factor) >> (64 - std::countr_zero(slots_.size())));
    while (slots_[slot].left != -1 && (slots_[slot].left != left || slots_[slot].right != right))
        slot = (slot + 1) & mask;
    return slot;
}

const Merges::Merge& Merges::find(std::int32_t left, std::int32_t right) const {
    return slots_[slot_of(left, right)];
}

void Merges::grow(std::size_t slots) {
    const std::vector<Merge> old = std::move(slots_);
    slots_.assign(std::max(slots, old.size()), Merge{});
    for (const auto& merge : old) {
        if (merge.left != -1) slots_[slot_of(merge.left, merge.right)] = merge;
    }
}

bool Merges::add(std::int32_t left, std::int32_t right, std::int32_t joined) {
    if ((std::size_t{count_} + 1) * 2 > slots_.size()) grow(slots_.size() * 2);
    auto& slot = slots_[slot_of(left, right)];
    if (slot.left != -1) return false;
    slot = {left, right, count_++, joined};
    return true;
}

std::int32_t Merges::id_of_byte(char byte) const {
    const auto id = byte_ids_[static_cast<unsigned char>(byte)];
    if (id < 0) {
        throw Error(Exit::bad_input,
                    "the vocabulary has no token for byte " +
                        std::to_string(static_cast<unsigned>(static_cast<unsigned char>(byte))));
    }
    return id;
}

void Merges::encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const {
    auto& symbols = scratch.symbols;
    auto& queue = scratch.queue;
    const auto count = static_cast<std::int32_t>(piece.size());
    symbols.resize(piece.size());
    queue.clear();
    for (std::int32_t i = 0; i < count; ++i) {
        symbols[i] = {id_of_byte(piece[i]), i - 1, i + 1 < count ? i + 1 : -1};
    }
    // An entry is (rank, position of the left symbol), so that the smallest one is the next join. An entry is
    // out of date when the pair at that position now has another rank; a pair's rank never comes back,
    // because pairs only grow.
    const auto entry_of = [&](std::int32_t i) {
        const auto& merge = find(symbols[i].id, symbols[symbols[i].next].id);
        return static_cast<std::uint64_t>(merge.rank) << 32 | static_cast<std::uint32_t>(i);
    };
    const auto has_merge = [](std::uint64_t entry) { return entry >> 32 != kNoMerge; };
    for (std::int32_t i = 0; i + 1 < count; ++i) {
        if (const auto entry = entry_of(i); has_merge(entry)) queue.push_back(entry);
    }
    std::make_heap(queue.begin(), queue.end(), std::greater<>());
    const auto push = [&](std::int32_t i) {
        if (const auto entry = entry_of(i); has_merge(entry)) {
            queue.push_back(entry);
            std::push_heap(queue.begin(), queue.end(), std::greater<>());
        }
    };
    while (!queue.empty()) {
        const auto entry = queue.front();
        std::pop_heap(queue.begin(), queue.end(), std::greater<>());
        queue.pop_back();
        const auto left = static_cast<std::int32_t>(entry & 0xFFFFFFFFu);
        if (symbols[left].id < 0 || symbols[left].next < 0) continue;
        const auto right = symbols[left].next;
        const auto& merge = find(symbols[left].id, symbols[right].id);
        if (merge.rank != entry >> 32) continue;
        symbols[left].id = merge.joined;
        symbols[left].next = symbols[right].next;
        if (symbols[right].next >= 0) symbols[symbols[right].next].previous = left;
        symbols[right].id = -1;
        if (symbols[left].previous >= 0) push(symbols[left].previous);
        if (symbols[left].next >= 0) push(left);
    }
    for (std::int32_t i = 0; i >= 0; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace ftmpi
