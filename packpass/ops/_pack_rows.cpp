// pack and unpack on the CPU, see _pack_plan.py and _pack_rows.py.
#include <cstdint>
#include <cstring>

using i64 = int64_t;

namespace {

constexpr i64 BLOCK = 64;          // tokens of a mask that are looked at together
constexpr i64 PARALLEL = 1 << 18;  // bytes from which on threads pay

struct Wide {
  uint64_t halves[2];
};

// Rows of `inner` values in and out; what a wrong plan asks for outside of x is filled, like what has no source.
template <class T> struct Rows {
  const T* x;
  T* out;
  i64 rows, inner;
  T value;

  // For all that the compiler knows `out` may be this struct's own memory: only locals make it a loop over vectors.
  void fill(i64 at, i64 stop) const {
    const i64 first = at * inner, last = stop * inner;
    const T filling = value;
    T* const to = out;
    for (i64 c = first; c < last; ++c) to[c] = filling;
  }
  void copy(i64 at, i64 from, i64 n) const {
    if (n <= 0) return;
    if (from < 0 || from + n > rows) return fill(at, at + n);
    std::memcpy(out + at * inner, x + from * inner, n * inner * sizeof(T));
  }
  void take(const i64* index, i64 at, i64 stop) const {
    for (i64 p = at; p < stop; ++p) {
      if (inner == 1) {
        const i64 from = index[p];
        out[p] = from >= 0 && from < rows ? x[from] : value;
      } else {
        copy(p, index[p], 1);
      }
    }
  }
};

struct Plan {
  const i64 *source, *slots;
  const int32_t *cu, *cu_padded;
  i64 documents, length, total, unpack;

  bool in_order() const {
    for (i64 d = 0; d < documents; ++d) {
      const i64 n = i64(cu[d + 1]) - cu[d], room = i64(cu_padded[d + 1]) - cu_padded[d];
      if (n < 0 || n > room || n > length) return false;
    }
    return cu_padded[0] == 0 && cu_padded[documents] <= total;
  }
};

// Tokens of a row that lie beside each other are one copy: sources ascend, so the first and the last one tell.
template <class T> void move_document(const Rows<T>& r, const Plan& plan, i64 d) {
  const i64 begin = plan.cu_padded[d];
  if (d == plan.documents) {  // the tail
    if (!plan.unpack) r.fill(begin, plan.total);
    return;
  }
  const i64 n = plan.cu[d + 1] - plan.cu[d], end = begin + n, stop = plan.cu_padded[d + 1], row = d * plan.length;
  const i64 first = n > 0 ? plan.source[begin] : row;
  const bool whole = n == 0 || (plan.source[end - 1] - first == n - 1 && first >= row && first + n <= row + plan.length);
  if (!plan.unpack) {
    if (whole) r.copy(begin, first, n);
    else r.take(plan.source, begin, end);
    r.fill(end, stop);
  } else if (whole) {
    r.fill(row, first);
    r.copy(first, begin, n);
    r.fill(first + n, row + plan.length);
  } else {
    r.take(plan.slots, row, row + plan.length);
  }
}

template <class T>
void move(const void* x, void* out, const void* fill, const Plan& plan, i64 inner, int threads) {
  const i64 padded = plan.documents * plan.length, rows = plan.unpack ? plan.total : padded;
  const Rows<T> r{static_cast<const T*>(x), static_cast<T*>(out), rows, inner, *static_cast<const T*>(fill)};
  if (!plan.in_order()) {  // somebody else's boundaries: only the indices count
    if (plan.unpack) r.take(plan.slots, 0, padded);
    else r.take(plan.source, 0, plan.total);
    return;
  }
  if (threads <= 1 || padded * inner * i64(sizeof(T)) < PARALLEL) {
    for (i64 d = 0; d <= plan.documents; ++d) move_document(r, plan, d);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (i64 d = 0; d <= plan.documents; ++d) move_document(r, plan, d);
}

inline int bit(uint8_t keep) { return keep & 1; }

}  // namespace

// The rows of `inner` values of `itemsize` bytes of one field, packed, or back in the padded batch. The plan is one that
// packpass_pack_plan made, or its equal.
extern "C" void packpass_move_rows(const void* x, void* out, const void* fill, const i64* source, const i64* slots,
                                   const int32_t* cu, const int32_t* cu_padded, i64 documents, i64 length, i64 total,
                                   i64 unpack, i64 inner, i64 itemsize, i64 threads) {
  const Plan plan{source, slots, cu, cu_padded, documents, length, total, unpack};
  switch (itemsize) {
    case 1: return move<uint8_t>(x, out, fill, plan, inner, int(threads));
    case 2: return move<uint16_t>(x, out, fill, plan, inner, int(threads));
    case 4: return move<uint32_t>(x, out, fill, plan, inner, int(threads));
    case 8: return move<uint64_t>(x, out, fill, plan, inner, int(threads));
    case 16: return move<Wide>(x, out, fill, plan, inner, int(threads));
  }
}

// The boundaries of a mask of real tokens [rows, length]: int32 [rows + 1] each.
extern "C" void packpass_pack_boundaries(const uint8_t* keep, int32_t* cu, int32_t* cu_padded, i64 rows, i64 length,
                                         i64 multiple) {
  cu[0] = cu_padded[0] = 0;
  for (i64 b = 0; b < rows; ++b) {
    int32_t n = 0;
    for (i64 s = 0; s < length; s += BLOCK) {
      const i64 stop = length - s < BLOCK ? length : s + BLOCK;
      uint8_t sum = 0;  // in bytes, which the compiler adds up as vectors
      for (i64 k = s; k < stop; ++k) sum += bit(keep[b * length + k]);
      n += sum;
    }
    cu[b + 1] = cu[b] + n;
    cu_padded[b + 1] = cu_padded[b] + int32_t((n + multiple - 1) / multiple * multiple);
  }
}

// The plan of a mask whose boundaries fit `total` slots.
extern "C" void packpass_pack_plan(const uint8_t* keep, const int32_t* cu_padded, i64* source, i64* slots,
                                   i64* positions, uint8_t* padding, i64 rows, i64 length, i64 total) {
  for (i64 b = 0; b <= rows; ++b) {
    const i64 start = cu_padded[b], stop = b < rows ? cu_padded[b + 1] : total;  // the last one is the tail
    i64 p = start;
    for (i64 s = 0; b < rows && s < length;) {
      const i64 at = b * length + s, n = length - s < BLOCK ? length - s : BLOCK;
      uint8_t all = 1, any = 0;
      for (i64 k = 0; k < n; ++k) all &= keep[at + k], any |= bit(keep[at + k]);
      if (all) {
        for (i64 k = 0; k < n; ++k) {
          slots[at + k] = p + k;
          source[p + k] = at + k;
          positions[p + k] = p + k - start;
        }
        p += n;
      } else if (!any) {
        for (i64 k = 0; k < n; ++k) slots[at + k] = -1;
      } else {
        for (i64 k = at; k < at + n; ++k) {
          slots[k] = bit(keep[k]) ? p : -1;
          if (bit(keep[k])) source[p] = k, positions[p] = p - start, ++p;
        }
      }
      s += n;
    }
    std::memset(padding + start, 0, p - start);
    std::memset(padding + p, 1, stop - p);
    for (; p < stop; ++p) {
      source[p] = -1;
      positions[p] = length ? (p - start) % length : 0;
    }
  }
}
