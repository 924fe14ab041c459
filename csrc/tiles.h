// Matrix tiles (AMX): eight of 16 rows of 64 bytes. Include only from *.isa.cpp, for the instruction set that has them.
//
// The numbers of tiles are part of the instructions, so they are template arguments. The tiles belong to the thread: what
// lies between begin_tiles and end_tiles must not call anything else that uses them.
#pragma once

#include <cstdint>

namespace kv::KV_ISA {
namespace {

struct TileConfig {  // the operand of ldtilecfg: palette 1
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

inline void begin_tiles(const TileConfig& config = {}) { __asm__ volatile("ldtilecfg %0" ::"m"(config)); }

inline void end_tiles() { __asm__ volatile("tilerelease"); }

template <int TILE>
inline void clear_tile() {
  __asm__ volatile("tilezero %%tmm%c0" ::"i"(TILE));
}

// 16 rows that lie `apart` bytes apart.
template <int TILE>
inline void load_tile(const void* at, int64_t apart) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(at), "r"(apart), "i"(TILE) : "memory");
}

// The same, of what passes by: it would push what is read again out of L1.
template <int TILE>
inline void load_passing_tile(const void* at, int64_t apart) {
  __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(at), "r"(apart), "i"(TILE) : "memory");
}

template <int TILE>
inline void store_tile(void* at, int64_t apart) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(at), "r"(apart), "i"(TILE) : "memory");
}

// sums [16, 16] fp32 += left [16, 16 pairs] right [16 pairs, 16], of bf16.
template <int SUMS, int LEFT, int RIGHT>
inline void add_tiles() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(LEFT), "i"(RIGHT));
}

}  // namespace
}  // namespace kv::KV_ISA
