// Kernels of the segment ops for host memory. _segment_native.py compiles those that are used, one function and dtype
// at a time.
//
// Tensors are contiguous [outer, total, inner] with the packed dimension in the middle; per-document tensors are
// [count, outer, inner] with count = N + 1 boundaries. Every document is worked off front to back, as the loop over
// documents does, in blocks of columns that the compiler vectorises; documents and blocks are shared between threads.
// What lies in no document (the tail) is copied. Boundaries out of order or range give wrong values, never an access
// outside of the row.

#include "_segment_kernels.h"

namespace {

// === Reductions ==================================================================================================

// Over n values in a row, LANES at a time (of float, flushed often, so that rounding stays small).
template <class Op, class A, class F> inline A over_row(i64 n, F value) {
  using Lane = std::conditional_t<std::is_same_v<A, double> && std::is_same_v<decltype(value(0)), float>, float, A>;
  A acc = Op::template identity<A>();
  for (i64 p = 0; p < n;) {
    Lane lanes[LANES];
    for (i64 l = 0; l < LANES; ++l) lanes[l] = Op::template identity<Lane>();
    i64 stop = p + 64 * LANES < n ? p + 64 * LANES : n;
    for (; p + LANES <= stop; p += LANES)
      for (i64 l = 0; l < LANES; ++l) lanes[l] = Op::template apply<Lane>(lanes[l], Lane(value(p + l)));
    if (p < stop) {
      // Masked loads where the machine has them.
      for (i64 l = 0; l < LANES; ++l)
        if (l < stop - p) lanes[l] = Op::template apply<Lane>(lanes[l], Lane(value(p + l)));
      p = stop;
    }
    acc = Op::template apply<A>(acc, A(joined<Op, Lane>(lanes)));
  }
  return acc;
}

template <class Op, class T>
void reduce(const T* x, const T*, T* out, const Edges& edges, Shape s, i64, int threads) {
  using A = typename Op::template Acc<T>;
  i64 count = i64(edges.size()) - 2;
  for_blocks(s, count, threads, [&](i64 o, i64 d, i64 first, i64 width) {
    // The entry behind the last document is an empty one.
    i64 start = edges[d + 1], stop = d + 1 < count ? edges[d + 2] : start;
    const T* from = x + (o * s.total + start) * s.inner + first;
    T* to = out + (d * s.outer + o) * s.inner + first;
    if (s.inner == 1) {
      store(*to, over_row<Op, A>(stop - start, [from](i64 p) { return load(from[p]); }));
      return;
    }
    A acc[COLUMNS];
    for (i64 c = 0; c < width; ++c) acc[c] = Op::template identity<A>();
    for (i64 p = start; p < stop; ++p, from += s.inner)
      for (i64 c = 0; c < width; ++c) acc[c] = Op::template apply<A>(acc[c], A(load(from[c])));
    for (i64 c = 0; c < width; ++c) store(to[c], acc[c]);
  });
}

template <class Op, class T>
void argreduce(const T* x, const T*, i64* out, const Edges& edges, Shape s, i64, int threads) {
  using V = Value<T>;
  i64 count = i64(edges.size()) - 2;
  for_blocks(s, count, threads, [&](i64 o, i64 d, i64 first, i64 width) {
    i64 start = edges[d + 1], stop = d + 1 < count ? edges[d + 2] : start;
    const T* from = x + (o * s.total + start) * s.inner + first;
    i64* to = out + (d * s.outer + o) * s.inner + first;
    if (s.inner == 1) {
      V best = over_row<Op, V>(stop - start, [from](i64 p) { return load(from[p]); });
      auto found = [=](i64 p) { return (load(from[p]) == best) | is_nan(load(from[p])); };
      i64 p = 0, rows = stop - start;
      for (int any = 0; p + LANES <= rows; p += LANES) {
        for (i64 l = 0; l < LANES; ++l) any |= found(p + l);
        if (any) break;
      }
      while (p < rows && !found(p)) ++p;
      *to = p < rows ? p : 0;
      return;
    }
    V best[COLUMNS];
    i64 at[COLUMNS];
    for (i64 c = 0; c < width; ++c) at[c] = 0, best[c] = start < stop ? load(from[c]) : V(0);
    for (i64 p = start; p < stop; ++p, from += s.inner)
      for (i64 c = 0; c < width; ++c) {
        V value = load(from[c]);
        bool better = Op::template apply<V>(best[c], value) != best[c] && !is_nan(best[c]);
        best[c] = better ? value : best[c];
        at[c] = better ? p - start : at[c];
      }
    for (i64 c = 0; c < width; ++c) to[c] = at[c];
  });
}

// === Scans =======================================================================================================

// Chains of a single column: acc = begin(slot) at a document's first slot, then acc = next(acc, slot) for the others.
// Every step waits for the one before it, so LINES documents take their steps in turn.
template <class A, i64 LINES, class Copy, class Begin, class Next>
void chains(const Edges& edges, const Shape& s, i64 step, int threads, Copy copy, Begin begin, Next next) {
  i64 stretches = i64(edges.size()) - 1, lines = s.outer * stretches;
  auto group = [&](i64 line, i64 last) {
    A acc[LINES];
    i64 at[LINES], left[LINES];
    // Puts the next document with a second slot into lane l.
    auto refill = [&](i64 l) {
      for (; line < last; ++line) {
        i64 d = line % stretches, start = edges[d], rows = edges[d + 1] - start;
        if (rows == 0) continue;
        start += line / stretches * s.total;
        if (d == 0 || d == stretches - 1) {
          copy(start, rows);
          continue;
        }
        at[l] = step < 0 ? start + rows - 1 : start;
        acc[l] = begin(at[l]);
        left[l] = rows - 1;
        if (left[l] > 0) return ++line, true;
      }
      return false;
    };
    i64 filled = 0;
    while (filled < LINES && refill(filled)) ++filled;
    while (filled == LINES) {
      i64 steps = left[0];
      for (i64 l = 1; l < LINES; ++l) steps = left[l] < steps ? left[l] : steps;
      // In registers, which what `refill` writes to is not.
      A held[LINES];
      i64 slot[LINES];
      for (i64 l = 0; l < LINES; ++l) held[l] = acc[l], slot[l] = at[l];
      UNROLLED
      for (i64 i = 1; i <= steps; ++i)
        for (i64 l = 0; l < LINES; ++l) held[l] = next(held[l], slot[l] + i * step);
      for (i64 l = 0; l < LINES; ++l) acc[l] = held[l], at[l] += steps * step, left[l] -= steps;
      for (i64 l = 0; l < filled; ++l)
        if (left[l] == 0 && !refill(l)) {
          --filled;
          at[l] = at[filled], acc[l] = acc[filled], left[l] = left[filled], --l;
        }
    }
    for (i64 l = 0; l < filled; ++l)
      for (i64 i = 1; i <= left[l]; ++i) acc[l] = next(acc[l], at[l] + i * step);
  };
  constexpr i64 GROUP = 64;
  if (threads <= 1 || s.outer * s.total < 32768) return group(0, lines);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (i64 line = 0; line < lines; line += GROUP) group(line, line + GROUP < lines ? line + GROUP : lines);
}

template <class Op, class T>
void scan(const T* x, const T*, T* out, const Edges& edges, Shape s, i64 reverse, int threads) {
  using A = typename Op::template Acc<T>;
  i64 stretches = i64(edges.size()) - 1, step = reverse ? -s.inner : s.inner;
  if (s.inner == 1)
    return chains<A, std::is_same_v<Op, Sum> && std::is_integral_v<A> ? 1 : 4>(
        edges, s, step, threads, [=](i64 at, i64 rows) { copy_rows(x + at, out + at, rows, 1, 1); },
        [=](i64 at) { return out[at] = x[at], A(load(x[at])); },
        [=](A acc, i64 at) {
          acc = Op::template apply<A>(acc, A(load(x[at])));
          store(out[at], acc);
          return acc;
        });
  for_blocks(s, stretches, threads, [&](i64 o, i64 d, i64 first, i64 width) {
    i64 start = edges[d], rows = edges[d + 1] - start;
    if (rows == 0) return;
    i64 at = (o * s.total + start) * s.inner + first;
    if (d == 0 || d == stretches - 1) return copy_rows(x + at, out + at, rows, s.inner, width);
    if (reverse) at += (rows - 1) * s.inner;
    A acc[COLUMNS];
    for (i64 c = 0; c < width; ++c) acc[c] = A(load(x[at + c])), out[at + c] = x[at + c];
    for (i64 p = 1; p < rows; ++p) {
      at += step;
      INDEPENDENT
      for (i64 c = 0; c < width; ++c) {
        acc[c] = Op::template apply<A>(acc[c], A(load(x[at + c])));
        store(out[at + c], acc[c]);
      }
    }
  });
}

// out[p] = b[p] + a[p] * out[p - 1]; where a is 0 whatever came before is forgotten, infinite or not.
template <class T>
void recurrence(const T* a, const T* b, T* out, const Edges& edges, Shape s, i64 reverse, int threads) {
  using A = Wide<T>;
  i64 stretches = i64(edges.size()) - 1, step = reverse ? -s.inner : s.inner;
  auto next = [=](A acc, i64 at) {
    A factor = A(load(a[at])), value = A(load(b[at]));
    acc = factor == A(0) ? value : value + factor * acc;
    store(out[at], acc);
    return acc;
  };
  if (s.inner == 1)
    return chains<A, 4>(
        edges, s, step, threads, [=](i64 at, i64 rows) { copy_rows(b + at, out + at, rows, 1, 1); },
        [=](i64 at) { return out[at] = b[at], A(load(b[at])); }, next);
  for_blocks(s, stretches, threads, [&](i64 o, i64 d, i64 first, i64 width) {
    i64 start = edges[d], rows = edges[d + 1] - start;
    if (rows == 0) return;
    i64 at = (o * s.total + start) * s.inner + first;
    if (d == 0 || d == stretches - 1) return copy_rows(b + at, out + at, rows, s.inner, width);
    if (reverse) at += (rows - 1) * s.inner;
    A acc[COLUMNS];
    for (i64 c = 0; c < width; ++c) acc[c] = A(load(b[at + c])), out[at + c] = b[at + c];
    for (i64 p = 1; p < rows; ++p) {
      at += step;
      INDEPENDENT
      for (i64 c = 0; c < width; ++c) acc[c] = next(acc[c], at + c);
    }
  });
}

// === Softmax =====================================================================================================

template <class T>
void softmax(const T* x, const T*, T* out, const Edges& edges, Shape s, i64 log, int threads) {
  using V = Value<T>;
  constexpr bool KEPT = std::is_same_v<T, V>;  // whether the result can hold what it is computed from
  i64 stretches = i64(edges.size()) - 1;
  for_blocks(s, stretches, threads, [&](i64 o, i64 d, i64 first, i64 width) {
    i64 start = edges[d], rows = edges[d + 1] - start, stride = s.inner;
    if (rows == 0) return;
    i64 at = (o * s.total + start) * stride + first;
    const T* from = x + at;
    T* to = out + at;
    if (d == 0 || d == stretches - 1) return copy_rows(from, to, rows, stride, width);
    if (stride == 1) {
      V top = over_row<Max, V>(rows, [from](i64 p) { return load(from[p]); });
      thread_local std::vector<V> powers;
      if (i64(powers.size()) < rows + LANES) powers.resize(rows + LANES);
      V* e = powers.data();
      V lanes[LANES] = {};
      i64 p = 0;
      for (; p + LANES <= rows; p += LANES) {
        INDEPENDENT
        for (i64 l = 0; l < LANES; ++l) {
          e[p + l] = exponential(load(from[p + l]) - top);
          lanes[l] += e[p + l];
        }
      }
      INDEPENDENT
      for (i64 l = 0; l < LANES; ++l) {
        e[p + l] = l < rows - p ? exponential(load(from[p + l]) - top) : V(0);
        lanes[l] += e[p + l];
      }
      V total = joined<Sum, V>(lanes), scale = log ? std::log(total) : V(1) / total;
      if (log)
        each(rows, [=](i64 p) { store(to[p], (load(from[p]) - top) - scale); });
      else
        each(rows, [=](i64 p) { store(to[p], e[p] * scale); });
      return;
    }
    V top[COLUMNS], total[COLUMNS];
    for (i64 c = 0; c < width; ++c) top[c] = lowest<V>(), total[c] = V(0);
    for (i64 p = 0; p < rows; ++p)
      for (i64 c = 0; c < width; ++c) top[c] = Max::apply<V>(top[c], load(from[p * stride + c]));
    for (i64 p = 0; p < rows; ++p) {
      INDEPENDENT
      for (i64 c = 0; c < width; ++c) {
        V power = exponential(load(from[p * stride + c]) - top[c]);
        total[c] += power;
        if constexpr (KEPT) to[p * stride + c] = power;
      }
    }
    for (i64 c = 0; c < width; ++c) total[c] = log ? std::log(total[c]) : V(1) / total[c];
    for (i64 p = 0; p < rows; ++p) {
      INDEPENDENT
      for (i64 c = 0; c < width; ++c) {
        i64 slot = p * stride + c;
        if (log)
          store(to[slot], (load(from[slot]) - top[c]) - total[c]);
        else if constexpr (KEPT)
          to[slot] = to[slot] * total[c];
        else
          store(to[slot], exponential(load(from[slot]) - top[c]) * total[c]);
      }
    }
  });
}

template <class T>
void softmax_backward(const T* grad, const T* y, T* out, const Edges& edges, Shape s, i64 log, int threads) {
  using V = Value<T>;
  i64 stretches = i64(edges.size()) - 1;
  for_blocks(s, stretches, threads, [&](i64 o, i64 d, i64 first, i64 width) {
    i64 start = edges[d], rows = edges[d + 1] - start, stride = s.inner;
    if (rows == 0) return;
    i64 at = (o * s.total + start) * stride + first;
    const T *g = grad + at, *value = y + at;
    T* to = out + at;
    if (d == 0 || d == stretches - 1) return copy_rows(g, to, rows, stride, width);
    V total[COLUMNS];
    if (stride == 1) {
      total[0] = V(over_row<Sum, Wide<V>>(rows, [=](i64 p) { return log ? load(g[p]) : load(g[p]) * load(value[p]); }));
    } else {
      for (i64 c = 0; c < width; ++c) total[c] = V(0);
      for (i64 p = 0; p < rows; ++p)
        for (i64 c = 0; c < width; ++c) {
          V weight = log ? V(1) : load(value[p * stride + c]);
          total[c] += load(g[p * stride + c]) * weight;
        }
    }
    // A loop of its own for each form: in a common one the exponential would be computed in vain.
    auto slopes = [&](auto line) {
      V only = total[0];
      if (stride == 1) return each(rows, [=](i64 p) { line(p, only); });
      for (i64 p = 0; p < rows; ++p) {
        INDEPENDENT
        for (i64 c = 0; c < width; ++c) line(p * stride + c, total[c]);
      }
    };
    if (log)
      slopes([=](i64 slot, V sum) { store(to[slot], load(g[slot]) - exponential(load(value[slot])) * sum); });
    else
      slopes([=](i64 slot, V sum) { store(to[slot], (load(g[slot]) - sum) * load(value[slot])); });
  });
}

// === Values per document =========================================================================================

template <class T> void fill_rows(T* out, const T* value, i64 rows, i64 width) {
  if (width == 1) {
    T one = *value;
    return each(rows, [=](i64 p) { out[p] = one; });
  }
  for (i64 p = 0; p < rows; ++p) std::memcpy(out + p * width, value, width * sizeof(T));
}

template <class T> void spread(const T* values, const T*, T* out, const Edges& edges, Shape s, i64, int) {
  i64 stretches = i64(edges.size()) - 1, width = s.inner;
  for (i64 d = 0; d < stretches; ++d) {
    i64 rows = edges[d + 1] - edges[d];
    if (rows == 0) continue;
    if (d == 0 || d == stretches - 1)
      std::memset(out + edges[d] * width, 0, rows * width * sizeof(T));
    else
      fill_rows(out + edges[d] * width, values + (d - 1) * width, rows, width);
  }
}

// Documents, the longest of `longest` slots, from a row to their lines of [N, longest, inner] or, BACK, to the row.
template <class T, bool LEFT, bool BACK>
void pad(const T* from, const T*, T* to, const Edges& edges, Shape s, i64 longest, int) {
  for (i64 d = 0; d + 3 < i64(edges.size()); ++d) {
    i64 start = edges[d + 1], rows = edges[d + 2] - start;
    if (rows == 0 || rows > longest) continue;
    i64 slot = start * s.inner, line = (d * longest + (LEFT ? longest - rows : 0)) * s.inner;
    std::memcpy(to + (BACK ? slot : line), from + (BACK ? line : slot), rows * s.inner * sizeof(T));
  }
}

// === The one function of the library ============================================================================

template <class In, class Out>
void enter(void (*work)(const In*, const In*, Out*, const Edges&, Shape, i64, int), const void* a, const void* b,
           void* out, const Edges& edges, Shape shape, i64 option, int threads) {
  work(static_cast<const In*>(a), static_cast<const In*>(b), static_cast<Out*>(out), edges, shape, option, threads);
}

}  // namespace

#define PACKPASS_ENTRY(...)                                                                                          \
  extern "C" void packpass_segment_kernel(const void* a, const void* b, void* out, const void* cu, i64 cu_is_int64,  \
                                          i64 count, i64 outer, i64 total, i64 inner, i64 option, i64 threads) {     \
    Edges edges = edges_of(cu, cu_is_int64, count, total);                                                           \
    enter(__VA_ARGS__, a, b, out, edges, {outer, total, inner}, option, int(threads));                               \
  }
