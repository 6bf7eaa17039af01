// A safetensors file. An input that begins with '{' is a header: its length is put before it, and after it as
// many bytes as the offsets in it ask for, so that a changed header still reaches the checks behind that of
// its length. Any other is a whole file.
#include <algorithm>
#include <cctype>
#include <numeric>
#include <set>

#include "checkpoint.hpp"
#include "checkpoint/header.hpp"
#include "fuzz.hpp"

using namespace ftmpi;
using namespace ftmpi::fuzz;

namespace {

constexpr std::uint64_t kMostData = 1 << 16;

/// The largest second number of a "[a, b]" in the text, as far as one can say without reading JSON.
std::uint64_t wanted_bytes(std::string_view header) {
    std::uint64_t most = 0;
    for (std::size_t at = header.find("offsets"); at != header.npos; at = header.find("offsets", at + 1)) {
        auto comma = header.find(',', at);
        if (comma == header.npos) break;
        ++comma;
        while (comma < header.size() && header[comma] == ' ') ++comma;
        std::uint64_t n = 0;
        for (; comma < header.size() && std::isdigit(static_cast<unsigned char>(header[comma])) &&
               n <= kMostData;
             ++comma)
            n = n * 10 + static_cast<std::uint64_t>(header[comma] - '0');
        if (n <= kMostData) most = std::max(most, n);
    }
    return most;
}

/// Sizes and places of an accepted header, from the format's own rules.
void check_header(const MappedFile& file, const Header& header) {
    std::set<std::string> names;
    auto entries = header.entries;
    std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
        return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    std::uint64_t at = 0;
    for (const auto& e : entries) {
        require(names.insert(e.name).second, "names are unique", e.name);
        require(e.begin == at && e.begin <= e.end, "tensors follow one another", e.name);
        at = e.end;
        require(std::all_of(e.shape.begin(), e.shape.end(), [](auto n) { return n >= 0; }),
                "no dimension is negative", e.name);
        if (!e.dtype) continue;
        unsigned __int128 bytes = static_cast<unsigned>(size_of(*e.dtype));
        for (const auto n : e.shape)
            bytes = std::min<unsigned __int128>(bytes * static_cast<unsigned __int128>(n), ~std::uint64_t{0});
        require(bytes == e.end - e.begin, "type and shape fill the bytes", e.name);
    }
    require(header.data_offset + at == file.size(), "the tensors end where the file ends");
}

/// The header written again from what was read must read the same.
void check_again(const TemporaryDirectory& folder, const Header& header) {
    std::string text = "{";
    std::uint64_t bytes = 0;
    for (const auto& e : header.entries) {
        if (e.name.find_first_of("\"\\") != e.name.npos || e.dtype_name.find_first_of("\"\\") != e.name.npos)
            return;
        if (std::any_of(e.dtype_name.begin(), e.dtype_name.end(), [](unsigned char c) { return c < 0x20; }))
            return;
        text +=
            (bytes++ ? "," : "") + testing::header_entry(e.name, e.dtype ? name_of(*e.dtype) : e.dtype_name,
                                                         e.shape, e.begin, e.end);
    }
    const auto path = folder / "again.safetensors";
    bytes = 0;
    for (const auto& e : header.entries) bytes = std::max(bytes, e.end);
    testing::write_raw_safetensors(path, text + "}", std::vector<std::uint8_t>(bytes));
    const MappedFile file(path);
    const auto second = read_header(file);
    require(second.entries.size() == header.entries.size(), "written again, the header has as many tensors");
    for (std::size_t i = 0; i < second.entries.size(); ++i) {
        const auto &a = header.entries[i], &b = second.entries[i];
        require(a.name == b.name && a.dtype == b.dtype && a.dtype_name == b.dtype_name &&
                    a.shape == b.shape && a.begin == b.begin && a.end == b.end,
                "written again, the header reads the same", a.name);
    }
    std::filesystem::remove(path);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const TemporaryDirectory folder;
    const auto path = folder / "model.safetensors";
    const auto input = text_of(data, size);
    if (!input.empty() && input[0] == '{') {
        std::vector<std::uint8_t> bytes(wanted_bytes(input));
        std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
        testing::RawForm form;
        form.pad = false;
        testing::write_raw_safetensors(path, input, bytes, form);
    } else {
        write_file(path, input);
    }

    bool read = false;
    accepted([&] {
        const MappedFile file(path);
        const auto header = read_header(file);
        read = true;
        check_header(file, header);
        check_again(folder, header);
    });
    const bool opened = accepted([&] {
        const auto checkpoint = Checkpoint::open(folder.path());
        std::uint64_t bytes = 0;
        unsigned sum = 0;
        for (const auto& [name, view] : checkpoint.tensors()) {
            require(name == view.name && checkpoint.find(name) == &view, "a tensor is found by its name");
            for (std::size_t i = 0; i < view.bytes; ++i) sum += std::to_integer<unsigned>(view.data[i]);
            bytes += view.bytes;
        }
        [[maybe_unused]] volatile unsigned kept = sum;
        require(bytes == checkpoint.tensor_bytes(), "tensor_bytes is the sum of the tensors");
        for (const auto& warning : checkpoint.warnings()) require_one_line(warning);
        checkpoint.check_unchanged();
    });
    require(read || !opened, "a checkpoint opens only when its header can be read");
    return 0;
}
