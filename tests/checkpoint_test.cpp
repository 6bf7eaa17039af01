// Model directories and safetensors files, well-formed and broken in every way that was seen in the wild.
#define BOOST_TEST_MODULE checkpoint
#include "checkpoint.hpp"

#include <sys/resource.h>
#include <sys/stat.h>

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <fstream>

#include "error.hpp"
#include "safetensors_writer.hpp"

using namespace ftmpi;
using namespace ftmpi::testing;
namespace fs = std::filesystem;

namespace {

const std::string two_floats = R"("w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";

/// The message of the bad_input error that opening `directory` ends with; empty when it opens.
std::string refusal(const fs::path& directory) {
    try {
        Checkpoint::open(directory);
    } catch (const Error& e) {
        BOOST_TEST((e.code() == Exit::bad_input), e.what());
        return std::string(e.what()) + " | " + e.hint();
    }
    return {};
}

void expect_refused(const fs::path& directory, const std::vector<std::string>& words) {
    const auto message = refusal(directory);
    BOOST_TEST(!message.empty(), "was accepted; expected a message with \"" << words.front() << '"');
    for (const auto& word : words)
        BOOST_TEST(message.find(word) != std::string::npos, "\"" << message << "\" does not say \"" << word << '"');
}

bool warns(const Checkpoint& checkpoint, const std::string& word) {
    for (const auto& w : checkpoint.warnings())
        if (w.find(word) != std::string::npos) return true;
    return false;
}

/// One file model.safetensors in a directory of its own.
struct SingleFile {
    TemporaryDirectory directory;
    fs::path file = directory / "model.safetensors";

    void raw(const std::string& header, std::size_t data_bytes, const RawForm& form = {}) const {
        write_raw_safetensors(file, header, std::vector<std::uint8_t>(data_bytes), form);
    }
};

StoredTensor floats(const std::string& name, float value) { return {name, "F32", {2}, bytes_of<float>({value, value})}; }

/// Two shards and their index: a, b in the first, c in the second.
struct Sharded {
    TemporaryDirectory directory;
    const std::string first = "model-00001-of-00002.safetensors", second = "model-00002-of-00002.safetensors";

    Sharded() { write_sharded(directory.path(), {{floats("a", 1), floats("b", 2)}, {floats("c", 3)}}); }
};

float first_value(const Checkpoint& checkpoint, std::string_view name) {
    float value = 0;
    std::memcpy(&value, checkpoint.at(name).data, sizeof value);
    return value;
}

}  // namespace

BOOST_FIXTURE_TEST_CASE(a_single_file_opens, SingleFile) {
    write_safetensors(file, {floats("w", 1.5f), {"scalar", "F32", {}, bytes_of<float>({2})}, {"empty", "F32", {0}, {}},
                             {"none", "BF16", {0, 16}, {}}, {"x", "U8", {3}, {7, 8, 9}}});
    const auto checkpoint = Checkpoint::open(directory.path());
    BOOST_TEST(checkpoint.tensors().size() == 5u);
    BOOST_TEST(checkpoint.tensor_bytes() == 15u);
    BOOST_TEST(checkpoint.files().size() == 1u);
    BOOST_TEST(checkpoint.index_sha256().size() == 64u);
    BOOST_TEST(checkpoint.warnings().empty());
    BOOST_TEST(first_value(checkpoint, "w") == 1.5f);
    BOOST_TEST(first_value(checkpoint, "scalar") == 2.0f);
    BOOST_TEST(checkpoint.at("scalar").shape.empty());
    BOOST_TEST(checkpoint.at("empty").bytes == 0u);
    BOOST_TEST(checkpoint.at("none").elements() == 0);
    BOOST_TEST(std::to_integer<int>(checkpoint.at("x").data[2]) == 9);
    BOOST_TEST(checkpoint.find("absent") == nullptr);
    BOOST_CHECK_THROW(checkpoint.at("absent"), Error);
    checkpoint.drop_pages(checkpoint.at("w").data, checkpoint.at("w").bytes);
    BOOST_TEST(first_value(checkpoint, "w") == 1.5f);
}

