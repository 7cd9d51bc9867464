// Hopper's instructions (PTX ISA, sm_90a) as functions: those that several kernels need. Addresses in shared
// memory are 32-bit; warpgroups are 4 warps.
//
// Defined by who compiles this: TYPE, bf16 or f16, as PTX writes it; OUT_TYPE, if results may have another one.
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

// Barriers become visible to the copy engine and, after all blocks have met, to the cluster.
__device__ __forceinline__ void barriers_ready() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive_expecting(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// At a barrier of this block.
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
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

// Between what this thread has stored to shared memory and products that read it, and between what it has read there
// and copies that overwrite it: no barrier orders those.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ __forceinline__ void copy_box(u32 to, const TensorMap& map, int column, int row, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(barrier)
                 : "memory");
}

// All 128 threads of a warpgroup meet.
__device__ __forceinline__ void warpgroup_sync(int group) {
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
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

__device__ __forceinline__ void multiply_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void multiply_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most LEFT groups of products are under way.
template <int LEFT> __device__ __forceinline__ void multiply_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
// A warpgroup's product of 64 rows and N columns. ADD is 0 to overwrite the sums, 1 to add to them.
#define MULTIPLY(N, ADD, OPERANDS)                                                                            \
    "{\n.reg .pred add;\nsetp.ne.b32 add, " #ADD ", 0;\n"                                                     \
    "wgmma.mma_async.sync.aligned.m64n" TEXT(N) "k16.f32." TEXT(TYPE) "." TEXT(TYPE) " " OPERANDS ";\n}"
// For products of A and B in shared memory, both by descriptor, with rows along which they sum. The operands are
// those that ops/hopper.py names after SIZE.
#define OF_SHARED(SIZE) "{" SIZE##_REGISTERS "}, " SIZE##_A ", " SIZE##_B ", add, 1, 1, 0, 0"

// Rounds to nearest even; `low` at the lower address.
#define PACK(FORMAT)                                                                                          \
    u32 out;                                                                                                  \
    asm("cvt.rn." TEXT(FORMAT) "x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));                       \
    return out;
__device__ __forceinline__ u32 pack(float low, float high) { PACK(TYPE) }
#ifdef OUT_TYPE
__device__ __forceinline__ u32 pack_out(float low, float high) { PACK(OUT_TYPE) }
#endif

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

__device__ __forceinline__ void store_shared(u32 address, float2 v) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(v.x), "f"(v.y) : "memory");
}

__device__ __forceinline__ void store_shared(u32 address, float4 v) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

__device__ __forceinline__ void store_shared_word(u32 address, u32 value) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ uint4 load_shared(u32 address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

__device__ __forceinline__ float load_shared_number(u32 address) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
    return v;
}

__device__ __forceinline__ float2 load_shared_pair(u32 address) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
    return v;
}

__device__ __forceinline__ float4 load_shared_floats(u32 address) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}
