// How tiles lie in shared memory, and a position in a ring of them: what several kernels for Hopper need.
//
// Defined by who compiles this: STAGES, of the ring.
#pragma once

#include "hopper_ptx.cuh"

// Describes rows of 128 bytes for products, as `copy_box` laid them down: 16-byte chunks swizzled within groups of
// 8 rows, which are 1024 bytes apart. It holds both for rows along which products sum and for rows across which
// they do. Start and stride count in units of 16 bytes.
__device__ __forceinline__ u64 descriptor(u32 address) {
    constexpr u64 SWIZZLE_128 = 1ull << 62, STRIDE = (1024ull >> 4) << 32, UNUSED = 1ull << 16;
    return SWIZZLE_128 | STRIDE | UNUSED | ((address & 0x3FFFF) >> 4);
}

// Position in the ring. `parity` is that of the round: 0 in the first.
struct Cursor {
    int stage = 0;
    u32 parity = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
    __device__ __forceinline__ void advance(int steps) {
        stage += steps;
        parity ^= stage / STAGES & 1;
        stage %= STAGES;
    }
};
