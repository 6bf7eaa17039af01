// Model directories: index and shards, links, files that are no files, and files that change.
#define BOOST_TEST_MODULE checkpoint_shards
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <chrono>

#include "checkpoint_expectations.hpp"
#include "text/small_file.hpp"

using namespace ftmpi;
using namespace ftmpi::testing;
namespace fs = std::filesystem;

namespace {

/// Two shards and their index: a, b in the first, c in the second.
struct Sharded {
    TemporaryDirectory directory;
    const std::string first = "model-00001-of-00002.safetensors", second = "model-00002-of-00002.safetensors";

    Sharded() { write_sharded(directory.path(), {{floats("a", 1), floats("b", 2)}, {floats("c", 3)}}); }
};

}  // namespace

BOOST_FIXTURE_TEST_CASE(shards_open_in_the_order_of_the_index, Sharded) {
    const auto checkpoint = Checkpoint::open(directory.path());
    BOOST_TEST(checkpoint.files().size() == 2u);
    BOOST_TEST(checkpoint.files()[0].filename().string() == first);
    BOOST_TEST(checkpoint.at("c").file == 1);
    BOOST_TEST(first_value(checkpoint, "c") == 3.0f);
    BOOST_TEST(checkpoint.tensor_bytes() == 24u);
    BOOST_TEST(checkpoint.warnings().empty());
}

BOOST_FIXTURE_TEST_CASE(index_and_shards_must_agree, Sharded) {
    using Map = std::vector<std::pair<std::string, std::string>>;
    const struct {
        Map map;
        std::vector<std::string> words;
    } table[] = {
        {{{"a", first}, {"c", second}}, {"does not list tensor \"b\"", first}},
        {{{"a", first}, {"b", second}, {"c", second}},
         {"maps tensor \"b\" to " + second + ", but " + first + " holds it"}},
        {{{"a", first}, {"b", first}, {"c", second}, {"d", second}},
         {"does not hold: \"d\" (" + second + ")"}},
        {{{"a", first}, {"b", first}}, {}},
        {{{"a", first}, {"b", first}, {"c", second}, {"a", first}},
         {"has the key \"a\" twice in one object, weight_map"}},
        {{{"a", first}, {"b", first}, {"c", "model-00003-of-00003.safetensors"}},
         {"missing: model-00003-of-00003.safetensors", "incomplete download"}},
        {{{"a", "x-1.safetensors"}, {"b", "x-2.safetensors"}, {"c", second}},
         {"2 of which are missing: x-1.safetensors, x-2.safetensors"}},
        {{}, {"weight_map is empty"}},
        {{{"a", first}, {"b", first}, {"c", "../evil.safetensors"}},
         {"\"../evil.safetensors\"", "not a plain file name"}},
        {{{"a", first}, {"b", first}, {"c", "/etc/passwd"}}, {"not a plain file name"}},
        {{{"a", first}, {"b", first}, {"c", ".."}}, {"not a plain file name"}},
        {{{"a", first}, {"b", first}, {"c", ""}}, {"not a plain file name"}},
    };
    for (const auto& row : table) {
        write_index(directory.path(), row.map);
        BOOST_TEST_CONTEXT((row.words.empty() ? "a shard that is not named" : row.words.front())) {
            if (row.words.empty()) BOOST_TEST(warns(Checkpoint::open(directory.path()), second));
            else expect_refused(directory.path(), row.words);
        }
    }
    for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
             {"{\"weight_map\":[]}", "weight_map is not an object"},
             {"{\"metadata\":{}}", "weight_map is missing"},
             {"[]", "does not hold a JSON object"},
             {"{\"weight_map\":{\"a\":1}}", "tensor \"a\" is mapped to something that is not a file name"},
             {"{\"weight_map\":{\"a\":\"" + first + "\"},\"weight_map\":{}}",
              "has the key \"weight_map\" twice"},
             {"{\"weight_map\":{\"a\":}}", "not valid JSON"},
             {"", "not valid JSON"}}) {
        write_file(directory / "model.safetensors.index.json", text);
        BOOST_TEST_CONTEXT(text) {
            expect_refused(directory.path(), {"model.safetensors.index.json", words});
        }
    }
}

BOOST_FIXTURE_TEST_CASE(missing_and_broken_shards_are_named, Sharded) {
    fs::remove(directory / second);
    expect_refused(directory.path(), {second, "missing", "incomplete download"});
    write_safetensors(directory / second, {floats("c", 3), floats("a", 9)});
    expect_refused(directory.path(), {"maps tensor \"a\" to " + first, second});
    // A shard is checked although its tensors may belong to another rank.
    write_safetensors(directory / second, {floats("c", 3)});
    fs::resize_file(directory / second, fs::file_size(directory / second) - 1);
    expect_refused(directory.path(), {second, "header needs"});
}