BOOST_FIXTURE_TEST_CASE(headers_that_are_accepted, SingleFile) {
    const struct {
        std::string header;
        std::size_t data;
        std::size_t tensors;
    } table[] = {
        {"{" + two_floats + "}", 8, 1},
        {R"({"__metadata__":{"k":"v"}})", 0, 0},
        {R"({"__metadata__":{"format":"pt"},)" + two_floats + "}", 8, 1},
        {"{}", 0, 0},
        {R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"z":{"dtype":"F32","shape":[0,16],"data_offsets":[4,4]}})", 4, 2},
        {R"({"z":{"dtype":"F32","shape":[0],"data_offsets":[8,8]},)" + two_floats + "}", 8, 2},
        // Written in another order than the data lies in.
        {R"({"b":{"data_offsets":[4,8],"dtype":"F32","shape":[1]},"a":{"shape":[1],"dtype":"F32","data_offsets":[0,4]}})", 8, 2},
        {"{ \n\t" + two_floats + " }\n\n", 8, 1},
        {R"({"d\u00e9j\u00e0 \"vu\"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, 1},
    };
    for (const auto& row : table) {
        raw(row.header, row.data);
        BOOST_TEST_CONTEXT(row.header) {
            BOOST_TEST(refusal(directory.path()) == "");
            BOOST_TEST(Checkpoint::open(directory.path()).tensors().size() == row.tensors);
        }
    }
    raw("{" + two_floats + "}", 8, {.header_length = {}, .padding = ' ', .pad = false});
    BOOST_TEST(refusal(directory.path()) == "");
}

BOOST_FIXTURE_TEST_CASE(forged_header_lengths_are_refused_before_memory_is_taken, SingleFile) {
    struct rlimit before {}, limited {};
    ::getrlimit(RLIMIT_AS, &before);
    limited = before;
#if !defined(__SANITIZE_ADDRESS__)
    limited.rlim_cur = rlim_t{2} << 30;
    ::setrlimit(RLIMIT_AS, &limited);
#endif
    const std::string header = "{" + two_floats + "}";
    for (const std::uint64_t length : {std::uint64_t{132'095'296}, ~std::uint64_t{0}, std::uint64_t{1} << 63, std::uint64_t{100'000'001}}) {
        raw(header, 8, {.header_length = length});
        expect_refused(directory.path(), {"model.safetensors", std::to_string(length), "100000000"});
    }
    raw(header, 8, {.header_length = 99'000'000});
    expect_refused(directory.path(), {"file is 72 bytes", "99000008"});
    raw(header, 8, {.header_length = 65});
    expect_refused(directory.path(), {"file is 72 bytes, its header needs 73"});
    for (const std::uint64_t length : {0, 1}) {
        raw(header, 8, {.header_length = length});
        expect_refused(directory.path(), {"header of " + std::to_string(length)});
    }
    ::setrlimit(RLIMIT_AS, &before);
}

BOOST_FIXTURE_TEST_CASE(files_that_are_something_else_are_named, SingleFile) {
    write_file(file, "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, '0') + "\nsize 123\n");
    expect_refused(directory.path(), {"model.safetensors", "LFS", "git lfs pull"});
    write_file(file, "<!DOCTYPE html><html><body>404</body></html>");
    expect_refused(directory.path(), {"web page"});
    write_file(file, "GGUF\x03\0\0\0\0\0\0\0");
    expect_refused(directory.path(), {"GGUF"});
    write_file(file, std::string("PK\x03\x04\0\0\0\0\0\0\0\0", 12));
    expect_refused(directory.path(), {"PyTorch"});
}

BOOST_FIXTURE_TEST_CASE(truncated_and_overlong_files_are_refused, SingleFile) {
    raw("{" + two_floats + "}", 8);
    std::string whole;
    {
        std::ifstream in(file, std::ios::binary);
        whole.assign(std::istreambuf_iterator<char>(in), {});
    }
    BOOST_REQUIRE_EQUAL(whole.size(), 72u);
    for (const std::size_t size : {71, 64}) {
        write_file(file, whole.substr(0, size));
        expect_refused(directory.path(), {"file is " + std::to_string(size) + " bytes, header needs 72", "incomplete download"});
    }
    for (const std::size_t size : {63, 40, 8}) {
        write_file(file, whole.substr(0, size));
        expect_refused(directory.path(), {"file is " + std::to_string(size) + " bytes, its header needs 64"});
    }
    for (const std::size_t size : {7, 0}) {
        write_file(file, whole.substr(0, size));
        expect_refused(directory.path(), {"has " + std::to_string(size) + " bytes, too few"});
    }
    write_file(file, whole + '\0');
    expect_refused(directory.path(), {"1 bytes after the last tensor are not covered"});
    // Only the second tensor is short: the first one's reader is told as well.
    raw(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})", 12);
    expect_refused(directory.path(), {"header needs", "\"b\""});
}

