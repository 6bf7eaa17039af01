#include "digest.hpp"

#include <openssl/evp.h>

#include "error.hpp"

namespace ftmpi {

namespace {

void check(int ok, const char* call) {
    if (ok != 1) throw Error(Exit::failure, std::string("libcrypto: ") + call + " failed for SHA-256");
}

struct FreeContext {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_MD_CTX, FreeContext>;

Context new_context() {
    Context context(EVP_MD_CTX_new());
    check(context != nullptr, "EVP_MD_CTX_new");
    return context;
}

}  // namespace

struct Digest::State {
    Context context = new_context();
    Context copy = new_context();  ///< value() finishes this one, so the stream itself goes on
};

Digest::Digest() : state_(std::make_unique<State>()) {
    check(EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr), "EVP_DigestInit_ex");
}
Digest::Digest(Digest&&) noexcept = default;
Digest& Digest::operator=(Digest&&) noexcept = default;
Digest::~Digest() = default;

void Digest::update(const void* data, std::size_t bytes) {
    if (bytes == 0) return;
    check(EVP_DigestUpdate(state_->context.get(), data, bytes), "EVP_DigestUpdate");
}

Sha256 Digest::value() const {
    Sha256 result;
    check(EVP_MD_CTX_copy_ex(state_->copy.get(), state_->context.get()), "EVP_MD_CTX_copy_ex");
    check(EVP_DigestFinal_ex(state_->copy.get(), result.data(), nullptr), "EVP_DigestFinal_ex");
    return result;
}

Sha256 sha256(std::string_view bytes) {
    Digest digest;
    digest.update(bytes.data(), bytes.size());
    return digest.value();
}

std::string hex(const Sha256& digest) {
    constexpr char digits[] = "0123456789abcdef";
    std::string text;
    text.reserve(2 * digest.size());
    for (const auto byte : digest) {
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    return text;
}

}  // namespace ftmpi
