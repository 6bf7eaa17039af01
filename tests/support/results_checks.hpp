// What the tests of results share: a folder, records compared field by field, errors and crashes looked at.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "error.hpp"
#include "results.hpp"
#include "results_samples.hpp"

namespace fs = std::filesystem;
using namespace ftmpi;
using Existing = ResultFile::Existing;

/// A folder of its own for each test, in memory where that is possible: thousands of flushes are made below.
struct Folder {
    Folder() {
        std::string name =
            (::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : fs::temp_directory_path().string()) +
            "/ftmpi-results-XXXXXX";
        BOOST_REQUIRE(::mkdtemp(name.data()));
        path = name;
        file = path / "out.h5";
        journal = path / "out.h5.journal";
    }
    ~Folder() {
        std::error_code ignored;
        fs::remove_all(path, ignored);
    }
    /// Names in the folder, sorted, for checking that nothing is left over.
    std::string list() const {
        std::vector<std::string> names;
        for (const auto& entry : fs::directory_iterator(path)) names.push_back(entry.path().filename());
        std::sort(names.begin(), names.end());
        std::string text;
        for (const auto& name : names) text += (text.empty() ? "" : " ") + name;
        return text;
    }
    fs::path path, file, journal;
};

inline std::string bytes_of(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_bytes(const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline void check_equal(const RequestRecord& a, const RequestRecord& b) {
    BOOST_TEST(a.index == b.index);
    BOOST_TEST((a.id == b.id));
    BOOST_TEST((a.prompt == b.prompt));
    BOOST_TEST((a.prompt_ids == b.prompt_ids));
    BOOST_TEST((a.output_ids == b.output_ids));
    BOOST_TEST((a.text == b.text));
    BOOST_TEST((a.finish_reason == b.finish_reason));
    BOOST_TEST((a.error == b.error));
    BOOST_TEST((a.step_sha256 == b.step_sha256));
    BOOST_TEST(a.logits_sha256 == b.logits_sha256);
    BOOST_TEST((a.logits == b.logits));
    BOOST_TEST(a.vocabulary == b.vocabulary);
    BOOST_TEST((a.margins == b.margins));
    BOOST_TEST(a.prefill_seconds == b.prefill_seconds);
    BOOST_TEST((a.step_seconds == b.step_seconds));
    BOOST_TEST((a.gather_names == b.gather_names));
    BOOST_TEST((a.gather_seconds == b.gather_seconds));
    BOOST_TEST(a.session == b.session);
}

inline void check_equal(const RunRecord& a, const RunRecord& b) {
    BOOST_TEST((a.attributes == b.attributes));
    BOOST_TEST((a.ranks == b.ranks));
    BOOST_TEST(a.plan_text == b.plan_text);
    BOOST_TEST((a.plan_ranges == b.plan_ranges));
    BOOST_TEST(a.identity == b.identity);
    BOOST_TEST(a.requests_asked == b.requests_asked);
}

/// The sample run, asked for so many requests.
inline RunRecord asked_run(std::int64_t requests) {
    RunRecord run = sample_run();
    run.requests_asked = requests;
    return run;
}

/// A figure of /summary.
inline double figure(const StoredRun& stored, const std::string& name) {
    for (const auto& [key, value] : stored.summary.values)
        if (key == name) return value;
    BOOST_ERROR("no " + name + " in /summary");
    return 0;
}

inline void write_run(const fs::path& file, std::int64_t requests, Existing existing = Existing::refuse,
                      const RunRecord& run = sample_run()) {
    ResultFile results(file, run, existing);
    for (std::int64_t i = 0; i < requests; ++i) results.append(sample_request(i));
    results.finish({});
}

/// A journal with `requests` records, as a kill before finish() leaves it.
inline void leave_journal(const fs::path& file, std::int64_t requests, Existing existing = Existing::refuse) {
    ResultFile results(file, sample_run(), existing);
    for (std::int64_t i = 0; i < requests; ++i) results.append(sample_request(i));
}

/// The error of `call`, checked for its code and for words in its message or hint.
inline void check_error(Exit code, const std::vector<std::string>& words, const std::function<void()>& call) {
    try {
        call();
        BOOST_ERROR("no error, expected: " + words.at(0));
    } catch (const Error& error) {
        const std::string text = std::string(error.what()) + " | " + error.hint();
        BOOST_TEST_MESSAGE(text);
        BOOST_TEST(static_cast<int>(error.code()) == static_cast<int>(code), text);
        for (const auto& word : words)
            BOOST_TEST((text.find(word) != std::string::npos), "\"" << word << "\" is not in: " << text);
    }
}

/// Runs `body` in a child; its exit status, or 128 + the signal that ended it.
inline int in_child(const std::function<int()>& body) {
    std::fflush(nullptr);  // or the child prints it again
    const pid_t pid = ::fork();
    if (pid == 0) {
        int code = 99;
        try {
            code = body();
        } catch (const Error& error) { code = static_cast<int>(error.code()); }
        std::exit(
            code);  // through the exit handlers: that is where a library that could not flush has crashed
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
