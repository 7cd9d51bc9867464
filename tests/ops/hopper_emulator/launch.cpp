// The kernel's source, built against the machine, and the function by which Python launches it.

#include "hopper_gemm.cu"

namespace {

TensorMap x_map, weight_map;
Job job;

void thread() { linear(x_map, weight_map, job); }

} // namespace

// Null, or what went wrong.
extern "C" __attribute__((visibility("default"))) const char* emulate(
    u32 blocks, const TensorMap* x, const TensorMap* weight, const void* job_bytes, u32 job_size,
    u32 shared_bytes, u32 seed
) {
    if (job_size != sizeof job) return "the host's Job has another size than the kernel's";
    x_map = *x;
    weight_map = *weight;
    memcpy(&job, job_bytes, sizeof job);
    return machine::run({blocks, CLUSTER, FIRST_DYNAMIC, shared_bytes, seed, thread});
}