BOOST_FIXTURE_TEST_CASE(an_old_index_beside_a_new_save_is_refused, Sharded) {
    write_index(directory.path(), {{"a", "model-00001-of-00004.safetensors"},
                                   {"b", "model-00002-of-00004.safetensors"},
                                   {"c", "model-00004-of-00004.safetensors"}});
    expect_refused(directory.path(), {"3 of which are missing", "model-00001-of-00004.safetensors",
                                      "model-00004-of-00004.safetensors"});
}

BOOST_FIXTURE_TEST_CASE(files_beside_the_index_are_ignored_with_a_warning, Sharded) {
    write_safetensors(directory / "model.safetensors", {floats("a", -1), floats("b", -1), floats("c", -1)});
    write_safetensors(directory / "consolidated.safetensors", {floats("a", -1)});
    write_file(
        directory.path().parent_path() / (directory.path().filename().string() + "-neighbour.safetensors"),
        "broken");
    const auto checkpoint = Checkpoint::open(directory.path());
    fs::remove(directory.path().parent_path() /
               (directory.path().filename().string() + "-neighbour.safetensors"));
    BOOST_TEST(first_value(checkpoint, "a") == 1.0f);
    BOOST_TEST(checkpoint.tensor_bytes() == 24u);
    BOOST_TEST(warns(checkpoint, "consolidated.safetensors, model.safetensors"));
}

BOOST_FIXTURE_TEST_CASE(a_wrong_total_size_is_reported, Sharded) {
    write_file(directory / "model.safetensors.index.json",
               "{\"metadata\":{\"total_size\":25},\"weight_map\":{\"a\":\"" + first + "\",\"b\":\"" + first +
                   "\",\"c\":\"" + second + "\"}}");
    BOOST_TEST(warns(Checkpoint::open(directory.path()), "total_size 25"));
}

BOOST_AUTO_TEST_CASE(directories_without_an_index) {
    TemporaryDirectory directory;
    expect_refused(directory / "absent", {"absent does not exist"});
    write_file(directory / "file", "x");
    expect_refused(directory / "file", {"is not a directory"});
    expect_refused(directory.path(), {"neither model.safetensors.index.json nor model.safetensors"});
    write_safetensors(directory / "model-00001-of-00002.safetensors", {floats("a", 1)});
    write_safetensors(directory / "model-00002-of-00002.safetensors", {floats("b", 1)});
    expect_refused(directory.path(),
                   {"neither", "model-00001-of-00002.safetensors, model-00002-of-00002.safetensors"});
    write_safetensors(directory / "model.safetensors", {floats("c", 1)});
    const auto checkpoint = Checkpoint::open(directory.path());
    BOOST_TEST(checkpoint.tensors().size() == 1u);
    BOOST_TEST(warns(checkpoint, "model-00002-of-00002.safetensors"));
}

BOOST_FIXTURE_TEST_CASE(only_regular_files_are_opened, Sharded) {
    const auto shard = directory / second;
    fs::remove(shard);
    BOOST_REQUIRE_EQUAL(::mkfifo(shard.c_str(), 0600), 0);
    expect_refused(directory.path(), {second, "named pipe"});  // and does not wait for a writer
    fs::remove(shard);
    fs::create_directory(shard);
    expect_refused(directory.path(), {second, "a directory"});
    fs::remove(shard);
    fs::create_symlink("/dev/zero", shard);
    expect_refused(directory.path(), {second, "a device"});
    BOOST_TEST(read_small_file(directory / "model.safetensors.index.json", 4096).size() > 0u);
    BOOST_CHECK_THROW(read_small_file(directory / "model.safetensors.index.json", 10), Error);
    BOOST_CHECK_THROW(read_small_file(directory / "none.json", 10), Error);
    BOOST_CHECK_THROW(read_small_file(directory.path(), 10), Error);
    BOOST_CHECK_THROW(read_small_file("/dev/zero", 10), Error);
}

