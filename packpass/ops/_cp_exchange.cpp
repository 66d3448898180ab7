// Copies around the all-to-all of cp_to_hp and hp_to_cp on the CPU, see _cp_exchange.py. The caller has checked the
// boundaries: every slot lies in the row. Widths are in bytes; a slot holds `mid` rows. Rows and shards without their
// tails are passed with a pointer to where their first slot would lie; then no other slot is touched.
#include <cstring>
#include <vector>

#include "_cp_stretches.h"

namespace {

// Slots that lie one after the other in the whole row and in a shard.
struct Run {
  int64_t rank, slot, row, length;
};

constexpr int64_t LONGEST = 512;  // what threads share

std::vector<Run> runs_of(
    const int64_t* cu, int64_t entries, int64_t local, int64_t size, int64_t zigzag, int64_t tails) {
  std::vector<Run> runs;
  for (int64_t i = tails ? 0 : 1; i < entries + (tails ? 1 : 0); ++i) {
    const Stretch stretch = stretch_to(cu, i, entries, local, size, zigzag);
    for (int64_t chunk = 0; chunk < stretch.chunks; ++chunk)
      for (int64_t at = 0; at < stretch.length; at += LONGEST)
        runs.push_back({stretch.rank(chunk), stretch.slot(chunk) + at, stretch.row(chunk) + at,
                        std::min(LONGEST, stretch.length - at)});
  }
  return runs;
}

// `bytes` in pieces of a size that is known here, each one load and one store; the last two may overlap.
template <int64_t PIECE> inline void copy_by(char* to, const char* from, int64_t bytes) {
  for (int64_t at = 0; at + PIECE < bytes; at += PIECE) std::memcpy(to + at, from + at, PIECE);
  std::memcpy(to + bytes - PIECE, from + bytes - PIECE, PIECE);
}

// Parts of sections are so short that calls of memcpy would take as long as what they copy.
inline void copy(char* a, char* b, int64_t bytes, bool back) {
  char* const to = back ? a : b;
  const char* const from = back ? b : a;
  if (bytes > 1024) std::memcpy(to, from, bytes);
  else if (bytes >= 32) copy_by<32>(to, from, bytes);
  else if (bytes >= 8) copy_by<8>(to, from, bytes);
  else if (bytes >= 1) copy_by<1>(to, from, bytes);
}

}  // namespace

// Tokens with all heads [local * mid, size * part], of which `count` slots from `first` on are copied, to what the
// other ranks get of them, [size - 1, local * mid, part]; or back.
extern "C" void packpass_exchange_heads(
    char* tokens, char* others, const int64_t* widths, int64_t sections, int64_t local, int64_t mid, int64_t size,
    int64_t rank, int64_t part, int64_t first, int64_t count, int64_t back, int64_t threads) {
  const int64_t rows = local * mid;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t row = first * mid; row < (first + count) * mid; ++row) {
    char* from = tokens + row * size * part;
    int64_t before = 0;
    for (int64_t s = 0; s < sections; before += widths[s++])
      for (int64_t r = 0; r < size; ++r, from += widths[s])
        if (r != rank) copy(from, others + ((r - (r > rank)) * rows + row) * part + before, widths[s], back);
  }
}

// The whole row [size * local * mid, part] to the shards of the other ranks, [size - 1, local * mid, part]; or back.
extern "C" void packpass_exchange_tokens(
    const int64_t* cu, char* whole, char* others, int64_t entries, int64_t local, int64_t mid, int64_t size,
    int64_t rank, int64_t part, int64_t zigzag, int64_t tails, int64_t back, int64_t threads) {
  const std::vector<Run> runs = runs_of(cu, entries, local, size, zigzag, tails);
  const int64_t count = runs.size(), slot = mid * part;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
  for (int64_t i = 0; i < count; ++i) {
    const Run& run = runs[i];
    const int64_t r = run.rank - (run.rank > rank);
    if (run.rank != rank) copy(whole + run.slot * slot, others + (r * local + run.row) * slot, run.length * slot, back);
  }
}

// This rank's own: its heads of its tokens [local * mid, size * part] to their places in the whole row
// [size * local * mid, part]; or back.
extern "C" void packpass_exchange_own(
    const int64_t* cu, char* tokens, char* whole, const int64_t* widths, int64_t entries, int64_t sections,
    int64_t local, int64_t mid, int64_t size, int64_t rank, int64_t part, int64_t zigzag, int64_t tails, int64_t back,
    int64_t threads) {
  const std::vector<Run> runs = runs_of(cu, entries, local, size, zigzag, tails);
  const int64_t count = runs.size();
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
  for (int64_t i = 0; i < count; ++i) {
    const Run& run = runs[i];
    if (run.rank != rank) continue;
    for (int64_t row = 0; row < run.length * mid; ++row) {
      char* const from = tokens + (run.row * mid + row) * size * part;
      char* const to = whole + (run.slot * mid + row) * part;
      int64_t before = 0;
      for (int64_t s = 0; s < sections; before += widths[s++])
        copy(from + before * size + rank * widths[s], to + before, widths[s], back);
    }
  }
}
