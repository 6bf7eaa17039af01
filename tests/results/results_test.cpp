// Results: what goes in comes out, whatever the bytes; names that are taken, full disks, and files that are
// no results.
#define BOOST_TEST_MODULE results
#include <hdf5.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdio>
#include <limits>

#include "results/checksum.hpp"
#include "results_checks.hpp"

BOOST_AUTO_TEST_CASE(all_fields_come_back) {
    Folder folder;
    RequestRecord with_logits = sample_request(1);
    for (int i = 0; i < 4 * 5; ++i) with_logits.logits.push_back(0.1f * static_cast<float>(i));
    RequestRecord failed;
    failed.index = 7;
    failed.finish_reason = "error";
    failed.error = "a logit is not finite";
    SummaryRecord summary{{{"decode_tokens_per_second", 1500.25}, {"load_seconds", 0.5}, {"alpha", -1}}};
    {
        ResultFile results(folder.file, sample_run(), Existing::refuse);
        BOOST_TEST(results.finished().empty());
        BOOST_TEST(results.warning() == "");
        // Requests end in any order when they are decoded together.
        results.append(with_logits);
        results.append(failed);
        results.append(sample_request(0));
        BOOST_TEST(folder.list() == "out.h5.journal");
        results.finish(summary);
        BOOST_TEST(folder.list() == "out.h5");
        check_error(Exit::failure, {"finished twice"}, [&] { results.finish(summary); });
        check_error(Exit::failure, {"after the end"}, [&] { results.append(sample_request(2)); });
    }
    BOOST_TEST(folder.list() == "out.h5");
    const StoredRun back = read_results(folder.file);
    check_equal(back.run, sample_run());
    SummaryRecord counted{
        {{"requests_count", 3}, {"errors_count", 1}, {"prompt_tokens", 6}, {"output_tokens", 8}}};
    counted.values.insert(counted.values.end(), summary.values.begin(), summary.values.end());
    BOOST_TEST((back.summary.values == counted.values));
    BOOST_TEST(back.complete);
    BOOST_REQUIRE(back.requests.size() == 3u);
    check_equal(back.requests[0], sample_request(0));
    check_equal(back.requests[1], with_logits);
    check_equal(back.requests[2], failed);
    BOOST_TEST(read_results(folder.file, Contents::all_but_logits).requests[1].logits.empty());
}

// "Complete" is what a script asks for before it takes the file for all that was asked for.
BOOST_AUTO_TEST_CASE(only_a_file_that_holds_all_is_complete) {
    Folder folder;
    const auto write = [&](std::int64_t asked, std::int64_t requests, bool interrupted) {
        ResultFile results(folder.file, asked_run(asked), Existing::overwrite);
        for (std::int64_t i = 0; i < requests; ++i) results.append(sample_request(i));
        results.finish({}, interrupted);
        const StoredRun back = read_results(folder.file);
        BOOST_TEST(back.run.requests_asked == asked);
        BOOST_TEST(!back.recovered);
        BOOST_TEST(figure(back, "requests_count") == static_cast<double>(requests));
        return back.complete;
    };
    BOOST_TEST(write(3, 3, false));
    BOOST_TEST(!write(3, 2, true));
    BOOST_TEST(!write(3, 2, false));
    BOOST_TEST(!write(3, 3, true));
    BOOST_TEST(write(0, 2, false));  // not known how many
    BOOST_TEST(!write(0, 2, true));

    // A journal knows it too, and what is made of it is never complete.
    fs::remove(folder.file);
    {
        ResultFile results(folder.file, asked_run(3), Existing::refuse);
        for (std::int64_t i = 0; i < 3; ++i) results.append(sample_request(i));
    }
    BOOST_TEST(read_journal(folder.journal).run.requests_asked == 3);
    BOOST_TEST(recover_results(folder.file) == 3);
    const StoredRun back = read_results(folder.file);
    BOOST_TEST(back.run.requests_asked == 3);
    BOOST_TEST((!back.complete && back.recovered));
    BOOST_TEST(figure(back, "output_tokens") == 12);
}

/// Changes the root of a result as another program could, with a checksum that fits.
void change_root(const fs::path& path, const std::function<void(hid_t)>& change) {
    const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    BOOST_REQUIRE(file >= 0);
    change(file);
    H5Fclose(file);
    append_checksum(path);
}

