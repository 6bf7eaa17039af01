// Which kernel served each operator of a model, and how long it took: what `bench --kernels` prints. Floor 2.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "backend.hpp"

namespace ftmpi {

/// Calls of the same operator, rows and kernel added up, in the order of the first ones.
class KernelTrace {
public:
    void add(std::string operation, std::int64_t rows, std::string kernel, double seconds) {
        const auto same = [&](const KernelRun& r) {
            return r.operation == operation && r.rows == rows && r.kernel == kernel;
        };
        auto run = std::find_if(runs_.begin(), runs_.end(), same);
        if (run == runs_.end())
            run = runs_.insert(runs_.end(), {std::move(operation), rows, std::move(kernel), 0, 0});
        ++run->calls;
        run->seconds += seconds;
    }
    std::vector<KernelRun> take() { return std::exchange(runs_, {}); }

private:
    std::vector<KernelRun> runs_;
};

/// "project FP8 8192 + BF16 64 x 2048": rows by format, and columns.
inline std::string operation_name(std::span<const Projection> to) {
    std::vector<std::pair<Format, std::int64_t>> rows;
    for (const Projection& p : to) {
        const auto same = [&](const auto& r) { return r.first == p.matrix->format; };
        auto at = std::find_if(rows.begin(), rows.end(), same);
        if (at == rows.end()) at = rows.insert(rows.end(), {p.matrix->format, 0});
        at->second += p.matrix->rows;
    }
    std::string name = "project";
    for (const auto& [format, count] : rows)
        name += (name.size() > 7 ? " + " : " ") + std::string(name_of(format)) + " " + std::to_string(count);
    return to.empty() ? name : name + " x " + std::to_string(to[0].matrix->cols);
}

/// "experts_up NVFP4 256 x 1024 x 2048 + FP8": the chosen experts' matrix, and the shared one's format.
inline std::string operation_name(const char* what, const Matrix& routed, const Matrix* shared) {
    std::string name = std::string(what) + " " + std::string(name_of(routed.format)) + " " +
                       std::to_string(routed.groups) + " x " + std::to_string(routed.rows) + " x " +
                       std::to_string(routed.cols);
    return shared ? name + " + " + std::string(name_of(shared->format)) : name;
}

/// "attention 16 / 2 x 256 bf16": query and key/value heads, their size, and the cache.
inline std::string operation_name(const Attention& t) {
    return "attention " + std::to_string(t.query_heads) + " / " + std::to_string(t.kv_heads) + " x " +
           std::to_string(t.head_dim) + " " + std::string(name_of(t.kv));
}

/// "delta_net 16 / 32 x 128 x 128": key and value heads and their sizes.
inline std::string operation_name(const DeltaNet& n) {
    return "delta_net " + std::to_string(n.key_heads) + " / " + std::to_string(n.value_heads) + " x " +
           std::to_string(n.key_dim) + " x " + std::to_string(n.value_dim);
}

}  // namespace ftmpi
