// Instructions that hopper_attention.cu alone needs; it says what the macros are.
#pragma once

#include "hopper_ptx.cuh"

// Named barriers: 0 is __syncthreads', then each warpgroup's own, then those of turns; 15 is the extra warps'.
constexpr int TURNS = 1 + WARPGROUPS;
static_assert(TURNS + WARPGROUPS <= 15, "there are 16");

// Warpgroups' turns: it is `group`'s once another warpgroup passes it on.
__device__ __forceinline__ void turn_wait(int group) {
    asm volatile("bar.sync %0, 256;" ::"r"(group + TURNS) : "memory");
}
__device__ __forceinline__ void turn_pass(int group) {
    asm volatile("bar.arrive %0, 256;" ::"r"(group + TURNS) : "memory");
}

// The 96 threads of the extra warps meet.
__device__ __forceinline__ void extra_sync() { asm volatile("bar.sync 15, 96;" ::: "memory"); }

// The compiler uses these registers neither for something else before this point nor their values earlier.
__device__ __forceinline__ void in_use_until_here(float& value) { asm volatile("" : "+f"(value)::"memory"); }
__device__ __forceinline__ void in_use_until_here(u32& value) { asm volatile("" : "+r"(value)::"memory"); }

#define OUT "{" OUT_REGISTERS "}, {" OUT_A "}, " OUT_B ", add, 1, 1, 1"

// scores (64, KEYS) += queries (64, 16) keys (KEYS, 16)^T, of shared memory by descriptor; the first product
// overwrites what was there. KEYS is BLOCK_N or LAST.
template <int KEYS>
__device__ __forceinline__ void multiply_first_keys(float (&scores)[KEYS / 2], u64 queries, u64 keys) {
    if constexpr (KEYS == BLOCK_N) {
        asm volatile(MULTIPLY(BLOCK_N, 0, OF_SHARED(BLOCK))
                     : BLOCK_OUTPUTS
                     : "l"(queries), "l"(keys)
                     : "memory");
    } else {
        asm volatile(MULTIPLY(LAST, 0, OF_SHARED(LAST))
                     : LAST_OUTPUTS
                     : "l"(queries), "l"(keys)
                     : "memory");
    }
}
template <int KEYS>
__device__ __forceinline__ void multiply_keys(float (&scores)[KEYS / 2], u64 queries, u64 keys) {
    if constexpr (KEYS == BLOCK_N) {
        asm volatile(MULTIPLY(BLOCK_N, 1, OF_SHARED(BLOCK))
                     : BLOCK_SUMS
                     : "l"(queries), "l"(keys)
                     : "memory");
    } else {
        asm volatile(MULTIPLY(LAST, 1, OF_SHARED(LAST))
                     : LAST_SUMS
                     : "l"(queries), "l"(keys)
                     : "memory");
    }
}

// out (64, HEAD_DIM) += weights (64, 16) values (16, HEAD_DIM): weights of registers, values of shared memory,
// whose rows are keys (the last 1: B is transposed).
__device__ __forceinline__ void multiply_first_values(
    float (&out)[HEAD_DIM / 2], u32 a0, u32 a1, u32 a2, u32 a3, u64 values
) {
    asm volatile(MULTIPLY(HEAD_DIM, 0, OUT)
                 : OUT_OUTPUTS
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(values)
                 : "memory");
}
__device__ __forceinline__ void multiply_values(
    float (&out)[HEAD_DIM / 2], u32 a0, u32 a1, u32 a2, u32 a3, u64 values
) {
    asm volatile(MULTIPLY(HEAD_DIM, 1, OUT)
                 : OUT_SUMS
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(values)
                 : "memory");
}

// One warp's sums (16, 8) += a (16, 16) b (16, 8). A lane has of `sums` columns 2 (lane % 4) and the next, of
// rows lane / 4 and, second, 8 further.
__device__ __forceinline__ void multiply_in_warp(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." TEXT(TYPE) "." TEXT(TYPE) ".f32"
        " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices of 16 bits, row i % 8 of matrix i / 8 at lane i's address; a lane holds 2 elements of
// row lane / 4 of each.
__device__ __forceinline__ void load_matrices(u32 (&value)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value[0]), "=r"(value[1]), "=r"(value[2]), "=r"(value[3])
                 : "r"(address)
                 : "memory");
}
// Of each, a lane gets 2 elements of column lane / 4.
__device__ __forceinline__ void load_transposed(u32 (&value)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value[0]), "=r"(value[1]), "=r"(value[2]), "=r"(value[3])
                 : "r"(address)
                 : "memory");
}

// An 8 x 8 matrix, of which a lane has 2 elements of row lane / 4, transposed.
__device__ __forceinline__ u32 transpose(u32 value) {
    u32 out;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(value));
    return out;
}

// Whether all `count` warps that count here have come, which happens once to each: this one is the last. It sees what
// they stored before, by `load_new`. The counter starts and ends at 0.
__device__ __forceinline__ bool is_last(u32* counter, int count) {
    u32 before = 0;
    __threadfence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) before = atomicInc(counter, count - 1);
    before = __shfl_sync(~0u, before, 0);
    __threadfence();
    return before == count - 1;
}
__device__ __forceinline__ float4 load_new(const float4* from) { return __ldcg(from); }
