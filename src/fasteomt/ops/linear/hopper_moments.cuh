// A LayerNorm whose weights are folded into the product after it: for hopper_gemm.cu.
//
//   LayerNorm(x) W^T + b = (x V^T - mean(x) s) / sqrt(variance(x) + eps) + c
//
// where V is W times the norm's weight, s sums the rows of V, and c is b + W times the norm's bias. So the product
// takes x as it is, and what it needs to know of x's rows comes from whoever made x: the mean of each PART values,
// and the sum of their squares around it.
#pragma once

constexpr int PART = 64;

#if FOLDED

// Of a thread's two rows. The four lanes that share a row each read every fourth part.
struct Moments {
    float mean[2], scale[2];

    __device__ __forceinline__ void load(const Job& job, const Place& at) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = at.first + min(at.row + 8 * half, at.rows - 1);
            const float2* const parts = job.parts + static_cast<long long>(row) * job.part_count;
            float sum = 0.0f, squares = 0.0f;
            for (int i = at.lane % 4; i < job.part_count; i += 4) sum += parts[i].x;
            mean[half] = over_row(sum) / job.part_count;
            for (int i = at.lane % 4; i < job.part_count; i += 4) {
                const float2 part = parts[i];
                const float apart = part.x - mean[half];
                squares += fmaf(PART * apart, apart, part.y);
            }
            scale[half] = 1.0f / sqrtf(over_row(squares) / (PART * job.part_count) + job.eps);
        }
    }
    __device__ __forceinline__ static float over_row(float sum) {
        sum += __shfl_xor_sync(~0u, sum, 1);
        return sum + __shfl_xor_sync(~0u, sum, 2);
    }

    // Products become what they would be of normalised rows.
    __device__ __forceinline__ void apply(const Job& job, const Place& at, float (&acc)[OWN_N / 2]) const {
#pragma unroll
        for (int group = 0; group < OWN_N / 8; ++group) {
            if (!at.has(group)) break;
            const int column = at.column + 8 * group + at.lane_column;
            const float2 sum = *reinterpret_cast<const float2*>(job.sums + column);
            float2 bias = make_float2(0.0f, 0.0f);
            if (job.bias) bias = *reinterpret_cast<const float2*>(job.bias + column);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float* const pair = acc + 4 * group + 2 * half;
                pair[0] = fmaf(scale[half], fmaf(-mean[half], sum.x, pair[0]), bias.x);
                pair[1] = fmaf(scale[half], fmaf(-mean[half], sum.y, pair[1]), bias.y);
            }
        }
    }
};

#endif

#if HANDS_ON

// Of the values that a thread and the three beside it have of their two rows.
__device__ __forceinline__ void write_moments(const Job& job, const Place& at, const float (&values)[OWN_N / 2]) {
    static_assert(OWN_N % PART == 0, "warpgroups have whole parts");
#pragma unroll
    for (int part = 0; part < OWN_N / PART; ++part) {
        if (!at.has(part * PART / 8)) break;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float* const own = values + part * (PART / 2) + 2 * half;
            float sum = 0.0f, squares = 0.0f;
#pragma unroll
            for (int i = 0; i < PART / 8; ++i) sum += own[4 * i] + own[4 * i + 1];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            const float mean = sum / PART;
#pragma unroll
            for (int i = 0; i < PART / 8; ++i) {
                const float x = own[4 * i] - mean, y = own[4 * i + 1] - mean;
                squares = fmaf(x, x, fmaf(y, y, squares));
            }
            squares += __shfl_xor_sync(~0u, squares, 1);
            squares += __shfl_xor_sync(~0u, squares, 2);
            if (at.lane % 4 == 0 && at.writes(half)) {
                const long long row = at.first + at.row + 8 * half;
                job.parts[row * job.part_count + at.column / PART + part] = make_float2(mean, squares);
            }
        }
    }
}

#endif
