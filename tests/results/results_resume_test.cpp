// Going on with an earlier run: what is kept of a journal or a finished file, what is replaced, what is
// refused.
#define BOOST_TEST_MODULE results_resume
#include "results_checks.hpp"

BOOST_AUTO_TEST_CASE(resume) {
    Folder folder;
    {
        // Nothing there: an ordinary run.
        ResultFile results(folder.file, sample_run(), Existing::resume);
        BOOST_TEST(results.finished().empty());
        results.append(sample_request(2));
        results.append(sample_request(0));
    }
    check_error(Exit::bad_input, {"another run", "model config: aaaa", "model config: bbbb"},
                [&] { ResultFile(folder.file, sample_run("bbbb"), Existing::resume); });
    RequestRecord later = sample_request(1);
    {
        ResultFile results(folder.file, sample_run(), Existing::resume);
        BOOST_TEST((results.finished() == std::vector<std::int64_t>{0, 2}));
        check_error(Exit::failure, {"twice"}, [&] { results.append(sample_request(2)); });
        results.append(later);
        results.finish({});
    }
    later.session = 1;
    StoredRun stored = read_results(folder.file);
    BOOST_REQUIRE(stored.requests.size() == 3u);
    check_equal(stored.requests[0], sample_request(0));
    check_equal(stored.requests[1], later);

    // From a finished file: the journal is made from it again.
    check_error(Exit::bad_input, {"another run"},
                [&] { ResultFile(folder.file, sample_run("bbbb"), Existing::resume); });
    BOOST_TEST(folder.list() == "out.h5");
    {
        ResultFile results(folder.file, sample_run(), Existing::resume);
        BOOST_TEST(results.finished().size() == 3u);
        BOOST_TEST(read_journal(folder.journal).requests.size() == 3u);
        results.append(sample_request(3));
    }
    // Killed there, with the finished file still in place: both go on, and recover takes them together.
    {
        ResultFile results(folder.file, sample_run(), Existing::resume);
        BOOST_TEST(results.finished().size() == 4u);
    }
    BOOST_TEST(recover_results(folder.file) == 4);
    stored = read_results(folder.file);
    BOOST_TEST(stored.requests.size() == 4u);
    check_equal(stored.requests[1], later);
    BOOST_TEST(stored.requests[3].session == 2);

    // Killed while the journal was being made from the finished file: what it lacks is in the file.
    { ResultFile results(folder.file, sample_run(), Existing::resume); }
    const std::string journal = bytes_of(folder.journal);
    write_bytes(folder.journal, journal.substr(0, journal.size() - 1000));
    BOOST_TEST(read_journal(folder.journal).requests.size() < 4u);
    BOOST_TEST(recover_results(folder.file) == 4);
    write_bytes(folder.journal, journal.substr(0, journal.size() - 1000));
    { BOOST_TEST(ResultFile(folder.file, sample_run(), Existing::resume).finished().size() == 4u); }

    write_bytes(folder.path / "bad.h5", "not HDF5");
    check_error(Exit::bad_input, {"not an HDF5 file"},
                [&] { ResultFile(folder.path / "bad.h5", sample_run(), Existing::resume); });
}

