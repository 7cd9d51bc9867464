// Softmax over blocks of keys, in a warpgroup's registers: for hopper_attention.cu.
#pragma once

template <int COUNT> __device__ __forceinline__ void in_use_until_here(float (&values)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) in_use_until_here(values[i]);
}
template <int COUNT> __device__ __forceinline__ void in_use_until_here(u32 (&values)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) in_use_until_here(values[i]);
}

// Where lane i finds row i % 8 of matrix i / 8, of four that are 16 rows by 2 chunks of 16 bytes: `down`, the second
// is 8 rows below the first, else a chunk further. The swizzle lets other chunks be reached by ^.
__device__ __forceinline__ u32 place(u32 rows, bool down) {
    const int lane = threadIdx.x % 32, second = lane / 8 % 2, third = lane / 16;
    const int row = lane % 8 + 8 * (down ? second : third), chunk = down ? third : second;
    return rows + row * ROW_BYTES + ((chunk ^ (row & 7)) * 16);
}

// What one thread of a warpgroup has of its warp's 16 rows: rows lane / 4 and 8 further, and of each 8 columns
// (keys, or features of `out`) 2 beside one another: number 4 g + 2 h + i is column 8 g + 2 (lane % 4) + i of
// row lane / 4 + 8 h. Products read weights, two packed in a register, in the same order.
struct Softmax {
    float out[HEAD_DIM / 2];
    // Minus a maximum, scaled, and MARGIN; the same in the 4 lanes that share a row.
    float shift[2] = {-NOTHING, -NOTHING};
    float total[2] = {}; // of this lane's columns

    template <int COUNT> __device__ __forceinline__ static float highest(const float (&scores)[COUNT], int half) {
        float top = fmaxf(scores[2 * half], scores[2 * half + 1]);
#pragma unroll
        for (int g = 1; g < COUNT / 4; ++g) {
            top = fmaxf(top, fmaxf(scores[4 * g + 2 * half], scores[4 * g + 2 * half + 1]));
        }
        return top;
    }

    // To this lane's `top`, of scores. Maxima don't fall: `total` and `out` are scaled for those that rise.
    template <bool FIRST> __device__ __forceinline__ void raise(const float (&top)[2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float of_pair = fmaxf(top[half], __shfl_xor_sync(~0u, top[half], 1));
            const float of_row = fmaxf(of_pair, __shfl_xor_sync(~0u, of_pair, 2));
            const float now = fminf(shift[half], -SCALE * of_row - MARGIN);
            const float shrink = power_of_two(now - shift[half]);
            shift[half] = now;
            if (FIRST) continue;
            total[half] *= shrink;
#pragma unroll
            for (int g = 0; g < HEAD_DIM / 8; ++g) {
                out[4 * g + 2 * half] *= shrink;
                out[4 * g + 2 * half + 1] *= shrink;
            }
        }
    }

    // Scores become weights, which are added to `sums` of this lane.
    template <int COUNT>
    __device__ __forceinline__ void exponentials(float (&scores)[COUNT], float (&sums)[2]) const {
#pragma unroll
        for (int i = 0; i < COUNT; i += 2) {
            const int half = i / 2 % 2;
#pragma unroll
            for (int j = i; j < i + 2; ++j) scores[j] = power_of_two(fmaf(scores[j], SCALE, shift[half]));
            sums[half] += scores[i] + scores[i + 1];
        }
    }

    // Of the first block of keys, of which `count` are keys.
    __device__ __forceinline__ void weigh_first(float (&scores)[LAST / 2], int count) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < LAST / 2; ++i) {
            const int key = i / 4 * 8 + lane % 4 * 2 + i % 2;
            if (key >= count) scores[i] = NOTHING;
        }
        raise<true>({highest(scores, 0), highest(scores, 1)});
        exponentials(scores, total);
    }

    // Of another block. Takes new maxima if an old one has become too low: rarely, so it may wait for products that
    // add to `out`.
    __device__ __forceinline__ void weigh(float (&scores)[BLOCK_N / 2]) {
        const float top[2] = {highest(scores, 0), highest(scores, 1)};
        const float above = fmaxf(fmaf(top[0], SCALE, shift[0]), fmaf(top[1], SCALE, shift[1]));
        if (__any_sync(~0u, above > SLACK)) {
            multiply_wait<0>();
            in_use_until_here(out);
            raise<false>(top);
        }
        exponentials(scores, total);
    }

    // The same without a look for maxima: it is the weights' sums that tell when one was too low. By then the scores
    // are lost, and the warp multiplies them again. `out` is at rest.
    __device__ __forceinline__ void weigh(float (&scores)[BLOCK_N / 2], u32 queries, u32 keys) {
        float sums[2] = {};
        exponentials(scores, sums);
        if (__any_sync(~0u, fmaxf(sums[0], sums[1]) > LIMIT)) {
            multiply_again(scores, place(queries + threadIdx.x / 32 % 4 * 16 * ROW_BYTES, true), place(keys, false));
            raise<false>({highest(scores, 0), highest(scores, 1)});
            sums[0] = sums[1] = 0.0f;
            exponentials(scores, sums);
        }
        total[0] += sums[0];
        total[1] += sums[1];
    }

    // Scores of a warp's 16 queries: by products of the warp, since other warps of the group need none.
    __device__ __forceinline__ static void multiply_again(float (&scores)[BLOCK_N / 2], u32 queries, u32 keys) {
#pragma unroll
        for (int g = 0; g < BLOCK_N / 16; ++g) {
            float sums[2][4] = {};
#pragma unroll
            for (int k = 0; k < HEAD_DIM / 16; ++k) {
                u32 rows[4], columns[4];
                load_matrices(rows, queries ^ (32 * k));
                load_matrices(columns, (keys + g * 16 * ROW_BYTES) ^ (32 * k));
                multiply_in_warp(sums[0], rows, columns[0], columns[1]);
                multiply_in_warp(sums[1], rows, columns[2], columns[3]);
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) scores[8 * g + i] = sums[i / 4][i % 4];
        }
        fence_async();
    }
};
