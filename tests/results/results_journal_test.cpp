// The journal: nothing finished is lost to a kill at any byte or a loss of power, damage is found and said,
// two runs never share an output.
#define BOOST_TEST_MODULE results_journal
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "results_checks.hpp"

namespace {

/// Asked before each flush and each cut of a file (the call's number): an errno in place of the call, or 0.
std::function<int(long call, int fd)> on_disk;

int asked_first(long call, int fd, long argument = 0) {
    if (const int error = on_disk ? on_disk(call, fd) : 0) {
        errno = error;
        return -1;
    }
    return static_cast<int>(::syscall(call, fd, argument));
}

/// Folders cannot be flushed.
int fail_folders(long, int fd) {
    struct stat status {};
    return ::fstat(fd, &status) == 0 && S_ISDIR(status.st_mode) ? EIO : 0;
}

}  // namespace

// In place of the C library's.
extern "C" int fsync(int fd) { return asked_first(SYS_fsync, fd); }
extern "C" int fdatasync(int fd) { return asked_first(SYS_fdatasync, fd); }
extern "C" int ftruncate(int fd, off_t bytes) noexcept { return asked_first(SYS_ftruncate, fd, bytes); }

BOOST_AUTO_TEST_CASE(journals_of_killed_runs) {
    Folder folder;
    leave_journal(folder.file, 3);
    BOOST_TEST(folder.list() == "out.h5.journal");
    check_error(Exit::usage, {"3 finished requests", "recover", "--resume", "--overwrite"},
                [&] { ResultFile(folder.file, sample_run(), Existing::refuse); });
    const StoredRun stored = read_journal(folder.journal);
    BOOST_TEST(stored.requests.size() == 3u);
    BOOST_TEST(!stored.torn_tail);
    BOOST_TEST(!stored.complete);
    check_equal(stored.run, sample_run());
    check_error(Exit::bad_input, {"does not exist", "recover"}, [&] { read_results(folder.file); });
    check_error(Exit::bad_input, {"is a journal"}, [&] { read_results(folder.journal); });

    std::string note = "old";
    BOOST_TEST(recover_results(folder.file, false, &note) == 3);
    BOOST_TEST(note == "");
    BOOST_TEST(folder.list() == "out.h5");
    StoredRun recovered = read_results(folder.file);
    BOOST_TEST(!recovered.complete);
    check_equal(recovered.run, sample_run());
    for (std::int64_t i = 0; i < 3; ++i)
        check_equal(recovered.requests.at(static_cast<std::size_t>(i)), sample_request(i));
    check_error(Exit::bad_input, {"nothing to recover"}, [&] { recover_results(folder.file); });

    // A run that overwrites is killed: its journal does not replace the old file unasked.
    leave_journal(folder.file, 1, Existing::overwrite);
    check_error(Exit::usage, {"another run", "--overwrite"}, [&] { recover_results(folder.file); });
    BOOST_TEST(read_results(folder.file).requests.size() == 3u);
    BOOST_TEST(recover_results(folder.file, true) == 1);
    BOOST_TEST(read_results(folder.file).requests.size() == 1u);

    // --overwrite drops a journal, and a journal without a finished request is in nobody's way.
    fs::remove(folder.file);
    leave_journal(folder.file, 2);
    write_run(folder.file, 1, Existing::overwrite);
    BOOST_TEST(read_results(folder.file).requests.size() == 1u);
    BOOST_TEST(folder.list() == "out.h5");
    write_bytes(folder.path / "other.h5.journal", "my own notes\n");
    check_error(Exit::bad_input, {"not a journal"},
                [&] { ResultFile(folder.path / "other.h5", sample_run(), Existing::overwrite); });
    BOOST_TEST(bytes_of(folder.path / "other.h5.journal") == "my own notes\n");
}

