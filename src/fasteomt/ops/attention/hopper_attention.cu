// Attention for Hopper (sm_90a): softmax(q k^T / sqrt(HEAD_DIM)) v within each crop, heads of 64 features.
//
// A block has up to WARPGROUPS x UNITS x 64 queries of one head and crop. One thread copies all keys and values
// of them into a ring of STAGES, BLOCK_N rows at a time. Each warpgroup goes over them on its own. With two units of 64
// queries it takes turns: while tensor cores do the products of one, it does the exponentials of the other. With one
// unit, tensor cores sum up the values of one block of keys during the exponentials of the next, whose scores it has
// to wait for; so it is other warpgroups that keep them busy then.
//
// The keys that fill no block come first, LAST of them after padding: so the loop has no masks. If they are few, a
// block's keys come with them, since a step takes its time even for few. Up to 8 queries that are left over by the units
// of 64 are the extra warps', beside the thread that copies: they take keys from the same ring, so that nobody reads
// them a second time. All blocks of a head do so, each warp for some of the keys, and the last block puts together what
// they have.
//
// Defined by who compiles this:
//   HEAD_DIM            64: a row of queries, keys or values is 128 bytes, one atom of the swizzle
//   WARPGROUPS          of a block that multiply
//   UNITS               of a warpgroup, at most: 1 or 2
//   BLOCK_N, LAST       keys at a time, a multiple of 16; of the first block, after padding, which may be more
//   STAGES              of the ring
//   EXTRA               1 for extra warps, or 0. EXTRA_WARPS: how many. EXTRA_BYTES: what each has in shared memory
//   PARTIAL             float4 that a block's extra warps leave
//   CONSUMER_REGISTERS  of a warpgroup's threads; PRODUCER_REGISTERS: of the others'
//   TYPE, OUT_TYPE      bf16 or f16, as PTX writes it: of queries, keys and values, and of results
//   SLACK               weights may reach 2^SLACK: that and a row's sums are finite, in TYPE and in fp32
//   BLOCK_..., LAST_... operands of products, as ops/hopper.py writes them, whose sums are BLOCK_N or LAST `scores`
//   OUT_...             of those whose sums are `out` and whose A are four registers

#include "hopper_attention_ptx.cuh"
#include "hopper_tiles.cuh"

constexpr int UNIT = 64, ROW_BYTES = HEAD_DIM * 2, UNIT_BYTES = UNIT * ROW_BYTES;
constexpr int MOST_KEYS = LAST > BLOCK_N ? LAST : BLOCK_N, STAGE_BYTES = MOST_KEYS * ROW_BYTES;
constexpr int CONSUMERS = 128 * WARPGROUPS, THREADS = CONSUMERS + 128;
// Scores are in units of log2: exp(x) = 2^(x log2(e)).
constexpr float SCALE = 1.4426950408889634f / 8.0f;
static_assert(HEAD_DIM == 64, "SCALE and a row's bytes are those of 64 features");
// An extra warp keeps keys while it waits for their values, which are up to three stages behind.
// A pair of units keeps the stages of keys and values until the keys after next are there.
static_assert(STAGES >= (UNITS > 1 ? 5 : 4), "the ring would never move on");
// Weights are relative to a maximum that may be so old as to let them reach this. Sums in fp32 and rounding to 16 bits
// lose nothing by that: both are as exact whatever the scale.
constexpr float LIMIT = 1ull << SLACK;
// How far below that scale weights start: a first block of few keys says little of the others' maximum.
constexpr float MARGIN = 4.0f;
constexpr float NOTHING = -3.0e38f; // the score of what is no key: its weight is 0

struct Job {
    void* out;                 // (crops x tokens, heads x HEAD_DIM), contiguous
    const unsigned short* qkv; // (crops x tokens, 3 x heads x HEAD_DIM), contiguous
    float4* partials;          // what each block's extra warps leave
    u32* done;                 // of each head and crop: blocks that have left it; 0 before and after
    int tokens, heads;         // tokens of a crop
    int tiles, units;          // blocks that share a head's queries, and units of 64 that they have
    int steps;                 // blocks of keys
    int rest;                  // keys of the first one
};