BOOST_FIXTURE_TEST_CASE(sizes_and_offsets_must_agree, SingleFile) {
    const auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
        return R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
    };
    const struct {
        std::string header;
        std::size_t data;
        std::string words;
    } table[] = {
        {tensor("F32", "[32,8]", "[0,65536]"), 65536, "need 1024 bytes"},
        {tensor("F32", "[32,8]", "[0,512]"), 512, "need 1024 bytes"},
        {tensor("F32", "[1000,1000]", "[0,4]"), 4, "need 4000000 bytes"},
        {tensor("F32", "[1000,1000]", "[0,4000000]"), 4, "header needs 4000"},
        {tensor("F16", "[4294967296,4294967296]", "[0,0]"), 0, "does not fit 64 bits"},
        {tensor("U8", "[4294967296,4294967296]", "[0,0]"), 0, "does not fit 64 bits"},
        {tensor("U8", "[2,4611686018427387904]", "[0,0]"), 0, "does not fit 64 bits"},
        {tensor("U8", "[4294967296,4294967296,0]", "[0,0]"), 0, "does not fit 64 bits"},
        {tensor("F64", "[2305843009213693952]", "[0,1099511627776]"), 16, "does not fit 64 bits"},
        {tensor("U8", "[18446744073709551615]", "[0,0]"), 16, "does not fit 64 bits"},
        {tensor("F32", "[-1,4]", "[0,16]"), 16, "shape has a value that is not a non-negative integer"},
        {tensor("F32", "[2.5]", "[0,16]"), 16, "shape has a number that is not an integer literal"},
        {tensor("F32", "[1e3]", "[0,16]"), 16, "shape has a number that is not an integer literal"},
        {tensor("F32", "[4.0]", "[0,16]"), 16, "shape has a number that is not an integer literal"},
        {tensor("U8", "[9007199254740993]", "[0,9007199254740992]"), 16, "need 9007199254740993 bytes"},
        {tensor("F32", "[\"4\"]", "[0,16]"), 16, "shape has a value that is not"},
        {tensor("F32", "4", "[0,16]"), 16, "shape is not an array"},
        {tensor("F32", "[[4]]", "[0,16]"), 16, "shape has a value that is not"},
        {tensor("F32", "[2]", "[8,0]"), 16, "end before they begin"},
        {tensor("F32", "[2]", "[0]"), 16, "not an array of two"},
        {tensor("F32", "[2]", "[0,8,16]"), 16, "not an array of two"},
        {tensor("F32", "[2]", "[0,8.0]"), 16, "not an integer literal"},
        {tensor("F32", "[2]", "[-8,0]"), 16, "not a non-negative integer"},
        {tensor("F32", "[2]", "[18446744073709551608,18446744073709551615]"), 16, "need 8 bytes"},
        {tensor("F32", "[2]", "[18446744073709551600,18446744073709551608]"), 16, "belong to no tensor"},
        {tensor("F32", "[2]", "[0,8]"), 16, "8 bytes after the last tensor"},
        {tensor("F32", "[2]", "[8,16]"), 16, "8 bytes before its begin"},
        {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 24, "overlap"},
        {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12, "overlap"},
        {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[16,24]}})", 24,
         "8 bytes before its begin 16"},
        {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"z":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}})", 8, "overlap"},
    };
    for (const auto& row : table) {
        raw(row.header, row.data);
        BOOST_TEST_CONTEXT(row.header) { expect_refused(directory.path(), {"model.safetensors", row.words}); }
    }
}

