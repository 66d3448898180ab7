// cp_packed_roll on the CPU, see _cp_roll_host.py. The caller has checked the boundaries: every slot lies in the shard.
//
// A roll brings a chunk slots of chunks before it and behind it. Counted from one chunk to the other, distance 1 is the
// chunk right behind; chunks beyond an end of the document are those of its other end, if a roll goes around it.
// Sender and receiver go through fields, documents, halves of the sender and distances in the same order, so that the
// slots for one rank lie in its message as it expects them, without a table.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "_cp_stretches.h"

namespace {

struct Roll {
  int64_t shift, wraps, fill, out;  // `fill` and `out` are addresses, of one item and of a tensor
};

// Tensors [outer, local, inner] (bytes) with the packed dimension in the middle.
struct Field {
  int64_t given, outer, inner, item;
  std::vector<Roll> rolls;
  int64_t before = 0, behind = 0;  // slots that they reach to either side
  bool wraps = false;              // does any of them go around documents?
};

// What the caller has written down: a number for each member, the addresses of rolls and results, then the fields.
struct Shards {
  std::vector<int64_t> cu;
  int64_t entries, local, size, rank, zigzag;
  int64_t ends_sent;  // do ranks with the ends of documents send what lies outside of them, as their rolls fill it?
  std::vector<Field> fields;

  explicit Shards(const int64_t* at)
      : cu(boundaries(at[0], at[1], at[2])), entries(at[2]), local(at[3]), size(at[4]), rank(at[5]), zigzag(at[6]),
        ends_sent(at[7]), fields(at[8]) {
    const int64_t count = at[9];
    const auto* roll = reinterpret_cast<const int64_t*>(at[10]);
    const auto* out = reinterpret_cast<const int64_t*>(at[11]);
    at += 12;
    for (Field& f : fields) f.given = at[0], f.outer = at[1], f.inner = at[2], f.item = at[3], at += 4;
    for (int64_t i = 0; i < count; ++i, roll += 4) {
      Field& f = fields[roll[0]];
      f.rolls.push_back({roll[1], roll[2], roll[3], out[i]});
      f.before = std::max(f.before, roll[1]), f.behind = std::max(f.behind, -roll[1]), f.wraps |= roll[2] != 0;
    }
  }

  Stretch stretch(int64_t i) const { return stretch_to(cu.data(), i, entries, local, size, zigzag); }

