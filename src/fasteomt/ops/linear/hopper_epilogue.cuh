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

// What one thread writes of half a tile: rows `row` and `row + 8` of the matrix, if they are the tile's, and of each
// 8 columns 2 beside one another. Accumulator 4 g + 2 h + i is column 8 g + `lane_column` + i of row + 8 h.
struct Place {
    int first, rows, column, columns, lane, warp_row, row, lane_column;

    __device__ __forceinline__ Place(const Tile& tile, const Job& job, int half)
        : first(tile.at.first), rows(tile.at.rows), column(tile.column), columns(job.columns - column) {
        lane = threadIdx.x % 32;
        warp_row = half * HALF_M + threadIdx.x % 128 / 32 * 16;
        row = warp_row + lane / 4;
        lane_column = lane % 4 * 2;
    }
    // Whether the 8 columns are in the matrix; decided for 32 of them at a time.
    __device__ __forceinline__ bool has(int group) const { return group / 4 * UNIT_N < columns; }
    __device__ __forceinline__ bool writes(int eight) const { return row + 8 * eight < rows; }
};

// Sums start at the bias: loading it then costs little time, afterwards the tensor cores would wait.
__device__ __forceinline__ void start_sums(const Job& job, const Tile& tile, float (&acc)[OWN_N / 2]) {
    const Place at(tile, job, 0);
#pragma unroll
    for (int group = 0; group < OWN_N / 8; ++group) {
        float2 bias = make_float2(0.0f, 0.0f);
        if (job.bias && at.has(group)) {
            bias = *reinterpret_cast<const float2*>(job.bias + at.column + 8 * group + at.lane_column);
        }
        acc[4 * group] = acc[4 * group + 2] = bias.x;
        acc[4 * group + 1] = acc[4 * group + 3] = bias.y;
    }
}

// One warp's 16 rows go to a matrix of 16 bits in units of 32 columns by way of `staging`, so that each lane writes
// 16 bytes and each row gets 64. There, chunks of 16 bytes are swizzled so that no two lanes share a bank.
__device__ __forceinline__ void
write_rounded(void* matrix, long long stride, const Place& at, const float (&values)[OWN_N / 2], u32 staging) {
    // As matrix lane / 8 of `store_matrices`: rows 0 - 7 and 8 - 15 of 8 columns, then of the next 8.
    const int store_row = at.lane % 16, store_chunk = at.lane / 16;
    const int load_row = at.lane / 4, load_chunk = at.lane % 4;
    const u32 load_from = staging + load_row * 64 + ((load_chunk ^ (load_row / 2 & 3)) * 16);
    unsigned short* const out = static_cast<unsigned short*>(matrix) +
                                (at.first + at.warp_row + load_row) * stride + at.column + load_chunk * 8;
    __syncwarp(); // some rows may have taken another way
#pragma unroll
    for (int unit = 0; unit < UNITS; ++unit) {
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            u32 packed[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int value = 4 * (unit * 4 + pair * 2) + 2 * i;
                packed[i] = pack_out(values[value], values[value + 1]);
            }
            const int chunk = pair * 2 + store_chunk;
            store_matrices(staging + store_row * 64 + ((chunk ^ (store_row / 2 & 3)) * 16), packed);
        }
        __syncwarp();
#pragma unroll
        for (int eight = 0; eight < 2; ++eight) {
            // 8 rows on, the swizzle is the same.
            const uint4 value = load_shared(load_from + eight * 8 * 64);
            if (at.writes(eight) && at.has(unit * 4)) *reinterpret_cast<uint4*>(out + eight * 8 * stride + unit * UNIT_N) = value;
        }
        __syncwarp();
    }
}

#if RESIDUAL

// A lane's share of a vector's columns of the tile: 32 i + lane. All of them pass a warp by way of `staging`.
struct Columns {
    float share[UNITS];

    __device__ __forceinline__ void load(const float* vector, const Place& at) {
#pragma unroll
        for (int i = 0; i < UNITS; ++i) {
            const int column = at.column + 32 * i + at.lane;
            share[i] = vector && 32 * i < at.columns ? vector[column] : 1.0f;
        }
    }
    __device__ __forceinline__ void spread(u32 staging) const {
        __syncwarp(); // what was there before has been read
#pragma unroll
        for (int i = 0; i < UNITS; ++i) store_shared(staging + 4 * (32 * i + threadIdx.x % 32), share[i]);
        __syncwarp();
    }
};
// Of 8 columns, a thread's two.
__device__ __forceinline__ float2 of_columns(u32 staging, int group, const Place& at) {
    return load_shared_pair(staging + 4 * (8 * group + at.lane_column));
}

