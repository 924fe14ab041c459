#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "block_copy.h"
#include "checksum.h"
#include "ids_binding.h"
#include "threads.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kv {
namespace {

constexpr int64_t BYTES_PER_THREAD = 1 << 20;
constexpr int64_t STREAM_BYTES = 1 << 20;  // fewer stay in a core's cache, where attention or a write finds them
constexpr int64_t PIECE_BYTES = 256 << 10;

using Checksums = std::optional<nb::ndarray<uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>;

uint64_t* checksums_of(const Checksums& checksums, size_t count) {
  if (!checksums) return nullptr;
  if (checksums->shape(0) != count) throw nb::value_error("checksums must be as long as the ids");
  return checksums->data();
}

struct Copies {  // copy i goes from block from_ids[i] (null: i) of `from` to block to_ids[i] (null: i) of `to`
  const Blocks &from, &to;
  const int64_t *from_ids, *to_ids;
  int64_t count;
  uint64_t* checksums;  // null, or one for each copy

  const uint8_t* source(int64_t i) const { return from.base + (from_ids ? from_ids[i] : i) * from.stride; }
  uint8_t* target(int64_t i) const { return to.base + (to_ids ? to_ids[i] : i) * to.stride; }
};

void copy(const Copies& copies) {
  const int64_t bytes = copies.from.bytes, total = copies.count * bytes;
  const auto stream = KV_SELECT(block_copy_kernels).stream;
  const auto copy_and_sum = KV_SELECT(checksum_kernels).copy;
  const bool is_streamed = total >= STREAM_BYTES;
  const int threads = threads_for(total, BYTES_PER_THREAD);
  // A checksum is made of one block as a whole; otherwise large blocks are cut, so that few of them occupy all threads.
  const int64_t pieces = copies.checksums ? 1 : (bytes + PIECE_BYTES - 1) / PIECE_BYTES;
  const int64_t items = copies.count * pieces, items_per_chunk = std::max<int64_t>(1, PIECE_BYTES / bytes);
  nb::gil_scoped_release release;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
  for (int64_t chunk = 0; chunk < items; chunk += items_per_chunk) {
    const int64_t stop = std::min(items, chunk + items_per_chunk);
    for (int64_t item = chunk; item < stop; ++item) {
      const int64_t i = item / pieces, first = item % pieces * PIECE_BYTES;
      if (copies.checksums) {
        copies.checksums[i] = copy_and_sum(0, copies.target(i), copies.source(i), bytes);
        continue;
      }
      const int64_t length = std::min(bytes - first, PIECE_BYTES);
      if (is_streamed)
        stream(copies.target(i) + first, copies.source(i) + first, length);
      else
        std::memcpy(copies.target(i) + first, copies.source(i) + first, length);
    }
  }
}

bool overlap(const Blocks& a, int64_t a_blocks, const Blocks& b, int64_t b_blocks) {
  return a.base < b.base + b_blocks * b.stride && b.base < a.base + a_blocks * a.stride;
}

void check_distinct(const char* argument, std::vector<int64_t>& sorted) {
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end())
    throw nb::value_error((std::string(argument) + " names block " + std::to_string(*twice) + " twice").c_str());
}

void copy_blocks(const Blocks& pool, const Ids& source_ids, const Ids& target_ids, const Checksums& checksums) {
  const std::vector<int64_t> sources = read_ids("sources", source_ids, pool.num_blocks);
  const std::vector<int64_t> targets = read_ids("targets", target_ids, pool.num_blocks);
  if (sources.size() != targets.size()) throw nb::value_error("sources and targets must be equally long");
  std::vector<int64_t> sorted = targets;
  check_distinct("targets", sorted);
  for (int64_t source : sources)
    if (std::binary_search(sorted.begin(), sorted.end(), source))
      throw nb::value_error(("sources and targets both name block " + std::to_string(source)).c_str());
  uint64_t* sums = checksums_of(checksums, sources.size());
  copy({pool, pool, sources.data(), targets.data(), static_cast<int64_t>(sources.size()), sums});
}

void check_buffer(const Blocks& pool, const Blocks& buffer, int64_t count) {
  if (buffer.bytes != pool.bytes) throw nb::value_error("buffer: its blocks must be as large as the pool's");
  if (buffer.num_blocks < count) throw nb::value_error("buffer: has fewer blocks than there are ids");
  if (overlap(pool, pool.num_blocks, buffer, count)) throw nb::value_error("buffer: overlaps the pool");
}

void gather_blocks(const Blocks& pool, const Ids& pool_ids, const Blocks& buffer, const Checksums& checksums) {
  const std::vector<int64_t> ids = read_ids("ids", pool_ids, pool.num_blocks);
  const auto count = static_cast<int64_t>(ids.size());
  check_buffer(pool, buffer, count);
  copy({pool, buffer, ids.data(), nullptr, count, checksums_of(checksums, ids.size())});
}

void scatter_blocks(const Blocks& pool, const Ids& pool_ids, const Blocks& buffer, const Checksums& checksums) {
  const std::vector<int64_t> ids = read_ids("ids", pool_ids, pool.num_blocks);
  const auto count = static_cast<int64_t>(ids.size());
  check_buffer(pool, buffer, count);
  std::vector<int64_t> sorted = ids;
  check_distinct("ids", sorted);
  copy({buffer, pool, nullptr, ids.data(), count, checksums_of(checksums, ids.size())});
}

