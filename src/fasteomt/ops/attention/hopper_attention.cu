// Attention for Hopper (sm_90a): softmax(q k^T / sqrt(HEAD_DIM)) v within each crop, heads of 64 features.
//
// A block has WARPGROUPS x 64 queries of one head and crop. One thread copies all keys and values of them into
// a ring of STAGES, BLOCK_N rows at a time. Each warpgroup goes over them on its own: while its tensor cores
// sum up the values of one block of keys, it does the exponentials of the next one, whose scores were
// multiplied before. The warpgroups of a multiprocessor drift apart, so that some multiply while others don't.
//
// The keys that fill no block come first, LAST of them after padding: so the loop has no masks. Up to 8 queries
// that are left over by the warpgroups' units of 64 are the extra warps', beside the thread that copies: they
// take keys from the same ring, so that nobody reads them a second time, and each multiplies every third block.
//
// Defined by who compiles this:
//   HEAD_DIM            64: a row of queries, keys or values is 128 bytes, one atom of the swizzle
//   WARPGROUPS, BLOCKS  warpgroups of a block that multiply; blocks that are to fit a multiprocessor
//   BLOCK_N, LAST       keys at a time, a multiple of 16; of the first block, after padding
//   STAGES              stages of the ring
//   EXTRA               1 for extra warps, or 0
//   CONSUMER_REGISTERS  of a warpgroup's threads; PRODUCER_REGISTERS: of the others'
//   TYPE                bf16 or f16, as PTX writes it
//   BLOCK_..., LAST_... operands of products, as ops/hopper.py writes them, whose sums are BLOCK_N or LAST `scores`
//   OUT_...             of those whose sums are `out` and whose A are four registers

#include "hopper_attention_ptx.cuh"
#include "hopper_tiles.cuh"

constexpr int UNIT = 64, ROW_BYTES = HEAD_DIM * 2, UNIT_BYTES = UNIT * ROW_BYTES, STAGE_BYTES = BLOCK_N * ROW_BYTES;
constexpr int CONSUMERS = 128 * WARPGROUPS, THREADS = CONSUMERS + 128;
// What each extra warp but the first leaves to that: NUMBERS a lane.
constexpr int EXTRA_WARPS = 3, NUMBERS = HEAD_DIM / 4 + 4, PARTIAL_BYTES = (EXTRA_WARPS - 1) * NUMBERS * 32 * 4;
// Scores are in units of log2: exp(x) = 2^(x log2(e)).
constexpr float SCALE = 1.4426950408889634f / 8.0f;
static_assert(HEAD_DIM == 64, "SCALE and a row's bytes are those of 64 features");
// An extra warp keeps keys while it waits for their values, which are up to three stages behind.
static_assert(STAGES >= 4, "the ring would never move on");
// Weights are relative to a maximum that may be as old as to let them reach 2^SLACK. Sums in fp32 and rounding
// to 16 bits lose nothing by that, and out is rarely scaled anew.
constexpr float SLACK = 8.0f;
constexpr float NOTHING = -3.0e38f; // the score of what is no key: its weight is 0

struct Job {
    void* out;                 // (crops x tokens, heads x HEAD_DIM), contiguous
    const unsigned short* qkv; // (crops x tokens, 3 x heads x HEAD_DIM), contiguous
    int tokens, heads;         // tokens of a crop
    int tiles, units;          // blocks that share a head's queries, and units of 64 that they have
    int steps;                 // blocks of keys
    int rest, extra;           // keys of the first one; queries of the extra warps, which the first tile has
};

struct Tile {
    int head, crop, first_unit, units, extra;

    __device__ __forceinline__ explicit Tile(const Job& job) {
        const int pair = blockIdx.x / job.tiles, tile = blockIdx.x % job.tiles;
        head = pair % job.heads;
        crop = pair / job.heads;
        first_unit = tile * job.units / job.tiles;
        units = (tile + 1) * job.units / job.tiles - first_unit;
        extra = tile == 0 ? job.extra : 0;
    }
};

