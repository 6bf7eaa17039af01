"""The two quantized formats, both ways: FP8 in blocks of 128 x 128, and NVFP4 as ModelOpt writes it."""

import torch

FP8 = torch.float8_e4m3fn
MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def spread(scales, rows, cols):
    return scales.float().repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :cols]


def to_blocks(matrix):
    """-> codes, BF16 scales of the blocks (weight_scale_inv)."""
    rows, cols = matrix.shape
    padded = torch.nn.functional.pad(matrix, (0, -cols % 128, 0, -rows % 128))
    largest = padded.unflatten(0, (-1, 128)).unflatten(2, (-1, 128)).abs().amax(dim=(1, 3))
    scales = (largest / 448.0).clamp(min=1e-12).to(torch.bfloat16)
    return (matrix / spread(scales, rows, cols)).clamp(-448, 448).to(FP8), scales


def from_blocks(codes, scales):
    return codes.float() * spread(scales, *codes.shape)


def to_nvfp4(matrix, scale):
    """-> packed codes (the even column in the low half of a byte), E4M3 scales of groups of 16 columns."""
    groups = matrix.unflatten(1, (-1, 16))
    largest = groups.abs().amax(-1)
    scales = torch.where(largest == 0, 1.0, largest / (6.0 * scale)).clamp(2.0**-9, 448.0).to(FP8)
    wanted = groups / (scales.float() * scale).unsqueeze(-1)
    codes = (wanted.abs().unsqueeze(-1) - MAGNITUDES).abs().argmin(-1) + 8 * (wanted < 0)
    codes = codes.to(torch.uint8).flatten(1)
    return (codes[:, 0::2] | codes[:, 1::2] << 4).contiguous(), scales


def from_nvfp4(packed, scales, scale):
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(1).unflatten(1, (-1, 16))
    values = MAGNITUDES[(codes & 7).long()] * torch.where(codes > 7, -1.0, 1.0)
    return (values * (scales.float() * scale).unsqueeze(-1)).flatten(1)
