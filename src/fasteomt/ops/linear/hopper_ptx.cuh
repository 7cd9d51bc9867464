// Hopper's instructions (PTX ISA, sm_90a) as functions, for hopper_gemm.cu, which says what the macros are.
// Addresses in shared memory are 32-bit; warpgroups are 4 warps.
#pragma once

using u32 = unsigned int;
using u64 = unsigned long long;

struct alignas(64) TensorMap {
    unsigned char opaque[128];
};

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Barriers become visible to the copy engine and, after `cluster_sync`, to the cluster.
__device__ __forceinline__ void barriers_ready() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// At the barrier that `barrier` is in block `rank` of the cluster. It orders no writes of other threads' memory
// (a cluster-wide release would wait for all of them): only what tensor cores read is at stake.
__device__ __forceinline__ void barrier_arrive(u32 barrier, u32 rank) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}

__device__ __forceinline__ void barrier_arrive_expecting(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    u32 done;
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (!done);
}

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ __forceinline__ void copy_box(u32 to, const TensorMap& map, int column, int row, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(barrier)
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

// Programmatic dependent launch, see ops/early.py.
__device__ __forceinline__ void let_next_start() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void wait_for_inputs() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

template <int REGISTERS> __device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> __device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// The first two warpgroups tell one another that they may go on: each by a barrier of its own. Barrier 0 is
// __syncthreads'.
__device__ __forceinline__ void tell_other(int group) {
    asm volatile("bar.arrive %0, 256;" ::"r"(1 + group) : "memory");
}
__device__ __forceinline__ void wait_for_other(int group) {
    asm volatile("bar.sync %0, 256;" ::"r"(2 - group) : "memory");
}

__device__ __forceinline__ void multiply_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void multiply_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void multiply_wait_but_one() {
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}
// The accumulators are operands so that the compiler reads none of them earlier.
__device__ __forceinline__ void multiply_wait(float (&acc)[BLOCK_N / 2]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" : ACCUMULATOR_OPERANDS::"memory");
}

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

// acc (64, BLOCK_N) += a (64, 16) b (BLOCK_N, 16)^T, of shared memory by descriptor.
__device__ __forceinline__ void multiply(float (&acc)[BLOCK_N / 2], u64 a, u64 b) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n" TEXT(BLOCK_N) "k16.f32." TEXT(TYPE) "." TEXT(TYPE)
                 " {" ACCUMULATORS "}, " A_OPERAND ", " B_OPERAND ", add, 1, 1, 0, 0;\n}"
                 : ACCUMULATOR_OPERANDS
                 : "l"(a), "l"(b)
                 : "memory");
}

// Rounds to nearest even; `low` at the lower address.
__device__ __forceinline__ u32 pack(float low, float high) {
    u32 out;
    asm("cvt.rn." TEXT(TYPE) "x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

__device__ __forceinline__ float power_of_two(float x) {
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
}

// Four 8 x 8 matrices of 16 bits, row i % 8 of matrix i / 8 to lane i's address; a lane holds 2 elements of
// row lane / 4 of each.
__device__ __forceinline__ void store_matrices(u32 address, const u32 (&value)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value[0]),
                 "r"(value[1]), "r"(value[2]), "r"(value[3])
                 : "memory");
}

__device__ __forceinline__ void store_shared(u32 address, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

__device__ __forceinline__ float2 load_shared_pair(u32 address) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
    return v;
}

__device__ __forceinline__ uint4 load_shared(u32 address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}