constexpr u64 NEXT_16_FEATURES = 32 >> 4, NEXT_16_ROWS = 16 * ROW_BYTES >> 4;

// The ring: keys 0, keys 1, values 0, keys 2, values 1, ..., values of the last step. Each takes a stage, which
// is one pair of barriers, full and empty.
struct Ring {
    u32 first, full, empty;
    Cursor at{};

    __device__ __forceinline__ u32 address() const { return first + at.stage * STAGE_BYTES; }
    // The stage that is next, once it is full.
    __device__ __forceinline__ int take() {
        const int taken = at.stage;
        barrier_wait(full + 8 * taken, at.parity);
        at.advance();
        return taken;
    }
    __device__ __forceinline__ u32 address_of(int taken) const { return first + taken * STAGE_BYTES; }
    // One arrival a warp.
    __device__ __forceinline__ void give_back(int taken) const {
        if (threadIdx.x % 32 == 0) barrier_arrive(empty + 8 * taken);
    }
};

__device__ __forceinline__ void produce(
    const TensorMap& unit_rows, const TensorMap& block_rows, const TensorMap& last_rows, const Job& job,
    const Tile& tile, Ring ring, u32 queries, u32 queries_full
) {
    const int width = job.heads * HEAD_DIM, column = tile.head * HEAD_DIM, row = tile.crop * job.tokens;
    barrier_arrive_expecting(queries_full, tile.units * UNIT_BYTES);
    for (int unit = 0; unit < tile.units; ++unit) {
        const int first = row + (tile.first_unit + unit) * UNIT;
        copy_box(queries + unit * UNIT_BYTES, unit_rows, column, first, queries_full);
    }
    const auto put = [&](int step, int part) {
        const u32 barrier = ring.full + 8 * ring.at.stage;
        barrier_wait(ring.empty + 8 * ring.at.stage, ring.at.parity ^ 1);
        // The first step has the last keys.
        if (step == 0) {
            barrier_arrive_expecting(barrier, LAST * ROW_BYTES);
            copy_box(ring.address(), last_rows, part * width + column, row + (job.steps - 1) * BLOCK_N, barrier);
        } else {
            barrier_arrive_expecting(barrier, STAGE_BYTES);
            copy_box(ring.address(), block_rows, part * width + column, row + (step - 1) * BLOCK_N, barrier);
        }
        ring.at.advance();
    };
    put(0, 1);
    for (int step = 1; step < job.steps; ++step) {
        put(step, 1);
        put(step - 1, 2);
    }
    put(job.steps - 1, 2);
}

template <int COUNT> __device__ __forceinline__ void in_use_until_here(float (&values)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) in_use_until_here(values[i]);
}
template <int COUNT> __device__ __forceinline__ void in_use_until_here(u32 (&values)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) in_use_until_here(values[i]);
}

// What one thread of a warpgroup has of its warp's 16 rows: rows lane / 4 and 8 further, and of each 8 columns
// (keys, or features of `out`) 2 beside one another: number 4 g + 2 h + i is column 8 g + 2 (lane % 4) + i of
// row lane / 4 + 8 h. Products read weights, two packed in a register, in the same order.
struct Softmax {
    float out[HEAD_DIM / 2];
    float shift[2]; // minus a maximum, scaled; the same in the 4 lanes that share a row
    float total[2]; // of this lane's columns

    template <int COUNT> __device__ __forceinline__ static float highest(const float (&scores)[COUNT], int half) {
        float top = fmaxf(scores[2 * half], scores[2 * half + 1]);
#pragma unroll
        for (int g = 1; g < COUNT / 4; ++g) {
            top = fmaxf(top, fmaxf(scores[4 * g + 2 * half], scores[4 * g + 2 * half + 1]));
        }
        return top;
    }
    __device__ __forceinline__ static float highest_of_row(float top) {
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        return fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    }

    __device__ __forceinline__ void start(const float (&scores)[LAST / 2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            shift[half] = -SCALE * highest_of_row(highest(scores, half));
            total[half] = 0.0f;
        }
    }