BOOST_FIXTURE_TEST_CASE(header_text_is_strict, SingleFile) {
    const std::string again = R"("w":{"dtype":"F32","shape":[2],"data_offsets":[8,16]})";
    const struct {
        std::string header;
        std::size_t data;
        std::string words;
    } table[] = {
        {"{" + two_floats + "," + again + "}", 16, "duplicate tensor name \"w\""},
        {"{" + two_floats + R"(,"\u0077":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})", 16, "duplicate tensor name \"w\""},
        {R"({"w":{"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]}})", 8, "duplicate key \"dtype\""},
        {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"strides":[1]}})", 8, "unknown key \"strides\""},
        {R"({"w":{"dtype":"F32","shape":[2]}})", 8, "is missing"},
        {R"({"w":7})", 8, "its entry is not an object"},
        {R"({"w":{"dtype":5,"shape":[2],"data_offsets":[0,8]}})", 8, "dtype is not a string"},
        {R"({"__metadata__":{"step":0},)" + two_floats + "}", 8, "\"__metadata__\" holds a value that is not a string under \"step\""},
        {R"({"__metadata__":[1]})", 0, "\"__metadata__\" is not an object"},
        {R"({"__metadata__":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}})", 8, "reserved name"},
        {R"({"__metadata__":{"scale_layout":"swizzled_128x4"},)" + two_floats + "}", 8, "layout not sliceable"},
        {R"({"__metadata__":{"scales_interleaved":"true"},)" + two_floats + "}", 8, "layout not sliceable"},
        {R"({},"__metadata__":{"k":"v"}})", 0, "trailing bytes after the JSON header at byte 2"},
        {"{" + two_floats + "} x", 8, "trailing bytes after the JSON header at byte 55"},
        {"{" + two_floats + ",}", 8, "not valid JSON at byte 54"},
        {R"({"w" 1})", 0, "not valid JSON at byte 5"},
        {R"({"w":{"dtype":"F32","shape":[02],"data_offsets":[0,8]}})", 8, "not valid JSON at byte 30"},
        {"{" + two_floats, 8, "not valid JSON"},
        {"\xef\xbb\xbf{" + two_floats + "}", 8, "byte order mark"},
        {" {" + two_floats + "}", 8, "does not begin with '{'"},
        {"[1,2]", 0, "does not begin with '{'"},
        {R"({"a\u0000b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "\"a\\x00b\" holds a control character"},
        {R"({"a\nb":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "holds a control character"},
        {R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "empty name"},
        {"{\"\xff\xfe\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "cannot be read"},
        {"{\"w\":" + std::string(100'000, '['), 0, "not valid JSON"},
        {"{\"w\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}", 0, "cannot be read"},
        {R"({"w":{"dtype":"U8","shape":[99999999999999999999999],"data_offsets":[0,1]}})", 1, "cannot be read"},
    };
    for (const auto& row : table) {
        raw(row.header, row.data);
        BOOST_TEST_CONTEXT(row.header.substr(0, 120)) { expect_refused(directory.path(), {"model.safetensors", row.words}); }
    }
    raw("{" + two_floats + "}  ", 8, {.header_length = {}, .padding = '\0'});
    BOOST_TEST(refusal(directory.path()) == "");  // 56 bytes: nothing was padded
    raw("{" + two_floats + " }  ", 8, {.header_length = {}, .padding = '\0'});
    expect_refused(directory.path(), {"trailing bytes after the JSON header"});
}

BOOST_FIXTURE_TEST_CASE(unknown_dtypes_matter_only_where_they_are_needed, SingleFile) {
    const auto header = [](const std::string& name, const std::string& offsets) {
        return "{" + two_floats + ",\"" + name + R"(":{"dtype":"F8_XYZ","shape":[4],"data_offsets":)" + offsets + "}}";
    };
    for (const std::string name : {"model.visual.x", "visual.blocks.0.attn.qkv.weight"}) {
        raw(header(name, "[8,12]"), 4 + 8);
        const auto checkpoint = Checkpoint::open(directory.path());
        BOOST_TEST(checkpoint.find(name) == nullptr);
        BOOST_TEST(checkpoint.tensors().size() == 1u);
        BOOST_TEST(checkpoint.tensor_bytes() == 8u);
        BOOST_TEST(warns(checkpoint, name));
        BOOST_TEST(warns(checkpoint, "F8_XYZ"));
        // Its offsets are checked all the same.
        raw(header(name, "[8,4096]"), 4 + 8);
        expect_refused(directory.path(), {"header needs", name});
        raw(header(name, "[4,12]"), 4 + 8);
        expect_refused(directory.path(), {"overlap", name});
    }
    for (const std::string name : {"model.language_model.layers.3.self_attn.q_proj.weight", "mtp.fc.weight", "model.visualizer.x"}) {
        raw(header(name, "[8,12]"), 4 + 8);
        expect_refused(directory.path(), {name, "F8_XYZ"});
    }
}

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
        {{{"a", first}, {"b", second}, {"c", second}}, {"maps tensor \"b\" to " + second + ", but " + first + " holds it"}},
        {{{"a", first}, {"b", first}, {"c", second}, {"d", second}}, {"does not hold: \"d\" (" + second + ")"}},
        {{{"a", first}, {"b", first}}, {}},
        {{{"a", first}, {"b", first}, {"c", second}, {"a", first}}, {"duplicate tensor name \"a\""}},
        {{{"a", first}, {"b", first}, {"c", "model-00003-of-00003.safetensors"}}, {"missing: model-00003-of-00003.safetensors", "incomplete download"}},
        {{{"a", "x-1.safetensors"}, {"b", "x-2.safetensors"}, {"c", second}}, {"2 of which are missing: x-1.safetensors, x-2.safetensors"}},
        {{}, {"weight_map is empty"}},
        {{{"a", first}, {"b", first}, {"c", "../evil.safetensors"}}, {"\"../evil.safetensors\"", "not a plain file name"}},
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
             {"{\"metadata\":{}}", "has no weight_map"},
             {"[]", "not a JSON object"},
             {"{\"weight_map\":{\"a\":1}}", "tensor \"a\" is mapped to something that is not a file name"},
             {"{\"weight_map\":{\"a\":\"" + first + "\"},\"weight_map\":{}}", "weight_map twice"},
             {"{\"weight_map\":{\"a\":}}", "not valid JSON at byte 19"},
             {"", "not valid JSON at byte 0"}}) {
        write_file(directory / "model.safetensors.index.json", text);
        BOOST_TEST_CONTEXT(text) { expect_refused(directory.path(), {"model.safetensors.index.json", words}); }
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
    write_index(directory.path(), {{"a", "model-00001-of-00004.safetensors"}, {"b", "model-00002-of-00004.safetensors"}, {"c", "model-00004-of-00004.safetensors"}});
    expect_refused(directory.path(), {"3 of which are missing", "model-00001-of-00004.safetensors", "model-00004-of-00004.safetensors"});
}

