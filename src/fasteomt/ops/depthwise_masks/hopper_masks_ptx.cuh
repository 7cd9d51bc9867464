// Instructions that hopper_masks.cu alone needs; it says what the macros are.
#pragma once

#include "hopper_ptx.cuh"

// Copies 16 bytes, later; zeros unless `real`, and then `from` isn't read. The line beside it is wanted next.
__device__ __forceinline__ void copy_chunk(u32 to, const void* from, bool real) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real ? 16 : 0)
                 : "memory");
}
// This thread's arrival at a barrier, when all chunks have come that it has asked for.
__device__ __forceinline__ void arrive_when_copied(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// The accumulators are operands so that the compiler reads none of them earlier.
__device__ __forceinline__ void multiply_wait(float (&acc)[BLOCK_Q / 2]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" : BLOCK_SUMS::"memory");
}

// acc (64, BLOCK_Q) += a (64, 16) b (BLOCK_Q, 16)^T, of shared memory by descriptor.
__device__ __forceinline__ void multiply(float (&acc)[BLOCK_Q / 2], u64 a, u64 b) {
    asm volatile(MULTIPLY(BLOCK_Q, 1, OF_SHARED(BLOCK)) : BLOCK_SUMS : "l"(a), "l"(b) : "memory");
}

// Two 16-bit elements, the one at the lower address first. Of bfloat16 the compiler would take three instructions.
__device__ __forceinline__ float2 widen(u32 pair) {
    if constexpr (TEXT(TYPE)[0] == 'b') {
        return float2{__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u)};
    } else {
        float2 out;
        asm("{\n.reg .f16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}"
            : "=f"(out.x), "=f"(out.y)
            : "r"(pair));
        return out;
    }
}

__device__ __forceinline__ u32 load_shared_word(u32 address) {
    u32 v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
    return v;
}

