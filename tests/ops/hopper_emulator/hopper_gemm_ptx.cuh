// Stands in for the project's hopper_gemm_ptx.cuh.
#pragma once

#include "hopper_ptx.cuh"

inline void barrier_arrive(u32 barrier, u32 rank) { machine::barrier_arrive(barrier, rank); }

inline void copy_box_to_all(u32 to, const TensorMap& map, int column, int row, u32 barrier) {
    machine::copy_box(to, map, column, row, barrier, 0, CLUSTER - 1);
}

inline void meet_cluster() { machine::meet_cluster(); }

inline void prefetch(const float*) {}

inline void tell_other(int group) {
    machine::pause();
    machine::arrive_at_named_barrier(1 + group, 256);
}
inline void wait_for_other(int group) { machine::meet_at_named_barrier(2 - group, 256); }

inline void multiply_wait(float (&)[OWN_N / 2]) { machine::wait_for_products(0); }
inline void multiply(float (&acc)[OWN_N / 2], u64 a, u64 b) {
    machine::start_product({acc, OWN_N, a, b, Element::decode});
}


struct alignas(16) Part {
    u32 mean, launch_of_mean, squares, launch_of_squares;
};
// Who is waited for must run meanwhile.
#define BLOCKS_WAIT_FOR_BLOCKS NORM

inline void tell_part(Part* to, float mean, float squares, u32 launch) {
    machine::pause();
    memcpy(&to->mean, &mean, 4);
    to->launch_of_mean = launch;
    machine::pause();
    memcpy(&to->squares, &squares, 4);
    to->launch_of_squares = launch;
}
inline u32 launch_of(const Part* part) {
    machine::pause();
    return part->launch_of_mean;
}
struct Parts {};
inline Parts look_at(const Part* const (&)[2]) {
    machine::pause();
    return {};
}
inline void wait_for_parts(const Part* const (&from)[2], u32 launch, Parts, float2 (&heard)[2]) {
    const Part* const a = from[0];
    const Part* const b = from[1];
    machine::wait_until([=] {
        const bool means = a->launch_of_mean == launch && b->launch_of_mean == launch;
        return means && a->launch_of_squares == launch && b->launch_of_squares == launch;
    });
    for (int i = 0; i < 2; ++i) {
        memcpy(&heard[i].x, &from[i]->mean, 4);
        memcpy(&heard[i].y, &from[i]->squares, 4);
    }
}
