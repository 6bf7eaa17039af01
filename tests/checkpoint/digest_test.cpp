// SHA-256 against the published vectors (FIPS 180-2) and against itself in pieces.
#define BOOST_TEST_MODULE digest
#include <boost/test/unit_test.hpp>
#include <string>
#include <utility>

#include "digest.hpp"

using namespace ftmpi;

BOOST_AUTO_TEST_CASE(known_values) {
    BOOST_TEST(hex(sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    BOOST_TEST(hex(sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    BOOST_TEST(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
               "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    BOOST_TEST(hex(sha256(std::string(1'000'000, 'a'))) ==
               "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

BOOST_AUTO_TEST_CASE(pieces_give_the_digest_of_the_whole) {
    std::string bytes;
    for (int i = 0; i < 1000; ++i) bytes += static_cast<char>(i * 131 + i / 7);
    for (const std::size_t piece : {1u, 3u, 63u, 64u, 65u, 999u, 1000u}) {
        Digest digest;
        for (std::size_t at = 0; at < bytes.size(); at += piece)
            digest.update(bytes.data() + at, std::min(piece, bytes.size() - at));
        BOOST_TEST(hex(digest.value()) == hex(sha256(bytes)));
    }
}

BOOST_AUTO_TEST_CASE(a_value_does_not_end_the_stream) {
    Digest digest;
    digest.update(nullptr, 0);
    BOOST_TEST(hex(digest.value()) == hex(sha256("")));
    digest.update("ab", 2);
    BOOST_TEST(hex(digest.value()) == hex(sha256("ab")));
    BOOST_TEST(hex(digest.value()) == hex(sha256("ab")));
    digest.update("c", 1);
    BOOST_TEST(hex(digest.value()) == hex(sha256("abc")));
    Digest moved = std::move(digest);
    moved.update("d", 1);
    BOOST_TEST(hex(moved.value()) == hex(sha256("abcd")));
    digest = Digest();
    BOOST_TEST(hex(digest.value()) == hex(sha256("")));
}
