// The queries that are left over by units of 64, in warps of their own: for hopper_attention.cu.
#pragma once

// What a lane of an extra warp has. Products are turned round, keys by queries and features by queries, since
// they have 16 rows but 8 columns: of scores it has keys lane / 4 and 8 further, and queries 2 (lane % 4) and the
// next; of `out` features in place of keys.
struct ExtraWarp {
    u32 queries[HEAD_DIM / 16][2];
    float out[HEAD_DIM / 16][4] = {};
    float shift[2] = {-NOTHING, -NOTHING}, total[2] = {};

    // Over the 8 lanes that share queries.
    __device__ __forceinline__ static float highest_of_query(float top) {
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, lanes));
        return top;
    }

    // Keys 16 by 16, CHAINS times at once, and their values. The first `count` are keys.
    template <int CHAINS> __device__ __forceinline__ void add(u32 keys, u32 values, int count) {
        const int lane = threadIdx.x % 32;
        float scores[CHAINS][4] = {};
#pragma unroll
        for (int k = 0; k < HEAD_DIM / 16; ++k) {
#pragma unroll
            for (int c = 0; c < CHAINS; ++c) {
                u32 features[4];
                load_matrices(features, (keys + c * 16 * ROW_BYTES) ^ (32 * k));
                multiply_in_warp(scores[c], features, queries[k][0], queries[k][1]);
            }
        }
        float top[2] = {NOTHING, NOTHING};
#pragma unroll
        for (int i = 0; i < 4 * CHAINS; ++i) {
            float& score = scores[i / 4][i % 4];
            if (i / 2 * 8 + lane / 4 >= count) score = NOTHING;
            top[i % 2] = fmaxf(top[i % 2], score);
        }
        const float above = fmaxf(fmaf(top[0], SCALE, shift[0]), fmaf(top[1], SCALE, shift[1]));
        if (__any_sync(~0u, above > SLACK)) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const float now = fminf(shift[j], -SCALE * highest_of_query(top[j]));
                const float shrink = power_of_two(now - shift[j]);
                shift[j] = now;
                total[j] *= shrink;
#pragma unroll
                for (int m = 0; m < HEAD_DIM / 16; ++m) {
                    out[m][j] *= shrink;
                    out[m][j + 2] *= shrink;
                }
            }
        }
#pragma unroll
        for (int c = 0; c < CHAINS; ++c) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                scores[c][i] = power_of_two(fmaf(scores[c][i], SCALE, shift[i % 2]));
                total[i % 2] += scores[c][i];
            }
            const u32 first = transpose(pack(scores[c][0], scores[c][1]));
            const u32 second = transpose(pack(scores[c][2], scores[c][3]));
#pragma unroll
            for (int m = 0; m < HEAD_DIM / 16; ++m) {
                u32 features[4];
                load_transposed(features, (values + c * 16 * ROW_BYTES) ^ (32 * m));
                multiply_in_warp(out[m], features, first, second);
            }
        }
    }

    // Every warp has seen other keys: all but the first leave what they have at `partials`, and the first adds it.
    __device__ __forceinline__ void leave(u32 partials, int warp) const {
        const u32 to = partials + ((warp - 1) * NUMBERS * 32 + threadIdx.x % 32) * 4;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            store_shared(to + 128 * j, shift[j]);
            store_shared(to + 128 * (2 + j), total[j]);
        }
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 4; ++i) store_shared(to + 128 * (4 + i), out[i / 4][i % 4]);
    }
    __device__ __forceinline__ void add_left(u32 partials, int warp) {
        const u32 from = partials + ((warp - 1) * NUMBERS * 32 + threadIdx.x % 32) * 4;
        float own[2], other[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const float there = load_shared_number(from + 128 * j), now = fminf(shift[j], there);
            own[j] = power_of_two(now - shift[j]);
            other[j] = power_of_two(now - there);
            shift[j] = now;
            total[j] = total[j] * own[j] + load_shared_number(from + 128 * (2 + j)) * other[j];
        }
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 4; ++i) {
            float& sum = out[i / 4][i % 4];
            sum = sum * own[i % 2] + load_shared_number(from + 128 * (4 + i)) * other[i % 2];
        }
    }
};

__device__ __forceinline__ void consume_extra(const Job& job, const Tile& tile, Ring ring, u32 partials) {
    const int warp = threadIdx.x / 32 - CONSUMERS / 32 - 1;
    const int lane = threadIdx.x % 32, width = job.heads * HEAD_DIM, first = job.units * UNIT;
    ExtraWarp state;
    const long long row = tile.crop * job.tokens + min(first + lane / 4, job.tokens - 1);
    const unsigned short* const query = job.qkv + row * (3 * width) + tile.head * HEAD_DIM + lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; ++k) {
        state.queries[k][0] = *reinterpret_cast<const u32*>(query + 16 * k);
        state.queries[k][1] = *reinterpret_cast<const u32*>(query + 16 * k + 8);
    }
    int keys = ring.take();
    for (int step = 0; step < job.steps; ++step) {
        // In the ring the next keys come before these keys' values.
        const int next_keys = step + 1 < job.steps ? ring.take() : 0, values = ring.take();
        const u32 first_keys = place(ring.address_of(keys), true);
        const u32 first_values = place(ring.address_of(values), false);
        const int count = step % EXTRA_WARPS != warp ? 0 : step == 0 ? job.rest : BLOCK_N;
        // Two chains at once: a warp has little else to do while it waits for one.
        int done = 0;
        for (; count - done > 16; done += 32) {
            state.add<2>(first_keys + done * ROW_BYTES, first_values + done * ROW_BYTES, count - done);
        }
        for (; count > done; done += 16) {
            state.add<1>(first_keys + done * ROW_BYTES, first_values + done * ROW_BYTES, count - done);
        }
        fence_async();
        __syncwarp();
        ring.give_back(keys);
        ring.give_back(values);
        keys = next_keys;
    }
    if (warp > 0) state.leave(partials, warp);
    extra_sync();
    if (warp > 0) return;
#pragma unroll
    for (int other = 1; other < EXTRA_WARPS; ++other) state.add_left(partials, other);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        float total = state.total[j];
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) total += __shfl_xor_sync(~0u, total, lanes);
        const float scale = 1.0f / total;
        const int query_row = first + lane % 4 * 2 + j;
        if (query_row >= job.tokens) continue;
        unsigned short* const out = static_cast<unsigned short*>(job.out) +
                                    static_cast<long long>(tile.crop * job.tokens + query_row) * width +
                                    tile.head * HEAD_DIM + lane / 4;
#pragma unroll
        for (int m = 0; m < HEAD_DIM / 16; ++m) {
            const u32 both = pack_out(state.out[m][j] * scale, state.out[m][j + 2] * scale);
            out[16 * m] = both & 0xFFFF;
            out[16 * m + 8] = both >> 16;
        }
    }
}