BOOST_AUTO_TEST_CASE(killed_while_the_file_is_made) {
    Folder folder;
    leave_journal(folder.file, 4);
    const std::string journal = bytes_of(folder.journal);
    // While the requests are written, at any moment: what the kill leaves begins as an HDF5 file and is
    // replaced.
    write_bytes(folder.path / "out.h5.part", "\x89HDF\r\n\x1a\nhalf of a file");
    BOOST_TEST(recover_results(folder.file) == 4);
    BOOST_TEST(folder.list() == "out.h5");
    // Between the rename and the removal of the journal: nothing is to do but that.
    const std::string file = bytes_of(folder.file);
    write_bytes(folder.journal, journal);
    std::string note;
    BOOST_TEST(recover_results(folder.file, false, &note) == 4);
    BOOST_TEST((note.find("whole already") != std::string::npos), note);
    BOOST_TEST((bytes_of(folder.file) == file));
    BOOST_TEST(folder.list() == "out.h5");
    // The same seen by the next run: the file counts, the journal does not.
    write_bytes(folder.journal, journal);
    { BOOST_TEST(ResultFile(folder.file, sample_run(), Existing::resume).finished().size() == 4u); }
}

BOOST_AUTO_TEST_CASE(a_kill_loses_nothing_that_was_appended) {
    Folder folder;
    const int status = in_child([&] {
        ResultFile results(folder.file, sample_run(), Existing::refuse);
        for (std::int64_t i = 0; i < 3; ++i) results.append(sample_request(i));
        ::kill(::getpid(), SIGKILL);
        return 0;
    });
    BOOST_TEST(status == 128 + SIGKILL);
    BOOST_TEST(folder.list() == "out.h5.journal");
    BOOST_TEST(recover_results(folder.file) == 3);
}

BOOST_AUTO_TEST_CASE(every_truncation_of_a_journal) {
    Folder folder;
    leave_journal(folder.file, 3);
    const std::string whole = bytes_of(folder.journal);
    std::vector<std::size_t> good;  // bytes after which i requests are whole
    for (std::int64_t n = 0; n < 3; ++n) {
        Folder other;
        leave_journal(other.file, n + 1);
        good.push_back(bytes_of(other.journal).size());
    }
    BOOST_REQUIRE(good.back() == whole.size());
    std::size_t torn = 0;
    for (std::size_t cut = 0; cut < whole.size(); ++cut) {
        write_bytes(folder.journal, whole.substr(0, cut));
        const std::size_t expected = static_cast<std::size_t>(
            std::count_if(good.begin(), good.end(), [&](auto g) { return g <= cut; }));
        if (cut == 0) {
            check_error(Exit::bad_input, {"holds no run"}, [&] { read_journal(folder.journal); });
            continue;
        }
        const StoredRun stored = read_journal(folder.journal);
        if (stored.requests.size() != expected)
            BOOST_ERROR("cut at " << cut << ": " << stored.requests.size() << " requests");
        torn += stored.torn_tail;
        if (stored.torn_tail == stored.note.empty())
            BOOST_ERROR("cut at " << cut << ": note \"" << stored.note << "\"");
    }
    // Only a cut between two records (after the run and two of the requests) is clean.
    BOOST_TEST(torn == whole.size() - 1 - 3);

    // The run goes on after the tear, over what is left of the torn record.
    write_bytes(folder.journal, whole.substr(0, whole.size() - 5));
    {
        ResultFile results(folder.file, sample_run(), Existing::resume);
        BOOST_TEST((results.finished() == std::vector<std::int64_t>{0, 1}));
        BOOST_TEST((results.warning().find("after 2 finished requests") != std::string::npos),
                   results.warning());
        results.append(sample_request(2));
        results.finish({});
    }
    BOOST_TEST(read_results(folder.file).requests.size() == 3u);
}

BOOST_AUTO_TEST_CASE(garbage_after_a_journal) {
    Folder folder;
    leave_journal(folder.file, 2);
    const std::string whole = bytes_of(folder.journal);
    std::uint32_t random = 1;
    for (int length = 1; length < 200; length += 3) {
        std::string tail;
        for (int i = 0; i < length; ++i)
            tail += static_cast<char>((random = random * 1664525u + 1013904223u) >> 24);
        if (length % 2) tail.assign(tail.size(), '\0');
        write_bytes(folder.journal, whole + tail);
        const StoredRun stored = read_journal(folder.journal);
        BOOST_TEST(stored.requests.size() == 2u);
        BOOST_TEST(stored.torn_tail);
    }
    // A length that no file can have allocates nothing.
    write_bytes(folder.journal, whole + std::string(8, '\xFF') + std::string(16, '\0'));
    BOOST_TEST(read_journal(folder.journal).requests.size() == 2u);
}

