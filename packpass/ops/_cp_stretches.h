// Which rank holds what of a row that ranks share, see _cp_layout.py. The caller has checked the boundaries.
#pragma once
#include <algorithm>
#include <cstdint>

namespace {

// A document, or one of the two tails, which is cut in `chunks` of `length` slots.
struct Stretch {
  int64_t start, length, chunks, size;

  bool second(int64_t chunk) const { return chunk >= size; }
  int64_t rank(int64_t chunk) const { return second(chunk) ? 2 * size - 1 - chunk : chunk; }
  // The first slot of a chunk in the whole row, and in the shard of its rank.
  int64_t slot(int64_t chunk) const { return start + chunk * length; }
  int64_t row(int64_t chunk) const { return start / size + (second(chunk) ? length : 0); }
};

// The stretch that ends at cu[i]. The first and the last one, i = 0 and i = entries, are the tails.
inline Stretch stretch_to(const int64_t* cu, int64_t i, int64_t entries, int64_t local, int64_t size, bool zigzag) {
  const int64_t start = i == 0 ? 0 : cu[i - 1], stop = i == entries ? local * size : cu[i];
  const int64_t chunks = i == 0 || i == entries || !zigzag ? size : 2 * size;
  return {start, (stop - start) / chunks, chunks, size};
}

}  // namespace