#include "hopper_norm.cuh"

// What is needed after the sums and loaded before. Of it, `staging` keeps the scale.
struct Before {
#if NORM
    Norm norm;
#endif
};

__device__ __forceinline__ void load_before(const Job& job, const Tile& tile, Before&, u32 staging) {
    const Place at(tile, job, 0);
#if NORM
    Norm::fetch(job, at);
#endif
    Columns scale;
    scale.load(job.scale, at);
    scale.spread(staging);
}

// The sums, scaled, become the new stream: the old one comes by the ring.
__device__ __forceinline__ void add_stream(
    const Place& at, int halves, float (&acc)[OWN_HALVES][OWN_N / 2], Cursor& cursor, u32 ring, u32 full, u32 empty,
    u32 staging
) {
#pragma unroll
    for (int step = 0; step < STREAM_STEPS; ++step, cursor.advance()) {
        // A row's 16-byte chunks are swizzled, see `descriptor`; rows of a warp start at multiples of 16.
        const u32 boxes = ring + cursor.stage * STAGE_BYTES + (SPLIT ? threadIdx.x / 128 * BOX_BYTES : 0);
        const u32 from = boxes + at.row % HALF_M * 128;
        barrier_wait(full + 8 * cursor.stage, cursor.parity);
#pragma unroll
        for (int box = 0; box < BOXES; ++box) {
            const int number = step * BOXES + box, half = number / UNITS, unit = number % UNITS;
            if (half >= OWN_HALVES || (half > 0 && half >= halves)) break;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int group = 4 * unit + i, chunk = (2 * i + at.lane_column / 4) ^ (at.row % 8);
                const float2 scale = of_columns(staging, group, at);
#pragma unroll
                for (int eight = 0; eight < 2; ++eight) {
                    const u32 in_row = chunk * 16 + at.lane_column % 4 * 4;
                    const float2 old = load_shared_pair(from + box * PARTS * BOX_BYTES + eight * 8 * 128 + in_row);
                    float* const pair = acc[half] + 4 * group + 2 * eight;
                    pair[0] = fmaf(scale.x, pair[0], old.x);
                    pair[1] = fmaf(scale.y, pair[1], old.y);
                }
            }
        }
        fence_async();
        __syncwarp();
        if (at.lane < CLUSTER) barrier_arrive(empty + 8 * cursor.stage, at.lane);
    }
}

// One of the thread's two rows.
__device__ __forceinline__ void
write_stream(const Job& job, const Place& at, int eight, const float (&values)[OWN_N / 2]) {
    const long long row = at.first + at.row + 8 * eight;
    float* const out = static_cast<float*>(job.out) + row * job.out_stride + at.column + at.lane_column;
    if (!at.writes(eight)) return;
#pragma unroll
    for (int group = 0; group < OWN_N / 8; ++group) {
        if (!at.has(group)) break;
        const float* const pair = values + 4 * group + 2 * eight;
        *reinterpret_cast<float2*>(out + 8 * group) = make_float2(pair[0], pair[1]);
    }
}

constexpr bool ASKS_EARLY = OWN_HALVES == 1; // for a norm, if registers allow

// `halves`: of 64 rows that the part has.
__device__ __forceinline__ void write(
    const Job& job, const Tile& tile, int halves, float (&acc)[OWN_HALVES][OWN_N / 2], const Before& before,
    Cursor& cursor, u32 ring, u32 full, u32 empty, u32 staging
) {
    add_stream(Place(tile, job, 0), halves, acc, cursor, ring, full, empty, staging);
#if NORM
    // Others wait for this; what it takes until they have done their share is time to write the stream.
#pragma unroll
    for (int half = 0; half < OWN_HALVES && (half == 0 || halves > 1); ++half) {
        before.norm.tell(job, Place(tile, job, half), acc[half]);
    }
    Norm::Asked asked;
#endif
#pragma unroll
    for (int half = 0; half < OWN_HALVES && (half == 0 || halves > 1); ++half) {
        const Place at(tile, job, half);
        write_stream(job, at, 0, acc[half]);
#if NORM
        // Answers come while the rest is written. Not earlier: others would not have told yet.
        if (ASKS_EARLY) asked.ask(job, at);
#endif
        write_stream(job, at, 1, acc[half]);
    }
#if NORM
#pragma unroll
    for (int half = 0; half < OWN_HALVES && (half == 0 || halves > 1); ++half) {
        const Place at(tile, job, half);
        if (!ASKS_EARLY) asked.ask(job, at);
        before.norm.apply(job, at, asked, acc[half], staging);
        write_rounded(job.normed, job.columns, at, acc[half], staging);
    }
#endif
}

