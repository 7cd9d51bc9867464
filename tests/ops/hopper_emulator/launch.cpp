// A kernel's source, built against the machine, and the function by which Python launches it. KERNEL is its name.

#include "kernel.cu"

#include <utility>

#ifndef CLUSTER
#define CLUSTER 1
#endif
#ifndef BLOCKS_WAIT_FOR_BLOCKS
#define BLOCKS_WAIT_FOR_BLOCKS 0
#endif

namespace {

template <typename... Parameters> constexpr u32 count(void (*)(Parameters...)) { return sizeof...(Parameters); }
// All its parameters but the last are maps.
constexpr u32 MAPS = count(KERNEL) - 1;
TensorMap maps[MAPS];
Job job;

template <u32... I> void call(std::integer_sequence<u32, I...>) { KERNEL(maps[I]..., job); }
void thread() { call(std::make_integer_sequence<u32, MAPS>()); }

} // namespace

// Null, or what went wrong.
extern "C" __attribute__((visibility("default"))) const char* emulate(
    u32 blocks, u32 threads, const TensorMap* given, u32 given_count, const void* job_bytes, u32 job_size,
    u32 shared_bytes, u32 seed
) {
    if (given_count != MAPS) return "the host gives another number of maps than the kernel takes";
    if (job_size != sizeof job) return "the host's Job has another size than the kernel's";
    for (u32 i = 0; i < MAPS; ++i) maps[i] = given[i];
    memcpy(&job, job_bytes, sizeof job);
    const u32 at_a_time = BLOCKS_WAIT_FOR_BLOCKS ? blocks : CLUSTER;
    return machine::run({blocks, threads, CLUSTER, FIRST_DYNAMIC, shared_bytes, at_a_time, seed, thread});
}
