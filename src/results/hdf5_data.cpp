// Attributes and datasets, written and read back.
#include <array>
#include <charconv>

#include "../text/utf8.hpp"
#include "hdf5.hpp"

namespace ftmpi::hdf5 {

namespace {

// Types and property lists that are used for each of thousands of datasets are made once: making one costs as
// much as writing a small dataset.

hid_t text_type() {
    static const Id type = [] {
        Id text(H5Tcopy(H5T_C_S1), H5Tclose);
        H5Tset_size(text.get(), H5T_VARIABLE);
        H5Tset_cset(text.get(), H5T_CSET_UTF8);
        return text;
    }();
    return type.get();
}

Id space_of(const std::vector<hsize_t>& dims) {
    if (dims.empty()) return {H5Screate(H5S_SCALAR), H5Sclose};
    return {H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose};
}

Id new_layout(bool compact) {
    Id dcpl(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_obj_track_times(dcpl.get(), false);
    if (compact) H5Pset_layout(dcpl.get(), H5D_COMPACT);
    return dcpl;
}

/// Small data lies inside the object header: one block a dataset instead of two.
hid_t layout_for(std::size_t bytes) {
    constexpr std::size_t compact_limit = 8192;
    static const Id compact = new_layout(true), contiguous = new_layout(false);
    return bytes > 0 && bytes <= compact_limit ? compact.get() : contiguous.get();
}

/// Strings are converted through a buffer that the library makes 1 MiB large and clears for each call unless
/// told otherwise.
hid_t small_buffer() {
    static const Id dxpl = [] {
        Id list(H5Pcreate(H5P_DATASET_XFER), H5Pclose);
        H5Pset_buffer(list.get(), 16 * 1024, nullptr, nullptr);
        return list;
    }();
    return dxpl.get();
}

Object write_dataset(const Object& at, const std::string& name, hid_t stored, hid_t memory,
                     const std::vector<hsize_t>& dims, std::size_t bytes, const void* data) {
    const Id space = space_of(dims);
    Object dataset{{}, at.file, at.path + "/" + name, at.code};
    dataset.id = checked(dataset,
                         {H5Dcreate2(at.id.get(), name.c_str(), stored, space.get(), H5P_DEFAULT,
                                     layout_for(bytes), H5P_DEFAULT),
                          H5Dclose},
                         "cannot be created");
    if (bytes > 0)
        check(dataset, H5Dwrite(dataset.id.get(), memory, H5S_ALL, H5S_ALL, small_buffer(), data),
              "cannot be written");
    return dataset;
}

void write_attribute(const Object& at, const std::string& name, hid_t stored, hid_t memory,
                     const void* value) {
    const Id space = space_of({});
    const Id attribute = checked(
        at, {H5Acreate2(at.id.get(), name.c_str(), stored, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose},
        "attribute " + name + " cannot be created");
    check(at, H5Awrite(attribute.get(), memory, value), "attribute " + name + " cannot be written");
}

void write_string(const Object& at, const std::string& name, const std::string& text) {
    const char* value = text.c_str();
    write_attribute(at, name, text_type(), text_type(), &value);
}

/// An open dataset with its shape, its size compared with the file's before anything is allocated.
struct Stored {
    Object dataset;
    Id type;
    std::vector<hsize_t> dims;
    std::size_t elements = 1;
};

/// Data lies in the file, in one piece, as we write it. Chunks with their index and their filters never were
/// ours.
void need_own_data(const Object& dataset) {
    const Id list = checked(dataset, {H5Dget_create_plist(dataset.id.get()), H5Pclose},
                            "how it is stored cannot be read");
    const H5D_layout_t layout = H5Pget_layout(list.get());
    if (layout == H5D_VIRTUAL) refuse(dataset, "holds data outside the file (a virtual dataset)");
    if (H5Pget_external_count(list.get()) != 0)
        refuse(dataset, "holds data outside the file (external storage)");
    if (layout != H5D_COMPACT && layout != H5D_CONTIGUOUS)
        refuse(dataset, "is not stored in one piece, as all of a result is");
}

Stored open_dataset(const Object& at, const std::string& name, std::size_t element_bytes) {
    Stored s{{{}, at.file, at.path + "/" + name, at.code}, {}, {}};
    if (!has_member(at, name)) refuse(s.dataset, "this dataset is missing");
    s.dataset.id = checked(s.dataset, {H5Dopen2(at.id.get(), name.c_str(), H5P_DEFAULT), H5Dclose},
                           "cannot be opened as a dataset");
    need_own_data(s.dataset);
    s.type = checked(s.dataset, {H5Dget_type(s.dataset.id.get()), H5Tclose}, "its type cannot be read");
    const Id space =
        checked(s.dataset, {H5Dget_space(s.dataset.id.get()), H5Sclose}, "its shape cannot be read");
    const int rank = H5Sget_simple_extent_ndims(space.get());
    if (rank < 0 || H5Sget_simple_extent_type(space.get()) == H5S_NULL) fail(s.dataset, "has no shape");
    s.dims.resize(static_cast<std::size_t>(rank));
    if (rank > 0)
        check(s.dataset, H5Sget_simple_extent_dims(space.get(), s.dims.data(), nullptr),
              "its shape cannot be read");
    const std::uint64_t limit = at.file_bytes / element_bytes;
    for (const hsize_t d : s.dims) {
        if (d != 0 && s.elements > limit / d)
            refuse(s.dataset, "claims more elements than the file can hold");
        s.elements *= static_cast<std::size_t>(d);
    }
    return s;
}

/// Reads variable-length strings by `read(type, char**)`.
template <class Read>
std::vector<std::string> variable_strings(const Object& at, const std::string& what, hid_t type,
                                          std::size_t n, Read read) {
    if (H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) <= 0)
        refuse(at, what + "is not a variable-length string");
    std::vector<char*> pointers(n, nullptr);
    if (n > 0) check(at, read(type, pointers.data()), what + "cannot be read");
    std::vector<std::string> values;
    for (char* p : pointers) {
        values.emplace_back(p ? p : "");
        H5free_memory(p);
    }
    return values;
}

/// An attribute with what it holds; its id is none where there is no such attribute.
struct Attribute {
    Id id, type;
    hssize_t elements = 0;
};

Attribute open_attribute(const Object& at, const std::string& name) {
    const auto open = [&] { return Id(H5Aopen(at.id.get(), name.c_str(), H5P_DEFAULT), H5Aclose); };
    Attribute a{open(), {}};
    if (a.id.get() < 0) {
        if (H5Aexists(at.id.get(), name.c_str()) > 0)
            checked(at, open(), "attribute " + name + " cannot be opened");
        return a;
    }
    a.type = {H5Aget_type(a.id.get()), H5Tclose};
    const Id space(H5Aget_space(a.id.get()), H5Sclose);
    a.elements = H5Sget_simple_extent_npoints(space.get());
    return a;
}

template <class T> std::string decimal(T value) {
    std::array<char, 40> text;
    const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
    return {text.data(), end};
}

}  // namespace

void write_integer(const Object& at, const std::string& name, std::int64_t value) {
    write_attribute(at, name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value);
}

void write_text(const Object& at, const std::string& name, std::string_view text, Bytes bytes) {
    bool exact = false;
    if (text.size() < attribute_limit) {
        const std::string readable = readable_text(text);
        exact = readable == text;
        write_string(at, name, readable);
        if (!exact) write_integer(at, name + "_replaced", 1);
    }
    if (exact && bytes == Bytes::if_needed) return;
    write_array<std::uint8_t>(at, name + "_bytes",
                              {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()},
                              {text.size()});
}

void write_document(const Object& at, const std::string& name, std::string_view text) {
    const std::string readable = readable_text(text);
    const char* value = readable.c_str();
    write_dataset(at, name, text_type(), text_type(), {}, sizeof value, &value);
}

void write_strings(const Object& at, const std::string& name, const std::vector<std::string>& values) {
    std::vector<std::string> readable;
    std::vector<const char*> pointers;
    bool exact = true;
    for (const auto& value : values) {
        readable.push_back(readable_text(value));
        exact = exact && readable.back() == value;
    }
    for (const auto& value : readable) pointers.push_back(value.c_str());
    const Object dataset = write_dataset(at, name, text_type(), text_type(), {values.size()},
                                         pointers.size() * sizeof(char*), pointers.data());
    if (!exact) write_integer(dataset, "replaced", 1);
}

void write_numbers(const Object& at, const std::string& name, const NumberType& type,
                   std::span<const std::byte> values, const std::vector<hsize_t>& dims,
                   const std::string& unit) {
    const Object dataset =
        write_dataset(at, name, type.file, type.memory, dims, values.size(), values.data());
    if (!unit.empty()) write_string(dataset, "unit", unit);
}

std::optional<std::int64_t> read_integer(const Object& at, const std::string& name) {
    const Attribute a = open_attribute(at, name);
    if (a.id.get() < 0 || H5Tget_class(a.type.get()) != H5T_INTEGER || a.elements != 1) return std::nullopt;
    std::int64_t value = 0;
    check(at, H5Aread(a.id.get(), H5T_NATIVE_INT64, &value), "attribute " + name + " cannot be read");
    return value;
}

std::optional<std::string> read_text(const Object& at, const std::string& name) {
    if (has_member(at, name + "_bytes")) return read_bytes(at, name + "_bytes");
    const Attribute a = open_attribute(at, name);
    if (a.id.get() < 0) return std::nullopt;
    if (a.elements != 1) refuse(at, "attribute " + name + " is not one string");
    return variable_strings(at, "attribute " + name + " ", a.type.get(), 1,
                            [&](hid_t memory, char** to) { return H5Aread(a.id.get(), memory, to); })[0];
}

std::vector<std::string> text_attributes(const Object& at) {
    std::vector<std::string> names;
    const auto add = [](hid_t object, const char* name, const H5A_info_t*, void* to) -> herr_t {
        const Id attribute(H5Aopen(object, name, H5P_DEFAULT), H5Aclose);
        const Id type(H5Aget_type(attribute.get()), H5Tclose);
        const Id space(H5Aget_space(attribute.get()), H5Sclose);
        if (H5Tis_variable_str(type.get()) > 0 && H5Sget_simple_extent_npoints(space.get()) == 1)
            static_cast<std::vector<std::string>*>(to)->emplace_back(name);
        return 0;
    };
    if (H5Aiterate2(at.id.get(), H5_INDEX_CRT_ORDER, H5_ITER_INC, nullptr, add, &names) < 0) {
        names.clear();
        check(at, H5Aiterate2(at.id.get(), H5_INDEX_NAME, H5_ITER_INC, nullptr, add, &names),
              "its attributes cannot be listed");
    }
    return names;
}

std::string read_document(const Object& at, const std::string& name) {
    const Stored s = open_dataset(at, name, 1);
    if (s.elements != 1) refuse(s.dataset, "is not one string");
    return variable_strings(s.dataset, "", s.type.get(), 1, [&](hid_t memory, char** to) {
        return H5Dread(s.dataset.id.get(), memory, H5S_ALL, H5S_ALL, small_buffer(), to);
    })[0];
}

std::vector<std::string> read_strings(const Object& at, const std::string& name) {
    const Stored s = open_dataset(at, name, sizeof(std::int64_t));
    const H5T_class_t kind = H5Tget_class(s.type.get());
    std::vector<std::string> values;
    if (kind == H5T_INTEGER)
        for (const auto v : read_array<std::int64_t>(at, name)) values.push_back(decimal(v));
    else if (kind == H5T_FLOAT)
        for (const auto v : read_array<double>(at, name)) values.push_back(decimal(v));
    else
        values = variable_strings(s.dataset, "", s.type.get(), s.elements, [&](hid_t memory, char** to) {
            return H5Dread(s.dataset.id.get(), memory, H5S_ALL, H5S_ALL, small_buffer(), to);
        });
    return values;
}

void read_numbers(const Object& at, const std::string& name, const NumberType& type,
                  const std::function<void*(std::size_t)>& place, std::vector<hsize_t>* dims) {
    Stored s = open_dataset(at, name, type.bytes);
    if (H5Tget_class(s.type.get()) != (type.integer ? H5T_INTEGER : H5T_FLOAT) ||
        H5Tget_size(s.type.get()) > type.bytes)
        refuse(s.dataset, std::string("does not hold ") +
                              (type.integer ? "integers" : "floating-point numbers") + " of at most " +
                              std::to_string(8 * type.bytes) + " bits");
    void* const values = place(s.elements);
    if (s.elements > 0)
        check(s.dataset, H5Dread(s.dataset.id.get(), type.memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values),
              "cannot be read");
    if (dims) *dims = std::move(s.dims);
}

std::string read_bytes(const Object& at, const std::string& name, std::vector<hsize_t>* dims) {
    std::string bytes;
    const auto place = [&](std::size_t n) { return bytes.resize(n), bytes.data(); };
    read_numbers(at, name, number_type<std::uint8_t>(), place, dims);
    return bytes;
}

std::vector<hsize_t> shape_of_floats(const Object& at, const std::string& name) {
    Stored s = open_dataset(at, name, sizeof(float));
    if (H5Tequal(s.type.get(), number_type<float>().file) <= 0)
        refuse(s.dataset, "does not hold float32 numbers");
    return std::move(s.dims);
}

}  // namespace ftmpi::hdf5