  int64_t halves() const { return zigzag ? 2 : 1; }
  int64_t chunk(int64_t half) const { return half ? 2 * size - 1 - rank : rank; }
  int64_t end_rank(bool behind) const { return behind && !zigzag ? size - 1 : 0; }
  const char* given(const Field& f, int64_t slot) const {
    return reinterpret_cast<const char*>(f.given) + slot * f.inner;
  }
  static char* out(const Field& f, const Roll& r, int64_t slot) {
    return reinterpret_cast<char*>(r.out) + slot * f.inner;
  }
};

// Slots of a document that lie together, in `chunk` of the rank that has them or beyond an end, for chunk `to`.
struct Run {
  int64_t to, position, count, chunk;
};

// How many chunks so many slots reach into; the chunk that one beyond the ends stands for. Mostly without a division.
inline int64_t reached(int64_t slots, int64_t length) {
  return slots <= length ? slots > 0 : (slots + length - 1) / length;
}
inline int64_t around(int64_t at, int64_t size) { return 0 <= at && at < size ? at : ((at % size) + size) % size; }
inline int64_t between(int64_t value, int64_t low, int64_t high) { return std::min(std::max(value, low), high); }

// The run that chunk `from`, `distance` before `to`, has for it. Either may lie beyond the ends of the document.
inline Run run_between(const Stretch& s, const Field& f, int64_t from, int64_t distance) {
  const int64_t reach = distance > 0 ? f.before - (distance - 1) * s.length : f.behind + (distance + 1) * s.length;
  const int64_t count = std::min(s.length, reach), offset = distance > 0 ? s.length - count : 0;
  return {from + distance, from * s.length + offset, count, around(from, s.chunks)};
}

// Where it begins in the shard of the rank that has it.
inline int64_t slot_of(const Stretch& s, const Run& run) { return s.row(run.chunk) + around(run.position, s.length); }

// The run beyond an end of the document that chunk `to` reaches; empty if it reaches none.
inline Run run_outside(const Stretch& s, const Field& f, int64_t to, bool behind) {
  const int64_t whole = s.chunks * s.length;
  const int64_t count = behind ? f.behind - (s.chunks - 1 - to) * s.length : f.before - to * s.length;
  return {to, behind ? whole : -count, std::max<int64_t>(count, 0), -1};
}

// each(field, document, first, last) for documents that have slots, with the distances that their rolls reach.
template <class Each> void each_document(const Shards& shards, Each each) {
  for (const Field& f : shards.fields)
    for (int64_t i = 1; i < shards.entries; ++i) {
      const Stretch s = shards.stretch(i);
      if (s.length > 0) each(f, s, -reached(f.behind, s.length), reached(f.before, s.length));
    }
}

// each(field, document, run, rank) for what this rank has for the others.
template <class Each> void each_sent(const Shards& shards, Each each) {
  each_document(shards, [&](const Field& f, const Stretch& s, int64_t first, int64_t last) {
    for (int64_t half = 0; half < shards.halves(); ++half)
      for (int64_t distance = first; distance <= last; ++distance) {
        const Run run = run_between(s, f, shards.chunk(half), distance);
        const bool inside = run.to >= 0 && run.to < s.chunks;
        if (distance == 0 || !(inside || (f.wraps && !shards.ends_sent))) continue;
        const int64_t rank = s.rank(around(run.to, s.chunks));
        if (rank != shards.rank) each(f, s, run, rank);
      }
    for (int64_t behind = 0; behind < 2 && shards.ends_sent; ++behind) {
      if (shards.rank != shards.end_rank(behind)) continue;
      const int64_t chunks = std::min(reached(behind ? f.behind : f.before, s.length), s.chunks);
      for (int64_t to = behind ? s.chunks - chunks : 0, n = 0; n < chunks; ++n, ++to)
        if (s.rank(to) != shards.rank) each(f, s, run_outside(s, f, to, behind), s.rank(to));
    }
  });
}

// each(field, document, run, rank) for what this rank's chunks take of all ranks, in the order in which each sends it.
template <class Each> void each_taken(const Shards& shards, Each each) {
  each_document(shards, [&](const Field& f, const Stretch& s, int64_t first, int64_t last) {
    for (int64_t senders = 0; senders < shards.halves(); ++senders)
      for (int64_t distance = first; distance <= last; ++distance)
        for (int64_t half = 0; half < shards.halves() && distance != 0; ++half) {
          const int64_t from = shards.chunk(half) - distance;
          const Run run = run_between(s, f, from, distance);
          const bool inside = from >= 0 && from < s.chunks;
          if (s.second(run.chunk) != (senders == 1) || !(inside || (f.wraps && !shards.ends_sent))) continue;
          each(f, s, run, s.rank(run.chunk));
        }
    for (int64_t behind = 0; behind < 2 && shards.ends_sent; ++behind)
      for (int64_t half = 0; half < shards.halves(); ++half) {
        const Run run = run_outside(s, f, shards.chunk(half), behind);
        if (run.count > 0) each(f, s, run, shards.end_rank(behind));
      }
  });
}

void fill(char* to, int64_t bytes, const char* item, int64_t size) {
  for (int64_t at = 0; at < bytes; at += size) std::memcpy(to + at, item, size);
}

// What the shortest roll is filled with that brings in a slot which lies so far outside; null if it goes around.
const char* fill_at(const Field& f, int64_t shift) {
  const Roll* shortest = nullptr;
  for (const Roll& roll : f.rolls) {
    if ((roll.shift > 0) != (shift > 0) || std::abs(roll.shift) < std::abs(shift)) continue;
    if (!shortest || std::abs(roll.shift) < std::abs(shortest->shift)) shortest = &roll;
  }
  return shortest && !shortest->wraps ? reinterpret_cast<const char*>(shortest->fill) : nullptr;
}

// [outer, run.count, inner] of what this rank has of a run, or knows of it.
void gather(const Shards& shards, const Field& f, const Stretch& s, const Run& run, char* to) {
  const int64_t bytes = run.count * f.inner;
  if (run.chunk >= 0) {
    for (int64_t o = 0; o < f.outer; ++o)
      std::memcpy(to + o * bytes, shards.given(f, o * shards.local + slot_of(s, run)), bytes);
    return;
  }
  for (int64_t j = 0; j < run.count; ++j) {
    const int64_t position = run.position + j, chunk = around(position, s.chunks * s.length) / s.length;
    const int64_t slot = s.row(chunk) + around(position, s.length);
    const char* const known = fill_at(f, position < 0 ? -position : s.chunks * s.length - position - 1);
    for (int64_t o = 0; o < f.outer; ++o) {
      char* const at = to + o * bytes + j * f.inner;
      if (known) fill(at, f.inner, known, f.item);
      else std::memcpy(at, shards.given(f, o * shards.local + slot), f.inner);
    }
  }
}

// A run, [outer, run.count, inner] with `step` bytes from one outer to the next, comes to where the rolls bring it.
void land(const Shards& shards, const Field& f, const Stretch& s, const Run& run, const char* from, int64_t step) {
  const int64_t begin = run.to * s.length, first_row = s.row(run.to) - begin;
  const bool outside = run.position < 0 || run.position >= s.chunks * s.length;
  for (const Roll& roll : f.rolls) {
    if (outside && !roll.wraps && !shards.ends_sent) continue;
    const int64_t first = std::max(run.position + roll.shift, begin);
    const int64_t stop = std::min(run.position + run.count + roll.shift, begin + s.length);
    if (first >= stop) continue;
    const char* source = from + (first - roll.shift - run.position) * f.inner;
    char* to = shards.out(f, roll, first_row + first);
    for (int64_t o = 0; o < f.outer; ++o, source += step, to += shards.local * f.inner)
      std::memcpy(to, source, (stop - first) * f.inner);
  }
}

// Slots whose source lies outside of the document.
void fill_ends(const Shards& shards, const Field& f, const Roll& roll, const Stretch& s) {
  for (int64_t half = 0; half < shards.halves(); ++half) {
    const int64_t chunk = shards.chunk(half);
    const int64_t chunks = roll.shift > 0 ? chunk : s.chunks - 1 - chunk;  // to the end that it is filled from
    const int64_t count = between(std::abs(roll.shift) - chunks * s.length, 0, s.length);
    const int64_t slot = s.row(chunk) + (roll.shift > 0 ? 0 : s.length - count);
    for (int64_t o = 0; o < f.outer && count > 0; ++o)
      fill(shards.out(f, roll, o * shards.local + slot), count * f.inner, reinterpret_cast<char*>(roll.fill), f.item);
  }
}

// The shard moved as a whole; where the source lies in another chunk, anything.
void move(const Shards& shards, const Field& f, const Roll& roll, int64_t threads) {
  const int64_t first = shards.cu[0] / shards.size, stop = shards.cu[shards.entries - 1] / shards.size;
  const int64_t begin = first + between(roll.shift, 0, stop - first);
  const int64_t end = stop - between(-roll.shift, 0, stop - first);
  const int64_t slots = std::max<int64_t>((1 << 17) / std::max<int64_t>(f.inner, 1), 1);
  const int64_t blocks = (shards.local + slots - 1) / slots;
#pragma omp parallel for num_threads(threads) if (threads > 1 && f.outer * blocks > 1)
  for (int64_t n = 0; n < f.outer * blocks; ++n) {
    const char* const row = shards.given(f, n / blocks * shards.local);
    char* const out = shards.out(f, roll, n / blocks * shards.local);
    const int64_t low = n % blocks * slots, high = std::min(low + slots, shards.local);
    const auto copy = [&](int64_t from, int64_t to, int64_t shift) {
      from = std::max(from, low), to = std::min(to, high);
      if (from < to) std::memcpy(out + from * f.inner, row + (from - shift) * f.inner, (to - from) * f.inner);
    };
    copy(0, first, 0);
    copy(begin, end, roll.shift);
    copy(stop, shards.local, 0);
  }
}

std::vector<int64_t> starts(const int64_t* bytes, int64_t size) {
  std::vector<int64_t> at(size, 0);
  for (int64_t r = 1; r < size; ++r) at[r] = at[r - 1] + bytes[r - 1];
  return at;
}

}  // namespace

