// Which rank holds what of a row that ranks share, see _cp_layout.py. The caller has checked the boundaries.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

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

// Boundaries of either width.
inline std::vector<int64_t> boundaries(int64_t address, bool wide, int64_t entries) {
  const auto at = [=](auto* first) { return std::vector<int64_t>(first, first + entries); };
  return wide ? at(reinterpret_cast<int64_t*>(address)) : at(reinterpret_cast<int32_t*>(address));
}

// Can ranks share the row? `raise_if_not_shards` says what is wrong.
inline bool are_shared(const int64_t* cu, int64_t entries, int64_t local, int64_t size, bool zigzag) {
  const int64_t parts = zigzag ? 2 * size : size;
  if (cu[0] < 0 || cu[0] % size != 0 || cu[entries - 1] > local * size) return false;
  for (int64_t i = 1; i < entries; ++i)
    if (cu[i] < cu[i - 1] || (cu[i] - cu[i - 1]) % parts != 0) return false;
  return true;
}

}  // namespace
