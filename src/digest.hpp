// SHA-256 by libcrypto.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace ftmpi {

using Sha256 = std::array<std::uint8_t, 32>;

/// Running SHA-256 of a stream of bytes.
class Digest {
public:
    Digest();
    Digest(Digest&&) noexcept;
    Digest& operator=(Digest&&) noexcept;
    ~Digest();
    void update(const void* data, std::size_t bytes);
    /// The digest so far; more may follow.
    Sha256 value() const;

private:
    struct State;
    std::unique_ptr<State> state_;
};

Sha256 sha256(std::string_view bytes);
std::string hex(const Sha256& digest);

}  // namespace ftmpi