    // Takes new maxima if an old one has become too low: rarely, so it may wait for products that add to `out`.
    __device__ __forceinline__ void adapt(const float (&scores)[BLOCK_N / 2]) {
        const float top[2] = {highest(scores, 0), highest(scores, 1)};
        const float above = fmaxf(fmaf(top[0], SCALE, shift[0]), fmaf(top[1], SCALE, shift[1]));
        if (!__any_sync(~0u, above > SLACK)) return;
        multiply_wait<0>();
        in_use_until_here(out);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float now = fminf(shift[half], -SCALE * highest_of_row(top[half]));
            const float shrink = power_of_two(now - shift[half]);
            shift[half] = now;
            total[half] *= shrink;
#pragma unroll
            for (int g = 0; g < HEAD_DIM / 8; ++g) {
                out[4 * g + 2 * half] *= shrink;
                out[4 * g + 2 * half + 1] *= shrink;
            }
        }
    }

    // Scores become weights.
    template <int COUNT> __device__ __forceinline__ void exponentials(float (&scores)[COUNT]) {
#pragma unroll
        for (int i = 0; i < COUNT; i += 2) {
            const int half = i / 2 % 2;
            scores[i] = power_of_two(fmaf(scores[i], SCALE, shift[half]));
            scores[i + 1] = power_of_two(fmaf(scores[i + 1], SCALE, shift[half]));
            total[half] += scores[i] + scores[i + 1];
        }
    }
};

template <int COUNT>
__device__ __forceinline__ void pack_weights(u32 (&weights)[COUNT / 2], const float (&scores)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT / 2; ++i) weights[i] = pack(scores[2 * i], scores[2 * i + 1]);
}

// scores (64, KEYS) = queries keys^T
template <int KEYS>
__device__ __forceinline__ void start_scores(float (&scores)[KEYS / 2], u64 queries, u64 keys) {
    multiply_first_keys<KEYS>(scores, queries, keys);
#pragma unroll
    for (int i = 1; i < HEAD_DIM / 16; ++i) {
        multiply_keys<KEYS>(scores, queries + i * NEXT_16_FEATURES, keys + i * NEXT_16_FEATURES);
    }
    multiply_commit();
}

// out (64, HEAD_DIM) += weights (64, KEYS) values, or = if FIRST.
template <bool FIRST, int COUNT>
__device__ __forceinline__ void start_values(float (&out)[HEAD_DIM / 2], const u32 (&weights)[COUNT], u64 values) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
        const u64 rows = values + i / 4 * NEXT_16_ROWS;
        if (FIRST && i == 0) {
            multiply_first_values(out, weights[i], weights[i + 1], weights[i + 2], weights[i + 3], rows);
        } else {
            multiply_values(out, weights[i], weights[i + 1], weights[i + 2], weights[i + 3], rows);
        }
    }
    multiply_commit();
}

// The scores of a step, whose keys are in stage `next`, beside the values of the step before, whose weights are
// `before`; `weights` may be the same registers.
template <bool FIRST, int COUNT>
__device__ __forceinline__ void
advance(Softmax& state, u32 (&before)[COUNT], u32 (&weights)[BLOCK_N / 4], u64 queries, Ring& ring, int& next) {
    float scores[BLOCK_N / 2];
    const int keys = next;
    multiply_fence();
    start_scores<BLOCK_N>(scores, queries, descriptor(ring.address_of(keys)));
    const int values = ring.take();
    start_values<FIRST>(state.out, before, descriptor(ring.address_of(values)));
    multiply_wait<1>();
    in_use_until_here(scores);
    ring.give_back(keys);
    state.adapt(scores);
    state.exponentials(scores);
    // Waiting here, not later, is a branch that keeps the compiler from moving exponentials behind what follows.
    next = ring.take();
    multiply_wait<0>();
    in_use_until_here(state.out);
    in_use_until_here(before);
    ring.give_back(values);
    pack_weights(weights, scores);
}

