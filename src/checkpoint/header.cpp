#include "header.hpp"

#include <simdjson.h>

#include <algorithm>
#include <limits>
#include <new>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "../error.hpp"
#include "../json.hpp"
#include "../text/small_file.hpp"

namespace ftmpi {
namespace {

using simdjson::dom::element;
using simdjson::dom::element_type;

/// Checks one file; `refuse` puts the file's name in front of every message.
class HeaderReader {
public:
    explicit HeaderReader(const MappedFile& file) : file_(file) {}

    Header read() {
        Header header;
        header.text = locate();
        header.data_offset = 8 + header.text.size();
        data_bytes_ = file_.size() - header.data_offset;
        parse(header);
        check_coverage(header);
        return header;
    }

private:
    [[noreturn]] void refuse(const std::string& what, std::string hint = {}) const {
        throw Error(Exit::bad_input, file_.path().string() + ": " + what, std::move(hint));
    }
    [[noreturn]] void refuse_tensor(std::string_view name, const std::string& what) const {
        refuse("tensor " + in_quotes(name) + ": " + what);
    }

    /// What a file that is no safetensors file looks like; most of them are downloads that went wrong.
    void refuse_foreign() const {
        const auto text = file_.text();
        refuse_placeholder(file_.path(), text);
        if (text.starts_with("GGUF")) refuse("is a GGUF file, not safetensors");
        if (text.starts_with("PK\x03\x04")) refuse("is a zip or PyTorch file, not safetensors");
    }

    std::string_view locate() const {
        const auto size = file_.size();
        refuse_foreign();
        if (size < 8)
            refuse("has " + counted(size, "byte") + ", too few for a safetensors header",
                   "an incomplete download?");
        std::uint64_t length = 0;
        for (int i = 7; i >= 0; --i) length = length << 8 | std::to_integer<std::uint64_t>(file_.data()[i]);
        if (length > kHeaderLimit)
            refuse("declares a header of " + std::to_string(length) + " bytes; at most " +
                   std::to_string(kHeaderLimit) + " are accepted");
        if (length > size - 8)
            refuse(
                "file is " + std::to_string(size) + " bytes, its header needs " + std::to_string(length + 8),
                "an incomplete download?");
        if (length < 2)
            refuse("declares a header of " + counted(length, "byte") + ", too few for a JSON object");
        const auto text = file_.text().substr(8, static_cast<std::size_t>(length));
        if (text.substr(0, 3) == "\xef\xbb\xbf")
            refuse("the header begins with a byte order mark instead of '{'");
        if (text[0] != '{') refuse("the header does not begin with '{'");
        return text;
    }

    void parse(Header& header) {
        simdjson::dom::parser parser;
        const simdjson::padded_string json(header.text);
        if (json.data() == nullptr || json.size() != header.text.size()) throw std::bad_alloc();
        element root;
        if (const auto error = parser.parse(json).get(root)) {
            if (error == simdjson::MEMALLOC) throw std::bad_alloc();
            refuse("the header is not valid JSON: " + json_fault(error),
                   "a damaged download, or a file that another program wrote wrongly?");
        }
        const simdjson::dom::object object = root;
        std::unordered_set<std::string_view> names;
        names.reserve(object.size());
        header.entries.reserve(object.size());
        for (const auto& [name, value] : object) {
            if (!names.insert(name).second) refuse("duplicate tensor name " + in_quotes(name));
            if (name == "__metadata__") check_metadata(value);
            else header.entries.push_back(parse_entry(name, value));
        }
    }

    /// Unused, but what it says of a layout must not be passed over.
    void check_metadata(const element& value) const {
        simdjson::dom::object object;
        if (value.get(object)) refuse("\"__metadata__\" is not an object");
        for (const auto& [key, entry] : object) {
            if ((key == "shape" || key == "data_offsets") && entry.is_array())
                refuse("\"__metadata__\" is a reserved name and cannot be a tensor");
            std::string_view text;
            if (entry.get(text))
                refuse("\"__metadata__\" holds a value that is not a string under " + in_quotes(key));
            const bool swizzled = key.find("swizzle") != key.npos || key.find("interleave") != key.npos ||
                                  text.find("swizzle") != text.npos;
            if (swizzled && text != "false" && text != "False" && text != "0" && text != "none")
                refuse(
                    "layout not sliceable: \"__metadata__\" says " + in_quotes(key) + " = " + in_quotes(text),
                    "export the checkpoint with plain row-major scales");
        }
    }

    std::uint64_t unsigned_integer(std::string_view name, const element& value, const char* what) const {
        if (value.type() == element_type::DOUBLE)
            refuse_tensor(name, std::string(what) + " has a number that is not an integer literal");
        std::uint64_t n = 0;
        if (value.get(n))
            refuse_tensor(name, std::string(what) + " has a value that is not a non-negative integer");
        return n;
    }

