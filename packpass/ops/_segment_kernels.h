// What the kernels in _segment_kernels.cpp share: element types, operations, the walk over documents.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

using i64 = int64_t;

namespace {

// === Element types ==============================================================================================

struct bf16 {
  uint16_t bits;
};

// The type a value is computed in, and the one sums and products of many are kept in (torch's own choice on the CPU).
template <class T> struct Types { using Value = T; using Wide = uint64_t; };
template <> struct Types<float> { using Value = float; using Wide = double; };
template <> struct Types<double> { using Value = double; using Wide = double; };
template <> struct Types<bf16> { using Value = float; using Wide = float; };

template <class T> using Value = typename Types<T>::Value;
template <class T> using Wide = typename Types<T>::Wide;

template <class T> inline Value<T> load(const T& x) { return x; }
template <> inline float load<bf16>(const bf16& x) {
  uint32_t bits = uint32_t(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

template <class T, class V> inline void store(T& to, V value) {
  if constexpr (std::is_same_v<T, bf16>) {
    float narrow = float(value);
    uint32_t bits;
    std::memcpy(&bits, &narrow, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    to.bits = narrow != narrow ? uint16_t(0x7fc0) : uint16_t(rounded);
  } else {
    to = T(value);
  }
}

template <class V> inline bool is_nan(V value) {
  if constexpr (std::is_floating_point_v<V>) return value != value;
  return false;
}

// === Operations =================================================================================================

template <class V> constexpr V lowest() {
  return std::is_floating_point_v<V> ? -std::numeric_limits<V>::infinity() : std::numeric_limits<V>::lowest();
}
template <class V> constexpr V highest() {
  return std::is_floating_point_v<V> ? std::numeric_limits<V>::infinity() : std::numeric_limits<V>::max();
}

struct Sum {
  template <class T> using Acc = Wide<T>;
  template <class A> static A identity() { return A(0); }
  template <class A> static A apply(A acc, A value) { return acc + value; }
};
struct Prod {
  template <class T> using Acc = Wide<T>;
  template <class A> static A identity() { return A(1); }
  template <class A> static A apply(A acc, A value) { return acc * value; }
};
struct Max {  // a NaN stays
  template <class T> using Acc = Value<T>;
  template <class A> static A identity() { return lowest<A>(); }
  template <class A> static A apply(A acc, A value) { return (value > acc) | is_nan(value) ? value : acc; }
};
struct Min {
  template <class T> using Acc = Value<T>;
  template <class A> static A identity() { return highest<A>(); }
  template <class A> static A apply(A acc, A value) { return (value < acc) | is_nan(value) ? value : acc; }
};
struct LogSumExp {
  template <class T> using Acc = Wide<T>;
  template <class A> static A identity() { return lowest<A>(); }
  template <class A> static A apply(A acc, A value) {
    if (is_nan(acc) | is_nan(value)) return acc + value;
    A high = acc > value ? acc : value, low = acc > value ? value : acc;
    return low == high && std::isinf(high) ? high : high + std::log1p(std::exp(low - high));
  }
};

// a * b + c; fused where that is one instruction, as torch's own vectorised functions have it.
inline float multiply_add(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// exp(x) to about 1 ulp for x up to 88, in a form that vectorises (Cephes' polynomial); denormal results are 0.
inline float exponential(float x) {
  float z = x < -87.33654f ? -87.33654f : x;
  float shifted = multiply_add(z, 1.44269504088896341f, 12582912.f);  // the sum's last bits are the rounded product
  float whole = shifted - 12582912.f;
  float r = multiply_add(whole, 2.12194440e-4f, multiply_add(whole, -0.693359375f, z));
  float y = 1.9875691500e-4f;
  y = multiply_add(y, r, 1.3981999507e-3f);
  y = multiply_add(y, r, 8.3334519073e-3f);
  y = multiply_add(y, r, 4.1665795894e-2f);
  y = multiply_add(y, r, 1.6666665459e-1f);
  y = multiply_add(y, r, 5.0000001201e-1f);
  y = multiply_add(y * r, r, r) + 1.f;
  uint32_t power;
  std::memcpy(&power, &shifted, 4);
  power = (power + 127) << 23;  // what is above the low bits is shifted out
  float scale;
  std::memcpy(&scale, &power, 4);
  return x < -87.33654f ? 0.f : y * scale;
}
inline double exponential(double x) { return std::exp(x); }

// === Work ========================================================================================================

constexpr i64 COLUMNS = 128;  // columns per block
constexpr i64 LANES = 32;     // slots of a single column that are worked on as one vector

#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define UNROLLED _Pragma("clang loop unroll_count(4)")
#elif defined(__GNUC__)
#define INDEPENDENT _Pragma("GCC ivdep")
#define UNROLLED _Pragma("GCC unroll 4")
#else
#define INDEPENDENT
#define UNROLLED
#endif

// f(p) for p = 0 .. n - 1 in whole vectors: the last one overlaps the one before it, so f may run twice for a slot.
template <class F> inline void each(i64 n, F f) {
  if (n < LANES) {
    for (i64 p = 0; p < n; ++p) f(p);
    return;
  }
  for (i64 p = 0;; p = p + 2 * LANES <= n ? p + LANES : n - LANES) {
    INDEPENDENT
    for (i64 l = 0; l < LANES; ++l) f(p + l);
    if (p + LANES == n) return;
  }
}

template <class Op, class A, i64 COUNT = LANES> inline A joined(A* lanes) {
  if constexpr (COUNT == 1) {
    return lanes[0];
  } else {
    A halves[COUNT / 2];
    for (i64 l = 0; l < COUNT / 2; ++l) halves[l] = Op::template apply<A>(lanes[l], lanes[l + COUNT / 2]);
    return joined<Op, A, COUNT / 2>(halves);
  }
}

// The edges of all stretches: [0, cu[0], ..., cu[N], total], in order and within the row whatever cu holds.
using Edges = std::vector<i64>;
Edges edges_of(const void* cu, bool cu_is_int64, i64 count, i64 total) {
  Edges edges(count + 2);
  for (i64 i = 0; i < count; ++i) {
    i64 edge = cu_is_int64 ? static_cast<const i64*>(cu)[i] : i64(static_cast<const int32_t*>(cu)[i]);
    edge = edge < total ? edge : total;
    edges[i + 1] = edge > edges[i] ? edge : edges[i];
  }
  edges[count + 1] = total;
  return edges;
}

struct Shape {
  i64 outer, total, inner;
  i64 blocks() const { return (inner + COLUMNS - 1) / COLUMNS; }
};

// Calls work(outer index, stretch, first column, number of columns) for every block of every stretch.
template <class F> void for_blocks(const Shape& s, i64 stretches, int threads, F work) {
  i64 blocks = s.blocks(), tasks = s.outer * stretches * blocks;
  if (threads <= 1 || s.outer * s.total * s.inner < 32768) {
    for (i64 o = 0; o < s.outer; ++o)
      for (i64 d = 0; d < stretches; ++d)
        for (i64 first = 0; first < s.inner; first += COLUMNS)
          work(o, d, first, s.inner - first < COLUMNS ? s.inner - first : COLUMNS);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 8)
  for (i64 task = 0; task < tasks; ++task) {
    i64 first = task % blocks * COLUMNS, at = task / blocks;
    work(at / stretches, at % stretches, first, s.inner - first < COLUMNS ? s.inner - first : COLUMNS);
  }
}

template <class T> void copy_rows(const T* x, T* out, i64 rows, i64 stride, i64 width) {
  if (stride == width) {
    std::memcpy(out, x, rows * width * sizeof(T));
    return;
  }
  for (i64 p = 0; p < rows; ++p) std::memcpy(out + p * stride, x + p * stride, width * sizeof(T));
}

}  // namespace
