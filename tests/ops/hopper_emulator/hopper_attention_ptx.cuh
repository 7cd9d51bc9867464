// Stands in for the project's hopper_attention_ptx.cuh.
#pragma once

#include "hopper_ptx.cuh"

inline void turn_wait(int group) { machine::meet_at_named_barrier(1 + WARPGROUPS + group, 256); }
inline void turn_pass(int group) { machine::arrive_at_named_barrier(1 + WARPGROUPS + group, 256); }
inline void extra_sync() { machine::meet_at_named_barrier(15, 96); }

inline void in_use_until_here(float&) {}
inline void in_use_until_here(u32&) {}

inline bool is_last(u32* counter, int count) {
    const u32 last = count - 1;
    u32 before = 0, all[machine::WARP];
    machine::pause();
    if (threadIdx.x % machine::WARP == 0) {
        before = *counter;
        *counter = before == last ? 0 : before + 1;
    }
    machine::exchange(before, all);
    return all[0] == last;
}
inline float4 load_new(const float4* from) { return *from; }

inline bool __any_sync(u32, bool value) {
    u32 all[machine::WARP];
    machine::exchange(value, all);
    for (const u32 each : all) {
        if (each) return true;
    }
    return false;
}

template <int KEYS> void multiply_first_keys(float (&scores)[KEYS / 2], u64 queries, u64 keys) {
    machine::start_product({scores, KEYS, queries, keys, Element::decode, true});
}
template <int KEYS> void multiply_keys(float (&scores)[KEYS / 2], u64 queries, u64 keys) {
    machine::start_product({scores, KEYS, queries, keys, Element::decode});
}

inline float half_of(u32 pair, int which) { return Element::decode(which ? pair >> 16 : pair & 0xFFFF); }

// A fragment (16, 16) of A of which every lane of a warp brings four registers: of rows lane / 4, and 8 further, it
// has columns 2 (lane % 4) and the next, then the same 8 columns on. PTX ISA: wgmma's A in registers, mma.m16n8k16.
struct Fragment {
    u32 brought[4][machine::WARP];

    explicit Fragment(const u32 (&own)[4]) {
        for (int i = 0; i < 4; ++i) machine::exchange(own[i], brought[i]);
    }
    // Of row lane / 4 + 8 half of a lane.
    float at(int lane, int half, int column) const {
        return half_of(brought[half + column / 8 * 2][lane / 4 * 4 + column % 8 / 2], column % 2);
    }
};

inline void add_values(float (&out)[HEAD_DIM / 2], const u32 (&weights)[4], u64 values, bool overwrites) {
    machine::Product product{out, HEAD_DIM, 0, values, Element::decode, overwrites, true, true};
    const Fragment a(weights);
    for (int half = 0; half < 2; ++half) {
        for (int k = 0; k < 16; ++k) product.rows[half][k] = a.at(threadIdx.x % machine::WARP, half, k);
    }
    machine::start_product(product);
}
inline void multiply_first_values(float (&out)[HEAD_DIM / 2], u32 a0, u32 a1, u32 a2, u32 a3, u64 values) {
    add_values(out, {a0, a1, a2, a3}, values, true);
}
inline void multiply_values(float (&out)[HEAD_DIM / 2], u32 a0, u32 a1, u32 a2, u32 a3, u64 values) {
    add_values(out, {a0, a1, a2, a3}, values, false);
}

// Of B, a lane has column lane / 4: rows 2 (lane % 4) and the next, then the same 8 rows on.
inline void multiply_in_warp(float (&sums)[4], const u32 (&own_a)[4], u32 b0, u32 b1) {
    const Fragment a(own_a);
    u32 b[2][machine::WARP];
    machine::exchange(b0, b[0]);
    machine::exchange(b1, b[1]);
    const int lane = threadIdx.x % machine::WARP;
    for (int i = 0; i < 4; ++i) {
        const int column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; ++k) {
            sums[i] += a.at(lane, i / 2, k) * half_of(b[k / 8][column * 4 + k % 8 / 2], k % 2);
        }
    }
}

inline u16 element_of(u32 address, int column) {
    u16 out;
    if (address % 16) machine::fail("a row of a matrix at an address that isn't aligned to 16 bytes");
    memcpy(&out, machine::shared(address + 2 * column, 2), 2);
    machine::loaded(address + 2 * column, 2);
    return out;
}
inline void load(u32 (&value)[4], u32 address, bool transposed) {
    u32 rows[machine::WARP];
    machine::exchange(address, rows);
    machine::pause();
    const int first = threadIdx.x % machine::WARP / 4, second = threadIdx.x % 4 * 2;
    for (int matrix = 0; matrix < 4; ++matrix) {
        value[matrix] = 0;
        for (int i = 0; i < 2; ++i) {
            const int row = transposed ? second + i : first, column = transposed ? first : second + i;
            value[matrix] |= static_cast<u32>(element_of(rows[8 * matrix + row], column)) << 16 * i;
        }
    }
}
inline void load_matrices(u32 (&value)[4], u32 address) { load(value, address, false); }
inline void load_transposed(u32 (&value)[4], u32 address) { load(value, address, true); }
inline u32 transpose(u32 value) {
    u32 all[machine::WARP], out = 0;
    machine::exchange(value, all);
    const int lane = threadIdx.x % machine::WARP, column = lane / 4;
    for (int i = 0; i < 2; ++i) {
        const u32 pair = all[(lane % 4 * 2 + i) * 4 + column / 2];
        out |= (column % 2 ? pair >> 16 : pair & 0xFFFF) << 16 * i;
    }
    return out;
}