BOOST_AUTO_TEST_CASE(a_finished_file_with_nothing_left_stays_as_it_is) {
    Folder folder;
    const auto write = [&](std::int64_t asked, std::int64_t requests, bool interrupted = false) {
        ResultFile results(folder.file, asked_run(asked), Existing::overwrite);
        for (std::int64_t i = 0; i < requests; ++i) {
            RequestRecord request = sample_request(i);
            if (i == 1) request.error = "a logit is not finite";
            results.append(request);
        }
        results.finish({{{"decode_tokens_per_second", 1500}}}, interrupted);
        return bytes_of(folder.file);
    };
    const std::string whole = write(3, 3);
    RunRecord again = asked_run(3);
    again.attributes[1].second = "ftmpi --resume";  // no part of what must be equal
    for (const bool finish : {true, false}) {
        ResultFile results(folder.file, again, Existing::resume);
        BOOST_TEST(results.nothing_left());
        BOOST_TEST((results.finished() == std::vector<std::int64_t>{0, 1, 2}));
        BOOST_TEST(results.failed_before() == 1);
        check_error(Exit::failure, {"after the end"}, [&] { results.append(sample_request(3)); });
        if (!finish) continue;
        results.finish({});
        check_error(Exit::failure, {"finished twice"}, [&] { results.finish({}); });
    }
    BOOST_TEST((bytes_of(folder.file) == whole));
    BOOST_TEST(folder.list() == "out.h5");

    // A journal beside it: without a request, as a kill of such a --resume leaves it, it says nothing; with
    // one it is gone on from.
    write_bytes(folder.journal, "");
    ResultFile(folder.file, again, Existing::resume).finish({});
    BOOST_TEST((bytes_of(folder.file) == whole));
    BOOST_TEST(folder.list() == "out.h5");
    fs::remove(folder.file);
    {
        ResultFile results(folder.file, asked_run(3), Existing::refuse);
        for (std::int64_t i = 0; i < 3; ++i) results.append(sample_request(i));
    }
    const std::string journal = bytes_of(folder.journal);
    {
        ResultFile results(folder.file, again, Existing::resume);
        BOOST_TEST((!results.nothing_left() && results.finished().size() == 3u));
        results.finish({});
    }
    // Of the same run, left because the folder could not be flushed: the file has it all.
    const std::string made = bytes_of(folder.file);
    write_bytes(folder.journal, journal);
    {
        ResultFile results(folder.file, again, Existing::resume);
        BOOST_TEST(results.nothing_left());
        BOOST_TEST((bytes_of(folder.journal) == journal));
        results.finish({});
    }
    BOOST_TEST((bytes_of(folder.file) == made));
    BOOST_TEST(folder.list() == "out.h5");
    // One that names this file as to be replaced.
    { ResultFile results(folder.file, asked_run(3), Existing::overwrite); }
    {
        ResultFile results(folder.file, again, Existing::resume);
        BOOST_TEST((!results.nothing_left() && results.finished().empty()));
    }
    fs::remove(folder.journal);

    // Files that lack something: a request, the number asked for, an end that the run came to by itself.
    write(3, 2, true);
    BOOST_TEST(!ResultFile(folder.file, again, Existing::resume).nothing_left());
    fs::remove(folder.journal);
    write(0, 3);
    BOOST_TEST(ResultFile(folder.file, again, Existing::resume).nothing_left());
    fs::remove(folder.file);
    leave_journal(folder.file, 3);
    recover_results(folder.file);
    {
        ResultFile results(folder.file, again, Existing::resume);
        BOOST_TEST(!results.nothing_left());
        results.finish({});
    }
    BOOST_TEST(read_results(folder.file).complete);
    check_error(Exit::bad_input, {"another run"},
                [&] { ResultFile(folder.file, sample_run("bbbb"), Existing::resume); });
}

BOOST_AUTO_TEST_CASE(requests_that_were_not_asked_for) {
    Folder folder;
    write_run(folder.file, 3);
    const std::string file = bytes_of(folder.file);
    check_error(Exit::bad_input, {"out.h5 holds request 2, counted from 0, but this run asks for 2 requests"},
                [&] { ResultFile(folder.file, asked_run(2), Existing::resume); });
    BOOST_TEST((bytes_of(folder.file) == file && folder.list() == "out.h5"));
    fs::remove(folder.file);
    leave_journal(folder.file, 3);
    const std::string journal = bytes_of(folder.journal);
    check_error(Exit::bad_input,
                {"out.h5.journal holds request 2, counted from 0, but this run asks for 2 requests"},
                [&] { ResultFile(folder.file, asked_run(2), Existing::resume); });
    BOOST_TEST((bytes_of(folder.journal) == journal));
}