// Bytes for each rank, and from each, which are 0 before. Only the first one, -1, if the boundaries are wrong.
extern "C" void packpass_roll_bytes(const int64_t* table, int64_t* sent, int64_t* taken) {
  const Shards shards(table);
  sent[0] = -!are_shared(shards.cu.data(), shards.entries, shards.local, shards.size, shards.zigzag);
  if (sent[0] < 0) return;
  const auto count = [&](int64_t* bytes) {
    return [=, &shards](const Field& f, const Stretch&, const Run& run, int64_t rank) {
      if (rank != shards.rank) bytes[rank] += f.outer * run.count * f.inner;
    };
  };
  each_sent(shards, count(sent));
  each_taken(shards, count(taken));
}

extern "C" void packpass_roll_send(const int64_t* table, const int64_t* bytes, char* message) {
  const Shards shards(table);
  std::vector<int64_t> at = starts(bytes, shards.size);
  each_sent(shards, [&](const Field& f, const Stretch& s, const Run& run, int64_t rank) {
    gather(shards, f, s, run, message + at[rank]);
    at[rank] += f.outer * run.count * f.inner;
  });
}

// All that needs no message.
extern "C" void packpass_roll_own(const int64_t* table, int64_t threads) {
  const Shards shards(table);
  for (const Field& f : shards.fields)
    for (const Roll& roll : f.rolls) {
      move(shards, f, roll, threads);
      for (int64_t i = 1; i < shards.entries && roll.shift != 0 && !roll.wraps && !shards.ends_sent; ++i)
        fill_ends(shards, f, roll, shards.stretch(i));
    }
  std::vector<char> values;
  each_taken(shards, [&](const Field& f, const Stretch& s, const Run& run, int64_t rank) {
    if (rank != shards.rank) return;
    if (run.chunk >= 0) return land(shards, f, s, run, shards.given(f, slot_of(s, run)), shards.local * f.inner);
    const int64_t step = run.count * f.inner;
    values.resize(f.outer * step);
    gather(shards, f, s, run, values.data());
    land(shards, f, s, run, values.data(), step);
  });
}

extern "C" void packpass_roll_land(const int64_t* table, const int64_t* bytes, const char* message) {
  const Shards shards(table);
  std::vector<int64_t> at = starts(bytes, shards.size);
  each_taken(shards, [&](const Field& f, const Stretch& s, const Run& run, int64_t rank) {
    if (rank == shards.rank) return;
    const int64_t step = run.count * f.inner;
    land(shards, f, s, run, message + at[rank], step);
    at[rank] += f.outer * step;
  });
}