    HeaderEntry parse_entry(std::string_view name, const element& value) const {
        if (name.empty()) refuse("a tensor has an empty name");
        if (printable(name) != name) refuse("tensor name " + in_quotes(name) + " holds a control character");
        simdjson::dom::object object;
        if (value.get(object)) refuse_tensor(name, "its entry is not an object");
        std::optional<element> dtype, shape, offsets;
        for (const auto& [key, field] : object) {
            auto* slot = key == "dtype"          ? &dtype
                         : key == "shape"        ? &shape
                         : key == "data_offsets" ? &offsets
                                                 : nullptr;
            if (!slot) refuse_tensor(name, "unknown key " + in_quotes(key));
            if (slot->has_value()) refuse_tensor(name, "duplicate key " + in_quotes(key));
            *slot = field;
        }
        if (!dtype || !shape || !offsets) refuse_tensor(name, "dtype, shape or data_offsets is missing");

        HeaderEntry entry;
        entry.name = name;
        std::string_view type_name;
        if (dtype->get(type_name)) refuse_tensor(name, "dtype is not a string");
        entry.dtype = dtype_named(type_name);
        if (!entry.dtype) entry.dtype_name = type_name;
        parse_offsets(entry, *offsets);
        parse_shape(entry, *shape);
        return entry;
    }

    void parse_offsets(HeaderEntry& entry, const element& value) const {
        simdjson::dom::array array;
        if (value.get(array) || array.size() != 2)
            refuse_tensor(entry.name, "data_offsets is not an array of two numbers");
        auto it = array.begin();
        entry.begin = unsigned_integer(entry.name, *it, "data_offsets");
        ++it;
        entry.end = unsigned_integer(entry.name, *it, "data_offsets");
        if (entry.begin > entry.end)
            refuse_tensor(entry.name, "data_offsets " + range(entry) + " end before they begin");
    }

    void parse_shape(HeaderEntry& entry, const element& value) const {
        simdjson::dom::array array;
        if (value.get(array)) refuse_tensor(entry.name, "shape is not an array");
        std::uint64_t bytes = 1;
        entry.shape.reserve(array.size());
        bool overflow = false;
        for (const element d : array) {
            const auto n = unsigned_integer(entry.name, d, "shape");
            overflow |= n > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) ||
                        __builtin_mul_overflow(bytes, n, &bytes);
            entry.shape.push_back(static_cast<std::int64_t>(n));
        }
        overflow |= bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
        if (entry.dtype)
            overflow |=
                __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size_of(*entry.dtype)), &bytes);
        if (overflow) refuse_tensor(entry.name, "the size of its shape does not fit 64 bits");
        if (entry.dtype && bytes != entry.end - entry.begin)
            refuse_tensor(entry.name, "dtype and shape need " + counted(bytes, "byte") + ", data_offsets " +
                                          range(entry) + " span " + std::to_string(entry.end - entry.begin));
    }

    static std::string range(const HeaderEntry& entry) {
        return "[" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + ")";
    }

    /// Tensors follow one another from the first byte after the header to the last byte of the file.
    void check_coverage(const Header& header) const {
        std::vector<std::uint32_t> order(header.entries.size());
        std::iota(order.begin(), order.end(), 0u);
        const auto key = [&](std::uint32_t i) {
            return std::pair(header.entries[i].begin, header.entries[i].end);
        };
        const auto earlier = [&](std::uint32_t a, std::uint32_t b) { return key(a) < key(b); };
        if (!std::is_sorted(order.begin(), order.end(), earlier))
            std::sort(order.begin(), order.end(), earlier);

        std::uint64_t covered = 0;
        const HeaderEntry* previous = nullptr;
        for (const auto i : order) {
            const auto& entry = header.entries[i];
            if (entry.begin < covered)
                refuse_tensor(entry.name, "its bytes " + range(entry) + " overlap those of " +
                                              in_quotes(previous->name) + " " + range(*previous));
            if (entry.begin > covered)
                refuse_tensor(entry.name, counted(entry.begin - covered, "byte") + " before its begin " +
                                              std::to_string(entry.begin) +
                                              (entry.begin - covered == 1 ? " belongs" : " belong") +
                                              " to no tensor");
            covered = entry.end;
            previous = &entry;
        }
        if (covered > data_bytes_)
            refuse("file is " + std::to_string(file_.size()) + " bytes, header needs " +
                       std::to_string(header.data_offset + covered) + " (last tensor " +
                       in_quotes(previous->name) + ")",
                   "an incomplete download?");
        if (covered < data_bytes_)
            refuse(counted(data_bytes_ - covered, "byte") + " after the last tensor " +
                   (data_bytes_ - covered == 1 ? "is" : "are") + " not covered by the header");
    }

    const MappedFile& file_;
    std::uint64_t data_bytes_ = 0;
};

}  // namespace

Header read_header(const MappedFile& file) { return HeaderReader(file).read(); }

}  // namespace ftmpi
