#include "json.hpp"

#include <algorithm>
#include <cmath>
#include <new>

#include "text/small_file.hpp"

namespace ftmpi {
namespace {

using simdjson::dom::element;
using simdjson::dom::element_type;

[[noreturn]] void refuse_file(const std::filesystem::path& path, const std::string& what,
                              std::string hint = {}) {
    throw Error(Exit::bad_input, path.string() + " " + what, std::move(hint));
}

/// Two values under one key: which of them counts differs from reader to reader. `where` names `value`.
void check_no_duplicates(const std::filesystem::path& path, const element& value, const std::string& where) {
    simdjson::dom::object object;
    simdjson::dom::array array;
    if (!value.get(object)) {
        std::vector<std::string_view> keys;
        for (const auto& [key, member] : object) {
            keys.push_back(key);
            if (member.is_object() || member.is_array())
                check_no_duplicates(path, member, (where.empty() ? "" : where + ".") + std::string(key));
        }
        std::sort(keys.begin(), keys.end());
        const auto twice = std::adjacent_find(keys.begin(), keys.end());
        if (twice != keys.end())
            refuse_file(path, "has the key \"" + std::string(*twice) + "\" twice in one object" +
                                  (where.empty() ? "" : ", " + where));
    } else if (!value.get(array)) {
        for (const element member : array) check_no_duplicates(path, member, where);
    }
}

}  // namespace

std::string json_fault(simdjson::error_code error) {
    const std::string message = simdjson::error_message(error);
    // Newer versions of the library begin with the code's name: "TAPE_ERROR: The JSON document has ...".
    const auto name = message.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    return name != std::string::npos && message.compare(name, 2, ": ") == 0 ? message.substr(name + 2)
                                                                            : message;
}

JsonFile::JsonFile(const std::filesystem::path& path, std::uint64_t limit)
    : path_(path), text_(read_small_file(path, limit,
                                         {.hint = "is this the whole folder of a Hugging Face checkpoint?",
                                          .downloaded = true})) {
    element root;
    if (bytes().substr(0, 3) == "\xef\xbb\xbf") refuse_file(path, "begins with a byte order mark");
    if (const auto error = parser_.parse(text_).get(root)) {
        if (error == simdjson::MEMALLOC) throw std::bad_alloc();
        refuse_file(path, "is not valid JSON: " + json_fault(error));
    }
    if (root.get(root_)) refuse_file(path, "does not hold a JSON object");
    check_no_duplicates(path, root, {});
}

void JsonObject::refuse(std::string_view key, const std::string& what, std::string hint) const {
    throw Error(Exit::bad_input, file_ + ": " + name_of(key) + " " + what, std::move(hint));
}

std::optional<element> JsonObject::member(std::string_view key) const {
    element value;
    if (object_.at_key(key).get(value) || value.is_null()) return std::nullopt;
    return value;
}

void JsonObject::require(std::string_view key) const {
    if (!has(key)) refuse(key, "is missing", "the file must say it: nothing about the model is assumed");
}

std::optional<std::int64_t> JsonObject::optional_integer(std::string_view key, std::int64_t low,
                                                         std::int64_t high) const {
    const auto value = member(key);
    if (!value) return std::nullopt;
    std::int64_t n = 0;
    if (value->type() == element_type::UINT64) refuse(key, "is far too large");
    if (value->type() != element_type::INT64 || value->get(n)) refuse(key, "is not an integer");
    if (n < low || n > high)
        refuse(key, "is " + std::to_string(n) + ", not between " + std::to_string(low) + " and " +
                        std::to_string(high));
    return n;
}

std::optional<std::string> JsonObject::optional_text(std::string_view key) const {
    const auto value = member(key);
    if (!value) return std::nullopt;
    std::string_view s;
    if (value->get(s)) refuse(key, "is not a string");
    return std::string(s);
}

std::optional<double> JsonObject::optional_number(std::string_view key) const {
    const auto value = member(key);
    if (!value) return std::nullopt;
    double n = 0;
    if (!value->is_number() || value->get(n) || !std::isfinite(n)) refuse(key, "is not a number");
    return n;
}

std::optional<bool> JsonObject::optional_flag(std::string_view key) const {
    const auto value = member(key);
    if (!value) return std::nullopt;
    bool b = false;
    if (value->get(b)) refuse(key, "is neither true nor false");
    return b;
}

std::optional<JsonObject> JsonObject::optional_object(std::string_view key) const {
    const auto value = member(key);
    if (!value) return std::nullopt;
    return as_object(key, *value);
}

JsonObject JsonObject::as_object(std::string_view key, const element& value) const {
    simdjson::dom::object inner;
    if (value.get(inner)) refuse(key, "is not an object");
    return JsonObject(inner, file_, name_of(key) + ".");
}

simdjson::dom::array JsonObject::array(std::string_view key) const {
    require(key);
    simdjson::dom::array array;
    if (member(key)->get(array)) refuse(key, "is not an array");
    return array;
}

std::vector<std::string> JsonObject::texts(std::string_view key) const {
    std::vector<std::string> out;
    for (const element value : array(key)) {
        std::string_view s;
        if (value.get(s)) refuse(key, "holds something that is not a string");
        out.emplace_back(s);
    }
    return out;
}

std::vector<JsonObject> JsonObject::objects(std::string_view key) const {
    std::vector<JsonObject> out;
    for (const element value : array(key))
        out.push_back(as_object(std::string(key) + "[" + std::to_string(out.size()) + "]", value));
    return out;
}

}  // namespace ftmpi
