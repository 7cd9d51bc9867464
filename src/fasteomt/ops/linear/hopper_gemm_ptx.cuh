// Instructions that hopper_gemm.cu alone needs; it says what the macros are.
#pragma once

#include "hopper_ptx.cuh"

// At the barrier that `barrier` is in block `rank` of the cluster. It orders no writes of other threads' memory
// (a cluster-wide release would wait for all of them): only what tensor cores read is at stake.
__device__ __forceinline__ void barrier_arrive(u32 barrier, u32 rank) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}

// To the same place in all blocks of the cluster, each of whose barriers counts the bytes.
__device__ __forceinline__ void copy_box_to_all(u32 to, const TensorMap& map, int column, int row, u32 barrier) {
    constexpr unsigned short ALL = (1 << CLUSTER) - 1;
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"(ALL)
                 : "memory");
}

__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory");
}

// The first two warpgroups tell one another that they may go on: each by a barrier of its own. Barrier 0 is
// __syncthreads'.
__device__ __forceinline__ void tell_other(int group) {
    asm volatile("bar.arrive %0, 256;" ::"r"(1 + group) : "memory");
}
__device__ __forceinline__ void wait_for_other(int group) {
    asm volatile("bar.sync %0, 256;" ::"r"(2 - group) : "memory");
}

__device__ __forceinline__ void meet_other() { asm volatile("bar.sync 3, 256;" ::: "memory"); }

// The accumulators are operands so that the compiler reads none of them earlier.
__device__ __forceinline__ void multiply_wait(float (&acc)[BLOCK_N / 2]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" : BLOCK_SUMS::"memory");
}

// acc (64, BLOCK_N) += a (64, 16) b (BLOCK_N, 16)^T, of shared memory by descriptor.
__device__ __forceinline__ void multiply(float (&acc)[BLOCK_N / 2], u64 a, u64 b) {
    asm volatile(MULTIPLY(BLOCK_N, 1, OF_SHARED(BLOCK)) : BLOCK_SUMS : "l"(a), "l"(b) : "memory");
}

__device__ __forceinline__ void store_shared(u32 address, float4 v) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

__device__ __forceinline__ float4 load_shared_floats(u32 address) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

__device__ __forceinline__ float2 load_shared_pair(u32 address) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
    return v;
}

// Where no other thread adds at the same time, the result is as certain as that of a load and a store.
__device__ __forceinline__ void add_in_memory(float2* to, float x, float y) {
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
}
