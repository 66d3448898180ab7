// zigzag_rows on the CPU, see _cp_layout.py. The caller has checked the boundaries: every index lies in the row.
#include <cstdint>

extern "C" void packpass_zigzag_rows(
    const int64_t* cu, int64_t* out, int64_t entries, int64_t local, int64_t size, int64_t inverse) {
  for (int64_t i = 0; i <= entries; ++i) {  // the stretch that ends at cu[i]; the first and the last are the tail
    const int64_t start = i == 0 ? 0 : cu[i - 1];
    const int64_t stop = i == entries ? local * size : cu[i];
    const int64_t chunks = i == 0 || i == entries ? size : 2 * size;
    const int64_t length = (stop - start) / chunks;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const bool second = chunk >= size;
      const int64_t rank = second ? 2 * size - 1 - chunk : chunk;
      const int64_t row = rank * local + start / size + (second ? length : 0);
      const int64_t slot = start + chunk * length;
      int64_t* const to = out + (inverse ? row : slot);
      const int64_t first = inverse ? slot : row;
      for (int64_t offset = 0; offset < length; ++offset) to[offset] = first + offset;
    }
  }
}
