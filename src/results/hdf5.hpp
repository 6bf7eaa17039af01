// The HDF5 C library as the schema needs it: ids that close themselves, errors as one sentence, and three
// shapes of data (short text as attributes, arrays with a unit, lists of strings). Works with the serial and
// the parallel library; nothing here is collective.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../error.hpp"

namespace ftmpi::hdf5 {

/// Owner of an HDF5 id.
class Id {
public:
    using Close = herr_t (*)(hid_t);
    Id() = default;
    Id(hid_t id, Close close) : id_(id), close_(close) {}
    Id(Id&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
    Id& operator=(Id&& other) noexcept {
        std::swap(id_, other.id_);
        std::swap(close_, other.close_);
        return *this;
    }
    ~Id() { close(); }
    /// False when the library reports a failure, for a file: that not all of it could be written.
    bool close() { return id_ < 0 || close_(std::exchange(id_, -1)) >= 0; }
    hid_t get() const { return id_; }

private:
    hid_t id_ = -1;
    Close close_ = nullptr;
};

/// A file's root or a group, with the names that messages use.
struct Object {
    Id id;
    std::string file;
    std::string path;              ///< "" for the root, "/requests/3"
    Exit code = Exit::failure;     ///< what a failure leads to: failure when writing, bad_input when reading
    std::uint64_t file_bytes = 0;  ///< when reading: bounds what a dataset may claim to hold
    std::vector<std::pair<std::string, H5L_type_t>> links = {};  ///< when reading: in order of their creation
};

/// Throws Error: "FILE: /object: WHAT: the innermost entry of HDF5's error stack".
[[noreturn]] void fail(const Object& at, const std::string& what);
/// The same for what the library has read without an error: "FILE: /object: WHAT".
[[noreturn]] void refuse(const Object& at, const std::string& what, const std::string& hint = {});

inline Id checked(const Object& at, Id id, const std::string& what) {
    if (id.get() < 0) fail(at, what);
    return id;
}
inline void check(const Object& at, herr_t status, const std::string& what) {
    if (status < 0) fail(at, what);
}

/// An empty file that replaces what is there. It is never locked: it belongs to this process alone.
Object create_file(const std::filesystem::path& path);
/// Throws Error(bad_input) when there is no regular file that begins as an HDF5 file. Does not call the
/// library.
void check_is_hdf5(const std::filesystem::path& path);
/// An existing file, for reading. The library may crash on a file whose contents were made to that end.
Object open_file(const std::filesystem::path& path);

/// "1.10.8 (serial)": the library in use, and how its headers were built.
std::string library_version();

Object create_group(const Object& parent, const std::string& name);
Object open_group(const Object& parent, const std::string& name);
/// The same of a name that members() has named.
Object open_listed_group(const Object& parent, const std::string& name);
/// Only hard links are members: any other leads out of the file or to another name, and is refused, as is a
/// name that is a path.
bool has_member(const Object& group, const std::string& name);
/// Names of members, in the order of their creation; refuses what has_member refuses.
std::vector<std::string> members(const Object& group);

/// Text up to this many bytes may be an attribute (the library's limit for an object header is 64 KiB).
inline constexpr std::size_t attribute_limit = 60'000;
enum class Bytes { if_needed, always };

void write_integer(const Object& at, const std::string& name, std::int64_t value);
/// Attribute `name` holds readable text; when that is not the exact text, `name`_replaced = 1 says so. From
/// attribute_limit on there is no attribute. Dataset `name`_bytes holds the exact bytes: always, or when the
/// attribute does not.
void write_text(const Object& at, const std::string& name, std::string_view text,
                Bytes bytes = Bytes::if_needed);
/// A scalar string dataset, for text of any length.
void write_document(const Object& at, const std::string& name, std::string_view text);
/// One string an element; attribute `replaced` = 1 when one was not UTF-8.
void write_strings(const Object& at, const std::string& name, const std::vector<std::string>& values);

/// How numbers lie in memory and in the file.
struct NumberType {
    hid_t memory, file;
    std::size_t bytes;
    bool integer;
};
/// T is std::uint8_t, std::int32_t, std::int64_t, float or double.
template <class T> NumberType number_type() {
    if constexpr (std::is_same_v<T, std::uint8_t>) return {H5T_NATIVE_UINT8, H5T_STD_U8LE, 1, true};
    if constexpr (std::is_same_v<T, std::int32_t>) return {H5T_NATIVE_INT32, H5T_STD_I32LE, 4, true};
    if constexpr (std::is_same_v<T, std::int64_t>) return {H5T_NATIVE_INT64, H5T_STD_I64LE, 8, true};
    if constexpr (std::is_same_v<T, float>) return {H5T_NATIVE_FLOAT, H5T_IEEE_F32LE, 4, false};
    if constexpr (std::is_same_v<T, double>) return {H5T_NATIVE_DOUBLE, H5T_IEEE_F64LE, 8, false};
}

/// No dims: a scalar. An empty unit is not written.
void write_numbers(const Object& at, const std::string& name, const NumberType& type,
                   std::span<const std::byte> values, const std::vector<hsize_t>& dims,
                   const std::string& unit);
template <class T>
void write_array(const Object& at, const std::string& name, std::span<const T> values,
                 const std::vector<hsize_t>& dims, const std::string& unit = {}) {
    write_numbers(at, name, number_type<T>(), std::as_bytes(values), dims, unit);
}
template <class T>
void write_list(const Object& at, const std::string& name, const std::vector<T>& values,
                const std::string& unit = {}) {
    write_array<T>(at, name, values, {values.size()}, unit);
}

/// Absent, or not an integer: nothing.
std::optional<std::int64_t> read_integer(const Object& at, const std::string& name);
/// Text that write_text has written; nothing when neither attribute nor dataset is there.
std::optional<std::string> read_text(const Object& at, const std::string& name);
/// Names of attributes of one variable-length string, in the order of their creation.
std::vector<std::string> text_attributes(const Object& at);
std::string read_document(const Object& at, const std::string& name);
/// A list of strings, or of numbers written as decimal text.
std::vector<std::string> read_strings(const Object& at, const std::string& name);
/// Reads to where `place` makes room for so many elements; `dims`, if given, gets the shape.
void read_numbers(const Object& at, const std::string& name, const NumberType& type,
                  const std::function<void*(std::size_t)>& place, std::vector<hsize_t>* dims);
template <class T>
std::vector<T> read_array(const Object& at, const std::string& name, std::vector<hsize_t>* dims = nullptr) {
    std::vector<T> values;
    const auto place = [&](std::size_t n) { return values.resize(n), values.data(); };
    read_numbers(at, name, number_type<T>(), place, dims);
    return values;
}
std::string read_bytes(const Object& at, const std::string& name, std::vector<hsize_t>* dims = nullptr);
/// The shape of float32 values that are stored as they are in memory, so that reading them copies bytes and
/// does nothing else.
std::vector<hsize_t> shape_of_floats(const Object& at, const std::string& name);

}  // namespace ftmpi::hdf5
