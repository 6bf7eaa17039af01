// Result files made to harm their reader: with the right checksum, but leading out of the file or beyond what
// a run can hold. Files on which the HDF5 library itself crashes are that library's matter.
#define BOOST_TEST_MODULE results_hostile
#include <fcntl.h>
#include <hdf5.h>
#include <sys/stat.h>

#include "digest.hpp"
#include "results/checksum.hpp"
#include "results/disk.hpp"
#include "results/journal.hpp"
#include "results/schema.hpp"
#include "results_checks.hpp"

namespace {

constexpr std::size_t footer_bytes = 48;

void need(herr_t status) { BOOST_REQUIRE(status >= 0); }

RunRecord asking(std::int64_t requests) {
    RunRecord run = sample_run();
    run.requests_asked = requests;
    return run;
}

void drop_checksum(const fs::path& file) { fs::resize_file(file, fs::file_size(file) - footer_bytes); }

/// A result of two requests in which `change` was done, with the right checksum.
void craft(const fs::path& file, const std::function<void(hid_t)>& change, bool with_checksum = true) {
    fs::remove(file);
    write_run(file, 2);
    drop_checksum(file);
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    need(H5Pset_libver_bounds(access, H5F_LIBVER_EARLIEST, H5F_LIBVER_LATEST));  // virtual datasets need it
    const hid_t id = H5Fopen(file.c_str(), H5F_ACC_RDWR, access);
    BOOST_REQUIRE(id >= 0);
    change(id);
    need(H5Fclose(id));
    H5Pclose(access);
    if (with_checksum) append_checksum(file);
}

/// Puts a dataset of bytes in the place of another.
void put_bytes(hid_t file, const char* name, hsize_t size, const std::function<void(hid_t)>& store,
               bool write = false) {
    if (H5Lexists(file, name, H5P_DEFAULT) > 0) need(H5Ldelete(file, name, H5P_DEFAULT));
    const hid_t list = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(1, &size, nullptr);
    store(list);
    const hid_t set = H5Dcreate2(file, name, H5T_STD_U8LE, space, H5P_DEFAULT, list, H5P_DEFAULT);
    BOOST_REQUIRE(set >= 0);
    const std::string zeros(size, '\0');
    if (write) need(H5Dwrite(set, H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros.data()));
    H5Dclose(set);
    H5Sclose(space);
    H5Pclose(list);
}

/// The program forgets what an external link is, and with it the library in this process.
void put_external_link(hid_t file, const char* name, const fs::path& other, const char* object) {
    H5L_class_t known{};
    known.version = H5L_LINK_CLASS_T_VERS;
    known.id = H5L_TYPE_EXTERNAL;
    known.trav_func = [](auto...) -> hid_t { return -1; };
    need(H5Lregister(&known));
    if (H5Lexists(file, name, H5P_DEFAULT) > 0) need(H5Ldelete(file, name, H5P_DEFAULT));
    need(H5Lcreate_external(other.c_str(), object, file, name, H5P_DEFAULT, H5P_DEFAULT));
    need(H5Lunregister(H5L_TYPE_EXTERNAL));
}

void put_integer(hid_t file, const char* object, const char* name, std::int64_t value) {
    const hid_t at = H5Oopen(file, object, H5P_DEFAULT), attribute = H5Aopen(at, name, H5P_DEFAULT);
    need(H5Awrite(attribute, H5T_NATIVE_INT64, &value));
    H5Aclose(attribute);
    H5Oclose(at);
}

/// All who read results refuse this one, and nothing changes.
void refused_by_all(Folder& folder, const std::vector<std::string>& words) {
    const std::string bytes = bytes_of(folder.file), before = folder.list();
    check_error(Exit::bad_input, words, [&] { read_results(folder.file); });
    check_error(Exit::bad_input, words, [&] { ResultFile(folder.file, asking(2), Existing::resume); });
    BOOST_TEST((bytes_of(folder.file) == bytes));
    BOOST_TEST(folder.list() == before);
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_result_holds_its_data_itself) {
    Folder folder;
    const fs::path secret = folder.path / "secret", fifo = folder.path / "fifo",
                   other = folder.path / "other.h5";
    write_bytes(secret, std::string(64, 's'));
    BOOST_REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    write_run(other, 2);
    const auto external = [](const fs::path& from) {
        return [from](hid_t list) { need(H5Pset_external(list, from.c_str(), 0, 64)); };
    };
    for (const auto& from : {secret, fifo, fs::path("/dev/zero"), folder.path / "none"})
        for (const char* name : {"requests/0/text_bytes", "requests/1/id_bytes", "version_bytes"}) {
            craft(folder.file, [&](hid_t file) { put_bytes(file, name, 64, external(from)); });
            refused_by_all(
                folder, {"out.h5: /" + std::string(name), "holds data outside the file (external storage)"});
        }
    for (const auto& from : {other, fifo, folder.path / "none"})
        for (const char* name : {"requests", "requests/0", "requests/0/text_bytes", "summary", "plan/extra",
                                 "summary/series", "ranks/extra"}) {
            craft(folder.file, [&](hid_t file) { put_external_link(file, name, from, name); });
            refused_by_all(
                folder, {"out.h5: /" + std::string(name), "holds data outside the file (an external link)"});
        }
    for (const char* target : {"/plan", "/summary", "/nowhere"}) {
        craft(folder.file, [&](hid_t file) {
            need(H5Ldelete(file, "summary", H5P_DEFAULT));
            need(H5Lcreate_soft(target, file, "summary", H5P_DEFAULT, H5P_DEFAULT));
        });
        refused_by_all(folder, {"out.h5: /summary: is a soft link"});
    }
    for (const auto& from : {other, fifo}) {
        const hsize_t n = 5;
        const hid_t space = H5Screate_simple(1, &n, nullptr);
        craft(folder.file, [&](hid_t file) {
            put_bytes(file, "requests/0/text_bytes", n, [&](hid_t list) {
                need(H5Pset_virtual(list, space, from.c_str(), "/requests/0/text_bytes", space));
            });
        });
        H5Sclose(space);
        refused_by_all(folder, {"text_bytes: holds data outside the file (a virtual dataset)"});
    }
    // No run of ours has stored pieces: their index is one more thing to go wrong, their filters could be
    // anybody's.
    for (const bool packed : {false, true}) {
        craft(folder.file, [&](hid_t file) {
            put_bytes(
                file, "requests/0/text_bytes", 30'000'000,
                [&](hid_t list) {
                    const hsize_t piece = 1'000'000;
                    need(H5Pset_chunk(list, 1, &piece));
                    if (packed) need(H5Pset_deflate(list, 9));
                },
                packed);
        });
        refused_by_all(folder, {"text_bytes: is not stored in one piece"});
    }
}

BOOST_AUTO_TEST_CASE(names_that_lead_through_a_link) {
    Folder folder;
    write_run(folder.path / "other.h5", 1);
    craft(folder.file, [&](hid_t file) {
        put_external_link(file, "a", folder.path / "other.h5", "/");
        const hid_t text = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
        need(H5Tset_size(text, H5T_VARIABLE));
        const hid_t attribute = H5Acreate2(file, "a/model", text, space, H5P_DEFAULT, H5P_DEFAULT);
        const char* value = "x";
        need(H5Awrite(attribute, text, &value));
        H5Aclose(attribute);
        H5Sclose(space);
        H5Tclose(text);
    });
    refused_by_all(folder, {"out.h5: /a/model_bytes: has a name that nothing in a result has"});
}

BOOST_AUTO_TEST_CASE(what_is_overwritten_is_not_followed) {
    Folder folder;
    const fs::path fifo = folder.path / "fifo";
    BOOST_REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    craft(
        folder.file,
        [&](hid_t file) {
            put_bytes(file, "identity_bytes", 64,
                      [&](hid_t list) { need(H5Pset_external(list, fifo.c_str(), 0, 64)); });
        },
        false);
    const std::string mine = bytes_of(folder.file);
    check_error(Exit::usage, {"out.h5: is an HDF5 file, but no whole result"},
                [&] { ResultFile(folder.file, sample_run(), Existing::overwrite); });
    BOOST_TEST((bytes_of(folder.file) == mine));
}

BOOST_AUTO_TEST_CASE(requests_that_no_run_can_write) {
    Folder folder;
    craft(folder.file, [&](hid_t file) {
        const hsize_t dims[] = {7};
        need(H5Ldelete(file, "requests/0/gather_seconds", H5P_DEFAULT));
        const hid_t space = H5Screate_simple(1, dims, nullptr);
        H5Dclose(H5Dcreate2(file, "requests/0/gather_seconds", H5T_IEEE_F64LE, space, H5P_DEFAULT,
                            H5P_DEFAULT, H5P_DEFAULT));
        H5Sclose(space);
    });
    refused_by_all(folder, {"out.h5: /requests/0: results: request 0: gather_seconds are not whole rows"});

    const auto reshape = [&](const char* name, hid_t type, hsize_t width) {
        craft(folder.file, [&](hid_t file) {
            const hsize_t dims[] = {3, width};
            const std::string path = std::string("requests/0/") + name;
            if (H5Lexists(file, path.c_str(), H5P_DEFAULT) > 0)
                need(H5Ldelete(file, path.c_str(), H5P_DEFAULT));
            const hid_t space = H5Screate_simple(2, dims, nullptr);
            H5Dclose(H5Dcreate2(file, path.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
            H5Sclose(space);
        });
    };
    reshape("step_logits_sha256", H5T_STD_U8LE, 31);
    check_error(Exit::bad_input, {"step_logits_sha256 should be [steps][32], but is [3][31]"},
                [&] { read_results(folder.file); });
    reshape("logits", H5T_IEEE_F32LE, 2);
    const std::string vocabulary = std::to_string(sample_request(0).vocabulary);
    check_error(Exit::bad_input, {"logits should be [steps][" + vocabulary + "], but is [3][2]"},
                [&] { read_results(folder.file); });

    for (const std::int64_t session :
         {std::int64_t{-1}, std::int64_t{1'000'000'001}, std::numeric_limits<std::int64_t>::max()}) {
        craft(folder.file, [&](hid_t file) { put_integer(file, "/", "session", session); });
        refused_by_all(folder,
                       {"out.h5: session " + std::to_string(session) + " is no count of resumed runs"});
        craft(folder.file, [&](hid_t file) { put_integer(file, "/requests/1", "session", session); });
        refused_by_all(folder, {"out.h5: /requests/1: results: request 1: its session"});
    }
    craft(folder.file, [&](hid_t file) { put_integer(file, "/", "session", 1'000'000'000); });
    BOOST_TEST(read_results(folder.file).requests.size() == 2u);
    check_error(Exit::bad_input, {"resumed too often"},
                [&] { ResultFile(folder.file, sample_run(), Existing::resume); });
    BOOST_TEST(folder.list() == "out.h5");

    craft(folder.file, [](hid_t file) {
        need(H5Lmove(file, "requests/1", file, "requests/7", H5P_DEFAULT, H5P_DEFAULT));
        put_integer(file, "/requests/7", "index", 7);
    });
    check_error(Exit::bad_input, {"out.h5 holds request 7, counted from 0, but this run asks for 2 requests"},
                [&] { ResultFile(folder.file, asking(2), Existing::resume); });
    check_error(Exit::bad_input, {"out.h5 holds request 7, counted from 0, but this run asks for 1 request"},
                [&] { ResultFile(folder.file, asking(1), Existing::resume); });
    BOOST_TEST(folder.list() == "out.h5");
    { BOOST_TEST(ResultFile(folder.file, asking(8), Existing::resume).finished().back() == 7); }
}

BOOST_AUTO_TEST_CASE(the_same_in_journals) {
    Folder folder;
    leave_journal(folder.file, 3);
    check_error(Exit::bad_input,
                {"out.h5.journal holds request 2, counted from 0, but this run asks for 2 requests"},
                [&] { ResultFile(folder.file, asking(2), Existing::resume); });
    { BOOST_TEST(ResultFile(folder.file, asking(3), Existing::resume).finished().size() == 3u); }
    fs::remove(folder.journal);
    for (const std::int64_t session : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()}) {
        for (const bool of_run : {true, false}) {
            {
                Journal journal(folder.journal, Journal::Open::existing_or_new);
                JournalRun run;
                run.run = sample_run();
                run.journal_id = "x";
                if (of_run) run.session = session;
                journal.start(run);
                journal.append(encode(sample_request(0), of_run ? 0 : session));
            }
            check_error(Exit::bad_input, {"out.h5.journal: at byte", "resumed runs"},
                        [&] { recover_results(folder.file); });
            check_error(Exit::bad_input, {"resumed runs"},
                        [&] { ResultFile(folder.file, sample_run(), Existing::resume); });
            fs::remove(folder.journal);
        }
    }
}

BOOST_AUTO_TEST_CASE(a_file_that_may_not_be_read_is_called_so) {
    Folder folder;
    leave_journal(folder.file, 1);
    write_bytes(folder.file, bytes_of(folder.journal));
    for (const fs::path& hidden : {folder.file, fs::path(folder.file.string() + ".part")}) {
        fs::remove(folder.file);
        write_bytes(hidden, "\x89HDF\r\n\x1a\n");
        ::chmod(hidden.c_str(), 0);
        ::chmod(folder.path.c_str(), 0777);
        ::chmod(folder.journal.c_str(), 0666);
        const auto said = [&](const std::function<void()>& call) {
            return in_child([&] {
                if (::getuid() == 0 && ::setuid(65534) != 0) return 98;
                try {
                    call();
                } catch (const Error& error) {
                    const std::string what = error.what();
                    return what.find("Permission denied") != std::string::npos &&
                                   what.find("HDF5") == std::string::npos
                               ? 42
                               : 43;
                }
                return 0;
            });
        };
        BOOST_TEST(said([&] { ResultFile(folder.file, sample_run(), Existing::overwrite); }) == 42);
        BOOST_TEST(said([&] { recover_results(folder.file, true); }) == 42);
        if (hidden == folder.file) BOOST_TEST(said([&] { read_results(folder.file); }) == 42);
        fs::remove(hidden);
    }
    // Nor is a journal that recover may not write to helped with an option that recover has not.
    ::chmod(folder.journal.c_str(), 0444);
    BOOST_TEST(in_child([&] {
                   if (::getuid() == 0 && ::setuid(65534) != 0) return 98;
                   try {
                       recover_results(folder.file);
                   } catch (const Error& error) {
                       return !error.hint().empty() && error.hint().find("--output") == std::string::npos
                                  ? 42
                                  : 43;
                   }
                   return 0;
               }) == 42);
}
