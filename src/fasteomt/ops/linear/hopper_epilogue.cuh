// What happens to a tile's sums in a consumer's registers before, and after: for hopper_gemm.cu.
#pragma once

// max(x, 0) - u P(X > u), u = |x|, X standard normal. log2 P(X > u) is nearly a parabola: by a polynomial fitted
// on [0, 5.6] that falls beyond, the result errs by 7e-7. It takes far fewer instructions than erff, for
// which the tensor cores would wait.
__device__ __forceinline__ float gelu(float x) {
    const float u = fabsf(x);
    float p = fmaf(-4.733093e-4f, u, 7.0845573e-3f);
    p = fmaf(p, u, -5.1827382e-2f);
    p = fmaf(p, u, -4.5999244e-1f);
    p = fmaf(p, u, -1.1507878f);
    p = fmaf(p, u, -1.0000377f);
    return fmaxf(x, 0.0f) - u * power_of_two(p);
}

// What one thread writes of a tile: rows `row` and `row + 8` of the matrix, if they are the tile's, and of each
// 8 columns 2 beside one another. Accumulator 4 g + 2 h + i is column 8 g + `lane_column` + i of row + 8 h.
struct Place {
    int first, rows, column, columns, lane, warp_row, row, lane_column;

    // The tile's row and column where the warpgroup's begin.
    __device__ __forceinline__ Place(const Tile& tile, const Job& job, int from_row, int from_column)
        : first(tile.at.first), rows(tile.at.rows), column(tile.column + from_column), columns(job.columns - column) {
        lane = threadIdx.x % 32;
        warp_row = from_row + threadIdx.x % 128 / 32 * 16;
        row = warp_row + lane / 4;
        lane_column = lane % 4 * 2;
    }
    // Whether the 8 columns are in the matrix; decided for 32 of them at a time.
    __device__ __forceinline__ bool has(int group) const { return group / 4 * UNIT_N < columns; }
    __device__ __forceinline__ bool writes(int half) const { return row + 8 * half < rows; }
};

#include "hopper_moments.cuh"

// Sums start at the bias: loading it then costs little time, afterwards the tensor cores would wait. A norm that is
// folded in comes before the bias.
__device__ __forceinline__ void
start_sums(const Job& job, const Tile& tile, bool at_zero, float (&acc)[BLOCK_N / 2]) {
    const Place at(tile, job, 0, 0);
#pragma unroll
    for (int group = 0; group < BLOCK_N / 8; ++group) {
        float2 bias = make_float2(0.0f, 0.0f);
        if (!FOLDED && job.bias && !at_zero && at.has(group)) {
            bias = *reinterpret_cast<const float2*>(job.bias + at.column + 8 * group + at.lane_column);
        }
        acc[4 * group] = acc[4 * group + 2] = bias.x;
        acc[4 * group + 1] = acc[4 * group + 3] = bias.y;
    }
}

// One warp's 16 rows go to a matrix of 16 bits in units of 32 columns by way of `staging`, so that each lane writes
// 16 bytes and each row gets 64. There, chunks of 16 bytes are swizzled so that no two lanes share a bank.
__device__ __forceinline__ void write_rounded(
    void* matrix, long long stride, const Place& at, const float (&values)[OWN_N / 2], u32 staging
) {
    // As matrix lane / 8 of `store_matrices`: rows 0 - 7 and 8 - 15 of 8 columns, then of the next 8.
    const int store_row = at.lane % 16, store_chunk = at.lane / 16;
    const int load_row = at.lane / 4, load_chunk = at.lane % 4;
    const u32 load_from = staging + load_row * 64 + ((load_chunk ^ (load_row / 2 & 3)) * 16);
    unsigned short* const out = static_cast<unsigned short*>(matrix) +
                                (at.first + at.warp_row + load_row) * stride + at.column + load_chunk * 8;
    __syncwarp(); // some rows may have taken another way
#pragma unroll
    for (int unit = 0; unit < OWN_N / UNIT_N; ++unit) {
        if (!at.has(unit * 4)) break;
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            u32 packed[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int value = 4 * (unit * 4 + pair * 2) + 2 * i;
                packed[i] = pack(values[value], values[value + 1]);
            }
            const int chunk = pair * 2 + store_chunk;
            store_matrices(staging + store_row * 64 + ((chunk ^ (store_row / 2 & 3)) * 16), packed);
        }
        __syncwarp();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            // 8 rows on, the swizzle is the same.
            const uint4 value = load_shared(load_from + half * 8 * 64);
            if (at.writes(half)) *reinterpret_cast<uint4*>(out + half * 8 * stride + unit * UNIT_N) = value;
        }
        __syncwarp();
    }
}

#if RESIDUAL

// Where registers allow, the residual stream is loaded before the sums; else L2 adds to it.
#define LOADS_STREAM (RESIDENT == 1 && !ALTERNATE)

constexpr int AT_ONCE = 2; // groups of 8 columns that are loaded together, where registers are few

// What is needed after the sums and loaded before; of the scale, a share that each lane of a warp has.
struct Before {
    float scale[OWN_N / 32];
#if LOADS_STREAM
    float2 stream[OWN_N / 8][2];
#endif
};