BOOST_AUTO_TEST_CASE(every_flipped_byte_of_a_journal) {
    Folder folder;
    leave_journal(folder.file, 2);
    const std::string whole = bytes_of(folder.journal);
    Folder one;
    leave_journal(one.file, 1);
    const std::size_t first_end = bytes_of(one.journal).size();
    for (std::size_t at = 0; at < whole.size(); ++at) {
        std::string changed = whole;
        changed[at] = static_cast<char>(changed[at] ^ (1 << at % 8));
        write_bytes(folder.journal, changed);
        if (at < 16) {
            check_error(Exit::bad_input, {"not a journal"}, [&] { read_journal(folder.journal); });
            continue;
        }
        const StoredRun stored = read_journal(folder.journal);
        const bool right =
            stored.torn_tail && !stored.note.empty() && stored.requests.size() == (at >= first_end ? 1u : 0u);
        if (!right)
            BOOST_ERROR("flip at " << at << ": " << stored.requests.size() << " requests, " << stored.note);
    }

    // Damage before whole records is said, is not resumed over, and the journal is kept aside by recover.
    leave_journal(folder.path / "long.h5", 3);
    std::string changed = bytes_of(folder.path / "long.h5.journal");
    changed[first_end + 40] = static_cast<char>(changed[first_end + 40] ^ 4);
    write_bytes(folder.path / "long.h5.journal", changed);
    check_error(Exit::bad_input,
                {"after 1 finished request", "at byte " + std::to_string(first_end), "checksum", "recover"},
                [&] { ResultFile(folder.path / "long.h5", sample_run(), Existing::resume); });
    std::string note;
    BOOST_TEST(recover_results(folder.path / "long.h5", false, &note) == 1);
    BOOST_TEST((note.find("long.h5.journal.damaged") != std::string::npos), note);
    BOOST_TEST((bytes_of(folder.path / "long.h5.journal.damaged") == changed));
}

BOOST_AUTO_TEST_CASE(a_run_that_goes_on_waits_a_moment_for_the_one_before) {
    for (const bool recover : {false, true}) {
        Folder folder;
        auto first = std::make_unique<ResultFile>(folder.file, sample_run(), Existing::refuse);
        first->append(sample_request(0));
        const int pid = ::fork();  // holds the lock as a process that was killed does, until it has ended
        if (pid == 0) {
            ::usleep(600000);
            ::_exit(0);
        }
        first.reset();
        const auto before = std::chrono::steady_clock::now();
        if (recover) {
            BOOST_TEST(recover_results(folder.file) == 1);
        } else {
            const ResultFile again(folder.file, sample_run(), Existing::resume);
            BOOST_TEST((again.finished() == std::vector<std::int64_t>{0}));
        }
        BOOST_TEST((std::chrono::steady_clock::now() - before > std::chrono::milliseconds(300)));
        BOOST_TEST(::waitpid(pid, nullptr, 0) == pid);
    }
}

BOOST_AUTO_TEST_CASE(two_writers) {
    Folder folder;
    ResultFile first(folder.file, sample_run(), Existing::refuse);
    first.append(sample_request(0));
    for (const Existing existing : {Existing::refuse, Existing::overwrite, Existing::resume})
        check_error(Exit::failure, {"another process is writing"},
                    [&] { ResultFile(folder.file, sample_run(), existing); });
    check_error(Exit::failure, {"another process is writing"}, [&] { recover_results(folder.file); });
    const int other_process = in_child([&] {
        ResultFile(folder.file, sample_run(), Existing::overwrite);
        return 0;
    });
    BOOST_TEST(other_process == static_cast<int>(Exit::failure));
    first.append(sample_request(1));
    first.finish({});
    BOOST_TEST(read_results(folder.file).requests.size() == 2u);
}

