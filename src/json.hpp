// JSON files of a checkpoint, read strictly: every access checks presence, type and bounds and names file and
// key.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "error.hpp"

namespace ftmpi {

/// What the parser found wrong, in words.
std::string json_fault(simdjson::error_code error);

/// An object of a file. A member that is null counts as absent. Valid while its JsonFile lives.
class JsonObject {
public:
    JsonObject(simdjson::dom::object object, std::string file, std::string path)
        : object_(object), file_(std::move(file)), path_(std::move(path)) {}

    [[noreturn]] void refuse(std::string_view key, const std::string& what, std::string hint = {}) const;

    bool has(std::string_view key) const { return member(key).has_value(); }
    std::optional<simdjson::dom::element> member(std::string_view key) const;

    /// An integer literal in [low, high]; 4.0 and "4" are not integers.
    std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high) const {
        return required(key, optional_integer(key, low, high));
    }
    std::string text(std::string_view key) const { return required(key, optional_text(key)); }
    double number(std::string_view key) const { return required(key, optional_number(key)); }  ///< finite
    JsonObject object(std::string_view key) const { return required(key, optional_object(key)); }
    simdjson::dom::array array(std::string_view key) const;
    std::vector<std::string> texts(std::string_view key) const;   ///< an array of strings
    std::vector<JsonObject> objects(std::string_view key) const;  ///< an array of objects

    // Empty when the key is absent; a wrong type is an error all the same.
    std::optional<std::int64_t> optional_integer(std::string_view key, std::int64_t low,
                                                 std::int64_t high) const;
    std::optional<std::string> optional_text(std::string_view key) const;
    std::optional<double> optional_number(std::string_view key) const;
    std::optional<bool> optional_flag(std::string_view key) const;
    std::optional<JsonObject> optional_object(std::string_view key) const;
    /// A member that is at hand already, so that it need not be looked up among the others.
    JsonObject as_object(std::string_view key, const simdjson::dom::element& value) const;

    std::size_t size() const { return object_.size(); }
    /// Every member: f(key, element).
    template <class F> void each(F&& f) const {
        for (const auto& [key, value] : object_) f(key, value);
    }
    /// Every member, each of which must be an object: f(key, JsonObject).
    template <class F> void each_object(F&& f) const {
        for (const auto& [key, value] : object_) f(key, as_object(key, value));
    }

    const std::string& file() const { return file_; }
    std::string name_of(std::string_view key) const { return path_ + std::string(key); }

private:
    void require(std::string_view key) const;
    template <class T> T required(std::string_view key, std::optional<T> value) const {
        if (!value) require(key);
        return *std::move(value);
    }

    simdjson::dom::object object_;
    std::string file_;  ///< as it is named in messages
    std::string path_;  ///< "" or "text_config."
};

/// A parsed file whose root is an object without duplicate keys anywhere.
class JsonFile {
public:
    /// Error(bad_input) when the file is absent, not regular, larger than `limit` bytes or no such JSON.
    explicit JsonFile(const std::filesystem::path& path, std::uint64_t limit = std::uint64_t{64} << 20);

    JsonObject root() const { return JsonObject(root_, path_.string(), ""); }
    std::string_view bytes() const { return {text_.data(), text_.size()}; }

private:
    std::filesystem::path path_;
    simdjson::padded_string text_;
    simdjson::dom::parser parser_;
    simdjson::dom::object root_;
};

}  // namespace ftmpi
