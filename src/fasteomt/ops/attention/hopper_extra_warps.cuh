// The queries that are left over by units of 64, in warps of their own: for hopper_attention.cu.
#pragma once

// Products are turned round, keys by queries and features by queries, since they have 16 rows but 8 columns. Of scores
// a lane has keys lane / 4 and 8 further, and queries 2 (lane % 4) and the next; of sums, features in place of keys.
//
// Warpgroups need the registers. So all that a lane keeps from one block of keys to the next is in shared memory, 16
// bytes at a time beside those of other lanes.
struct ExtraWarp {
    u32 memory; // the lane's first 16 bytes
    static_assert(EXTRA_BYTES == 8 * 512 && PARTIAL == (HEAD_DIM / 16 + 1) * 32, "sums and totals are what is left");

    // Of 16 features.
    __device__ __forceinline__ u32 sums(int features) const { return memory + features * 512; }
    // Of both queries: minus a maximum, scaled; then the weights' sum, of this lane's keys.
    __device__ __forceinline__ u32 totals() const { return sums(HEAD_DIM / 16); }
    // 32 features of them, as products read them.
    __device__ __forceinline__ u32 queries(int features) const { return memory + (5 + features) * 512; }

    // Where the lane finds keys and values of 16 rows, and which of 8 keys it has.
    __device__ __forceinline__ u32 places() const { return memory + 7 * 512; }

    // Over the 8 lanes that share queries.
    __device__ __forceinline__ static float highest_of_query(float top) {
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, lanes));
        return top;
    }

    __device__ __forceinline__ void start(const unsigned short* query) const {
        const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int k = 0; k < HEAD_DIM / 16; ++k) {
            const u32 to = queries(k / 2) + k % 2 * 8;
            store_shared_word(to, *reinterpret_cast<const u32*>(query + 16 * k));
            store_shared_word(to + 4, *reinterpret_cast<const u32*>(query + 16 * k + 8));
            store_shared(sums(k), none);
        }
        store_shared(totals(), make_float4(-NOTHING, -NOTHING, 0.0f, 0.0f));
        store_shared_word(places(), place(0, true));
        store_shared_word(places() + 4, place(0, false));
        store_shared_word(places() + 8, threadIdx.x % 32 / 4);
    }

    // Keys 16 by 16, CHAINS times at once, and their values. The first `count` are keys.
    template <int CHAINS> __device__ __forceinline__ void add(u32 key_rows, u32 value_rows, int count) const {
        const u32 keys = key_rows + load_shared(places()).x;
        float scores[CHAINS][4] = {};
#pragma unroll
        for (int k = 0; k < HEAD_DIM / 16; k += 2) {
            const uint4 query = load_shared(queries(k / 2));
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int c = 0; c < CHAINS; ++c) {
                    u32 features[4];
                    load_matrices(features, (keys + c * 16 * ROW_BYTES) ^ (32 * (k + i)));
                    multiply_in_warp(scores[c], features, i ? query.z : query.x, i ? query.w : query.y);
                }
            }
        }
        const int key = load_shared(places()).z; // not earlier: registers
        float top[2] = {NOTHING, NOTHING};
#pragma unroll
        for (int i = 0; i < 4 * CHAINS; ++i) {
            float& score = scores[i / 4][i % 4];
            if (i / 2 * 8 + key >= count) score = NOTHING;
            top[i % 2] = fmaxf(top[i % 2], score);
        }
        const float4 before = load_shared_floats(totals());
        float shift[2] = {before.x, before.y}, total[2] = {before.z, before.w};
        const float above = fmaxf(fmaf(top[0], SCALE, shift[0]), fmaf(top[1], SCALE, shift[1]));
        if (__any_sync(~0u, above > SLACK)) {
            float shrink[2];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const float now = fminf(shift[j], -SCALE * highest_of_query(top[j]));
                shrink[j] = power_of_two(now - shift[j]);
                shift[j] = now;
                total[j] *= shrink[j];
            }
#pragma unroll
            for (int m = 0; m < HEAD_DIM / 16; ++m) {
                const float4 sum = load_shared_floats(sums(m));
                store_shared(
                    sums(m), make_float4(sum.x * shrink[0], sum.y * shrink[1], sum.z * shrink[0], sum.w * shrink[1])
                );
            }
        }
        u32 weights[CHAINS][2];
#pragma unroll
        for (int c = 0; c < CHAINS; ++c) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                scores[c][i] = power_of_two(fmaf(scores[c][i], SCALE, shift[i % 2]));
                total[i % 2] += scores[c][i];
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) weights[c][i] = transpose(pack(scores[c][2 * i], scores[c][2 * i + 1]));
        }
        store_shared(totals(), make_float4(shift[0], shift[1], total[0], total[1]));
        const u32 values = value_rows + load_shared(places()).y;
