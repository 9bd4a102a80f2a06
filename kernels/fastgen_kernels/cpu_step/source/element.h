// How numbers are stored: brain floats, and pair vectors of either element.
#pragma once

#include <cstdint>
#include <cstring>

#define INLINE inline __attribute__((always_inline))

namespace fastgen {

struct bf16 {
  uint16_t bits;
};

INLINE float widened(bf16 value) {
  const uint32_t bits = uint32_t(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

INLINE float widened(float value) { return value; }

INLINE float widened(int8_t value) { return value; }

// To the nearest, ties to even; a NaN stays one.
INLINE void narrow(float value, bf16* to) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  to->bits = nan ? 0x7fc0 : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

INLINE void narrow(float value, float* to) { *to = value; }

constexpr int LANES = 16;
constexpr int PAIR = 2 * LANES;  // elements of a pair vector

// A pair vector holds, for each of 16 columns, two neighbouring rows of a matrix. Brain floats lie
// as [column][row], which is what AVX512-BF16 multiplies, and splits into rows by a shift and a
// mask; others lie as [row][column].
template <class Element>
constexpr int pair_offset(int column, int row) {
  return sizeof(Element) == 2 ? 2 * column + row : LANES * row + column;
}

constexpr int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace fastgen