// One range in pieces of a fixed length, joined in order. `threads`: 0 takes as many as pay.
template <class Piece>
uint64_t sum_pieces(int64_t bytes, int threads, Piece piece) {
  const int64_t pieces = (bytes + PIECE_BYTES - 1) / PIECE_BYTES;
  if (threads < 0) throw nb::value_error("threads must not be negative");
  if (!threads) threads = threads_for(bytes, BYTES_PER_THREAD);
  nb::gil_scoped_release release;
  std::vector<uint64_t> sums(pieces);
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
  for (int64_t i = 0; i < pieces; ++i) sums[i] = piece(i * PIECE_BYTES, std::min(PIECE_BYTES, bytes - i * PIECE_BYTES));
  uint64_t all = 0;
  const uint64_t shift = crc64_x_to_the(8 * PIECE_BYTES);
  for (int64_t i = 0; i < pieces; ++i)
    all = i + 1 < pieces ? crc64_times(all, shift) ^ sums[i] : crc64_joined(all, sums[i], bytes - i * PIECE_BYTES);
  return all;
}

void check_range(const char* argument, uintptr_t address, int64_t bytes) {
  if (bytes < 0) throw nb::value_error("bytes must not be negative");
  if (!address && bytes) throw nb::value_error((std::string(argument) + ": needs memory").c_str());
}

uint64_t checksum(uintptr_t address, int64_t bytes, int threads) {
  check_range("address", address, bytes);
  const auto* data = reinterpret_cast<const uint8_t*>(address);
  const auto read = KV_SELECT(checksum_kernels).read;
  return sum_pieces(bytes, threads, [=](int64_t at, int64_t length) { return read(0, data + at, length); });
}

uint64_t copy_checksum(uintptr_t target, uintptr_t source, int64_t bytes, int threads) {
  check_range("target", target, bytes);
  check_range("source", source, bytes);
  auto* out = reinterpret_cast<uint8_t*>(target);
  const auto* in = reinterpret_cast<const uint8_t*>(source);
  if (out < in + bytes && in < out + bytes) throw nb::value_error("target and source overlap");
  const auto copy = KV_SELECT(checksum_kernels).copy;
  return sum_pieces(bytes, threads, [=](int64_t at, int64_t length) { return copy(0, out + at, in + at, length); });
}

// Several ranges by one thread: whoever else runs Python meanwhile is waited for once, not once a range.
std::vector<uint64_t> checksums(const std::vector<uintptr_t>& addresses, int64_t bytes) {
  for (uintptr_t address : addresses) check_range("addresses", address, bytes);
  const auto read = KV_SELECT(checksum_kernels).read;
  std::vector<uint64_t> sums(addresses.size());
  nb::gil_scoped_release release;
  for (size_t i = 0; i < sums.size(); ++i) sums[i] = read(0, reinterpret_cast<const uint8_t*>(addresses[i]), bytes);
  return sums;
}

std::vector<uint64_t> copy_checksums(const std::vector<uintptr_t>& targets, const std::vector<uintptr_t>& sources,
                                     int64_t bytes) {
  if (targets.size() != sources.size()) throw nb::value_error("targets and sources must be equally long");
  for (size_t i = 0; i < targets.size(); ++i) {
    check_range("targets", targets[i], bytes);
    check_range("sources", sources[i], bytes);
    if (targets[i] < sources[i] + bytes && sources[i] < targets[i] + bytes)
      throw nb::value_error("targets and sources overlap");
  }
  const auto copy = KV_SELECT(checksum_kernels).copy;
  std::vector<uint64_t> sums(targets.size());
  nb::gil_scoped_release release;
  for (size_t i = 0; i < sums.size(); ++i)
    sums[i] = copy(0, reinterpret_cast<uint8_t*>(targets[i]), reinterpret_cast<const uint8_t*>(sources[i]), bytes);
  return sums;
}

}  // namespace

void bind_block_copy(nb::module_& m) {
  nb::class_<Blocks>(m, "Blocks", "Blocks of one size in a pool or a buffer; borrows the memory.")
      .def(
          "__init__",
          [](Blocks* self, uintptr_t address, int64_t num_blocks, int64_t stride, int64_t bytes) {
            if (!address) throw nb::value_error("address: blocks need memory");
            if (num_blocks < 1) throw nb::value_error("num_blocks must be at least 1");
            if (bytes < 1 || bytes > stride) throw nb::value_error("bytes must be between 1 and stride");
            new (self) Blocks{reinterpret_cast<uint8_t*>(address), num_blocks, stride, bytes};
          },
          nb::kw_only(), "address"_a, "num_blocks"_a, "stride"_a, "bytes"_a);
  m.def("copy_blocks", &copy_blocks, "pool"_a, "sources"_a, "targets"_a, "checksums"_a.noconvert().none() = nb::none(),
        "Copies block sources[i] to targets[i]; no block may be both. checksums (uint64) receives one of each block.");
  m.def("gather_blocks", &gather_blocks, "pool"_a, "ids"_a, "buffer"_a, "checksums"_a.noconvert().none() = nb::none(),
        "Copies block ids[i] of the pool to block i of the buffer.");
  m.def("scatter_blocks", &scatter_blocks, "pool"_a, "ids"_a, "buffer"_a, "checksums"_a.noconvert().none() = nb::none(),
        "Copies block i of the buffer to block ids[i] of the pool.");
  m.def("checksum", &checksum, "address"_a, "bytes"_a, "threads"_a = 0,
        "CRC-64/NVME of a range. threads: 0 takes as many as pay; where others compute meanwhile, give 1.");
  m.def("copy_checksum", &copy_checksum, "target"_a, "source"_a, "bytes"_a, "threads"_a = 0,
        "Copies a range; returns its CRC-64/NVME.");
  m.def("checksums", &checksums, "addresses"_a, "bytes"_a, "CRC-64/NVME of ranges of one length, by one thread.");
  m.def("copy_checksums", &copy_checksums, "targets"_a, "sources"_a, "bytes"_a,
        "Copies ranges of one length in order, by one thread; returns their CRC-64/NVME.");
}

}  // namespace kv