// What a block has of one head and crop, of which it is block `share`.
struct Tile {
    int pair, head, crop, share, first_unit, units;

    __device__ __forceinline__ explicit Tile(const Job& job) {
        share = blockIdx.x % job.tiles;
        pair = blockIdx.x / job.tiles;
        head = pair % job.heads;
        crop = pair / job.heads;
        first_unit = share * job.units / job.tiles;
        units = (share + 1) * job.units / job.tiles - first_unit;
    }
    __device__ __forceinline__ int groups() const { return (units + UNITS - 1) / UNITS; }
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

// The rows that pad the first step's values are zeros: weights of 0 would not do where another crop's rows are infinite.
__device__ __forceinline__ void clear_padding(const Job& job, const Ring& ring) {
    const int i = threadIdx.x, stage = job.steps > 1 ? 2 : 1;
    static_assert(16 * ROW_BYTES / 16 <= THREADS, "one store each");
    if (i < (LAST - job.rest) * (ROW_BYTES / 16)) {
        store_shared(ring.address_of(stage) + job.rest * ROW_BYTES + i * 16, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
    }
    fence_async();
}

// Keys or values of a step.
__device__ __forceinline__ void
put(const TensorMap& block_rows, const TensorMap& last_rows, const Job& job, const Tile& tile, Ring& ring, int step,
    int part) {
    const u32 barrier = ring.full + 8 * ring.at.stage;
    const int column = (part * job.heads + tile.head) * HEAD_DIM, row = tile.crop * job.tokens;
    barrier_wait(ring.empty + 8 * ring.at.stage, ring.at.parity ^ 1);
    // The first step has the last keys.
    if (step == 0) {
        barrier_arrive_expecting(barrier, job.rest * ROW_BYTES);
        copy_box(ring.address(), last_rows, column, row + (job.steps - 1) * BLOCK_N, barrier);
    } else {
        barrier_arrive_expecting(barrier, BLOCK_N * ROW_BYTES);
        copy_box(ring.address(), block_rows, column, row + (step - 1) * BLOCK_N, barrier);
    }
    ring.at.advance();
}

__device__ __forceinline__ void produce(
    const TensorMap& unit_rows, const TensorMap& block_rows, const TensorMap& last_rows, const Job& job,
    const Tile& tile, Ring ring, u32 queries, u32 queries_full
) {
    barrier_arrive_expecting(queries_full, tile.units * UNIT_BYTES);
    for (int unit = 0; unit < tile.units; ++unit) {
        const int row = tile.crop * job.tokens + (tile.first_unit + unit) * UNIT;
        copy_box(queries + unit * UNIT_BYTES, unit_rows, tile.head * HEAD_DIM, row, queries_full);
    }
    for (int step = 0; step <= job.steps; ++step) {
        if (step < job.steps) put(block_rows, last_rows, job, tile, ring, step, 1);
        if (step > 0) put(block_rows, last_rows, job, tile, ring, step - 1, 2);
    }
}

#include "hopper_softmax.cuh"

// The first of an array, as many as a step with COUNT needs.
template <int COUNT, class Type, int ALL> __device__ __forceinline__ Type (&first_of(Type (&array)[ALL]))[COUNT] {
    static_assert(COUNT <= ALL, "no more than there are");
    return reinterpret_cast<Type(&)[COUNT]>(array);
}

using Scores = float[MOST_KEYS / 2];
using Weights = u32[MOST_KEYS / 4];

// Up to 64 queries of a warpgroup, which are at `queries` in shared memory.
struct Unit {
    Softmax state;
    Weights weights = {};
    u32 queries;

    // scores (64, KEYS) = queries keys^T
    template <int KEYS> __device__ __forceinline__ void start_scores(Scores& all, u32 keys) const {
        const u64 a = descriptor(queries), b = descriptor(keys);
        float(&scores)[KEYS / 2] = first_of<KEYS / 2>(all);
        multiply_first_keys<KEYS>(scores, a, b);
#pragma unroll
        for (int i = 1; i < HEAD_DIM / 16; ++i) {
            multiply_keys<KEYS>(scores, a + i * NEXT_16_FEATURES, b + i * NEXT_16_FEATURES);
        }
    }

    // out (64, HEAD_DIM) += weights (64, KEYS) values, or = if OVERWRITES.
    template <bool OVERWRITES, int KEYS> __device__ __forceinline__ void start_values(u32 values) {
        const u64 b = descriptor(values);
#pragma unroll
        for (int i = 0; i < KEYS / 4; i += 4) {
            const u64 rows = b + i / 4 * NEXT_16_ROWS;
            if (OVERWRITES && i == 0) {
                multiply_first_values(state.out, weights[i], weights[i + 1], weights[i + 2], weights[i + 3], rows);
            } else {
                multiply_values(state.out, weights[i], weights[i + 1], weights[i + 2], weights[i + 3], rows);
            }
        }
    }

    template <int KEYS> __device__ __forceinline__ void pack_weights(const Scores& scores) {
#pragma unroll
        for (int i = 0; i < KEYS / 4; ++i) weights[i] = pack(scores[2 * i], scores[2 * i + 1]);
    }

    __device__ __forceinline__ void values_are_added() {
        multiply_wait<0>();
        in_use_until_here(state.out);
        in_use_until_here(weights);
    }
};

// In which a block's warpgroups start products, one after another, a step at a time.
struct Turns {
    int group, groups;

    // The last one lets the first one begin, and the first one hears of the last one's last turn.
    __device__ __forceinline__ void begin() const {
        if (groups > 1 && group == groups - 1) turn_pass(0);
    }
    __device__ __forceinline__ void end() const {
        if (groups > 1 && group == 0) turn_wait(0);
    }
    __device__ __forceinline__ void wait() const {
        if (groups > 1) turn_wait(group);
    }
    __device__ __forceinline__ void pass() const {
        if (groups > 1) turn_pass(group == groups - 1 ? 0 : group + 1);
    }

    // Or only at the start, so that those who would always do the same at once are apart from there on.
    __device__ __forceinline__ void start_late() const {
        if (group > 0) turn_wait(group);
    }
    __device__ __forceinline__ void let_next_start() const {
        if (group < groups - 1) turn_pass(group + 1);
    }
};

// One unit. Warpgroups start products in turn, so that they don't all wait for scores at once, and then all do
// exponentials while tensor cores have nothing left to do.
struct Single {
    Unit units[1];
    Turns turns;

    // A step whose keys are in stage `next`, beside the values of the step before.
    template <bool FIRST> __device__ __forceinline__ void advance(Ring& ring, int& next) {
        Unit& unit = units[0];
        Scores scores;
        const int keys = next;
        turns.wait();
        multiply_fence();
        unit.start_scores<BLOCK_N>(scores, ring.address_of(keys));
        multiply_commit();
        const int values = ring.take();
        unit.start_values<FIRST, FIRST ? LAST : BLOCK_N>(ring.address_of(values));
        multiply_commit();
        turns.pass();
        multiply_wait<1>();
        in_use_until_here(first_of<BLOCK_N / 2>(scores));
        ring.give_back(keys);
        unit.state.weigh(first_of<BLOCK_N / 2>(scores));
        // Waiting here, not later, is a branch that keeps the compiler from moving exponentials behind what follows.
        next = ring.take();
        unit.values_are_added();
        ring.give_back(values);
        unit.pack_weights<BLOCK_N>(scores);
    }

    template <bool FIRST> __device__ __forceinline__ void finish(const Ring& ring, int values) {
        multiply_fence();
        units[0].start_values<FIRST, FIRST ? LAST : BLOCK_N>(ring.address_of(values));
        multiply_commit();
        units[0].values_are_added();
        ring.give_back(values);
    }

    __device__ __forceinline__ void run(const Job& job, Ring& ring) {
        Unit& unit = units[0];
        {
            Scores scores;
            const int keys = ring.take();
            multiply_fence();
            unit.start_scores<LAST>(scores, ring.address_of(keys));
            multiply_commit();
            multiply_wait<0>();
            in_use_until_here(first_of<LAST / 2>(scores));
            ring.give_back(keys);
            unit.state.weigh_first(first_of<LAST / 2>(scores), job.rest);
            unit.pack_weights<LAST>(scores);
        }
        int next = ring.take();
        if (job.steps == 1) {
            finish<true>(ring, next);
            return;
        }
        turns.begin();
        advance<true>(ring, next);
        for (int step = 2; step < job.steps; ++step) advance<false>(ring, next);
        finish<false>(ring, next);
        turns.end();
    }
};

#if UNITS == 2
// Two units that take turns. Each has products under way, of this step's values and the next step's scores, while the
// other has its exponentials done.
struct Pair {
    Unit units[2];
    Turns turns;
    Scores scores[2];
    // Stages: of the step's and the next step's keys, and of values that products under way add.
    int keys, next_keys, values;

    template <bool FIRST> __device__ __forceinline__ void weigh(const Job& job, const Ring& ring, int which) {
        Unit& unit = units[which];
        if constexpr (FIRST) {
            unit.state.weigh_first(first_of<LAST / 2>(scores[which]), job.rest);
        } else {
            unit.state.weigh(first_of<BLOCK_N / 2>(scores[which]), unit.queries, ring.address_of(keys));
        }
        unit.pack_weights<FIRST ? LAST : BLOCK_N>(scores[which]);
    }

    // Products of the step's values and, if MORE, of the next step's scores.
    template <bool FIRST, bool MORE> __device__ __forceinline__ void start(const Ring& ring, int which) {
        multiply_fence();
        if (MORE) units[which].start_scores<BLOCK_N>(scores[which], ring.address_of(next_keys));
        units[which].start_values<FIRST, FIRST ? LAST : BLOCK_N>(ring.address_of(values));
        multiply_commit();
    }

    // Products are waited for before the other unit's start, not after: the compiler serialises those that stay under
    // way around a loop beside others.
    __device__ __forceinline__ void finish(int which) {
        units[which].values_are_added();
        in_use_until_here(scores[which]);
    }

    // The first unit's scores are there, and products of the second one are under way; so they are after the step.
    template <bool FIRST, bool MORE> __device__ __forceinline__ void step(const Job& job, Ring& ring, int number) {
        weigh<FIRST>(job, ring, 0);
        if (!FIRST && number == 1) turns.let_next_start();
        const int before = values;
        values = ring.take();
        finish(1);
        if (!FIRST) ring.give_back(before);
        start<FIRST, MORE>(ring, 0);
        // Waiting so early is a branch that keeps the compiler from starting products amid exponentials.
        const int after = MORE && number + 2 < job.steps ? ring.take() : 0;
        weigh<FIRST>(job, ring, 1);
        ring.give_back(keys);
        finish(0);
        start<FIRST, MORE>(ring, 1);
        keys = next_keys;
        next_keys = after;
    }

    __device__ __forceinline__ void run(const Job& job, Ring& ring) {
        keys = ring.take();
        multiply_fence();
        units[0].start_scores<LAST>(scores[0], ring.address_of(keys));
        multiply_commit();
        units[1].start_scores<LAST>(scores[1], ring.address_of(keys));
        multiply_commit();
        multiply_wait<1>();
        in_use_until_here(first_of<LAST / 2>(scores[0]));
        if (job.steps == 1) {
            step<true, false>(job, ring, 0);
        } else {
            next_keys = ring.take();
            step<true, true>(job, ring, 0);
            turns.start_late();
            for (int i = 1; i < job.steps - 1; ++i) step<false, true>(job, ring, i);
            step<false, false>(job, ring, job.steps - 1);
        }
        finish(1);
        ring.give_back(values);
    }
};
#endif

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
            packed[i] = pack_out(pair[0] * scale[i % 2], pair[1] * scale[i % 2]);
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

// What a warpgroup has to do, whose first unit is `first` of the tile's.
template <class Group>
__device__ __forceinline__ void
consume(
    Group units, const Job& job, const Tile& tile, int group, int first, Ring ring, u32 queries, u32 queries_full
) {
    constexpr int COUNT = sizeof units.units / sizeof(Unit);
    const int warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) units.units[i].queries = queries + (first + i) * UNIT_BYTES;
    barrier_wait(queries_full, 0);
    units.run(job, ring);
    // Other warps of the group have read their queries, too, where results go now.
    warpgroup_sync(group);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const Unit& unit = units.units[i];
        const int row = (tile.first_unit + first + i) * UNIT + warp * 16;
        write(job, tile, unit.state, row, unit.queries + warp * 16 * ROW_BYTES);
    }
}

