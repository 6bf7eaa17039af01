// One safetensors file, well-formed and broken in every way that was seen in the wild.
#define BOOST_TEST_MODULE checkpoint
#include <sys/resource.h>

#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <fstream>

#include "checkpoint_expectations.hpp"

using namespace ftmpi;
using namespace ftmpi::testing;
namespace fs = std::filesystem;

namespace {

const std::string two_floats = R"("w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";

/// One file model.safetensors in a directory of its own.
struct SingleFile {
    TemporaryDirectory directory;
    fs::path file = directory / "model.safetensors";

    void raw(const std::string& header, std::size_t data_bytes, const RawForm& form = {}) const {
        write_raw_safetensors(file, header, std::vector<std::uint8_t>(data_bytes), form);
    }
};

/// Bytes of the mapped file that count as this process's memory.
std::size_t mapped_bytes(const fs::path& file) {
    std::ifstream maps("/proc/self/smaps");
    std::size_t kib = 0, bytes = 0;
    bool of_file = false;
    for (std::string line; std::getline(maps, line);) {
        if (line.find('-') < line.find(' ')) of_file = line.ends_with(file.string());
        if (of_file && std::sscanf(line.c_str(), "Rss: %zu kB", &kib) == 1) bytes += kib << 10;
    }
    return bytes;
}

}  // namespace

BOOST_FIXTURE_TEST_CASE(a_single_file_opens, SingleFile) {
    write_safetensors(file, {floats("w", 1.5f),
                             {"scalar", "F32", {}, bytes_of<float>({2})},
                             {"empty", "F32", {0}, {}},
                             {"none", "BF16", {0, 16}, {}},
                             {"x", "U8", {3}, {7, 8, 9}}});
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

BOOST_FIXTURE_TEST_CASE(pages_that_were_read_are_given_back, SingleFile) {
    constexpr std::size_t half = 32u << 20;  // holes: takes no disk
    raw(R"({"a":{"dtype":"U8","shape":[33554432],"data_offsets":[0,33554432]},)"
        R"("b":{"dtype":"U8","shape":[33554432],"data_offsets":[33554432,67108864]}})",
        0);
    fs::resize_file(file, fs::file_size(file) + 2 * half);
    const auto checkpoint = Checkpoint::open(directory.path());
    const auto opened = mapped_bytes(file);
    const auto read = [&](const TensorView& t) {
        unsigned sum = 0;
        for (std::size_t i = 0; i < t.bytes; i += 4096) sum += std::to_integer<unsigned>(t.data[i]);
        BOOST_TEST(sum == 0u);
    };
    read(checkpoint.at("a"));
    read(checkpoint.at("b"));
    BOOST_TEST_REQUIRE(mapped_bytes(file) >= 2 * half);
    checkpoint.drop_pages(checkpoint.at("b").data, half);
    BOOST_TEST(mapped_bytes(file) < half + (1u << 20));
    checkpoint.drop_pages();
    BOOST_TEST(mapped_bytes(file) == 0u);
    // The samples of a fingerprint lie far apart, and the kernel maps the pages around each.
    weights_fingerprint(checkpoint);
    BOOST_TEST(mapped_bytes(file) <= opened);
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
        {R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"z":{"dtype":"F32","shape":[0,16],"data_offsets":[4,4]}})",
         4, 2},
        {R"({"z":{"dtype":"F32","shape":[0],"data_offsets":[8,8]},)" + two_floats + "}", 8, 2},
        // Written in another order than the data lies in.
        {R"({"b":{"data_offsets":[4,8],"dtype":"F32","shape":[1]},"a":{"shape":[1],"dtype":"F32","data_offsets":[0,4]}})",
         8, 2},
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
    struct rlimit before {
    }, limited{};
    ::getrlimit(RLIMIT_AS, &before);
    limited = before;
#if !defined(__SANITIZE_ADDRESS__)
    limited.rlim_cur = rlim_t{2} << 30;
    ::setrlimit(RLIMIT_AS, &limited);
#endif
    const std::string header = "{" + two_floats + "}";
    for (const std::uint64_t length : {std::uint64_t{132'095'296}, ~std::uint64_t{0}, std::uint64_t{1} << 63,
                                       std::uint64_t{100'000'001}}) {
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
    write_file(file, "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, '0') +
                         "\nsize 123\n");
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
        expect_refused(directory.path(), {"file is " + std::to_string(size) + " bytes, header needs 72",
                                          "incomplete download"});
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
    expect_refused(directory.path(), {"1 byte after the last tensor is not covered"});
    // Only the second tensor is short: the first one's reader is told as well.
    raw(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
        12);
    expect_refused(directory.path(), {"header needs", "\"b\""});
}

