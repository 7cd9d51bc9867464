// Stands in for the project's hopper_ptx.cuh: the same functions, done by machine.h instead of instructions.
#pragma once

#include "machine.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __shared__
#define __launch_bounds__(...)
#define __cluster_dims__(...)

struct float4 {
    float x, y, z, w;
};
struct float2 {
    float x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct alignas(16) uint4 {
    u32 x, y, z, w;
};

// The two 16-bit formats by PTX's names, finite values only; `encode` rounds to nearest even.
struct bf16 {
    static float decode(u16 bits) {
        const u32 wide = bits << 16;
        float out;
        memcpy(&out, &wide, 4);
        return out;
    }
    static u16 encode(float value) {
        u32 bits;
        memcpy(&bits, &value, 4);
        return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    }
};
struct f16 {
    // fp32's exponent is biased by 112 more than fp16's.
    static float decode(u16 bits) {
        const u32 wide = (bits & 0x7FFF) << 13;
        float out;
        memcpy(&out, &wide, 4);
        out *= 0x1p112f;
        if ((bits & 0x7C00) == 0x7C00) out = bits & 0x3FF ? NAN : INFINITY;
        return std::copysign(out, bits & 0x8000 ? -1.0f : 1.0f);
    }
    static u16 encode(float value) {
        const float narrow = std::fabs(value) * 0x1p-112f;
        u32 bits;
        memcpy(&bits, &narrow, 4);
        const u32 rounded = std::isnan(value) ? 0x7E00 : std::min((bits + 0xFFF + (bits >> 13 & 1)) >> 13, 0x7C00u);
        return rounded | (std::signbit(value) ? 0x8000 : 0);
    }
};
using Element = TYPE;

// The kernel's variables in shared memory are known by their types. It only takes their addresses: its barriers, if
// it has them there, then the dynamic part, `memory`, whose declaration in the kernel means this one here.
constexpr u32 FIRST_DYNAMIC = machine::FIRST_SHARED + 2 * STAGES * sizeof(u64);
unsigned char memory[1];
inline u32 shared_address(const u64*) { return machine::FIRST_SHARED; }
inline u32 shared_address(const unsigned char*) { return FIRST_DYNAMIC; }

inline void barrier_init(u32 barrier, u32 arrivals) { machine::barrier_init(barrier, arrivals); }
inline void barriers_ready() {}
inline void barrier_arrive_expecting(u32 barrier, u32 bytes) { machine::barrier_expect(barrier, bytes); }
inline void barrier_arrive(u32 barrier) { machine::barrier_arrive(barrier, machine::own_rank()); }
inline void barrier_wait(u32 barrier, u32 parity) { machine::barrier_wait(barrier, parity); }

inline void fence_async() { machine::fence_async(); }

inline void prefetch_map(const TensorMap&) {}
inline void copy_box(u32 to, const TensorMap& map, int column, int row, u32 barrier) {
    machine::copy_box(to, map, column, row, barrier, machine::own_rank(), machine::own_rank());
}

inline void warpgroup_sync(int group) { machine::meet_at_named_barrier(group + 1, 128); }

inline void let_next_start() {}
inline void wait_for_inputs() {}
template <int REGISTERS> void more_registers() {}
template <int REGISTERS> void fewer_registers() {}

inline void multiply_fence() {}
inline void multiply_commit() { machine::commit_products(); }
template <int LEFT> void multiply_wait() { machine::wait_for_products(LEFT); }

template <typename Format> u32 pack_as(float low, float high) {
    return Format::encode(low) | static_cast<u32>(Format::encode(high)) << 16;
}
inline u32 pack(float low, float high) { return pack_as<TYPE>(low, high); }
#ifdef OUT_TYPE
inline u32 pack_out(float low, float high) { return pack_as<OUT_TYPE>(low, high); }
#endif
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float power_of_two(float x) { return std::exp2(x); }

inline void __syncthreads() { machine::meet_block(); }
inline void __syncwarp() { machine::meet_warp(); }
template <typename T> T __shfl_sync(u32, T value, int lane) {
    static_assert(sizeof value == 4);
    u32 bits, all[machine::WARP];
    memcpy(&bits, &value, 4);
    machine::exchange(bits, all);
    memcpy(&value, &all[lane], 4);
    return value;
}

inline float __shfl_xor_sync(u32, float value, int mask) {
    u32 bits, all[machine::WARP];
    memcpy(&bits, &value, 4);
    machine::exchange(bits, all);
    memcpy(&value, &all[threadIdx.x % machine::WARP ^ mask], 4);
    return value;
}

inline void store_matrices(u32 address, const u32 (&value)[4]) {
    const int lane = threadIdx.x % machine::WARP;
    u32 addresses[machine::WARP];
    machine::exchange(address, addresses);
    // A lane may go on while others still write: only __syncwarp orders that.
    machine::pause();
    for (int matrix = 0; matrix < 4; ++matrix) {
        const u32 place = addresses[8 * matrix + lane / 4] + lane % 4 * 4;
        memcpy(machine::shared(place, 4), &value[matrix], 4);
        machine::stored(place, 4);
    }
}
template <typename T> void store_as(u32 address, const T& value) {
    if (address % sizeof value) machine::fail("a store to an address that isn't aligned to its size");
    machine::pause();
    memcpy(machine::shared(address, sizeof value), &value, sizeof value);
    machine::stored(address, sizeof value);
}
inline void store_shared(u32 address, float value) { store_as(address, value); }
inline void store_shared(u32 address, float2 value) { store_as(address, value); }
inline void store_shared(u32 address, float4 value) { store_as(address, value); }
inline void store_shared_word(u32 address, u32 value) { store_as(address, value); }
template <typename T> T load_as(u32 address) {
    T out;
    if (address % sizeof out) machine::fail("a load from an address that isn't aligned to its size");
    machine::pause();
    memcpy(&out, machine::shared(address, sizeof out), sizeof out);
    machine::loaded(address, sizeof out);
    return out;
}
inline uint4 load_shared(u32 address) { return load_as<uint4>(address); }
inline float load_shared_number(u32 address) { return load_as<float>(address); }
inline float2 load_shared_pair(u32 address) { return load_as<float2>(address); }
inline float4 load_shared_floats(u32 address) { return load_as<float4>(address); }