#if EXTRA
#include "hopper_extra_warps.cuh"
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention(
    const __grid_constant__ TensorMap unit_rows, const __grid_constant__ TensorMap block_rows,
    const __grid_constant__ TensorMap last_rows, const __grid_constant__ Job job
) {
    extern __shared__ unsigned char memory[];
    let_next_start();
    // Swizzling goes by address: boxes start at multiples of 1024 bytes.
    const u32 queries = (shared_address(memory) + 1023) & ~1023u;
    const u32 stages = queries + WARPGROUPS * UNITS * UNIT_BYTES, of_extra = stages + STAGES * STAGE_BYTES;
    const u32 full = of_extra + EXTRA_WARPS * EXTRA_BYTES, empty = full + 8 * STAGES, queries_full = empty + 8 * STAGES;
    const Ring ring{stages, full, empty};
    const Tile tile(job);
    if (threadIdx.x == CONSUMERS) {
        prefetch_map(unit_rows);
        prefetch_map(block_rows);
        prefetch_map(last_rows);
        barrier_init(queries_full, 1);
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(full + 8 * stage, 1);
            barrier_init(empty + 8 * stage, 4 * tile.groups() + (EXTRA ? EXTRA_WARPS : 0));
        }
        barriers_ready();
    }
    clear_padding(job, ring);
    __syncthreads();
    wait_for_inputs();
    // The shuffle tells the compiler that it is the same in a warp.
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp >= CONSUMERS / 32) {
        fewer_registers<PRODUCER_REGISTERS>();
        if (warp == CONSUMERS / 32) {
            if (threadIdx.x == CONSUMERS) {
                produce(unit_rows, block_rows, last_rows, job, tile, ring, queries, queries_full);
            }
#if EXTRA
        } else {
            consume_extra(job, tile, ring, of_extra);
#endif
        }
    } else {
        more_registers<CONSUMER_REGISTERS>();
        const int group = warp / 4, groups = tile.groups();
        if (group >= groups) return;
        // Dealt evenly.
        const int first = group * tile.units / groups, count = (group + 1) * tile.units / groups - first;
        // None between warpgroups with one unit and with two, whose turns differ.
        const bool alike = tile.units == groups * UNITS;
        const Turns turns{alike ? group : 0, alike ? groups : 1};
#if UNITS == 2
        if (count == 2) consume(Pair{{}, turns}, job, tile, group, first, ring, queries, queries_full);
#endif
        if (count == 1) consume(Single{{}, turns}, job, tile, group, first, ring, queries, queries_full);
    }
}
