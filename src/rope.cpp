#include <cmath>
#include <cstdint>
#include <vector>

#include "rope.hpp"

namespace ftmpi {
namespace {

// Double precision by IEEE operations alone (std::sqrt, std::fma, frexp and ldexp are exact or correctly
// rounded), because pow, sin and cos of C libraries differ in last bits from version to version.

double natural_log(double x) {
    int e = 0;
    double m = std::frexp(x, &e);  // [0.5, 1)
    if (m < 0.70710678118654752) {
        m *= 2;
        --e;
    }
    const double s = (m - 1) / (m + 1), s2 = s * s;  // |s| < 0.172: 12 terms reach 1e-18
    double sum = 0;
    for (int k = 23; k >= 1; k -= 2) sum = std::fma(sum, s2, 1.0 / k);
    return std::fma(static_cast<double>(e), 0.69314718055994531, 2 * s * sum);
}

double exponential(double x) {
    const double n = std::nearbyint(x * 1.4426950408889634);
    const double r = std::fma(-n, 2.3190468138462996e-17, std::fma(-n, 0.69314718055994529, x));
    double sum = 1;
    for (int k = 16; k >= 1; --k) sum = std::fma(sum, r / k, 1.0);
    return std::ldexp(sum, static_cast<int>(n));
}

/// cos and sin of a >= 0 below 2^24: reduction by pi/2 in two parts, Taylor series on [-pi/4, pi/4].
void cos_sin(double a, double& c, double& s) {
    const double n = std::nearbyint(a * 0.63661977236758134);
    double r = std::fma(-n, 1.5707963267948966, a);
    r = std::fma(-n, 6.123233995736766e-17, r);
    const double r2 = r * r;
    double sine = 1, cosine = 1;
    for (int k = 16; k >= 2; k -= 2) {
        sine = 1.0 - sine * r2 / (k * (k + 1));
        cosine = 1.0 - cosine * r2 / (k * (k - 1));
    }
    sine *= r;
    switch (static_cast<std::int64_t>(n) & 3) {
        case 0:
            c = cosine;
            s = sine;
            break;
        case 1:
            c = -sine;
            s = cosine;
            break;
        case 2:
            c = -cosine;
            s = -sine;
            break;
        default:
            c = sine;
            s = -cosine;
            break;
    }
}

}  // namespace

std::vector<float> inverse_frequencies(double theta, int rotary_dim) {
    std::vector<float> f;
    const double log_theta = natural_log(theta);
    for (int i = 0; 2 * i < rotary_dim; ++i) {
        const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary_dim);
        f.push_back(1.0f / static_cast<float>(exponential(log_theta * static_cast<double>(exponent))));
    }
    return f;
}

void rope_table(double theta, int rotary_dim, std::int64_t positions, std::vector<float>& cos,
                std::vector<float>& sin) {
    const auto f = inverse_frequencies(theta, rotary_dim);
    cos.resize(static_cast<std::size_t>(positions) * f.size());
    sin.resize(cos.size());
    for (std::int64_t p = 0; p < positions; ++p)
        for (std::size_t i = 0; i < f.size(); ++i) {
            const float angle = static_cast<float>(p) * f[i];
            double c, s;
            cos_sin(static_cast<double>(angle), c, s);
            cos[static_cast<std::size_t>(p) * f.size() + i] = static_cast<float>(c);
            sin[static_cast<std::size_t>(p) * f.size() + i] = static_cast<float>(s);
        }
}

}  // namespace ftmpi