#pragma unroll
        for (int m = 0; m < HEAD_DIM / 16; ++m) {
            const float4 old = load_shared_floats(sums(m));
            float sum[4] = {old.x, old.y, old.z, old.w};
#pragma unroll
            for (int c = 0; c < CHAINS; ++c) {
                u32 features[4];
                load_transposed(features, (values + c * 16 * ROW_BYTES) ^ (32 * m));
                multiply_in_warp(sum, features, weights[c][0], weights[c][1]);
            }
            store_shared(sums(m), make_float4(sum[0], sum[1], sum[2], sum[3]));
        }
    }

    // Adds what another one has, which has seen other keys.
    __device__ __forceinline__ void add(const ExtraWarp& other) const {
        const float4 own = load_shared_floats(totals()), there = load_shared_floats(other.totals());
        const float shift[2] = {fminf(own.x, there.x), fminf(own.y, there.y)};
        const float ours[2] = {power_of_two(shift[0] - own.x), power_of_two(shift[1] - own.y)};
        const float theirs[2] = {power_of_two(shift[0] - there.x), power_of_two(shift[1] - there.y)};
        const float total[2] = {own.z * ours[0] + there.z * theirs[0], own.w * ours[1] + there.w * theirs[1]};
        store_shared(totals(), make_float4(shift[0], shift[1], total[0], total[1]));
#pragma unroll
        for (int m = 0; m < HEAD_DIM / 16; ++m) {
            const float4 a = load_shared_floats(sums(m)), b = load_shared_floats(other.sums(m));
            store_shared(
                sums(m), make_float4(
                             a.x * ours[0] + b.x * theirs[0], a.y * ours[1] + b.y * theirs[1],
                             a.z * ours[0] + b.z * theirs[0], a.w * ours[1] + b.w * theirs[1]
                         )
            );
        }
    }

    // What a block has, in memory: of each lane 16 bytes beside those of others, as here.
    __device__ __forceinline__ void leave(float4* partial) const {
#pragma unroll
        for (int i = 0; i <= HEAD_DIM / 16; ++i) partial[32 * i + threadIdx.x % 32] = load_shared_floats(sums(i));
    }
    __device__ __forceinline__ void fetch(const float4* partial) const {
#pragma unroll
        for (int i = 0; i <= HEAD_DIM / 16; ++i) store_shared(sums(i), load_new(partial + 32 * i + threadIdx.x % 32));
    }

    // Of the lane's two queries those that are a crop's.
    __device__ __forceinline__ void write(const Job& job, const Tile& tile) const {
        const int lane = threadIdx.x % 32, width = job.heads * HEAD_DIM;
        const float4 all = load_shared_floats(totals());
        const float total[2] = {all.z, all.w};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            float sum = total[j];
#pragma unroll
            for (int lanes = 4; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
            const float scale = 1.0f / sum;
            const int row = job.units * UNIT + lane % 4 * 2 + j;
            if (row >= job.tokens) continue;
            unsigned short* const out = static_cast<unsigned short*>(job.out) +
                                        static_cast<long long>(tile.crop * job.tokens + row) * width +
                                        tile.head * HEAD_DIM + lane / 4;
#pragma unroll
            for (int m = 0; m < HEAD_DIM / 16; ++m) {
                const u32 from = sums(m) + 4 * j;
                const u32 both = pack_out(load_shared_number(from) * scale, load_shared_number(from + 8) * scale);
                out[16 * m] = both & 0xFFFF;
                out[16 * m + 8] = both >> 16;
            }
        }
    }
};

__device__ __forceinline__ void consume_extra(const Job& job, const Tile& tile, Ring ring, u32 memory) {
    const int warp = threadIdx.x / 32 - CONSUMERS / 32 - 1, lane = threadIdx.x % 32;
    const ExtraWarp own{memory + warp * EXTRA_BYTES + lane * 16};
    {
        const int width = job.heads * HEAD_DIM, row = min(job.units * UNIT + lane / 4, job.tokens - 1);
        const long long of_crop = static_cast<long long>(tile.crop * job.tokens + row) * (3 * width);
        own.start(job.qkv + of_crop + tile.head * HEAD_DIM + lane % 4 * 2);
    }
    int keys = ring.take(), turn = tile.share * EXTRA_WARPS + warp; // pieces of 32 keys until it is this warp's
    for (int step = 0; step < job.steps; ++step) {
        // In the ring the next keys come before these keys' values.
        const int next_keys = step + 1 < job.steps ? ring.take() : 0, values = ring.take();
        u32 key_rows = ring.address_of(keys), value_rows = ring.address_of(values);
        for (int left = step == 0 ? job.rest : BLOCK_N; left > 0; left -= 32, --turn) {
            if (turn == 0) {
                turn = job.tiles * EXTRA_WARPS;
                // Two chains at once: a warp has little else to do while it waits for one.
                if (left > 16) {
                    own.add<2>(key_rows, value_rows, left);
                } else {
                    own.add<1>(key_rows, value_rows, left);
                }
            }
            key_rows += 32 * ROW_BYTES;
            value_rows += 32 * ROW_BYTES;
        }
        fence_async();
        __syncwarp();
        ring.give_back(keys);
        ring.give_back(values);
        keys = next_keys;
    }
    extra_sync();
    if (warp > 0) return;
    const ExtraWarp room{own.memory + EXTRA_BYTES};
    for (int other = 1; other < EXTRA_WARPS; ++other) own.add({own.memory + other * EXTRA_BYTES});
    if (job.tiles > 1) {
        // Those who share a head are beside one another.
        float4* const partials = job.partials + (blockIdx.x - tile.share) * PARTIAL;
        own.leave(partials + tile.share * PARTIAL);
        if (!is_last(job.done + tile.pair, job.tiles)) return;
        // In the same order, whoever is the last.
        own.fetch(partials);
        for (int other = 1; other < job.tiles; ++other) {
            room.fetch(partials + other * PARTIAL);
            own.add(room);
        }
    }
    own.write(job, tile);
}