#else

#if ROPE

constexpr int PHASES = HEAD_DIM / 8; // groups of columns after which a thread's angles repeat
// If registers allow, angles are loaded before the sums: afterwards, the other warpgroup would wait for them. Else, so
// many phases of them at a time.
constexpr bool EARLY = OWN_HALVES == 1 && PHASES <= 8;
constexpr int KEPT = EARLY ? PHASES : 2;

// The patch of a row, or -1 for an extra token: even crops start with patches, odd ones with extras.
__device__ __forceinline__ int patch_of(const Job& job, int row) {
    const int tokens = job.patches + job.extras, crop = row / tokens;
    const int patch = row - crop * tokens - (crop & 1) * job.extras;
    return patch >= 0 && patch < job.patches ? patch : -1;
}

// By which a thread's two rows are turned; by none, if they aren't patches.
struct Angles {
    float sin[KEPT][2], cos[KEPT][2];

    __device__ __forceinline__ void load(const Job& job, const Place& at, int from) {
#pragma unroll
        for (int eight = 0; eight < 2; ++eight) {
            const int patch = at.writes(eight) ? patch_of(job, at.first + at.row + 8 * eight) : -1;
#pragma unroll
            for (int i = 0; i < KEPT; ++i) {
                const int angle = patch * (HEAD_DIM / 2) + (8 * (from + i) + at.lane_column) / 2;
                sin[i][eight] = patch < 0 ? 0.0f : job.sin[angle];
                cos[i][eight] = patch < 0 ? 1.0f : job.cos[angle];
            }
        }
    }
    // The pairs of columns before `rotated`, of phases from `from` on.
    __device__ __forceinline__ void
    apply(const Job& job, const Place& at, int from, float (&acc)[OWN_N / 2]) const {
#pragma unroll
        for (int head = 0; head < OWN_N / HEAD_DIM; ++head) {
            if (at.column + head * HEAD_DIM >= job.rotated) break;
#pragma unroll
            for (int i = 0; i < KEPT; ++i) {
#pragma unroll
                for (int eight = 0; eight < 2; ++eight) {
                    float* const pair = acc + 4 * (head * PHASES + from + i) + 2 * eight;
                    const float first = pair[0];
                    pair[0] = first * cos[i][eight] - pair[1] * sin[i][eight];
                    pair[1] = pair[1] * cos[i][eight] + first * sin[i][eight];
                }
            }
        }
    }
};

struct Before {
    Angles angles;
};
__device__ __forceinline__ void load_before(const Job& job, const Tile& tile, Before& before, u32) {
    if (EARLY && tile.column < job.rotated) before.angles.load(job, Place(tile, job, 0), 0);
}

__device__ __forceinline__ void
finish(const Job& job, const Place& at, float (&acc)[OWN_N / 2], const Before& before) {
    if (at.column >= job.rotated) return;
    if (EARLY) return before.angles.apply(job, at, 0, acc);
#pragma unroll
    for (int from = 0; from < PHASES; from += KEPT) {
        Angles angles;
        angles.load(job, at, from);
        angles.apply(job, at, from, acc);
    }
}

#else

struct Before {};
__device__ __forceinline__ void load_before(const Job&, const Tile&, Before&, u32) {}

__device__ __forceinline__ void finish(const Job&, const Place&, float (&acc)[OWN_N / 2], const Before&) {
#if GELU
#pragma unroll
    for (float& sum : acc) sum = gelu(sum);
#endif
}

#endif

// `halves`: of 64 rows that the part has.
__device__ __forceinline__ void write(
    const Job& job, const Tile& tile, int halves, float (&acc)[OWN_HALVES][OWN_N / 2], const Before& before, Cursor&,
    u32, u32, u32, u32 staging
) {
#pragma unroll
    for (int half = 0; half < OWN_HALVES && (half == 0 || halves > 1); ++half) {
        const Place at(tile, job, half);
        finish(job, at, acc[half], before);
        write_rounded(job.out, job.out_stride, at, acc[half], staging);
    }
}

#endif
