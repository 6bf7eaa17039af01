// Finds the format of each matrix by the keys that exist and keeps account of which tensors were used.
#pragma once

#include <initializer_list>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "../checkpoint.hpp"
#include "../weights.hpp"

namespace ftmpi {

class Resolver {
public:
    explicit Resolver(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

    /// The tensor of this name, marked as used; null when absent.
    const TensorView* take(const std::string& name);
    /// The same, remembered as missing when absent.
    const TensorView* need(const std::string& name);
    /// A vector of exactly this shape.
    const TensorView* vector(const std::string& name, std::vector<std::int64_t> shape);
    /// Matrix `base` (without ".weight"), rows x cols, in whatever format its keys say.
    StoredMatrix matrix(const std::string& base, std::int64_t rows, std::int64_t cols);
    /// Matrix rows [first, first + rows) of slice `index` of the fused 3-D tensor `base`
    /// [slices][all_rows][cols], in any of these formats.
    StoredMatrix fused(const std::string& base, std::int64_t slices, std::int64_t all_rows, std::int64_t cols,
                       std::int64_t index, std::int64_t first, std::int64_t rows);

    /// True when fused() would find codes under `base`.
    bool has_fused(const std::string& base) const;

    bool used(const std::string& name) const { return used_.count(name) != 0; }
    /// Throws when something was missing or a text tensor of the checkpoint was left over (`unknown`).
    void finish(const std::vector<std::string>& unknown) const;
    /// The same early, once a message could not be longer: a config that asks for millions of tensors takes
    /// no more memory than this.
    void give_up() const {
        if (missing_.size() > 1000) finish({});
    }

private:
    /// Names that ".weight" of a matrix may have; suffixes of scales and packed codes follow.
    using Stems = std::span<const std::string>;
    /// Where a matrix lies: rows [first, ...) of slice `index` of a 3-D tensor, or the whole of a 2-D one
    /// (count 0).
    struct Slice {
        std::int64_t count = 0, index = 0;
        std::int64_t rows = 0;  ///< of a slice
        std::int64_t first = 0;
        /// The stored shape whose dimensions behind the slices' are `inner`.
        std::vector<std::int64_t> shape(std::vector<std::int64_t> inner) const {
            if (count) inner.insert(inner.begin(), count);
            return inner;
        }
    };

    StoredMatrix find(Stems stems, const Slice& slice, std::int64_t rows, std::int64_t cols);
    /// The one tensor with one of these names, marked as used; null when there is none, refused when two.
    const TensorView* beside(Stems stems, std::initializer_list<const char*> suffixes);
    float scalar(const TensorView& tensor, const Slice& slice) const;
    void apply_scalar(StoredMatrix& matrix, const TensorView& tensor, const Slice& slice) const;
    void four_bit(StoredMatrix& matrix, Stems stems, const Slice& slice, bool packed_key);
    void eight_bit(StoredMatrix& matrix, Stems stems, const Slice& slice);

    const Checkpoint& checkpoint_;
    std::set<std::string, std::less<>> used_;
    std::vector<std::string> missing_;
};

[[noreturn]] void refuse(const TensorView& tensor, const std::string& what);
std::string shape_text(const std::vector<std::int64_t>& shape);

}  // namespace ftmpi
