// Hopper's instructions (PTX ISA, sm_90a) as functions, for hopper_attention.cu, which says what the macros are.
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

// The next kernel's blocks may start where this one's leave room; they wait for its end before they read.
__device__ __forceinline__ void let_next_start() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void wait_for_inputs() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Barriers become visible to the copy engine.
__device__ __forceinline__ void barriers_ready() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
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

template <int REGISTERS> __device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> __device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// All 128 threads of a warpgroup meet. Barrier 0 is __syncthreads'.
__device__ __forceinline__ void warpgroup_sync(int group) {
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}

// The 96 threads of the extra warps meet.
__device__ __forceinline__ void extra_sync() { asm volatile("bar.sync 15, 96;" ::: "memory"); }

__device__ __forceinline__ void multiply_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void multiply_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// The compiler uses these registers neither for something else before this point nor their values earlier.
__device__ __forceinline__ void in_use_until_here(float& value) { asm volatile("" : "+f"(value)::"memory"); }
__device__ __forceinline__ void in_use_until_here(u32& value) { asm volatile("" : "+r"(value)::"memory"); }
// Until at most LEFT groups of products are under way.
template <int LEFT> __device__ __forceinline__ void multiply_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
// ADD is 0 to overwrite the sums, 1 to add to them.
#define MULTIPLY(N, ADD, OPERANDS)                                                                            \
    "{\n.reg .pred add;\nsetp.ne.b32 add, " #ADD ", 0;\n"                                                     \
    "wgmma.mma_async.sync.aligned.m64n" TEXT(N) "k16.f32." TEXT(TYPE) "." TEXT(TYPE) " " OPERANDS ";\n}"
#define SCORES(SIZE) "{" SIZE##_REGISTERS "}, " SIZE##_A ", " SIZE##_B ", add, 1, 1, 0, 0"
#define OUT "{" OUT_REGISTERS "}, {" OUT_A "}, " OUT_B ", add, 1, 1, 1"

// scores (64, KEYS) += queries (64, 16) keys (KEYS, 16)^T, of shared memory by descriptor; the first product
// overwrites what was there. KEYS is BLOCK_N or LAST.
template <int KEYS>
__device__ __forceinline__ void multiply_first_keys(float (&scores)[KEYS / 2], u64 queries, u64 keys) {
    if constexpr (KEYS == BLOCK_N) {
        asm volatile(MULTIPLY(BLOCK_N, 0, SCORES(BLOCK))
                     : BLOCK_OUTPUTS
                     : "l"(queries), "l"(keys)
                     : "memory");
    } else {
        asm volatile(MULTIPLY(LAST, 0, SCORES(LAST))
                     : LAST_OUTPUTS
                     : "l"(queries), "l"(keys)
                     : "memory");
    }
}
template <int KEYS>
__device__ __forceinline__ void multiply_keys(float (&scores)[KEYS / 2], u64 queries, u64 keys) {
    if constexpr (KEYS == BLOCK_N) {
        asm volatile(MULTIPLY(BLOCK_N, 1, SCORES(BLOCK))
                     : BLOCK_SUMS
                     : "l"(queries), "l"(keys)
                     : "memory");
    } else {
        asm volatile(MULTIPLY(LAST, 1, SCORES(LAST))
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
__device__ __forceinline__ void store_matrices(u32 address, const u32 (&value)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value[0]),
                 "r"(value[1]), "r"(value[2]), "r"(value[3])
                 : "memory");
}
// An 8 x 8 matrix, of which a lane has 2 elements of row lane / 4, transposed.
__device__ __forceinline__ u32 transpose(u32 value) {
    u32 out;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(value));
    return out;
}

__device__ __forceinline__ void store_shared(u32 address, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

__device__ __forceinline__ float load_shared_number(u32 address) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
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