BOOST_AUTO_TEST_CASE(zeros_that_a_loss_of_power_leaves) {
    Folder folder;
    leave_journal(folder.file, 2);
    const std::string whole = bytes_of(folder.journal);
    for (const std::size_t zeros : {1, 23, 24, 100, 4096, 200'000}) {
        write_bytes(folder.journal, whole + std::string(zeros, '\0'));
        ResultFile results(folder.file, sample_run(), Existing::resume);
        BOOST_TEST(results.finished().size() == 2u);
        BOOST_TEST((results.warning().find("byte" + std::string(zeros == 1 ? "" : "s") + " from there on") !=
                    std::string::npos),
                   results.warning());
    }
    write_bytes(folder.journal, std::string(300, '\0'));
    { BOOST_TEST(ResultFile(folder.file, sample_run(), Existing::resume).finished().empty()); }
    write_bytes(folder.journal, whole + std::string(100, '\0') + "x");
    check_error(Exit::bad_input, {"no record"},
                [&] { ResultFile(folder.file, sample_run(), Existing::resume); });
}

BOOST_AUTO_TEST_CASE(holes_among_the_copies_of_a_finished_file) {
    Folder folder;
    write_run(folder.file, 5);
    { ResultFile results(folder.file, sample_run(), Existing::resume); }
    const std::string whole = bytes_of(folder.journal);
    std::uint64_t run_bytes = 0;
    std::memcpy(&run_bytes, whole.data() + 16, sizeof run_bytes);
    const std::size_t first_copy = 16 + 24 + run_bytes;
    const auto with_hole = [](std::string bytes, std::size_t at) {
        const std::size_t length = std::min<std::size_t>(64, bytes.size() - at);
        return bytes.replace(at, length, length, '\0');
    };
    for (std::size_t at = first_copy; at < whole.size(); at += 61) {
        write_bytes(folder.journal, with_hole(whole, at));
        ResultFile results(folder.file, sample_run(), Existing::resume);
        if (results.finished().size() != 5)
            BOOST_ERROR("hole at " << at << ": " << results.finished().size() << " requests");
        BOOST_TEST(read_journal(folder.journal).requests.size() == 5u);
    }
    // What was appended behind the copies is nowhere else, and without the file nor are they.
    write_bytes(folder.journal, whole);
    {
        ResultFile results(folder.file, sample_run(), Existing::resume);
        results.append(sample_request(5));
    }
    const std::string longer = with_hole(bytes_of(folder.journal), first_copy + 30);
    write_bytes(folder.journal, longer);
    check_error(Exit::bad_input, {"recover"},
                [&] { ResultFile(folder.file, sample_run(), Existing::resume); });
    BOOST_TEST((bytes_of(folder.journal) == longer));
    fs::remove(folder.file);
    write_bytes(folder.journal, with_hole(whole, first_copy + 30));
    check_error(Exit::bad_input, {"recover"},
                [&] { ResultFile(folder.file, sample_run(), Existing::resume); });
}

BOOST_AUTO_TEST_CASE(a_torn_tail_is_cut_before_it_is_written_over) {
    Folder folder;
    leave_journal(folder.file, 2);
    {
        ResultFile results(folder.file, sample_run(), Existing::resume);
        RequestRecord longer = sample_request(2);
        longer.text = std::string(10'000, 't');
        results.append(longer);
    }
    const std::string whole = bytes_of(folder.journal);
    write_bytes(folder.journal, whole.substr(0, whole.size() - 5));
    const int status = in_child([&] {
        on_disk = [&](long call, int fd) {
            struct stat given {
            }, journal{};
            if (call == SYS_ftruncate && ::fstat(fd, &given) == 0 &&
                ::stat(folder.journal.c_str(), &journal) == 0 && given.st_ino == journal.st_ino)
                ::kill(::getpid(), SIGKILL);
            return 0;
        };
        ResultFile(folder.file, sample_run(), Existing::resume);
        return 0;
    });
    BOOST_TEST(status == 128 + SIGKILL);
    { BOOST_TEST(ResultFile(folder.file, sample_run(), Existing::resume).finished().size() == 2u); }
}

BOOST_AUTO_TEST_CASE(recover_sets_aside_what_is_damaged) {
    Folder folder;
    write_run(folder.file, 3);
    for (const std::string aside : {"out.h5.damaged", "out.h5.damaged.2", "out.h5.damaged.3"}) {
        { ResultFile results(folder.file, sample_run(), Existing::resume); }
        std::string damaged = bytes_of(folder.file);
        damaged[1000] ^= 1;
        if (aside.ends_with("2")) damaged.resize(damaged.size() / 2);
        write_bytes(folder.file, damaged);
        check_error(Exit::bad_input, {"out.h5", "move it away", "--overwrite"},
                    [&] { recover_results(folder.file); });
        std::string note;
        BOOST_TEST(recover_results(folder.file, true, &note) == 3);
        BOOST_TEST((note.ends_with("kept as " + (folder.path / aside).string())), note);
        BOOST_TEST((bytes_of(folder.path / aside) == damaged));
    }
    BOOST_TEST(folder.list() == "out.h5 out.h5.damaged out.h5.damaged.2 out.h5.damaged.3");

    // Journals too.
    const fs::path file = folder.path / "j.h5";
    for (const std::string aside : {"j.h5.journal.damaged", "j.h5.journal.damaged.2"}) {
        leave_journal(file, 2);
        const std::string damaged = bytes_of(folder.path / "j.h5.journal") + std::string(40, aside.back());
        write_bytes(folder.path / "j.h5.journal", damaged);
        BOOST_TEST(recover_results(file) == 2);
        fs::remove(file);
        BOOST_TEST((bytes_of(folder.path / aside) == damaged));
    }
    BOOST_TEST((bytes_of(folder.path / "j.h5.journal.damaged").back() == 'd'));
}

BOOST_AUTO_TEST_CASE(a_folder_that_cannot_be_flushed) {
    Folder folder;
    const fs::path said = folder.path / "said";
    const int status = in_child([&] {
        ResultFile results(folder.file, sample_run(), Existing::refuse);
        for (std::int64_t i = 0; i < 3; ++i) results.append(sample_request(i));
        on_disk = fail_folders;
        if (!std::freopen(said.c_str(), "w", stderr)) return 98;
        results.finish({});
        return 0;
    });
    BOOST_TEST(status == 0);
    const std::string text = bytes_of(said);
    BOOST_TEST((text.starts_with("note: ") && text.find("out.h5.journal was kept") != std::string::npos),
               text);
    BOOST_TEST(folder.list() == "out.h5 out.h5.journal said");
    BOOST_TEST(read_results(folder.file).complete);

    // The journal is known by its id, and dropped by nobody before the name is on the disk.
    const std::string journal = bytes_of(folder.journal);
    on_disk = fail_folders;
    check_error(Exit::failure, {"cannot be flushed"},
                [&] { ResultFile(folder.file, sample_run(), Existing::resume); });
    std::string note;
    BOOST_TEST(recover_results(folder.file, false, &note) == 3);
    BOOST_TEST(
        (note.find("whole already") != std::string::npos && note.find("was kept") != std::string::npos),
        note);
    BOOST_TEST((bytes_of(folder.journal) == journal));
    // The power was lost, and the name with it.
    fs::remove(folder.file);
    BOOST_TEST(recover_results(folder.file, false, &note) == 3);
    BOOST_TEST((note.find("was kept") != std::string::npos), note);
    on_disk = nullptr;
    { BOOST_TEST(ResultFile(folder.file, sample_run(), Existing::resume).finished().size() == 3u); }
    write_bytes(folder.journal, journal);
    fs::remove(folder.file);
    BOOST_TEST(recover_results(folder.file) == 3);
    BOOST_TEST(folder.list() == "out.h5 said");
}

BOOST_AUTO_TEST_CASE(flushes_that_a_signal_interrupts) {
    Folder folder;
    bool interrupted = false;
    on_disk = [&](long call, int) {
        return call != SYS_ftruncate && (interrupted = !interrupted) ? EINTR : 0;
    };
    write_run(folder.file, 2);
    BOOST_TEST(!interrupted);
    {
        ResultFile results(folder.file, sample_run(), Existing::resume);
        BOOST_TEST(!interrupted);
    }
    BOOST_TEST(recover_results(folder.file) == 2);
    BOOST_TEST(!interrupted);
    on_disk = nullptr;
    BOOST_TEST(folder.list() == "out.h5");
}
