// The journal's records as bytes: little-endian, every length before what it counts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "../results.hpp"

namespace ftmpi {

/// The record a journal begins with, and the one each --resume adds.
struct JournalRun {
    RunRecord run;
    std::int64_t session = 0;
    std::string
        journal_id;  ///< differs from one journal to the next; the HDF5 file made from it carries it too
    bool keeps_file = false;  ///< the finished file under the final name belongs to this run (--resume)
    std::string replaces;  ///< fingerprint of the file under the final name that --overwrite was given for;
                           ///< empty: none
};

enum class RecordKind : std::uint8_t { run = 1, request = 2 };

std::string encode(const JournalRun& run);
std::string encode(const RequestRecord& request, std::int64_t session);

/// The kind of an encoded record. All three throw Error(bad_input) for bytes that are no such record; no
/// length found in them is trusted before it is compared with the bytes there are.
RecordKind kind_of(std::string_view record);
JournalRun decode_run(std::string_view record);
RequestRecord decode_request(std::string_view record);

}  // namespace ftmpi