template <bool FIRST, int COUNT>
__device__ __forceinline__ void finish(Softmax& state, u32 (&weights)[COUNT], const Ring& ring, int values) {
    multiply_fence();
    start_values<FIRST>(state.out, weights, descriptor(ring.address_of(values)));
    multiply_wait<0>();
    in_use_until_here(state.out);
    in_use_until_here(weights);
    ring.give_back(values);
}

// One warp's 16 rows of results go to memory by way of `staging`, 16 rows of 128 bytes, so that each lane writes
// 16 bytes and a row all its 128. There, chunks of 16 bytes are swizzled so that no two lanes share a bank.
__device__ __forceinline__ void write(const Job& job, const Tile& tile, const Softmax& state, int row, u32 staging) {
    const int lane = threadIdx.x % 32, store_row = lane % 16, store_chunk = lane / 16;
    float scale[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float total = state.total[half];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        scale[half] = 1.0f / total;
    }
#pragma unroll
    for (int g = 0; g < HEAD_DIM / 8; g += 2) {
        u32 packed[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float* const pair = state.out + 4 * g + 2 * i;
            packed[i] = pack(pair[0] * scale[i % 2], pair[1] * scale[i % 2]);
        }
        store_matrices(staging + store_row * ROW_BYTES + (((g + store_chunk) ^ (store_row & 7)) * 16), packed);
    }
    __syncwarp();
    const int width = job.heads * HEAD_DIM, chunk = lane % 8;
    unsigned short* const out = static_cast<unsigned short*>(job.out) +
                                static_cast<long long>(tile.crop * job.tokens + row) * width + tile.head * HEAD_DIM +
                                chunk * 8;
#pragma unroll
    for (int i = lane / 8; i < 16; i += 4) {
        const uint4 value = load_shared(staging + i * ROW_BYTES + ((chunk ^ (i & 7)) * 16));
        if (row + i < job.tokens) *reinterpret_cast<uint4*>(out + i * width) = value;
    }
}

__device__ __forceinline__ void
consume(const Job& job, const Tile& tile, int group, Ring ring, u32 queries, u32 queries_full) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const u32 own = queries + group * UNIT_BYTES;
    const u64 rows = descriptor(own);
    Softmax state;
    u32 first[LAST / 4];
    barrier_wait(queries_full, 0);
    {
        float scores[LAST / 2];
        const int keys = ring.take();
        multiply_fence();
        start_scores<LAST>(scores, rows, descriptor(ring.address_of(keys)));
        multiply_wait<0>();
        in_use_until_here(scores);
        ring.give_back(keys);
#pragma unroll
        for (int i = 0; i < LAST / 2; ++i) {
            const int key = i / 4 * 8 + lane % 4 * 2 + i % 2;
            if (key >= job.rest) scores[i] = NOTHING;
        }
        state.start(scores);
        state.exponentials(scores);
        pack_weights(first, scores);
    }
    int next = ring.take();
    if (job.steps == 1) {
        finish<true>(state, first, ring, next);
    } else {
        u32 weights[BLOCK_N / 4];
        advance<true>(state, first, weights, rows, ring, next);
        for (int step = 2; step < job.steps; ++step) advance<false>(state, weights, weights, rows, ring, next);
        finish<false>(state, weights, ring, next);
    }
    // Other warps of the group have read their queries, too, where results go now.
    warpgroup_sync(group);
    const int row = (tile.first_unit + group) * UNIT + warp * 16;
    write(job, tile, state, row, own + warp * 16 * ROW_BYTES);
}

