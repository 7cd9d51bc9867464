// LayerNorm of rows whose columns several blocks have: for hopper_gemm.cu.
//
// Each block tells the others the mean of its part of a row, and the sum of squares around it, and then puts together
// what all have told (Chan et al. 1979, "Updating formulae and a pairwise algorithm for computing sample variances").
// Who waits gets its answer, since all blocks of a launch come onto the GPU: there is one for a multiprocessor, and what
// keeps another from starting must be a kernel that ends by itself. Two such launches at a time might each have half of
// the GPU; engine/kernels.py lets the programs of a process run one after the other.
#pragma once

#if NORM

struct Moments {
    float count, mean, squares;

    __device__ __forceinline__ void merge(const Moments& other) {
        const float all = count + other.count, apart = other.mean - mean;
        const float share = all > 0.0f ? other.count / all : 0.0f;
        mean = fmaf(apart, share, mean);
        squares += fmaf(apart * apart, count * share, other.squares);
        count = all;
    }
    __device__ __forceinline__ void merge_with_lane(int mask) {
        merge({__shfl_xor_sync(~0u, count, mask), __shfl_xor_sync(~0u, mean, mask), __shfl_xor_sync(~0u, squares, mask)});
    }
};

struct Norm {
    // Number of this launch: one more than the last one left in `parts`. So nobody has to clear anything.
    u32 launch;

    __device__ __forceinline__ void load(const Job& job, const Place& at) {
        // All rows have the same; this one's is written by the same warp.
        launch = at.writes(0) ? launch_of(parts_of(job, at, 0) + at.column / OWN_N) + 1 : 0;
    }

    // Into L2, so that `apply` needn't wait for memory.
    __device__ __forceinline__ static void fetch(const Job& job, const Place& at) {
        const int column = at.lane % UNITS * 32;
        const float* const vector = at.lane < UNITS ? job.gain : job.offset;
        if (at.lane < 2 * UNITS && column < at.columns) prefetch(vector + at.column + column);
    }

    // Of one of the thread's two rows.
    __device__ __forceinline__ static Part* parts_of(const Job& job, const Place& at, int eight) {
        return job.parts + (at.first + at.row + 8 * eight) * static_cast<long long>(count(job));
    }
    // Of parts that a row has.
    __device__ __forceinline__ static int count(const Job& job) { return (job.columns + OWN_N - 1) / OWN_N; }
    // Of the four lanes that share a row.
    __device__ __forceinline__ static float over_row(float sum) {
        sum += __shfl_xor_sync(~0u, sum, 1);
        return sum + __shfl_xor_sync(~0u, sum, 2);
    }

    __device__ __forceinline__ void tell(const Job& job, const Place& at, const float (&values)[OWN_N / 2]) const {
        // Of both rows, each in two parts, so that additions needn't wait for one another. Beyond the last column
        // there are zeros.
        float sum[4] = {}, squares[4] = {}, mean[2];
#pragma unroll
        for (int i = 0; i < OWN_N / 2; i += 4) {
#pragma unroll
            for (int j = 0; j < 4; ++j) sum[j] += values[i + j];
        }
#pragma unroll
        for (int eight = 0; eight < 2; ++eight) {
            mean[eight] = over_row(sum[2 * eight] + sum[2 * eight + 1]) / min(OWN_N, at.columns);
        }
#pragma unroll
        for (int unit = 0; unit < UNITS; ++unit) {
            if (!at.has(4 * unit)) break;
#pragma unroll
            for (int i = 16 * unit; i < 16 * unit + 16; ++i) {
                const float apart = values[i] - mean[i / 2 % 2];
                squares[i % 4] = fmaf(apart, apart, squares[i % 4]);
            }
        }
#pragma unroll
        for (int eight = 0; eight < 2; ++eight) {
            const float all = over_row(squares[2 * eight] + squares[2 * eight + 1]);
            if (at.lane % 4 == 0 && at.writes(eight)) {
                tell_part(parts_of(job, at, eight) + at.column / OWN_N, mean[eight], all, launch);
            }
        }
    }

    // What `apply` needs of memory: the norm's weight and bias, and a first look at what others have told.
    struct Asked {
        Columns gain, offset;
        Parts seen;

        __device__ __forceinline__ void ask(const Job& job, const Place& at) {
            gain.load(job.gain, at);
            offset.load(job.offset, at);
            const int i = min(at.lane % 4, count(job) - 1);
            if (at.writes(0)) seen = look_at({parts_of(job, at, 0) + i, parts_of(job, at, at.writes(1)) + i});
        }
    };

    // Normalises a thread's two rows in place. Of the four lanes that share them, each hears every fourth part.
    __device__ __forceinline__ void apply(
        const Job& job, const Place& at, const Asked& asked, float (&values)[OWN_N / 2], u32 staging
    ) const {
        Moments row[2] = {};
        for (int i = at.lane % 4; i < count(job) && at.writes(0); i += 4) {
            const Part* const parts[] = {parts_of(job, at, 0) + i, parts_of(job, at, at.writes(1)) + i};
            const float columns = min(OWN_N, job.columns - i * OWN_N);
            float2 heard[2];
            wait_for_parts(parts, launch, i < 4 ? asked.seen : look_at(parts), heard);
#pragma unroll
            for (int eight = 0; eight < 2; ++eight) row[eight].merge({columns, heard[eight].x, heard[eight].y});
        }
        float scale[2], shift[2];
#pragma unroll
        for (int eight = 0; eight < 2; ++eight) {
            row[eight].merge_with_lane(1);
            row[eight].merge_with_lane(2);
            scale[eight] = rsqrtf(row[eight].squares / job.columns + job.eps);
            shift[eight] = -row[eight].mean * scale[eight];
        }
        constexpr int ROOM = 4; // of 32 columns that `staging` has for gain and offset
#pragma unroll
        for (int from = 0; from < UNITS; from += ROOM) {
            __syncwarp(); // what was there before has been read
#pragma unroll
            for (int i = from; i < UNITS && i < from + ROOM; ++i) {
                store_shared(staging + 8 * (32 * (i - from) + at.lane), make_float2(asked.gain.share[i], asked.offset.share[i]));
            }
            __syncwarp();
#pragma unroll
            for (int group = 4 * from; group < OWN_N / 8 && group < 4 * (from + ROOM); ++group) {
                const float4 two = load_shared_floats(staging + 8 * (8 * (group - 4 * from) + at.lane_column));
#pragma unroll
                for (int eight = 0; eight < 2; ++eight) {
                    float* const pair = values + 4 * group + 2 * eight;
                    pair[0] = fmaf(fmaf(pair[0], scale[eight], shift[eight]), two.x, two.y);
                    pair[1] = fmaf(fmaf(pair[1], scale[eight], shift[eight]), two.z, two.w);
                }
            }
        }
    }
};

#endif