BOOST_AUTO_TEST_CASE(a_hugging_face_cache_opens_through_its_links) {
    TemporaryDirectory root;
    Sharded plain;
    const auto blobs = root / "blobs", snapshot = root.path() / "snapshots" / "r1";
    fs::create_directories(blobs);
    fs::create_directories(snapshot);
    int number = 0;
    for (const auto& name : {plain.first, plain.second, std::string("model.safetensors.index.json")}) {
        const auto blob = "blob" + std::to_string(number++);
        fs::copy_file(plain.directory / name, blobs / blob);
        fs::create_symlink("../../blobs/" + blob, snapshot / name);
    }
    // A name of the index that also exists beside its blob must not be taken from there.
    write_file(blobs / plain.first, "not this one");
    fs::create_directory_symlink("snapshots/r1", root / "link");
    for (const auto& directory : {snapshot, root / "link"}) {
        const auto checkpoint = Checkpoint::open(directory);
        BOOST_TEST(first_value(checkpoint, "c") == 3.0f);
        BOOST_TEST(checkpoint.directory() == directory);
        BOOST_TEST(checkpoint.warnings().empty());
    }
    fs::remove(blobs / "blob1");
    expect_refused(snapshot, {plain.second + " is a symbolic link to", "incomplete download"});
    fs::remove(blobs / "blob2");
    expect_refused(
        snapshot,
        {"model.safetensors.index.json is a symbolic link to ../../blobs/blob2, which does not exist"});
}

BOOST_FIXTURE_TEST_CASE(a_shard_that_changes_is_noticed, Sharded) {
    const auto shard = directory / second;
    {
        const auto checkpoint = Checkpoint::open(directory.path());
        checkpoint.check_unchanged();
        fs::resize_file(shard, fs::file_size(shard) - 1);
        BOOST_CHECK_THROW(checkpoint.check_unchanged(), Error);
    }
    write_safetensors(shard, {floats("c", 3)});
    {
        const auto checkpoint = Checkpoint::open(directory.path());
        write_safetensors(directory / "new", {floats("c", 4)});
        fs::last_write_time(directory / "new", fs::last_write_time(shard));
        fs::rename(directory / "new", shard);  // same size and time, another file
        BOOST_CHECK_THROW(checkpoint.check_unchanged(), Error);
        BOOST_TEST(first_value(checkpoint, "c") == 3.0f);  // what was mapped stays
    }
    {
        const auto checkpoint = Checkpoint::open(directory.path());
        fs::last_write_time(shard, fs::last_write_time(shard) + std::chrono::seconds(5));
        BOOST_CHECK_THROW(checkpoint.check_unchanged(), Error);
    }
    {
        auto moved = Checkpoint::open(directory.path());
        const auto checkpoint = std::move(moved);
        fs::remove(shard);
        BOOST_CHECK_THROW(checkpoint.check_unchanged(), Error);
    }
}

BOOST_FIXTURE_TEST_CASE(bytes_in_use_are_watched, Sharded) {
    const auto shard = directory / second;
    const auto checkpoint = Checkpoint::open(directory.path());
    const auto* const data = checkpoint.at("c").data;
    checkpoint.check_contents(data);
    // Another file under its name, or none, changes nothing of what is mapped; nor does the other shard.
    write_safetensors(directory / "new", {floats("c", 4)});
    fs::rename(directory / "new", shard);
    checkpoint.check_contents(data);
    BOOST_TEST(first_value(checkpoint, "c") == 3.0f);
    fs::remove(shard);
    checkpoint.check_contents(data);
    const auto again_path = directory / first;
    const auto* const other = checkpoint.at("a").data;
    fs::last_write_time(again_path, fs::last_write_time(again_path) + std::chrono::seconds(5));
    checkpoint.check_contents(data);
    BOOST_CHECK_EXCEPTION(checkpoint.check_contents(other), Error, [&](const Error& e) {
        return e.code() == Exit::bad_input &&
               std::string(e.what()).find(first + " was written to while it was in use") != std::string::npos;
    });
}

// The kernel says by a signal that mapped bytes are gone; without a handler that is a crash without a word.
BOOST_FIXTURE_TEST_CASE(a_shard_that_is_cut_short_while_it_is_read_is_named, Sharded) {
    const auto shard = directory / second;
    int pipe_ends[2];
    BOOST_REQUIRE(::pipe(pipe_ends) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
        ::dup2(pipe_ends[1], STDERR_FILENO);
        const auto checkpoint = Checkpoint::open(directory.path());
        fs::resize_file(shard, 0);
        volatile float value = first_value(checkpoint, "c");
        ::_exit(value == 3.0f ? 100 : 101);
    }
    ::close(pipe_ends[1]);
    std::string said;
    char buffer[512];
    for (ssize_t n; (n = ::read(pipe_ends[0], buffer, sizeof buffer)) > 0;)
        said.append(buffer, static_cast<std::size_t>(n));
    ::close(pipe_ends[0]);
    int status = 0;
    BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
    BOOST_TEST((WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(Exit::bad_input)));
    BOOST_TEST(said == "ftmpi: error: " + shard.string() +
                           " became shorter while it was in use, or its disk cannot be read\n");
}
