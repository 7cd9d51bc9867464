// Stands in for the project's hopper_masks_ptx.cuh.
#pragma once

#include "hopper_ptx.cuh"

inline void copy_chunk(u32 to, const void* from, bool real) { machine::copy_chunk(to, real ? from : nullptr); }
inline void arrive_when_copied(u32 barrier) { machine::arrive_when_copied(barrier); }

inline void multiply_wait(float (&)[BLOCK_Q / 2]) { machine::wait_for_products(0); }
inline void multiply(float (&acc)[BLOCK_Q / 2], u64 a, u64 b) {
    machine::start_product({acc, BLOCK_Q, a, b, Element::decode});
}

inline float2 widen(u32 pair) { return {Element::decode(pair & 0xFFFF), Element::decode(pair >> 16)}; }

inline u32 load_shared_word(u32 address) { return load_as<u32>(address); }

