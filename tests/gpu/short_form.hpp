// A memory checker makes a kernel tens of times slower and a race checker hundreds: with FTMPI_CHECK_SHORT=1
// in the environment the check programs take each kind of kernel once or twice, at the smallest shapes that
// reach all of its code, and no times.
#pragma once

#include <cstdlib>
#include <string_view>
#include <vector>

namespace ftmpi::check {

inline bool short_form() {
    const char* asked = std::getenv("FTMPI_CHECK_SHORT");
    return asked != nullptr && std::string_view(asked) == "1";
}

/// `few` in the short form, else `all`.
template <class T> std::vector<T> shapes(std::vector<T> few, std::vector<T> all) {
    return short_form() ? std::move(few) : std::move(all);
}

}  // namespace ftmpi::check