BOOST_AUTO_TEST_CASE(counts_are_of_all_sessions_and_times_of_the_last) {
    Folder folder;
    {
        ResultFile results(folder.file, asked_run(3), Existing::refuse);
        results.append(sample_request(0));
        results.append(sample_request(1));
        results.finish({{{"decode_seconds", 2}}}, true);
    }
    BOOST_TEST(!read_results(folder.file).complete);
    {
        ResultFile results(folder.file, asked_run(3), Existing::resume);
        results.append(sample_request(2));
        results.finish({{{"decode_seconds", 1}}});
    }
    const StoredRun stored = read_results(folder.file);
    BOOST_TEST(stored.complete);
    BOOST_TEST(figure(stored, "requests_count") == 3);
    BOOST_TEST(figure(stored, "prompt_tokens") == 9);
    BOOST_TEST(figure(stored, "output_tokens") == 12);
    BOOST_TEST(figure(stored, "errors_count") == 0);
    BOOST_TEST(figure(stored, "decode_seconds") == 1);
}

BOOST_AUTO_TEST_CASE(resume_replaces_what_overwrite_was_given_for) {
    Folder folder;
    write_run(folder.file, 3);
    for (const std::int64_t done : {0, 1}) {
        const int status = in_child([&] {
            ResultFile results(folder.file, sample_run(), Existing::overwrite);
            for (std::int64_t i = 0; i < done; ++i) results.append(sample_request(i));
            return ::kill(::getpid(), SIGKILL);
        });
        BOOST_TEST(status == 128 + SIGKILL);
        check_error(Exit::bad_input, {"out.h5.journal was made by another run"},
                    [&] { ResultFile(folder.file, sample_run("bbbb"), Existing::resume); });
        for (int resumed = 0; resumed < 2; ++resumed) {  // and ended again, without a kill
            ResultFile results(folder.file, sample_run(), Existing::resume);
            BOOST_TEST(results.finished().size() == static_cast<std::size_t>(done));
            BOOST_TEST((results.warning().find("will be replaced") != std::string::npos), results.warning());
        }
        ResultFile results(folder.file, sample_run(), Existing::resume);
        for (std::int64_t i = done; i < 2; ++i) results.append(sample_request(i));
        results.finish({});
        BOOST_TEST(read_results(folder.file).requests.size() == 2u);
    }
}

BOOST_AUTO_TEST_CASE(resume_replaces_no_other_file) {
    Folder folder;
    write_run(folder.path / "other.h5", 3);
    const std::string other = bytes_of(folder.path / "other.h5");
    for (const bool overwrite : {false, true}) {
        if (overwrite) write_run(folder.file, 2);
        const std::string old = bytes_of(folder.file);
        leave_journal(folder.file, 1, overwrite ? Existing::overwrite : Existing::refuse);
        const std::string journal = bytes_of(folder.journal);
        write_bytes(folder.file, other);
        check_error(Exit::usage, {"another run", "move it away"},
                    [&] { ResultFile(folder.file, sample_run(), Existing::resume); });
        check_error(Exit::usage, {"another run", "move it away"}, [&] { recover_results(folder.file); });
        BOOST_TEST((bytes_of(folder.file) == other && bytes_of(folder.journal) == journal));

        // Put there while the run goes on.
        fs::remove(folder.file);
        if (overwrite) write_bytes(folder.file, old);
        ResultFile results(folder.file, sample_run(), Existing::resume);
        BOOST_TEST(results.finished().size() == 1u);
        write_bytes(folder.file, other);
        check_error(Exit::failure, {"another program", "recover"}, [&] { results.finish({}); });
        BOOST_TEST((bytes_of(folder.file) == other));
        fs::remove(folder.file);
        fs::remove(folder.journal);
    }
}
