// Element types of stored tensors, with the names safetensors gives them.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace ftmpi {

enum class DType {
    boolean,
    u8,
    i8,
    u16,
    i16,
    u32,
    i32,
    u64,
    i64,
    f8_e4m3,
    f8_e5m2,
    f8_e8m0,
    f16,
    bf16,
    f32,
    f64
};

/// Bytes of one element.
constexpr std::size_t size_of(DType t) {
    switch (t) {
        case DType::boolean:
        case DType::u8:
        case DType::i8:
        case DType::f8_e4m3:
        case DType::f8_e5m2:
        case DType::f8_e8m0: return 1;
        case DType::u16:
        case DType::i16:
        case DType::f16:
        case DType::bf16: return 2;
        case DType::u32:
        case DType::i32:
        case DType::f32: return 4;
        case DType::u64:
        case DType::i64:
        case DType::f64: return 8;
    }
    return 0;
}

constexpr std::string_view name_of(DType t) {
    switch (t) {
        case DType::boolean: return "BOOL";
        case DType::u8: return "U8";
        case DType::i8: return "I8";
        case DType::u16: return "U16";
        case DType::i16: return "I16";
        case DType::u32: return "U32";
        case DType::i32: return "I32";
        case DType::u64: return "U64";
        case DType::i64: return "I64";
        case DType::f8_e4m3: return "F8_E4M3";
        case DType::f8_e5m2: return "F8_E5M2";
        case DType::f8_e8m0: return "F8_E8M0";
        case DType::f16: return "F16";
        case DType::bf16: return "BF16";
        case DType::f32: return "F32";
        case DType::f64: return "F64";
    }
    return "?";
}

/// The type of a safetensors dtype name; empty for a name this program does not know.
constexpr std::optional<DType> dtype_named(std::string_view name) {
    for (int i = 0; i <= static_cast<int>(DType::f64); ++i)
        if (name_of(static_cast<DType>(i)) == name) return static_cast<DType>(i);
    return std::nullopt;
}

}  // namespace ftmpi
