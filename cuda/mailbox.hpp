// Kernels that move columns between ranks: straight into each other's mailboxes, or into and out of one
// contiguous buffer that another library sends. They know addresses only; who maps whose memory is the
// transports' business. No CUDA header needed.
//
// An exchange is one kernel a rank. Small ones travel as 8-byte words {value, epoch}: the data carries its
// flag, so a reader polls the words themselves and there is no fence, no barrier and no reset. Large ones
// travel as 16-byte stores into a staging area, one flag a block after a fence. The epoch counts exchanges in
// device memory, so a captured graph can be replayed. There are two buffers, by the epoch's parity. That is
// enough because every rank sends every other rank something in every exchange, at least its signature: a
// rank that finished exchange e + 1 knows that all have finished reading exchange e.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../src/backend.hpp"

namespace ftmpi::cuda {

inline constexpr int max_ranks = 16;   ///< of one device transport
inline constexpr int max_parts = 4;    ///< matrices of one kernel
inline constexpr int max_blocks = 64;  ///< of one kernel
inline constexpr int max_names = 64;   ///< collectives timed apart; all further ones share the last entry

/// A part's columns of all ranks. A rank's floats are counted part by part, row by row; a kernel moves
/// `count[r]` of them from number `first` on, the same window on every rank.
struct GatherLayout {
    int ranks, rank, parts;
    std::uint32_t first;
    std::uint32_t count[max_ranks];
    float* data[max_parts];
    std::int64_t width[max_parts];
    std::uint32_t rows[max_parts];
    std::uint32_t begin[max_parts][max_ranks];
    std::uint32_t size[max_parts][max_ranks];
};

/// Which exchange this is. Ranks whose signatures differ are out of step.
struct Tag {
    std::uint32_t signature;
    std::uint32_t name;   ///< below max_names
    std::uint32_t calls;  ///< what it adds to the count of calls: 0 for the further windows of one exchange
};

/// Device memory of a transport, zeroed before use.
struct Control {
    struct Slot {
        std::uint32_t
            epoch;  ///< of the last exchange, one a block so that no block reads what another has raised
        std::uint32_t broken;  ///< an exchange has failed: later ones do nothing
    } slot[max_blocks];
    std::uint32_t begun;
    std::uint64_t begun_ns;
    std::uint64_t waited_ns[max_names];
    std::uint64_t calls[max_names];
};

/// Page-locked host memory of a transport, zeroed before use, written by kernels.
struct Report {
    enum Fault : std::uint32_t { none, timed_out, out_of_step };
    std::uint32_t fault;         ///< written last
    std::uint32_t name;          ///< Tag::name of the exchange that failed
    std::uint32_t source;        ///< rank that was waited for
    std::uint32_t begun, ended;  ///< exchanges of pack() and unpack() so far: unlike while one is on its way
    std::uint32_t begun_name;
};

struct Mailboxes {
    std::byte* of_rank[max_ranks];  ///< as this GPU addresses them, the own one included; mailbox_bytes()
                                    ///< each, zeroed
    std::uint32_t words;            ///< floats that one rank sends as words at most
    std::uint32_t bulk;             ///< floats that one rank stages at most, a multiple of 64
    int blocks;  ///< of a bulk kernel and the most of a words kernel; the same on all ranks, at most
                 ///< max_blocks and never more than run at once
    std::uint64_t timeout_ns;  ///< of a wait
    Control* control;
    Report* report;
};

std::size_t mailbox_bytes(int ranks, std::uint32_t words, std::uint32_t bulk);

/// Exchanges on `stream`. count[] must not exceed `words` or `bulk`.
void exchange_words(const Mailboxes& mailboxes, const GatherLayout& layout, const Tag& tag, Stream stream);
void exchange_bulk(const Mailboxes& mailboxes, const GatherLayout& layout, const Tag& tag, Stream stream);

/// A test of the mapping itself: fills this rank's parts of every other mailbox with a pattern / counts the
/// words of the own mailbox that do not hold what the others write. count_wrong() synchronises.
void write_pattern(const Mailboxes& mailboxes, int rank, int ranks, Stream stream);
std::uint64_t count_wrong(const Mailboxes& mailboxes, int rank, int ranks, Stream stream);

/// This rank's floats of the window to `to`, and the others' from `from`, where rank r's begin at
/// from[at[r]]. Either may be page-locked host memory.
struct SegmentOffsets {
    std::uint32_t at[max_ranks];
};
void pack(const GatherLayout& layout, const Tag& tag, float* to, Control* control, Report* report,
          Stream stream);
void unpack(const GatherLayout& layout, const Tag& tag, const float* from, const SegmentOffsets& offsets,
            Control* control, Report* report, Stream stream);

}  // namespace ftmpi::cuda
