"""The bytes of random tensors, drawn directly in quantised form.

65,536 blocks of normal values are quantised by the exporter's rule once; a tensor is then a random choice of such blocks.
That is what quantising normal weights gives, at two random bytes for each block.
"""

import zlib

import numpy as np

BLOCKS = 65536
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def e4m3_values():
    """The finite non-negative values of codes 0..126."""
    code = np.arange(127)
    exponent, mantissa = code >> 3, code & 7
    return np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))


def nearest_even(values, x):
    """Index of the value nearest to each x (not negative); on a tie the even index; beyond the last, the last."""
    middle = (values[1:] + values[:-1]) / 2
    low = np.searchsorted(middle, x, side="left")
    tie = (low < len(middle)) & (x == middle[np.minimum(low, len(middle) - 1)])
    return np.where(tie & (low % 2 == 1), low + 1, low)


def bf16(x):
    """Bit patterns of x rounded to nearest even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def signed_codes(values, x, sign_bit):
    return (nearest_even(values, np.abs(x)) | np.where(np.signbit(x), sign_bit, 0)).astype(np.uint8)


class Pools:
    """Quantised blocks of N(0, 1)."""

    def __init__(self, seed):
        normal = np.random.Generator(np.random.SFC64([seed, 1])).standard_normal
        # NVFP4: 16 values a block; its scale is amax/6 in e4m3, relative to the tensor's amax/2688.
        x = normal((BLOCKS, 16))
        self.nvfp4_scale = np.abs(x).max() / 2688
        scales = nearest_even(e4m3_values(), np.abs(x).max(axis=1) / 6 / self.nvfp4_scale)
        step = (e4m3_values()[scales] * self.nvfp4_scale)[:, None]
        codes = signed_codes(E2M1, x / step, 8)
        self.nvfp4_scales = scales.astype(np.uint8)
        self.nvfp4_codes = np.ascontiguousarray(codes[:, 0::2] | codes[:, 1::2] << 4).view(np.uint64).ravel()
        x = normal((BLOCKS, 8))
        self.fp8_scale = np.abs(x).max() / 448
        self.fp8_codes = signed_codes(e4m3_values(), x / self.fp8_scale, 128).view(np.uint64).ravel()
        self.normal = normal((BLOCKS, 4)).astype(np.float32)
        self.of_spread = {}

    def bf16_blocks(self, spread):
        if spread not in self.of_spread:
            self.of_spread[spread] = bf16(self.normal * np.float32(spread)).view(np.uint64).ravel()
        return self.of_spread[spread]


class Contents:
    """Bytes of any piece of any tensor; the same for the same seed, whatever the order of the calls."""

    def __init__(self, seed):
        self.seed, self.pools = seed, Pools(seed)

    def generator(self, group, piece=0):
        return np.random.SFC64([self.seed, 2, zlib.crc32(group.encode()), piece])

    def choice(self, group, piece, count):
        """`count` random block numbers."""
        return self.generator(group, piece).random_raw((count + 3) // 4).view(np.uint16)[:count]

    def jitter(self, group, name):
        """A factor of its own for each tensor's scale, 0.9 to 1.1."""
        return 0.9 + 0.2 * np.random.Generator(self.generator(group + name)).random()

    def fill(self, tensor, piece, out):
        """Writes piece number `piece` of the tensor, len(out) bytes; pieces of a tensor have the same number of rows."""
        t, kind, n, pools = tensor, tensor.kind, len(out), self.pools
        if kind == "nvfp4_codes":
            np.take(pools.nvfp4_codes, self.choice(t.group, piece, n // 8), out=out.view(np.uint64))
        elif kind == "nvfp4_scales":
            np.take(pools.nvfp4_scales, self.choice(t.group, piece, n), out=out)
        elif kind == "fp8_codes":
            np.take(pools.fp8_codes, self.choice(t.group, piece, n // 8), out=out.view(np.uint64))
        elif kind == "bf16":
            np.take(pools.bf16_blocks(t.spread), self.choice(t.group, piece, n // 8), out=out.view(np.uint64))
        else:
            out[:] = np.ascontiguousarray(self.small(t)).view(np.uint8)

    def small(self, t):
        """A tensor that is not drawn in pieces."""
        draw = np.random.Generator(self.generator(t.group))
        if t.kind == "nvfp4_scale":
            return np.array([t.spread * self.pools.nvfp4_scale * self.jitter(t.group, "scale")], np.float32)
        if t.kind == "nvfp4_input":
            return np.array([8.0 / 2688 * self.jitter(t.group, "input")], np.float32)
        if t.kind == "fp8_scale":
            return np.array([t.spread * self.pools.fp8_scale * self.jitter(t.group, "scale")], np.float32)
        if t.kind == "fp8_input":
            return np.array([8.0 / 448 * self.jitter(t.group, "input")], np.float32)
        if t.kind == "fp8_block_scales":
            return bf16(t.spread * self.pools.fp8_scale * draw.uniform(0.9, 1.1, t.elements))
        if t.kind in ("A_log", "dt_bias"):
            # A token's decay is exp(-A * softplus(a + dt_bias)); a has a spread of 0.4. Between about 0.9999 and 0.5.
            rate = 3e-4 * (0.2 / 3e-4) ** draw.random(t.elements)
            a = 16 ** draw.random(t.elements)
            return bf16(np.log(a) if t.kind == "A_log" else np.log(np.expm1(rate / a)))
        if t.kind == "taps":
            taps = 0.3 * draw.standard_normal((t.shape[0], t.shape[2]))
            taps[:, -1] = 0.8 + 0.2 * draw.standard_normal(t.shape[0])
            return bf16(taps).ravel()
        assert t.kind == "values", t.kind
        return bf16(t.mean + t.spread * draw.standard_normal(t.elements))