BOOST_FIXTURE_TEST_CASE(sizes_and_offsets_must_agree, SingleFile) {
    const auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
        return R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
               "}}";
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
        {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
         24, "overlap"},
        {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
         12, "overlap"},
        {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[16,24]}})",
         24, "8 bytes before its begin 16"},
        {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"z":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}})",
         8, "overlap"},
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
        {"{" + two_floats + R"(,"\u0077":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})", 16,
         "duplicate tensor name \"w\""},
        {R"({"w":{"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]}})", 8,
         "duplicate key \"dtype\""},
        {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"strides":[1]}})", 8,
         "unknown key \"strides\""},
        {R"({"w":{"dtype":"F32","shape":[2]}})", 8, "is missing"},
        {R"({"w":7})", 8, "its entry is not an object"},
        {R"({"w":{"dtype":5,"shape":[2],"data_offsets":[0,8]}})", 8, "dtype is not a string"},
        {R"({"__metadata__":{"step":0},)" + two_floats + "}", 8,
         "\"__metadata__\" holds a value that is not a string under \"step\""},
        {R"({"__metadata__":[1]})", 0, "\"__metadata__\" is not an object"},
        {R"({"__metadata__":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}})", 8, "reserved name"},
        {R"({"__metadata__":{"scale_layout":"swizzled_128x4"},)" + two_floats + "}", 8,
         "layout not sliceable"},
        {R"({"__metadata__":{"scales_interleaved":"true"},)" + two_floats + "}", 8, "layout not sliceable"},
        {R"({},"__metadata__":{"k":"v"}})", 0, "not valid JSON"},
        {"{" + two_floats + "} x", 8, "not valid JSON"},
        {"{" + two_floats + ",}", 8, "not valid JSON: The JSON document has an improper structure"},
        {R"({"w" 1})", 0, "not valid JSON"},
        {R"({"w":{"dtype":"F32","shape":[02],"data_offsets":[0,8]}})", 8, "not valid JSON"},
        {"{" + two_floats, 8, "not valid JSON"},
        {"\xef\xbb\xbf{" + two_floats + "}", 8, "byte order mark"},
        {" {" + two_floats + "}", 8, "does not begin with '{'"},
        {"[1,2]", 0, "does not begin with '{'"},
        {R"({"a\u0000b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1,
         "\"a\\x00b\" holds a control character"},
        {R"({"a\nb":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "holds a control character"},
        {R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "empty name"},
        {"{\"\xff\xfe\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "not valid JSON"},
        {"{\"w\":" + std::string(100'000, '['), 0, "not valid JSON"},
        {"{\"w\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}", 0, "too deep"},
        {R"({"w":{"dtype":"U8","shape":[99999999999999999999999],"data_offsets":[0,1]}})", 1,
         "not valid JSON"},
    };
    for (const auto& row : table) {
        raw(row.header, row.data);
        BOOST_TEST_CONTEXT(row.header.substr(0, 120)) {
            expect_refused(directory.path(), {"model.safetensors", row.words});
        }
    }
    raw("{" + two_floats + "}  ", 8, {.header_length = {}, .padding = '\0'});
    BOOST_TEST(refusal(directory.path()) == "");  // 56 bytes: nothing was padded
    raw("{" + two_floats + " }  ", 8, {.header_length = {}, .padding = '\0'});
    expect_refused(directory.path(), {"not valid JSON", "damaged download"});
}

BOOST_FIXTURE_TEST_CASE(unknown_dtypes_matter_only_where_they_are_needed, SingleFile) {
    const auto header = [](const std::string& name, const std::string& offsets) {
        return "{" + two_floats + ",\"" + name + R"(":{"dtype":"F8_XYZ","shape":[4],"data_offsets":)" +
               offsets + "}}";
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
    for (const std::string name :
         {"model.language_model.layers.3.self_attn.q_proj.weight", "mtp.fc.weight", "model.visualizer.x"}) {
        raw(header(name, "[8,12]"), 4 + 8);
        expect_refused(directory.path(), {name, "F8_XYZ"});
    }
}