void set_integer(hid_t root, const char* name, std::int64_t value) {
    H5Adelete(root, name);
    const hid_t space = H5Screate(H5S_SCALAR);
    const hid_t attribute = H5Acreate2(root, name, H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(attribute, H5T_NATIVE_INT64, &value);
    H5Aclose(attribute);
    H5Sclose(space);
}

BOOST_AUTO_TEST_CASE(files_from_before_the_number_asked_for) {
    Folder folder;
    for (const bool recovered : {false, true}) {
        fs::remove(folder.file);
        if (recovered) {
            leave_journal(folder.file, 2);
            recover_results(folder.file);
        } else {
            write_run(folder.file, 2);
        }
        change_root(folder.file, [](hid_t root) { H5Adelete(root, "recovered"); });
        const StoredRun back = read_results(folder.file);
        BOOST_TEST(back.run.requests_asked == 0);
        BOOST_TEST(back.complete == !recovered);
        BOOST_TEST(back.recovered == recovered);
        BOOST_TEST(back.requests.size() == 2u);
    }
}

BOOST_AUTO_TEST_CASE(numbers_asked_for_that_cannot_be) {
    Folder folder;
    write_run(folder.file, 2, Existing::refuse, asked_run(2));
    constexpr auto most = std::numeric_limits<std::int64_t>::max();
    for (const std::int64_t asked : {std::int64_t{0}, std::int64_t{-1}, -most - 1}) {
        change_root(folder.file, [&](hid_t root) { set_integer(root, "requests_asked", asked); });
        check_error(Exit::bad_input, {"out.h5", "requests_asked is " + std::to_string(asked)},
                    [&] { read_results(folder.file); });
        check_error(Exit::bad_input, {"requests_asked"},
                    [&] { ResultFile(folder.file, asked_run(2), Existing::resume); });
    }
    for (const std::int64_t asked : {std::int64_t{1}, std::int64_t{3}, most}) {
        change_root(folder.file, [&](hid_t root) { set_integer(root, "requests_asked", asked); });
        BOOST_TEST(!read_results(folder.file).complete);  // whatever it says itself
        BOOST_TEST(!ResultFile(folder.file, asked_run(2), Existing::resume).nothing_left());
        fs::remove(folder.journal);
    }
    // What is no integer counts as not there.
    change_root(folder.file, [](hid_t root) {
        H5Adelete(root, "requests_asked");
        const hid_t space = H5Screate(H5S_NULL), attribute = H5Acreate2(root, "requests_asked", H5T_STD_I64LE,
                                                                        space, H5P_DEFAULT, H5P_DEFAULT);
        H5Aclose(attribute);
        H5Sclose(space);
    });
    BOOST_TEST(read_results(folder.file).run.requests_asked == 0);
}

BOOST_AUTO_TEST_CASE(odd_text_keeps_every_byte) {
    Folder folder;
    const std::string emoji = "\xF0\x9F\x98\x8A";
    const std::vector<std::string> texts = {std::string(70'000, 'x'),
                                            std::string("a\0b", 3),
                                            std::string("\0", 1),
                                            "\xFF",
                                            "path/\xFF/model",
                                            emoji,
                                            emoji.substr(0, 1),
                                            emoji.substr(0, 2),
                                            "cut " + emoji.substr(0, 3),
                                            "\xC3\x28",
                                            "\xE2\x82",
                                            "\xED\xA0\x80",
                                            "\xF5\x80\x80\x80",
                                            "\xC0\xAF",
                                            "\xEF\xBB\xBF"
                                            "a",
                                            std::string(59'999, 'y'),
                                            std::string(60'000, 'y'),
                                            std::string(70'000, '\xFF'),
                                            "line\r\nline\t\x1b[31m\x7f",
                                            ""};
    RunRecord run = sample_run();
    for (std::size_t i = 0; i < texts.size(); ++i)
        run.attributes.emplace_back("text" + std::to_string(i), texts[i]);
    std::vector<RequestRecord> requests;
    {
        ResultFile results(folder.file, run, Existing::refuse);
        for (std::size_t i = 0; i < texts.size(); ++i) {
            RequestRecord r = sample_request(static_cast<std::int64_t>(i));
            r.id = r.prompt = r.text = r.error = texts[i];
            results.append(r);
            requests.push_back(r);
        }
        results.finish({});
    }
    const StoredRun back = read_results(folder.file);
    BOOST_REQUIRE(back.requests.size() == texts.size());
    for (std::size_t i = 0; i < texts.size(); ++i) check_equal(back.requests[i], requests[i]);
    // Text too long for an attribute comes last; all else keeps its place.
    for (const auto& attribute : run.attributes)
        BOOST_TEST((std::count(back.run.attributes.begin(), back.run.attributes.end(), attribute) == 1),
                   attribute.first);
    BOOST_TEST(back.run.attributes.size() == run.attributes.size());
}

BOOST_AUTO_TEST_CASE(large_text_and_many_timings) {
    Folder folder;
    RequestRecord r = sample_request(0, 9000);
    r.text = std::string(33'553'920, 't');
    {
        ResultFile results(folder.file, sample_run(), Existing::refuse);
        results.append(r);
        results.finish({});
    }
    const StoredRun back = read_results(folder.file);
    BOOST_TEST((back.requests.at(0).text == r.text));
    BOOST_TEST((back.requests[0].step_seconds == r.step_seconds));
}

BOOST_AUTO_TEST_CASE(ten_thousand_requests) {
    Folder folder;
    auto seconds = [last = std::chrono::steady_clock::now()]() mutable {
        const auto now = std::chrono::steady_clock::now();
        return std::chrono::duration<double>(now - std::exchange(last, now)).count();
    };
    ResultFile results(folder.file, sample_run(), Existing::refuse);
    for (std::int64_t i = 0; i < 10'000; ++i) results.append(sample_request(i));
    const double appended = seconds();
    results.finish({});
    const double finished = seconds();
    const StoredRun back = read_results(folder.file);
    const double read = seconds();
    BOOST_TEST(back.requests.size() == 10'000u);
    check_equal(back.requests[9'999], sample_request(9'999));
    BOOST_TEST(!compare_results(back, back).has_value());
    std::printf("10,000 requests: append %.2f s, finish %.2f s, read %.2f s, file %.1f MB\n", appended,
                finished, read, static_cast<double>(fs::file_size(folder.file)) / 1e6);
}

BOOST_AUTO_TEST_CASE(names_and_shapes_are_checked_before_they_matter) {
    Folder folder;
    for (const std::string key : {"", "a/b", "schema_version", "requests_asked", "recovered", "identity",
                                  "a\nb", "\xFF", ".", "version", "x_replaced"}) {
        RunRecord run = sample_run();
        run.attributes.emplace_back(key, "1");
        check_error(Exit::failure, {"results: attribute"},
                    [&] { ResultFile(folder.file, run, Existing::refuse); });
    }
    RunRecord run = sample_run();
    run.ranks[1].pop_back();
    check_error(Exit::failure, {"same keys"}, [&] { ResultFile(folder.file, run, Existing::refuse); });
    BOOST_TEST(folder.list() == "");
    ResultFile results(folder.file, sample_run(), Existing::refuse);
    for (const auto& [change, words] :
         std::vector<std::pair<std::function<void(RequestRecord&)>, std::string>>{
             {[](auto& r) { r.step_sha256.pop_back(); }, "32 bytes"},
             {[](auto& r) {
                  r.logits = {1, 2, 3};
              },
              "vocabulary"},
             {[](auto& r) { r.gather_seconds.pop_back(); }, "gather"},
             {[](auto& r) { r.index = -1; }, "negative"}}) {
        RequestRecord r = sample_request(0);
        change(r);
        check_error(Exit::failure, {words}, [&] { results.append(r); });
    }
    results.append(sample_request(0));
    check_error(Exit::failure, {"twice"}, [&] { results.append(sample_request(0)); });
}

BOOST_AUTO_TEST_CASE(output_names_that_cannot_be) {
    Folder folder;
    const auto refused = [&](const fs::path& path, Exit code, const std::string& words) {
        check_error(code, {words}, [&] { ResultFile(path, sample_run(), Existing::overwrite); });
    };
    refused("", Exit::usage, "names no file");
    refused(folder.path / "", Exit::usage, "names no file");
    refused(folder.path, Exit::usage, "is a directory");
    refused(folder.path / "none" / "x.h5", Exit::usage, "does not exist");
    refused(folder.path / std::string(300, 'n'), Exit::usage, "too long");
    // Long enough for the file, too long for its journal.
    refused(folder.path / std::string(250, 'n'), Exit::failure, "too long");
    refused("/dev/null", Exit::usage, "regular file");
    refused("/proc/out.h5", Exit::failure, "cannot be created");
    fs::create_symlink(folder.path / "nowhere", folder.path / "dangling");
    refused(folder.path / "dangling", Exit::usage, "symbolic link");
    fs::create_symlink(folder.path / "loop", folder.path / "loop");
    refused(folder.path / "loop", Exit::usage, "symbolic links");
    fs::remove(folder.path / "dangling");
    fs::remove(folder.path / "loop");
    BOOST_TEST(folder.list() == "");

    // A link to a file stays a link, and the file behind it is replaced.
    write_run(folder.path / "real.h5", 1);
    fs::create_symlink("real.h5", folder.file);
    write_run(folder.file, 2, Existing::overwrite);
    BOOST_TEST(fs::is_symlink(folder.file));
    BOOST_TEST(read_results(folder.path / "real.h5").requests.size() == 2u);
    BOOST_TEST(folder.list() == "out.h5 real.h5");
}

BOOST_AUTO_TEST_CASE(existing_files) {
    Folder folder;
    write_run(folder.file, 100);
    const std::string before = bytes_of(folder.file);
    check_error(Exit::usage, {"exists", "--overwrite", "--resume"},
                [&] { ResultFile(folder.file, sample_run(), Existing::refuse); });
    BOOST_TEST(folder.list() == "out.h5");
    {
        // The old file stays until the rename.
        ResultFile results(folder.file, sample_run(), Existing::overwrite);
        results.append(sample_request(0));
        BOOST_TEST((bytes_of(folder.file) == before));
        results.append(sample_request(1));
        results.finish({});
    }
    BOOST_TEST(read_results(folder.file).requests.size() == 2u);
    BOOST_TEST(fs::file_size(folder.file) < before.size());
    BOOST_TEST(folder.list() == "out.h5");

    // An overwriting run that finished nothing leaves the old file alone, and a journal that says what it was
    // allowed to replace.
    const std::string two = bytes_of(folder.file);
    { ResultFile results(folder.file, sample_run(), Existing::overwrite); }
    BOOST_TEST((bytes_of(folder.file) == two));
    BOOST_TEST(folder.list() == "out.h5 out.h5.journal");

    // A file that appears during a run that was not asked to replace one is not replaced.
    fs::remove(folder.file);
    ResultFile results(folder.file, sample_run(), Existing::refuse);
    results.append(sample_request(0));
    write_bytes(folder.file, "mine");
    check_error(Exit::failure, {"another program", "recover"}, [&] { results.finish({}); });
    BOOST_TEST(bytes_of(folder.file) == "mine");
    BOOST_TEST(folder.list() == "out.h5 out.h5.journal");
    fs::remove(folder.file);
    results.finish({});
    BOOST_TEST(read_results(folder.file).requests.size() == 1u);
}

BOOST_AUTO_TEST_CASE(files_that_are_no_results) {
    Folder folder;
    const auto refused = [&](const fs::path& path, const std::vector<std::string>& words) {
        check_error(Exit::bad_input, words, [&] { read_results(path); });
    };
    refused(folder.path / "none.h5", {"none.h5", "does not exist"});
    refused(folder.path, {"not a regular file"});
    write_bytes(folder.file, "");
    refused(folder.file, {"not an HDF5 file"});
    write_bytes(folder.file, "text");
    refused(folder.file, {"not an HDF5 file"});
    fs::remove(folder.file);
    write_run(folder.file, 3);
    const std::string whole = bytes_of(folder.file);
    for (const std::size_t cut :
         {std::size_t{8}, std::size_t{96}, std::size_t{1000}, whole.size() / 2, whole.size() - 49}) {
        write_bytes(folder.file, whole.substr(0, cut));
        refused(folder.file, {"out.h5: cannot be opened as an HDF5 file"});
        check_error(Exit::bad_input, {"out.h5: lacks the checksum", "is truncated", "copy it again"},
                    [&] { ResultFile(folder.file, sample_run(), Existing::resume); });
    }
}

BOOST_AUTO_TEST_CASE(a_damaged_file_is_refused_before_hdf5_reads_it) {
    Folder folder;
    write_run(folder.file, 3);
    const std::string whole = bytes_of(folder.file);
    for (std::size_t at = 8; at < whole.size(); at += 61) {
        std::string changed = whole;
        changed[at] = static_cast<char>(changed[at] ^ (1 << at % 8));
        write_bytes(folder.file, changed);
        // What says that a checksum follows is no data.
        if (at >= whole.size() - 48 && at < whole.size() - 32) BOOST_TEST(read_results(folder.file).changed);
        else check_error(Exit::bad_input, {"is damaged"}, [&] { read_results(folder.file); });
    }
}

BOOST_AUTO_TEST_CASE(what_another_program_has_written_to_is_compared_and_not_gone_on_from) {
    Folder folder;
    const fs::path other = folder.path / "other.h5";
    write_run(other, 3);
    const StoredRun same = read_results(other);
    BOOST_TEST(!same.changed);
    fs::remove(other);
    write_run(folder.file, 3);
    const auto changed = [&](const std::function<void(hid_t)>& change) {
        const hid_t file = H5Fopen(folder.file.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
        BOOST_REQUIRE(file >= 0);
        change(file);
        BOOST_REQUIRE(H5Fclose(file) >= 0);
        BOOST_TEST(!has_checksum(folder.file));
        const StoredRun run = read_results(folder.file, Contents::compared);
        BOOST_TEST(run.changed);
        BOOST_TEST(!compare_results(run, same));
        BOOST_TEST(read_results(folder.file).requests[2].step_sha256 == same.requests[2].step_sha256);
        check_error(Exit::bad_input,
                    {"out.h5: lacks the checksum", "another program has written to it", "ftmpi verify"},
                    [&] { ResultFile(folder.file, sample_run(), Existing::resume); });
        BOOST_TEST(folder.list() == "out.h5");
    };
    changed([](hid_t) {});
    changed([](hid_t file) {
        // As h5py writes a number, a text of fixed length, and an array of both.
        const hsize_t two = 2;
        const hid_t one = H5Screate(H5S_SCALAR), many = H5Screate_simple(1, &two, nullptr);
        const hid_t fixed = H5Tcopy(H5T_C_S1), variable = H5Tcopy(H5T_C_S1);
        H5Tset_size(fixed, 4);
        H5Tset_size(variable, H5T_VARIABLE);
        const hid_t request = H5Gopen2(file, "/requests/1", H5P_DEFAULT);
        int name = 0;
        for (const hid_t at : {file, request})
            for (const hid_t type : {fixed, variable, H5T_NATIVE_DOUBLE})
                for (const hid_t space : {one, many}) {
                    const std::string label = "note" + std::to_string(name++);
                    const hid_t attribute =
                        H5Acreate2(at, label.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT);
                    BOOST_REQUIRE(attribute >= 0);
                    H5Aclose(attribute);
                }
        H5Gclose(request);
        for (const hid_t type : {fixed, variable}) H5Tclose(type);
        for (const hid_t space : {one, many}) H5Sclose(space);
    });
    // What it has written into the data is seen.
    const hid_t file = H5Fopen(folder.file.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    const hid_t ids = H5Dopen2(file, "/requests/1/output_ids", H5P_DEFAULT);
    const std::int32_t other_ids[] = {10, 11, 99, 13};
    BOOST_REQUIRE(H5Dwrite(ids, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, other_ids) >= 0);
    H5Dclose(ids);
    H5Fclose(file);
    const auto difference = compare_results(read_results(folder.file), same);
    BOOST_REQUIRE(difference.has_value());
    BOOST_TEST(difference->request == 1);
    BOOST_TEST(difference->step == 2);
}

BOOST_AUTO_TEST_CASE(overwrite_replaces_results_only) {
    Folder folder;
    for (const std::string mine : {"my own notes, longer than a signature\n", "short", ""}) {
        write_bytes(folder.file, mine);
        check_error(Exit::usage, {"out.h5: is not an HDF5 file"},
                    [&] { ResultFile(folder.file, sample_run(), Existing::overwrite); });
        BOOST_TEST(bytes_of(folder.file) == mine);
        BOOST_TEST(folder.list() == "out.h5");
    }
    fs::remove(folder.file);
    leave_journal(folder.file, 2);
    const std::string journal = bytes_of(folder.journal);
    write_bytes(folder.file, "mine");
    check_error(Exit::usage, {"out.h5: is not an HDF5 file"}, [&] { recover_results(folder.file, true); });
    check_error(Exit::usage, {"out.h5: is not an HDF5 file"},
                [&] { ResultFile(folder.file, sample_run(), Existing::resume); });
    BOOST_TEST(bytes_of(folder.file) == "mine");
    BOOST_TEST((bytes_of(folder.journal) == journal));
    // Put there during a run that may replace the result that was there before.
    fs::remove(folder.file);
    BOOST_TEST(recover_results(folder.file) == 2);
    ResultFile results(folder.file, sample_run(), Existing::overwrite);
    results.append(sample_request(0));
    write_bytes(folder.file, "mine");
    check_error(Exit::usage, {"out.h5: is not an HDF5 file", "recover"}, [&] { results.finish({}); });
    BOOST_TEST(bytes_of(folder.file) == "mine");
    BOOST_TEST(folder.list() == "out.h5 out.h5.journal");
}

BOOST_AUTO_TEST_CASE(overwrite_keeps_hdf5_files_of_other_programs) {
    Folder folder;
    // Bare, with one attribute of the same name, and a result of ours that a copy has cut short.
    const auto make = [&](bool with_version) {
        const hid_t file = H5Fcreate(folder.file.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
        if (with_version) {
            const hid_t space = H5Screate(H5S_SCALAR);
            const hid_t attribute =
                H5Acreate2(file, "schema_version", H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
            const long long one = 1;
            BOOST_REQUIRE(H5Awrite(attribute, H5T_NATIVE_LLONG, &one) >= 0);
            H5Aclose(attribute);
            H5Sclose(space);
        }
        BOOST_REQUIRE(H5Fclose(file) >= 0);
    };
    const auto refused = [&] {
        const std::string mine = bytes_of(folder.file);
        check_error(Exit::usage, {"out.h5: is an HDF5 file, but no whole result of ftmpi"},
                    [&] { ResultFile(folder.file, sample_run(), Existing::overwrite); });
        check_error(Exit::bad_input, {"out.h5"},
                    [&] { ResultFile(folder.file, sample_run(), Existing::resume); });
        BOOST_TEST((bytes_of(folder.file) == mine));
        BOOST_TEST(folder.list() == "out.h5");
    };
    make(false);
    refused();
    make(true);
    refused();
    fs::remove(folder.file);
    write_run(folder.file, 2);
    const std::string whole = bytes_of(folder.file);
    write_bytes(folder.file, whole.substr(0, whole.size() / 2));
    refused();
    // Without its checksum, as h5repack leaves it, it is still ours.
    write_bytes(folder.file, whole.substr(0, whole.size() - 48));
    write_run(folder.file, 1, Existing::overwrite);
    BOOST_TEST(read_results(folder.file).requests.size() == 1u);
}

BOOST_AUTO_TEST_CASE(what_has_the_name_of_the_part_is_not_touched) {
    Folder folder;
    const fs::path part = folder.path / "out.h5.part", other = folder.path / "other.h5";
    write_run(other, 1);
    const std::string result = bytes_of(other);
    leave_journal(folder.file, 1);
    const std::string journal = bytes_of(folder.journal);
    fs::remove(folder.journal);
    const auto refused = [&](const std::string& words) {
        for (const Existing existing : {Existing::refuse, Existing::overwrite, Existing::resume})
            check_error(Exit::usage, {"out.h5.part", words},
                        [&] { ResultFile(folder.file, sample_run(), existing); });
        BOOST_TEST(folder.list() == "other.h5 out.h5.part");
        write_bytes(folder.journal, journal);
        check_error(Exit::usage, {"out.h5.part", words}, [&] { recover_results(folder.file); });
        BOOST_TEST(folder.list() == "other.h5 out.h5.journal out.h5.part");
        fs::remove(folder.journal);
    };
    fs::create_symlink("other.h5", part);
    refused("symbolic link");
    BOOST_TEST((fs::is_symlink(part) && bytes_of(other) == result));
    fs::remove(part);
    fs::create_symlink("nowhere", part);
    refused("symbolic link");
    fs::remove(part);
    fs::create_directory(part);
    refused("directory");
    fs::remove(part);
    BOOST_REQUIRE(::mkfifo(part.c_str(), 0600) == 0);
    refused("not a regular file");
    fs::remove(part);
    write_bytes(part, "my own notes\n");
    refused("not an HDF5 file");
    BOOST_TEST(bytes_of(part) == "my own notes\n");

    // An HDF5 file there may be the remainder of a killed run: replaced when asked, and no other name of it
    // is written to.
    fs::remove(part);
    fs::create_hard_link(other, part);
    check_error(Exit::usage, {"out.h5.part", "--overwrite"},
                [&] { ResultFile(folder.file, sample_run(), Existing::refuse); });
    BOOST_TEST(folder.list() == "other.h5 out.h5.part");
    for (const Existing existing : {Existing::overwrite, Existing::resume}) {
        write_run(folder.file, 2, existing);
        BOOST_TEST(folder.list() == "other.h5 out.h5");
        BOOST_TEST((bytes_of(other) == result));
        fs::remove(folder.file);
        fs::create_hard_link(other, part);
    }

    // Made by another program during the run: kept, and so is the journal.
    fs::remove(part);
    ResultFile results(folder.file, sample_run(), Existing::refuse);
    results.append(sample_request(0));
    fs::create_symlink("other.h5", part);
    check_error(Exit::usage, {"out.h5.part", "symbolic link", "recover"}, [&] { results.finish({}); });
    BOOST_TEST((fs::is_symlink(part) && bytes_of(other) == result));
    BOOST_TEST(folder.list() == "other.h5 out.h5.journal out.h5.part");
}

BOOST_AUTO_TEST_CASE(a_full_disk) {
    // A limit on the size of files stands for the disk: every write beyond it fails, in the journal and in
    // HDF5 alike.
    ::signal(SIGXFSZ, SIG_IGN);
    Folder folder;
    const auto limited = [](rlim_t bytes, const std::function<int()>& body) {
        return in_child([&] {
            const rlimit limit{bytes, bytes};
            if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 98;
            return body();
        });
    };
    // At the start: nothing is left behind.
    for (const rlim_t bytes : {0, 1, 100, 600})
        BOOST_TEST(limited(bytes, [&] {
                       ResultFile(folder.file, sample_run(), Existing::refuse);
                       return 0;
                   }) == static_cast<int>(Exit::failure));
    BOOST_TEST(folder.list() == "");

    // While appending: what was whole stays whole, and the run may go on when there is room again.
    BOOST_TEST(limited(4000, [&] {
                   ResultFile results(folder.file, sample_run(), Existing::refuse);
                   for (std::int64_t i = 0; i < 100; ++i) results.append(sample_request(i));
                   return 0;
               }) == static_cast<int>(Exit::failure));
    const StoredRun stored = read_journal(folder.journal);
    BOOST_TEST(!stored.torn_tail);
    BOOST_TEST(stored.requests.size() >= 2u);
    BOOST_TEST(stored.requests.size() < 100u);
    fs::remove(folder.journal);

    // While the HDF5 file is made, at every size it may fail at: no crash, no result, no .part, the journal
    // whole.
    leave_journal(folder.file, 20);
    const std::string journal = bytes_of(folder.journal);
    {
        Folder other;
        write_bytes(other.journal, journal);
        recover_results(other.file);
        const auto size = fs::file_size(other.file);
        BOOST_TEST(journal.size() < size);
        for (rlim_t bytes = journal.size(); bytes < size; bytes += 997) {
            const int status = limited(bytes, [&] {
                recover_results(folder.file);
                return 0;
            });
            if (status != static_cast<int>(Exit::failure))
                BOOST_ERROR("limit " << bytes << " of " << size << ": status " << status);
            if (folder.list() != "out.h5.journal")
                BOOST_ERROR("limit " << bytes << " leaves " << folder.list());
        }
    }
    BOOST_TEST((bytes_of(folder.journal) == journal));
    BOOST_TEST(recover_results(folder.file) == 20);

    // The message says why, and how to go on.
    fs::remove(folder.file);
    write_bytes(folder.journal, journal);
    BOOST_TEST(limited(journal.size() + 5000, [&] {
                   try {
                       recover_results(folder.file);
                   } catch (const Error& error) {
                       const std::string what = error.what();
                       return what.find("File too large") != std::string::npos &&
                                      error.hint().find("ftmpi recover") != std::string::npos
                                  ? 42
                                  : 43;
                   }
                   return 0;
               }) == 42);
}