BOOST_FIXTURE_TEST_CASE(files_beside_the_index_are_ignored_with_a_warning, Sharded) {
    write_safetensors(directory / "model.safetensors", {floats("a", -1), floats("b", -1), floats("c", -1)});
    write_safetensors(directory / "consolidated.safetensors", {floats("a", -1)});
    write_file(directory.path().parent_path() / (directory.path().filename().string() + "-neighbour.safetensors"), "broken");
    const auto checkpoint = Checkpoint::open(directory.path());
    fs::remove(directory.path().parent_path() / (directory.path().filename().string() + "-neighbour.safetensors"));
    BOOST_TEST(first_value(checkpoint, "a") == 1.0f);
    BOOST_TEST(checkpoint.tensor_bytes() == 24u);
    BOOST_TEST(warns(checkpoint, "consolidated.safetensors, model.safetensors"));
}

BOOST_FIXTURE_TEST_CASE(a_wrong_total_size_is_reported, Sharded) {
    write_file(directory / "model.safetensors.index.json", "{\"metadata\":{\"total_size\":25},\"weight_map\":{\"a\":\"" + first + "\",\"b\":\"" + first +
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
    expect_refused(directory.path(), {"neither", "model-00001-of-00002.safetensors, model-00002-of-00002.safetensors"});
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
    expect_refused(snapshot, {plain.second, "missing", "incomplete download"});
    fs::remove(blobs / "blob2");
    expect_refused(snapshot, {"model.safetensors.index.json is a symbolic link to ../../blobs/blob2, which does not exist"});
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
