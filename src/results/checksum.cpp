#include "checksum.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "../digest.hpp"
#include "../error.hpp"
#include "disk.hpp"

namespace ftmpi {

namespace {

constexpr std::string_view magic = "\nftmpi SHA-256: ";
constexpr std::size_t footer_bytes = magic.size() + sizeof(Sha256);

/// The footer for the first `size` bytes.
std::string footer_of(int fd, std::uint64_t size, const std::filesystem::path& path, Exit code) {
    Digest digest;
    std::string block(std::size_t{1} << 20, '\0');
    for (std::uint64_t at = 0; at < size;) {
        const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), size - at));
        if (const int error = read_all(fd, block.data(), n, at))
            throw Error(code, path.string() +
                                  ": cannot be read: " + (error > 0 ? reason(error) : "it became shorter"));
        digest.update(block.data(), n);
        at += n;
    }
    const Sha256 value = digest.value();
    std::string footer(magic);
    footer.append(value.begin(), value.end());
    return footer;
}

/// The footer of a file; empty when it has none.
std::string read_footer(int fd) {
    const std::uint64_t size = size_of_file(fd);
    std::string footer(footer_bytes, '\0');
    const bool read =
        size >= footer_bytes && read_all(fd, footer.data(), footer.size(), size - footer_bytes) == 0;
    return read && footer.starts_with(magic) ? footer : std::string();
}

}  // namespace

void append_checksum(const std::filesystem::path& path) {
    const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (file.get() < 0)
        throw Error(Exit::failure, path.string() + ": cannot be opened again: " + reason(errno));
    const std::uint64_t size = size_of_file(file.get());
    const std::string footer = footer_of(file.get(), size, path, Exit::failure);
    if (const int error = write_all(file.get(), footer, size))
        throw Error(Exit::failure, path.string() + ": cannot be written to the disk: " + reason(error));
}

bool has_checksum(const std::filesystem::path& path) {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    return file.get() >= 0 && !read_footer(file.get()).empty();
}

std::string fingerprint(const std::filesystem::path& path) {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file.get() < 0) throw Error(Exit::bad_input, path.string() + ": cannot be opened: " + reason(errno));
    std::string footer = read_footer(file.get());
    if (footer.empty()) footer = footer_of(file.get(), size_of_file(file.get()), path, Exit::bad_input);
    Sha256 value;
    std::copy_n(footer.begin() + magic.size(), value.size(), value.begin());
    return hex(value);
}

bool verify_checksum(const std::filesystem::path& path) {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file.get() < 0) throw Error(Exit::bad_input, path.string() + ": cannot be opened: " + reason(errno));
    const std::string footer = read_footer(file.get());
    if (footer.empty()) return false;
    if (footer_of(file.get(), size_of_file(file.get()) - footer_bytes, path, Exit::bad_input) != footer)
        throw Error(
            Exit::bad_input,
            path.string() + ": is damaged: its bytes are not those that were written (SHA-256 at its end)",
            "copy it again from where it was made");
    return true;
}

}  // namespace ftmpi
