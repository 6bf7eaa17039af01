// What a test expects to be refused, and how it is said.
#pragma once

#include <boost/test/unit_test.hpp>
#include <string>
#include <utility>

#include "error.hpp"

namespace ftmpi::testing {

/// "what | hint" of the Error that `call` ends with. Fails the test when its code is not `code`, or nothing
/// is thrown.
template <class Call> std::string refusal(Exit code, Call&& call) {
    try {
        std::forward<Call>(call)();
    } catch (const Error& error) {
        BOOST_TEST(static_cast<int>(error.code()) == static_cast<int>(code), error.what());
        return std::string(error.what()) + " | " + error.hint();
    }
    BOOST_ERROR("nothing was refused");
    return {};
}

}  // namespace ftmpi::testing
