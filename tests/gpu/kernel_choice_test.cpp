// Which kernel serves what, by the table of cuda/kernels.cpp alone: needs no GPU.
#define BOOST_TEST_MODULE kernel_choice
#include <boost/test/unit_test.hpp>
#include <deque>

#include "../../cuda/kernels.hpp"

using namespace ftmpi;
using namespace ftmpi::cuda;

namespace {

constexpr Format kEvery[] = {Format::bf16,  Format::fp8_row, Format::fp8_block, Format::nvfp4,
                             Format::mxfp4, Format::f16,     Format::f32};
constexpr std::int64_t kRows[] = {1,
                                  2,
                                  kManyCodedRows - 1,
                                  kManyCodedRows,
                                  kManyCodedExperts - 1,
                                  kManyCodedExperts,
                                  kManyFp8Rows - 1,
                                  kManyFp8Rows,
                                  kManyRows - 1,
                                  kManyRows,
                                  4096};

bool is_other(Format f) { return f == Format::f16 || f == Format::f32; }

/// The kernel of each matrix, as project() finds them: a kernel takes the formats of its row, the next what
/// is left.
std::vector<Kernel> project(const std::vector<Format>& formats, std::int64_t rows, std::int64_t cols,
                            bool fast = false, std::int64_t matrix_rows = 1024) {
    std::deque<Matrix> matrices;
    std::vector<Projection> left;
    for (const Format f : formats) {
        Matrix& m = matrices.emplace_back();
        m.format = f;
        m.rows = matrix_rows;
        m.cols = cols;
        left.push_back({&m, nullptr, 0});
    }
    std::vector<Kernel> kernels(formats.size());
    while (!left.empty()) {
        const KernelRow& row = choose({.op = Operator::project, .rows = rows, .fast = fast, .to = left});
        std::vector<Projection> rest;
        for (const Projection& p : left) {
            if (!(bit_of(p.matrix->format) & row.formats)) {
                rest.push_back(p);
                continue;
            }
            for (std::size_t i = 0; i < matrices.size(); ++i)
                if (&matrices[i] == p.matrix) kernels[i] = row.kernel;
        }
        BOOST_TEST_REQUIRE(rest.size() < left.size());
        left = rest;
    }
    return kernels;
}

MatrixView view(Format f, int rows, int cols) {
    MatrixView m;
    m.format = f;
    m.rows = rows;
    m.cols = cols;
    m.chunks = (cols + 31) / 32;
    m.padded = padded_rows(rows);
    m.code_pitch = std::int64_t{m.chunks} * words128_of(f) * kWord128;
    return m;
}

/// Of Qwen3.5-35B-A3B's sizes, where the kernels at fixed sizes serve what they have.
Kernel experts(Operator op, Format routed, const Format* shared, std::int64_t rows) {
    const bool up = op == Operator::experts_up;
    const MatrixView r = view(routed, up ? 1024 : 2048, up ? 2048 : 512),
                     s = view(shared ? *shared : routed, up ? 1024 : 2048, up ? 2048 : 512);
    return choose({.op = op,
                   .rows = rows,
                   .routed = &r,
                   .shared = shared ? &s : nullptr,
                   .experts = 256,
                   .top_k = 8,
                   .routes = up})
        .kernel;
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_format_has_a_kernel_for_any_rows_and_columns) {
    for (const Format f : kEvery)
        for (const std::int64_t rows : kRows)
            for (const std::int64_t cols : {40, 2048})
                for (const bool fast : {false, true}) {
                    const Kernel k = project({f}, rows, cols, fast)[0];
                    const Kernel exact = is_fp8(f) && rows >= kManyFp8Rows ? Kernel::gemm_fp8
                                         : rows >= (is_4bit(f) ? kManyCodedRows : kManyRows)
                                             ? is_4bit(f) ? Kernel::gemm_4bit : Kernel::gemm_exact
                                         : cols == 2048 && is_fp8(f)                 ? Kernel::gemv_tiles
                                         : rows == 1 && cols == 2048 && !is_other(f) ? Kernel::gemv
                                                                                     : Kernel::gemv_any;
                    const bool rounds = fast && !is_4bit(f) && !is_other(f);
                    BOOST_TEST((k == (rounds ? Kernel::gemm_bf16 : exact)),
                               name_of(f) << ", " << rows << " rows of " << cols << (fast ? ", fast" : ""));
                }
}

BOOST_AUTO_TEST_CASE(floats_of_few_matrix_rows_take_no_tiles) {
    for (const std::int64_t rows : {kManyRows, std::int64_t{4096}}) {
        BOOST_TEST((project({Format::bf16, Format::bf16}, rows, 2048, false, kNarrowRows / 2) ==
                    std::vector(2, Kernel::gemv_any)));
        BOOST_TEST((project({Format::bf16, Format::bf16}, rows, 2048, false, kNarrowRows / 2 + 1) ==
                    std::vector(2, Kernel::gemm_exact)));
        // What has other kernels does not count.
        BOOST_TEST((project({Format::nvfp4, Format::bf16}, rows, 2048, false, kNarrowRows) ==
                    std::vector{Kernel::gemm_4bit, Kernel::gemv_any}));
        BOOST_TEST((project({Format::bf16}, rows, 2048, true, 8) == std::vector{Kernel::gemm_bf16}));
    }
}

BOOST_AUTO_TEST_CASE(f16_and_f32_leave_the_others_their_kernels) {
    for (const Format f : {Format::f16, Format::f32}) {
        const auto one = project({Format::fp8_row, f, Format::bf16}, 1, 2048);
        BOOST_TEST((one == std::vector{Kernel::gemv_tiles, Kernel::gemv_any, Kernel::gemv_tiles}),
                   name_of(f));
        const auto many = project({Format::nvfp4, f, Format::bf16}, 64, 2048, true);
        BOOST_TEST((many == std::vector{Kernel::gemm_4bit, Kernel::gemm_exact, Kernel::gemm_bf16}),
                   name_of(f));
    }
}

BOOST_AUTO_TEST_CASE(fp8_matrices_take_tiles_before_the_others) {
    const std::vector mixed{Format::fp8_row, Format::bf16, Format::nvfp4, Format::fp8_block};
    const auto few = project(mixed, kManyFp8Rows, 2048), many = project(mixed, kManyRows, 2048);
    BOOST_TEST((few == std::vector{Kernel::gemm_fp8, Kernel::gemv_any, Kernel::gemm_4bit, Kernel::gemm_fp8}));
    BOOST_TEST(
        (many == std::vector{Kernel::gemm_fp8, Kernel::gemm_exact, Kernel::gemm_4bit, Kernel::gemm_fp8}));
}

BOOST_AUTO_TEST_CASE(experts_of_any_two_formats_have_a_kernel) {
    for (const Format routed : kEvery)
        for (int i = -1; i < static_cast<int>(std::size(kEvery)); ++i)
            for (const std::int64_t rows : kRows)
                for (const Operator op : {Operator::experts_up, Operator::experts_down}) {
                    const Format* shared = i < 0 ? nullptr : &kEvery[i];
                    const Format beside = shared ? *shared : routed;
                    const Kernel k = experts(op, routed, shared, rows);
                    const bool tiles = routed == Format::f32 || beside == Format::f32 ||
                                       (routed != beside && (routed == Format::f16 || beside == Format::f16));
                    BOOST_TEST(few_rows_serve_experts(bit_of(routed) | bit_of(beside)) == !tiles);
                    const bool fixed = routed == beside && routed != Format::f16 &&
                                       (op == Operator::experts_up || (shared && is_4bit(routed)));
                    const bool many =
                        rows >= (is_4bit(routed) && is_4bit(beside) ? kManyCodedExperts : kManyRows);
                    const Kernel want = many || tiles ? Kernel::prefill
                                        : fixed       ? Kernel::decode
                                                      : Kernel::decode_any;
                    BOOST_TEST((k == want), name_of(routed) << " + " << (shared ? name_of(beside) : "none")
                                                            << ", " << rows << " rows");
                }
}