#if EXTRA
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

    // Where lane i finds row i % 8 of matrix i / 8, of four that are 16 rows by 2 chunks of 16 bytes: `down`, the
    // second is 8 rows below the first, else a chunk further. The swizzle lets other chunks be reached by ^.
    __device__ __forceinline__ static u32 place(u32 stage, bool down) {
        const int lane = threadIdx.x % 32, second = lane / 8 % 2, third = lane / 16;
        const int row = lane % 8 + 8 * (down ? second : third), chunk = down ? third : second;
        return stage + row * ROW_BYTES + ((chunk ^ (row & 7)) * 16);
    }

    // 16 keys, of which the first `count` are keys, and their values.
    __device__ __forceinline__ void add(u32 keys, u32 values, int count) {
        const int lane = threadIdx.x % 32;
        float scores[4] = {};
#pragma unroll
        for (int k = 0; k < HEAD_DIM / 16; ++k) {
            u32 features[4];
            load_matrices(features, keys ^ (32 * k));
            multiply_in_warp(scores, features, queries[k][0], queries[k][1]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i / 2 * 8 + lane / 4 >= count) scores[i] = NOTHING;
        }
        const float top[2] = {fmaxf(scores[0], scores[2]), fmaxf(scores[1], scores[3])};
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
        for (int i = 0; i < 4; ++i) {
            scores[i] = power_of_two(fmaf(scores[i], SCALE, shift[i % 2]));
            total[i % 2] += scores[i];
        }
        const u32 weights[2] = {transpose(pack(scores[0], scores[1])), transpose(pack(scores[2], scores[3]))};
#pragma unroll
        for (int m = 0; m < HEAD_DIM / 16; ++m) {
            u32 features[4];
            load_transposed(features, values ^ (32 * m));
            multiply_in_warp(out[m], features, weights[0], weights[1]);
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
        const u32 first_keys = ExtraWarp::place(ring.address_of(keys), true);
        const u32 first_values = ExtraWarp::place(ring.address_of(values), false);
        const int count = step % EXTRA_WARPS != warp ? 0 : step == 0 ? job.rest : BLOCK_N;
        for (int done = 0; done < count; done += 16) {
            state.add(first_keys + done * ROW_BYTES, first_values + done * ROW_BYTES, count - done);
        }
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
            const u32 both = pack(state.out[m][j] * scale, state.out[m][j + 2] * scale);
            out[16 * m] = both & 0xFFFF;
            out[16 * m + 8] = both >> 16;
        }
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) attention(
    const __grid_constant__ TensorMap unit_rows, const __grid_constant__ TensorMap block_rows,
    const __grid_constant__ TensorMap last_rows, const __grid_constant__ Job job
) {
    extern __shared__ unsigned char memory[];
    let_next_start();
    // Swizzling goes by address: boxes start at multiples of 1024 bytes.
    const u32 queries = (shared_address(memory) + 1023) & ~1023u;
    const u32 stages = queries + WARPGROUPS * UNIT_BYTES, partials = stages + STAGES * STAGE_BYTES;
    const u32 full = partials + PARTIAL_BYTES, empty = full + 8 * STAGES, queries_full = empty + 8 * STAGES;
    const Ring ring{stages, full, empty};
    const Tile tile(job);
    if (threadIdx.x == CONSUMERS) {
        prefetch_map(unit_rows);
        prefetch_map(block_rows);
        prefetch_map(last_rows);
        barrier_init(queries_full, 1);
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(full + 8 * stage, 1);
            barrier_init(empty + 8 * stage, 4 * tile.units + (tile.extra > 0 ? EXTRA_WARPS : 0));
        }
        barriers_ready();
    }
    __syncthreads();
    wait_for_inputs();
    // The shuffle tells the compiler that it is the same in a warp.
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (group == WARPGROUPS) {
        fewer_registers<PRODUCER_REGISTERS>();
        if (threadIdx.x == CONSUMERS) {
            produce(unit_rows, block_rows, last_rows, job, tile, ring, queries, queries_full);
        }
#if EXTRA
        if (threadIdx.x >= CONSUMERS + 32 && tile.extra > 0) {
            consume_extra(job, tile, ring, partials);
        }
#endif
    } else {
        more_registers<CONSUMER_REGISTERS>();
        if (group < tile.units) consume(job, tile, group, ring, queries, queries_full);
    }
}
