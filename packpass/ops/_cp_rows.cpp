// shard_rows and cp_roll_slots on the CPU, see _cp_layout.py and _cp_roll_slots.py. The caller has checked the
// boundaries: every index lies in the row.
#include <algorithm>
#include <cstdint>
#include <vector>

extern "C" void packpass_shard_rows(
    const int64_t* cu, int64_t* out, int64_t entries, int64_t local, int64_t size, int64_t inverse,
    int64_t zigzag) {
  for (int64_t i = 0; i <= entries; ++i) {  // the stretch that ends at cu[i]; the first and the last are the tail
    const int64_t start = i == 0 ? 0 : cu[i - 1];
    const int64_t stop = i == entries ? local * size : cu[i];
    const int64_t chunks = i == 0 || i == entries || !zigzag ? size : 2 * size;
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

namespace {

struct Source {
  int64_t rank, slot, whole;
};

// Who owns the slot at a place of its document, which may lie outside of it; as `locate` of _cp_halo.py.
// `halves`: chunks of a document on one rank, 2 in a zigzag.
inline Source locate(int64_t position, int64_t start, int64_t length, int64_t size, int64_t halves) {
  const int64_t whole = halves * size * length, one = std::max<int64_t>(length, 1), round = std::max<int64_t>(whole, 1);
  const int64_t inside = ((position % round) + round) % round;
  const int64_t chunk = inside / one;
  const bool second = chunk >= size;
  return {second ? 2 * size - 1 - chunk : chunk, start + (second ? one : 0) + inside % one, whole};
}

}  // namespace

extern "C" void packpass_roll_slots(
    const int64_t* cu, const int64_t* shifts, void* const* tables, int64_t entries, int64_t count, int64_t local,
    int64_t size, int64_t rank, int64_t ends_sent, int64_t halves) {
  const auto in_row = [&](int64_t slot) { return std::min(std::max<int64_t>(slot, 0), local - 1); };
  int64_t before = 0, behind = 0;
  for (int64_t k = 0; k < count; ++k) {
    before = std::max(before, shifts[k]);
    behind = std::max(behind, -shifts[k]);
  }
  const int64_t width = before + behind;
  // Documents without slots, and the last entry, stand for the first document that has some.
  std::vector<int64_t> starts(entries), lengths(entries, 0);
  int64_t filled = -1;
  for (int64_t i = 0; i + 1 < entries; ++i) {
    lengths[i] = (cu[i + 1] - cu[i]) / (halves * size);
    if (filled < 0 && lengths[i] > 0) filled = i;
  }
  const int64_t stand_in = std::max<int64_t>(filled, 0);
  for (int64_t i = 0; i < entries; ++i) {
    const int64_t of = lengths[i] > 0 ? i : stand_in;
    starts[i] = cu[of] / size;
    lengths[i] = lengths[of];
  }
  int64_t* const sent = static_cast<int64_t*>(tables[0]);
  int16_t* const outside = static_cast<int16_t*>(tables[1]);
  for (int64_t r = 0, n = 0; r < size; ++r)
    for (int64_t half = 0; half < halves; ++half)
      for (int64_t i = 0; i < entries; ++i) {
        const int64_t length = lengths[i], chunk = half ? 2 * size - 1 - r : r;
        for (int64_t place = 0; place < width; ++place, ++n) {
          const int64_t position = chunk * length + (place < before ? 0 : length) + place - before;
          const Source source = locate(position, starts[i], length, size, halves);
          sent[n] = in_row(source.slot);
          const int64_t after = position < source.whole ? 0 : source.whole - 1 - position;
          outside[n] = length == 0 ? 0 : position < 0 ? -position : after;
        }
      }
  for (int64_t k = 0; k < count; ++k) {
    const int64_t shift = shifts[k], reach = shift < 0 ? -shift : shift;
    int64_t* const slots = static_cast<int64_t*>(tables[2 + 3 * k]);
    int64_t* const taken = static_cast<int64_t*>(tables[3 + 3 * k]);
    int16_t* const absent = static_cast<int16_t*>(tables[4 + 3 * k]);
    for (int64_t half = 0, n = 0; half < halves; ++half)
      for (int64_t i = 0; i < entries; ++i) {
        const int64_t length = lengths[i], chunk = half ? 2 * size - 1 - rank : rank;
        for (int64_t step = 0; step < reach; ++step, ++n) {
          const int64_t offset = shift < 0 ? std::max<int64_t>(length - reach + step, 0)
                                           : std::min(step, std::max<int64_t>(length - 1, 0));
          const int64_t window = shift < 0 ? before + offset + reach - length : before - reach + offset;
          const int64_t position = chunk * length + offset - shift;
          const Source source = locate(position, starts[i], length, size, halves);
          const bool exists = position >= 0 && position < source.whole;
          const int64_t ending = position < 0 || halves == 2 ? 0 : size - 1;
          const int64_t owner = length == 0 ? rank : exists || !ends_sent ? source.rank : ending;
          slots[n] = in_row(starts[i] + half * length + offset);
          taken[n] = ((owner * halves + half) * entries + i) * width + std::min(std::max<int64_t>(window, 0), width - 1);
          absent[n] = !exists && !ends_sent && length > 0;
        }
      }
  }
}
