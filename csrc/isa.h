// Instruction sets: which ones this build holds, which ones the processor has, and which one runs.
//
// Kernel sources (*.isa.cpp) are compiled once per set into namespace kv::<set>. Each concept has a table of function
// pointers per set (say `const CopyKernels kv::avx2::copy_kernels`); KV_SELECT returns the table of the active set.
#pragma once

namespace kv {

enum class Isa { portable, avx2, avx512, avx512_bf16, amx };  // each holds all that the ones before it hold

Isa active_isa();
const char* isa_name(Isa isa);

}  // namespace kv

// KV_DECLARE(Type, name): declares the table `name` of every set. Use in namespace kv.
#ifdef KV_HAS_avx2
#define KV_DECLARE(Type, name)                                                                    \
  namespace portable { extern const Type name; }                                                  \
  namespace avx2 { extern const Type name; }                                                      \
  namespace avx512 { extern const Type name; }                                                    \
  namespace avx512_bf16 { extern const Type name; }                                               \
  namespace amx { extern const Type name; }
#define KV_SELECT(name)                                                                           \
  (active_isa() == Isa::amx           ? ::kv::amx::name                                           \
   : active_isa() == Isa::avx512_bf16 ? ::kv::avx512_bf16::name                                   \
   : active_isa() == Isa::avx512      ? ::kv::avx512::name                                        \
   : active_isa() == Isa::avx2        ? ::kv::avx2::name                                          \
                                      : ::kv::portable::name)
#else
#define KV_DECLARE(Type, name)                                                                    \
  namespace portable { extern const Type name; }
#define KV_SELECT(name) (::kv::portable::name)
#endif
