// shard_rows on the CPU, see _cp_layout.py. The caller has checked the boundaries: every index lies in the row.
#include "_cp_stretches.h"

extern "C" void packpass_shard_rows(
    const int64_t* cu, int64_t* out, int64_t entries, int64_t local, int64_t size, int64_t inverse,
    int64_t zigzag) {
  for (int64_t i = 0; i <= entries; ++i) {
    const Stretch stretch = stretch_to(cu, i, entries, local, size, zigzag);
    for (int64_t chunk = 0; chunk < stretch.chunks; ++chunk) {
      const int64_t row = stretch.rank(chunk) * local + stretch.row(chunk), slot = stretch.slot(chunk);
      int64_t* const to = out + (inverse ? row : slot);
      const int64_t first = inverse ? slot : row;
      for (int64_t offset = 0; offset < stretch.length; ++offset) to[offset] = first + offset;
    }
  }
}