__device__ __forceinline__ float2* stream_at(const Job& job, const Place& at, int group, int half) {
    const long long row = at.first + at.row + 8 * half;
    return reinterpret_cast<float2*>(
        static_cast<float*>(job.out) + row * job.out_stride + at.column + 8 * group + at.lane_column
    );
}

__device__ __forceinline__ void load_before(const Job& job, const Place& at, Before& before) {
#pragma unroll
    for (int i = 0; i < OWN_N / 32; ++i) {
        const int column = at.column + 32 * i + at.lane;
        before.scale[i] = job.scale && column < job.columns ? job.scale[column] : 1.0f;
    }
#if LOADS_STREAM
#pragma unroll
    for (int group = 0; group < OWN_N / 8; ++group) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (at.writes(half) && at.has(group)) {
                before.stream[group][half] = *stream_at(job, at, group, half);
            }
        }
    }
#endif
}

// `staging`: of this warp, for the scale.
__device__ __forceinline__ void write(
    const Job& job, const Place& at, float (&acc)[OWN_N / 2], const Before& before, u32 staging
) {
#pragma unroll
    for (int i = 0; i < OWN_N / 32; ++i) store_shared(staging + 4 * (32 * i + at.lane), before.scale[i]);
    __syncwarp();
#pragma unroll
    for (int from = 0; from < OWN_N / 8; from += AT_ONCE) {
        if (!at.has(from)) break;
#if LOADS_STREAM
        const float2(*const old)[2] = before.stream + from;
#elif HANDS_ON
        float2 old[AT_ONCE][2];
#pragma unroll
        for (int i = 0; i < 2 * AT_ONCE; ++i) {
            if (at.writes(i % 2)) old[i / 2][i % 2] = *stream_at(job, at, from + i / 2, i % 2);
        }
#endif
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int group = from + i;
            const float2 scale = load_shared_pair(staging + 4 * (8 * group + at.lane_column));
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if (!at.writes(half)) continue;
                float2* const to = stream_at(job, at, group, half);
                float* const pair = acc + 4 * group + 2 * half;
#if LOADS_STREAM || HANDS_ON
                pair[0] = fmaf(scale.x, pair[0], old[i][half].x);
                pair[1] = fmaf(scale.y, pair[1], old[i][half].y);
                *to = make_float2(pair[0], pair[1]);
#else
                add_in_memory(to, scale.x * pair[0], scale.y * pair[1]);
#endif
            }
        }
    }
    __syncwarp();
#if HANDS_ON
    write_moments(job, at, acc);
    write_rounded(job.copy, job.columns, at, acc, staging);
#endif
}

#else

#if FOLDED
using Before = Moments;
__device__ __forceinline__ void load_before(const Job& job, const Place& at, Before& before) { before.load(job, at); }
#else
struct Before {
    __device__ __forceinline__ void apply(const Job&, const Place&, float (&)[OWN_N / 2]) const {}
};
__device__ __forceinline__ void load_before(const Job&, const Place&, Before&) {}
#endif

#if ROPE

// Groups of columns after which a thread's angles repeat; all of them where heads don't start with tiles.
constexpr int PERIOD = OWN_N % HEAD_DIM == 0 ? HEAD_DIM / 8 : OWN_N / 8;

// The patch of a row, or -1 for an extra token: even crops start with patches, odd ones with extras.
__device__ __forceinline__ int patch_of(const Job& job, int row) {
    const int tokens = job.patches + job.extras, crop = row / tokens;
    const int patch = row - crop * tokens - (crop & 1) * job.extras;
    return patch >= 0 && patch < job.patches ? patch : -1;
}

// Turns the pairs of columns before `rotated` by the angles of their rows' patches.
__device__ __forceinline__ void finish(const Job& job, const Place& at, float (&acc)[OWN_N / 2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int patch = at.writes(half) ? patch_of(job, at.first + at.row + 8 * half) : -1;
        if (patch < 0) continue;
#pragma unroll
        for (int phase = 0; phase < PERIOD; ++phase) {
            const int column = at.column + 8 * phase + at.lane_column;
            const int angle = patch * (HEAD_DIM / 2) + column % HEAD_DIM / 2;
            if (at.column + 8 * phase >= job.rotated) break;
            const float sin = job.sin[angle], cos = job.cos[angle];
#pragma unroll
            for (int group = phase; group < OWN_N / 8; group += PERIOD) {
                if (at.column + 8 * group >= job.rotated) break;
                float* const pair = acc + 4 * group + 2 * half;
                const float first = pair[0];
                pair[0] = first * cos - pair[1] * sin;
                pair[1] = pair[1] * cos + first * sin;
            }
        }
    }
}

#elif GELU

__device__ __forceinline__ void finish(const Job&, const Place&, float (&acc)[OWN_N / 2]) {
#pragma unroll
    for (float& sum : acc) sum = gelu(sum);
}

#else

__device__ __forceinline__ void finish(const Job&, const Place&, float (&)[OWN_N / 2]) {}

#endif

__device__ __forceinline__ void write(
    const Job& job, const Place& at, float (&acc)[OWN_N / 2], const Before& before, u32 staging
) {
    before.apply(job, at, acc);
    finish(job, at, acc);
    write_rounded(job.out, job.out_stride, at, acc, staging);
}

#endif
