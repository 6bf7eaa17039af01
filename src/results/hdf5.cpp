#include "hdf5.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "disk.hpp"

namespace ftmpi::hdf5 {

namespace {

/// The innermost entry of the error stack: an errno in words where the entry has one.
std::string innermost_error() {
    std::string text;
    H5Ewalk2(
        H5E_DEFAULT, H5E_WALK_UPWARD,
        [](unsigned, const H5E_error2_t* entry, void* to) -> herr_t {
            auto& first = *static_cast<std::string*>(to);
            if (first.empty() && entry->desc) first = entry->desc;
            return 0;
        },
        &text);
    const std::string mark = "errno = ";
    if (const auto at = text.find(mark); at != std::string::npos) {
        const int error = std::atoi(text.c_str() + at + mark.size());
        const bool lock = text.find("lock file") != std::string::npos;
        return (lock ? "the file cannot be locked: " : "") + reason(error);
    }
    return text.empty() ? "HDF5 gives no reason" : text;
}

std::string hint_for(const std::string& error) {
    if (error.find("truncated") != std::string::npos) return "copy it again from where it was made";
    if (error.find("cannot be locked") == std::string::npos) return {};
    return "set HDF5_USE_FILE_LOCKING=FALSE in the environment, where locks do not work on this file system";
}

/// sec2 driver without locks: a file being written has a name of its own and one owner, and a finished file
/// is never changed in place, so a lock would protect nothing and may not be available.
Id file_access() {
    Id fapl(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    H5Pset_fapl_sec2(fapl.get());
    H5Pset_fclose_degree(fapl.get(), H5F_CLOSE_STRONG);
    H5Pset_libver_bounds(fapl.get(), H5F_LIBVER_V18, H5F_LIBVER_V18);
#if H5_VERSION_GE(1, 12, 1) || (H5_VERS_MAJOR == 1 && H5_VERS_MINOR == 10 && H5_VERS_RELEASE >= 7)
    H5Pset_file_locking(fapl.get(), false, true);
#endif
    return fapl;
}

/// Each object of a result is read once: with a large cache the library spends a quarter of its time on what
/// will not be asked for again (20,000 requests, 1.10.8).
void keep_cache_small(const Id& fapl) {
    H5AC_cache_config_t cache{};
    cache.version = H5AC__CURR_CACHE_CONFIG_VERSION;
    if (H5Pget_mdc_config(fapl.get(), &cache) < 0) return;
    cache.set_initial_size = true;
    cache.initial_size = cache.max_size = cache.min_size = 256 * 1024;
    cache.incr_mode = H5C_incr__off;
    cache.flash_incr_mode = H5C_flash_incr__off;
    cache.decr_mode = H5C_decr__off;
    H5Pset_mdc_config(fapl.get(), &cache);
}

std::string named(const Object& at) { return at.file + ": " + (at.path.empty() ? "" : at.path + ": "); }

void need_own_member(const Object& group, const std::string& name, H5L_type_t link) {
    const auto refuse_it = [&](const std::string& what) {
        refuse({{}, group.file, group.path + "/" + name, group.code}, what);
    };
    if (name.empty() || name == "." || name.find('/') != std::string::npos)
        refuse_it("has a name that nothing in a result has");
    if (link == H5L_TYPE_SOFT) refuse_it("is a soft link, which no result holds");
    if (link != H5L_TYPE_HARD) refuse_it("holds data outside the file (an external link)");
}

/// All links of a group at once: to look one up by its name takes the library as long.
void list_links(Object& group) {
    const auto add = [](hid_t, const char* name, const auto* link, void* to) -> herr_t {
        static_cast<decltype(Object::links)*>(to)->emplace_back(name, link->type);
        return 0;
    };
    // A copy made by another tool may not have kept the order of creation.
    if (H5Literate(group.id.get(), H5_INDEX_CRT_ORDER, H5_ITER_INC, nullptr, add, &group.links) >= 0) return;
    group.links.clear();
    check(group, H5Literate(group.id.get(), H5_INDEX_NAME, H5_ITER_INC, nullptr, add, &group.links),
          "its members cannot be listed");
}

void set_up_library() {
    // Errors are reported by fail(), not printed; and after a full disk the library must not try again at
    // exit to flush what it could not, which is known to crash. Every id is closed by its owner, so nothing
    // needs that exit handler. A file that is read must not decide what else is opened: no link to another
    // file is followed, and no filter that it names is looked for and loaded.
    static const bool done = [] {
        H5dont_atexit();
        return H5open() >= 0 && H5Lunregister(H5L_TYPE_EXTERNAL) >= 0 && H5PLset_loading_state(0) >= 0;
    }();
    if (!done) throw Error(Exit::failure, "the HDF5 library cannot be initialised");
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

}  // namespace

void fail(const Object& at, const std::string& what) {
    const std::string error = innermost_error();
    throw Error(at.code, named(at) + what + ": " + error, hint_for(error));
}

void refuse(const Object& at, const std::string& what, const std::string& hint) {
    throw Error(at.code, named(at) + what, hint);
}

Object create_file(const std::filesystem::path& path) {
    set_up_library();
    const Id fapl = file_access(), fcpl{H5Pcreate(H5P_FILE_CREATE), H5Pclose};
    H5Pset_link_creation_order(fcpl.get(), H5P_CRT_ORDER_TRACKED);
    H5Pset_attr_creation_order(fcpl.get(), H5P_CRT_ORDER_TRACKED);
    Object root{{}, path.string(), "", Exit::failure};
    root.id = checked(root, {H5Fcreate(path.c_str(), H5F_ACC_TRUNC, fcpl.get(), fapl.get()), H5Fclose},
                      "cannot be created");
    // The signature goes to the disk now, not at the end: by it the file of a killed run is known for one.
    check(root, H5Fflush(root.id.get(), H5F_SCOPE_GLOBAL), "cannot be written to the disk");
    return root;
}

void check_is_hdf5(const std::filesystem::path& path) {
    const auto bad = [&](const std::string& what, const std::string& hint = {}) {
        throw Error(Exit::bad_input, path.string() + ": " + what, hint);
    };
    std::error_code error;
    const auto status = std::filesystem::status(path, error);
    if (status.type() == std::filesystem::file_type::not_found) {
        const bool journal = std::filesystem::exists(path.string() + ".journal", error);
        bad("does not exist", journal ? "its run did not end, but a journal is there: `ftmpi recover " +
                                            path.string() + "` makes the result of what was finished"
                                      : "");
    }
    if (error) bad("cannot be read: " + error.message());
    if (!std::filesystem::is_regular_file(status)) bad("is not a regular file");
    std::array<char, 8> begin{};
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (file.get() < 0) bad("cannot be opened: " + reason(errno));
    if (const int failed = read_all(file.get(), begin.data(), begin.size(), 0); failed > 0)
        bad("cannot be read: " + reason(failed));
    if (std::memcmp(begin.data(), "ftmpi jo", 8) == 0)
        bad("is a journal, not a result file",
            "`ftmpi recover FILE.h5` makes the result FILE.h5 from FILE.h5.journal");
    if (std::memcmp(begin.data(), "\x89HDF\r\n\x1a\n", 8) != 0) bad("is not an HDF5 file");
}

Object open_file(const std::filesystem::path& path) {
    set_up_library();
    const Id fapl = file_access();
    keep_cache_small(fapl);
    Object root{{}, path.string(), "", Exit::bad_input};
    root.id = checked(root, {H5Fopen(path.c_str(), H5F_ACC_RDONLY, fapl.get()), H5Fclose},
                      "cannot be opened as an HDF5 file");
    root.file_bytes = std::filesystem::file_size(path);
    list_links(root);
    return root;
}

std::string library_version() {
    unsigned major = 0, minor = 0, release = 0;
    H5get_libversion(&major, &minor, &release);
#ifdef H5_HAVE_PARALLEL
    const char* const kind = " (parallel)";
#else
    const char* const kind = " (serial)";
#endif
    return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release) + kind;
}

Object create_group(const Object& parent, const std::string& name) {
    // Links and attributes stay in the object header up to these numbers: a heap and an index of their own
    // for each of thousands of small groups make the file larger and several times slower to write.
    static const Id gcpl = [] {
        Id list{H5Pcreate(H5P_GROUP_CREATE), H5Pclose};
        H5Pset_link_phase_change(list.get(), 64, 32);
        H5Pset_attr_phase_change(list.get(), 64, 32);
        H5Pset_link_creation_order(list.get(), H5P_CRT_ORDER_TRACKED);
        H5Pset_obj_track_times(list.get(), false);
        return list;
    }();
    Object group{{H5Gcreate2(parent.id.get(), name.c_str(), H5P_DEFAULT, gcpl.get(), H5P_DEFAULT), H5Gclose},
                 parent.file,
                 parent.path + "/" + name,
                 parent.code};
    if (group.id.get() < 0) fail(group, "cannot be created");
    return group;
}

Object open_group(const Object& parent, const std::string& name) {
    if (!has_member(parent, name))
        refuse({{}, parent.file, parent.path + "/" + name, parent.code}, "this group is missing");
    return open_listed_group(parent, name);
}

Object open_listed_group(const Object& parent, const std::string& name) {
    Object group{{}, parent.file, parent.path + "/" + name, parent.code, parent.file_bytes};
    group.id = checked(group, {H5Gopen2(parent.id.get(), name.c_str(), H5P_DEFAULT), H5Gclose},
                       "cannot be opened as a group");
    list_links(group);
    return group;
}

bool has_member(const Object& group, const std::string& name) {
    need_own_member(group, name, H5L_TYPE_HARD);  // the name, before the library takes it for a path
    const auto link = std::find_if(group.links.begin(), group.links.end(),
                                   [&](const auto& known) { return known.first == name; });
    if (link == group.links.end()) return false;
    need_own_member(group, name, link->second);
    return true;
}

std::vector<std::string> members(const Object& group) {
    std::vector<std::string> names;
    for (const auto& [name, link] : group.links) {
        need_own_member(group, name, link);
        names.push_back(name);
    }
    return names;
}

}  // namespace ftmpi::hdf5
