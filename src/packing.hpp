// Records as bytes, for the journal and between ranks: little-endian, every length before what it counts. A
// record names its fields once: fields_of(std::type_identity<Record>) is a tuple of pointers to members.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "error.hpp"

namespace ftmpi {

static_assert(std::endian::native == std::endian::little, "records travel as they lie in memory");

namespace packing {

template <class T>
concept Record = requires {
    fields_of(std::type_identity<T>{});
};
template <class T>
concept Whole = std::is_integral_v<T> || std::is_enum_v<T>;
template <class T>
concept Pair = requires(T t) {
    t.first;
    t.second;
};
template <class T>
concept Optional = requires(T t) {
    t.has_value();
};

}  // namespace packing

class Packer {
public:
    /// Appends to `begin`.
    explicit Packer(std::string begin = {}) : bytes_(std::move(begin)) {}
    template <class T> void put(const T& value) {
        if constexpr (packing::Record<T>) {
            std::apply([&](auto... member) { (put(value.*member), ...); },
                       fields_of(std::type_identity<T>{}));
        } else if constexpr (packing::Whole<T>) {
            const auto whole = static_cast<std::int64_t>(value);
            raw(&whole, sizeof whole);
        } else if constexpr (std::is_same_v<T, double>) {
            raw(&value, sizeof value);
        } else if constexpr (packing::Pair<T>) {
            put(value.first), put(value.second);
        } else if constexpr (packing::Optional<T>) {
            put(value.has_value());
            if (value) put(*value);
        } else {  // a text or a vector
            using Element = std::remove_cvref_t<decltype(value[0])>;
            put(value.size());
            if constexpr (std::is_arithmetic_v<Element>) raw(value.data(), value.size() * sizeof(Element));
            else
                for (const Element& element : value) put(element);
        }
    }
    void reserve(std::size_t bytes) { bytes_.reserve(bytes); }
    std::string take() { return std::move(bytes_); }

private:
    void raw(const void* from, std::size_t bytes) {
        if (bytes > 0) bytes_.append(static_cast<const char*>(from), bytes);
    }
    std::string bytes_;
};

/// Throws Error(bad_input) that begins with `what` for bytes of another layout. No length found in them is
/// trusted before it is compared with the bytes there are.
class Unpacker {
public:
    Unpacker(std::string_view bytes, std::string_view what) : bytes_(bytes), what_(what) {}

    template <class T> void get(T& value) {
        if constexpr (packing::Record<T>) {
            std::apply([&](auto... member) { (get(value.*member), ...); },
                       fields_of(std::type_identity<T>{}));
        } else if constexpr (packing::Whole<T>) {
            std::int64_t whole = 0;
            raw(&whole, sizeof whole);
            value = static_cast<T>(whole);
            if (static_cast<std::int64_t>(value) != whole) bad();
        } else if constexpr (std::is_same_v<T, double>) {
            raw(&value, sizeof value);
        } else if constexpr (packing::Pair<T>) {
            get(value.first), get(value.second);
        } else if constexpr (packing::Optional<T>) {
            bool there = false;
            get(there);
            if (there) get(value.emplace());
            else value.reset();
        } else {
            using Element = std::remove_cvref_t<decltype(value[0])>;
            constexpr bool plain = std::is_arithmetic_v<Element>;
            std::uint64_t count = 0;
            get(count);
            // An element that is not plain begins with a length or a number of 8 bytes.
            if (count > bytes_.size() / (plain ? sizeof(Element) : 8)) bad();
            value.resize(count);
            if constexpr (plain) raw(value.data(), count * sizeof(Element));
            else
                for (Element& element : value) get(element);
        }
    }
    bool at_end() const { return bytes_.empty(); }
    void finish() const {
        if (!at_end()) bad();
    }
    [[noreturn]] void bad() const {
        throw Error(Exit::bad_input,
                    std::string(what_) + ": a record does not have the layout of this version");
    }

private:
    void raw(void* to, std::size_t bytes) {
        if (bytes > bytes_.size()) bad();
        if (bytes > 0) std::memcpy(to, bytes_.data(), bytes);
        bytes_.remove_prefix(bytes);
    }
    std::string_view bytes_, what_;
};

template <class T> std::string packed(const T& value) {
    Packer out;
    out.put(value);
    return out.take();
}

/// The whole of `bytes` as one T. Throws as Unpacker does.
template <class T> T unpacked(std::string_view bytes, std::string_view what) {
    Unpacker in(bytes, what);
    T value;
    in.get(value);
    in.finish();
    return value;
}

}  // namespace ftmpi
