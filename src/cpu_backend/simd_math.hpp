// Steps of numerics.hpp on 16 lanes, operation by operation. Included inside the anonymous namespace of a
// SIMD kernel source.
#pragma once

inline F round_even(F x) {
    const F magic = set(12582912.0f);
    return sub(add(x, magic), magic);
}

inline F pow2(I e) { return as_float(shift_left<23>(iadd(e, iset(127)))); }

inline F exp(F x) {
    const F n = round_even(mul(x, set(1.44269502f)));
    F r = fma(n, set(-0.693145752f), x);
    r = fma(n, set(-1.42860677e-6f), r);
    F p = fma(r, set(0.001381446490995586f), set(0.008368780836462975f));
    p = fma(p, r, set(0.04166839271783829f));
    p = fma(p, r, set(0.1666651964187622f));
    p = fma(p, r, set(0.4999999403953552f));
    p = add(fma(mul(p, r), r, r), set(1.0f));
    const I k = truncate(n), half = shift_right_signed<1>(k);
    p = mul(mul(p, pow2(half)),
            pow2(isub(k, half)));  // garbage outside the range, replaced below; NaN stays NaN
    p = if_greater(x, set(88.73f), set(num::float_of(0x7f800000u)), p);
    return if_greater(set(-104.0f), x, zero(), p);
}

/// The values of e4m3 codes in the lanes' low bytes, other bits 0.
inline F from_e4m3(I b) {
    const I m = iand(b, iset(0x7f));
    const F normal = as_float(iadd(shift_left<20>(m), iset(120 << 23)));
    F magnitude = if_greater(m, iset(7), normal, mul(to_float(m), set(0.001953125f)));
    magnitude = if_greater(m, iset(0x7e), set(num::float_of(0x7fc00000u)), magnitude);
    return as_float(ior(shift_left<24>(iand(b, iset(0x80))), as_int(magnitude)));
}
