// Instructions that hopper_gemm.cu alone needs; it says what the macros are.
#pragma once

#include "hopper_ptx.cuh"

// At the barrier that `barrier` is in block `rank` of the cluster. It orders no writes of other threads' memory
// (a cluster-wide release would wait for all of them): what is at stake was read by tensor cores, or by lanes that
// have met since.
__device__ __forceinline__ void barrier_arrive(u32 barrier, u32 rank) {
    if (CLUSTER == 1) return barrier_arrive(barrier);
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

// All threads of the cluster.
__device__ __forceinline__ void meet_cluster() {
    if (CLUSTER > 1) {
        asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory");
    } else {
        __syncthreads();
    }
}

// Into L2.
__device__ __forceinline__ void prefetch(const float* from) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory");
}

// The first two warpgroups tell one another that they may go on: each by a barrier of its own. Barrier 0 is
// __syncthreads'.
__device__ __forceinline__ void tell_other(int group) {
    asm volatile("bar.arrive %0, 256;" ::"r"(1 + group) : "memory");
}
__device__ __forceinline__ void wait_for_other(int group) {
    asm volatile("bar.sync %0, 256;" ::"r"(2 - group) : "memory");
}

// The accumulators are operands so that the compiler reads none of them earlier.
__device__ __forceinline__ void multiply_wait(float (&acc)[OWN_N / 2]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" : OWN_SUMS::"memory");
}

// acc (64, OWN_N) += a (64, 16) b (OWN_N, 16)^T, of shared memory by descriptor.
__device__ __forceinline__ void multiply(float (&acc)[OWN_N / 2], u64 a, u64 b) {
    asm volatile(MULTIPLY(OWN_N, 1, OF_SHARED(OWN)) : OWN_SUMS : "l"(a), "l"(b) : "memory");
}

// What a block tells others of a row: two numbers, each beside the number of the launch that it is of, so that one
// access brings both and nobody needs a fence.
struct alignas(16) Part {
    u64 mean, squares;
};

__device__ __forceinline__ void tell_part(Part* to, float mean, float squares, u32 launch) {
    const u64 tag = static_cast<u64>(launch) << 32;
    const u64 first = tag | __float_as_uint(mean), second = tag | __float_as_uint(squares);
    asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(first), "l"(second) : "memory");
}

__device__ __forceinline__ Part look_at(const Part* from) {
    Part part;
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
                 : "=l"(part.mean), "=l"(part.squares)
                 : "l"(from)
                 : "memory");
    return part;
}

__device__ __forceinline__ u32 launch_of(const Part* part) { return static_cast<u32>(look_at(part).mean >> 32); }

// Of two rows, whatever they are now.
struct Parts {
    Part part[2];
};
__device__ __forceinline__ Parts look_at(const Part* const (&from)[2]) {
    return {{look_at(from[0]), look_at(from[1])}};
}

// Until both have been told in this launch: mean and squares of each. `seen` is what was there at some time before.
__device__ __forceinline__ void
wait_for_parts(const Part* const (&from)[2], u32 launch, Parts seen, float2 (&heard)[2]) {
    const Part(&part)[2] = seen.part;
    while (true) {
        bool told = true;
#pragma unroll
        for (const Part& one : part) told &= one.mean >> 32 == launch && one.squares >> 32 == launch;
        if (told) break;
        seen = look_at(from);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        heard[i].x = __uint_as_float(static_cast<u32>(part[i].mean));
        heard[i].y = __uint_as_float(static_cast<u32>(part[i].squares));
    }
}
