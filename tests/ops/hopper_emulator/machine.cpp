// Threads are fibers of one thread of the CPU, switched where the machine is asked for something. A seed
// decides who goes on and which copy arrives next, so that a failure can be repeated.

#include "machine.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <ucontext.h>
#include <vector>

Dimensions threadIdx, blockIdx, gridDim;

namespace machine {
namespace {

constexpr int ROW_BYTES = 128, CHUNK_BYTES = 16, NAMED_BARRIERS = 16;
constexpr size_t STACK_BYTES = 1 << 16;
// Never written: NaN in bf16, and in fp16 far from what a test multiplies.
constexpr unsigned char UNWRITTEN = 0xFF;

struct Barrier {
    u32 arrivals, pending, phase = 0;
    long long bytes = 0; // expected and not yet copied; copies may come before they are expected

    void settle() {
        if (pending == 0 && bytes == 0) {
            phase ^= 1;
            pending = arrivals;
        }
    }
    void arrive() {
        if (pending == 0) fail("more arrivals at a barrier than it counts");
        --pending;
        settle();
    }
};

// Of a number of threads, the last of whom lets those go on who wait.
struct Meeting {
    int size = 0, present = 0;
    u64 held = 0;

    void arrive(int threads) {
        if (present == 0) size = threads;
        if (threads != size) fail("threads meet who expect different numbers of them");
        if (++present == size) {
            present = 0;
            ++held;
        }
    }
    void attend(int threads);
};

struct Warp {
    Meeting meeting;
    u32 brought[WARP];
};

struct Block {
    u32 index, rank, first_shared;
    std::vector<Block>* cluster;
    Meeting* cluster_meeting;
    std::vector<unsigned char> shared;
    int threads, running;
    std::vector<Warp> warps;
    std::map<u32, Barrier> barriers{};
    Meeting named[NAMED_BARRIERS]{};
    std::vector<bool> unfenced{}; // of each word of `shared`: whether tensor cores may not see it yet
    std::vector<int> readers{};   // and threads that may still be loading it
    u32 first_barrier = ~0u, end_of_barriers = 0; // where they are

    unsigned char* at(u32 address, u32 bytes) {
        if (address < first_shared || address + bytes > end_of_shared()) {
            fail("access beyond the shared memory that the launch asked for");
        }
        if (address < end_of_barriers && address + bytes > first_barrier) fail("access to a barrier's memory");
        return &shared[address - first_shared];
    }
    std::vector<bool>::reference is_unfenced(u32 address) {
        unfenced.resize(shared.size() / 4 + 1);
        return unfenced[(address - first_shared) / 4];
    }
    int& readers_of(u32 address) {
        readers.resize(shared.size() / 4 + 1);
        return readers[(address - first_shared) / 4];
    }
    // `bytes` for a copy.
    unsigned char* overwritten(u32 address, u32 bytes) {
        unsigned char* const place = at(address, bytes);
        for (u32 word = address / 4 * 4; word < address + bytes; word += 4) {
            if (readers_of(word)) fail("a copy overwrites what was loaded without a fence");
        }
        return place;
    }
    u32 end_of_shared() const { return first_shared + shared.size(); }
    void make_barrier(u32 address, u32 arrivals) {
        if (address % sizeof(u64) || address < FIRST_SHARED || address + sizeof(u64) > end_of_shared()) {
            fail("a barrier where the launch asked for no shared memory");
        }
        first_barrier = std::min<u32>(first_barrier, address);
        end_of_barriers = std::max<u32>(end_of_barriers, address + sizeof(u64));
        barriers[address] = Barrier{arrivals, arrivals};
    }
    // For another block of the cluster, or the copy engine, which may come too early or too late.
    Barrier& barrier(u32 address) {
        if (running == 0) fail("a block's barrier is used after the block has ended");
        const auto found = barriers.find(address);
        if (found == barriers.end()) fail("a barrier is used before it is initialised");
        return found->second;
    }
};

struct Started {
    Product product;
    u64 operands; // as they were then, in short
};

struct Fiber {
    Block* block;
    u32 thread;
    std::unique_ptr<char[]> stack;
    ucontext_t context;
    bool done = false;
    bool slow = false;               // goes on only when nobody else can
    bool lazy = false;               // is often slow: one of a cluster
    std::function<bool()> may_go_on; // if empty, it may
    std::vector<Started> open;
    std::vector<std::vector<Started>> committed;
    std::vector<std::pair<u32, const void*>> chunks; // asked for, and no barrier told yet
    std::vector<u32> unfenced, read;                 // words that it has stored and loaded since its last fence
};

// Of a box, or if there are any, of chunks, at whose end their thread arrives.
struct Copy {
    Block* block;
    TensorMap map;
    int column, row;
    u32 to, barrier;
    std::vector<std::pair<u32, const void*>> chunks{};
};

struct Fault {
    const char* what;
};

ucontext_t scheduler;
Fiber* me;
std::mt19937 chance;
std::vector<Copy> copies;
const char* fault; // of the thread that ran last
void (*thread_function)();

void let_others_run() { swapcontext(&me->context, &scheduler); }

void Meeting::attend(int threads) {
    const u64 before = held;
    arrive(threads);
    wait_until([this, before] { return held != before; });
}

// The 128-byte swizzle: within 1024 bytes, the row's number is XORed into the number of the 16-byte chunk.
u32 swizzled(u32 address) { return address ^ (address / ROW_BYTES % 8 * CHUNK_BYTES); }

void perform_chunks(const Copy& copy) {
    for (const auto& [to, from] : copy.chunks) {
        unsigned char* const place = copy.block->overwritten(to, CHUNK_BYTES);
        if (from) {
            memcpy(place, from, CHUNK_BYTES);
        } else {
            memset(place, 0, CHUNK_BYTES);
        }
    }
    copy.block->barrier(copy.barrier).arrive();
}

void perform(const Copy& copy) {
    if (!copy.chunks.empty()) return perform_chunks(copy);
    const TensorMap& map = copy.map;
    for (int i = 0; i < map.box_rows; ++i) {
        for (int j = 0; j < ROW_BYTES / 2; ++j) {
            const long long row = copy.row + i, column = copy.column + j;
            const bool inside = row >= 0 && row < map.rows && column >= 0 && column < map.columns;
            const u16 element = inside ? map.elements[row * map.stride + column] : 0;
            memcpy(copy.block->overwritten(swizzled(copy.to + i * ROW_BYTES + j * 2), 2), &element, 2);
        }
    }
    Barrier& barrier = copy.block->barrier(copy.barrier);
    barrier.bytes -= map.box_rows * ROW_BYTES;
    barrier.settle();
}

void perform_any_copy() {
    std::swap(copies[chance() % copies.size()], copies.back());
    const Copy copy = copies.back();
    copies.pop_back();
    perform(copy);
}

// 16 bytes of row `row` of a matrix that a descriptor of wgmma tells of.
const unsigned char* chunk_of(u64 descriptor, int row, int chunk) {
    if (descriptor >> 62 != 1) fail("a descriptor without the 128-byte swizzle");
    const u32 start = (descriptor & 0x3FFF) << 4, stride = (descriptor >> 32 & 0x3FFF) << 4;
    const u32 address = swizzled(start + row / 8 * stride + row % 8 * ROW_BYTES + chunk * CHUNK_BYTES);
    unsigned char* const found = me->block->at(address, CHUNK_BYTES);
    for (u32 word = 0; word < CHUNK_BYTES; word += 4) {
        if (me->block->is_unfenced(address + word)) fail("a product reads what was stored without a fence");
    }
    return found;
}

float element_of(const Product& product, u64 descriptor, int row, int column) {
    u16 element;
    memcpy(&element, chunk_of(descriptor, row, column / 8) + column % 8 * 2, 2);
    return product.decode(element);
}

// A number that changes when what a product reads of shared memory does.
u64 digest(const Product& product) {
    u64 out = 0;
    const auto add = [&out](u64 descriptor, int rows, int chunks) {
        for (int row = 0; row < rows; ++row) {
            for (int chunk = 0; chunk < chunks; ++chunk) {
                u64 words[2];
                memcpy(words, chunk_of(descriptor, row, chunk), CHUNK_BYTES);
                for (const u64 word : words) out = (out ^ word) * 0x9E3779B97F4A7C15;
            }
        }
    };
    if (!product.has_rows) add(product.a, 64, 2);
    if (product.sums_over_rows) {
        add(product.b, 16, product.columns / 8);
    } else {
        add(product.b, product.columns, 2);
    }
    return out;
}

// Sum 4 g + 2 h + i of a thread is column 8 g + 2 (lane % 4) + i of row 16 warp + lane / 4 + 8 h.
void perform(const Product& product) {
    const int warp = me->thread % 128 / WARP, lane = me->thread % WARP;
    float a[2][16];
    for (int h = 0; h < 2; ++h) {
        for (int k = 0; k < 16; ++k) {
            const int row = 16 * warp + lane / 4 + 8 * h;
            a[h][k] = product.has_rows ? product.rows[h][k] : element_of(product, product.a, row, k);
        }
    }
    for (int g = 0; g < product.columns / 8; ++g) {
        for (int i = 0; i < 2; ++i) {
            const int column = 8 * g + 2 * (lane % 4) + i;
            float* const sums = product.sums + 4 * g + i;
            if (product.overwrites) sums[0] = sums[2] = 0.0f;
            for (int k = 0; k < 16; ++k) {
                const bool over = product.sums_over_rows;
                const float b = element_of(product, product.b, over ? k : column, over ? column : k);
                for (int h = 0; h < 2; ++h) sums[2 * h] += a[h][k] * b;
            }
        }
    }
}

void enter_thread() {
    try {
        thread_function();
    } catch (const Fault& found) {
        fault = found.what;
    }
    if (!me->chunks.empty() && !fault) fault = "the kernel ended before its copies";
    me->done = true;
    --me->block->running;
    let_others_run();
}

void resume(Fiber& fiber) {
    me = &fiber;
    fiber.may_go_on = nullptr;
    threadIdx.x = fiber.thread;
    blockIdx.x = fiber.block->index;
    swapcontext(&scheduler, &fiber.context);
    if (fault) fail(fault);
}

void start(Fiber& fiber) {
    fiber.stack.reset(new char[STACK_BYTES]);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&fiber.context, enter_thread, 0);
}

// Of the slow ones; false if there is none.
bool wake_any(const std::vector<Fiber*>& running) {
    std::vector<Fiber*> slow;
    for (Fiber* fiber : running) {
        if (fiber->slow) slow.push_back(fiber);
    }
    if (slow.empty()) return false;
    slow[chance() % slow.size()]->slow = false;
    return true;
}

// A round: some of those who may go on do, in any order. False if nobody could.
bool run_some(const std::vector<Fiber*>& running) {
    std::vector<Fiber*> able;
    for (Fiber* fiber : running) {
        if (!fiber->slow && (!fiber->may_go_on || fiber->may_go_on())) able.push_back(fiber);
    }
    if (able.empty()) return false;
    std::shuffle(able.begin(), able.end(), chance);
    able.resize(1 + chance() % able.size());
    for (Fiber* fiber : able) {
        resume(*fiber);
        if (!copies.empty() && chance() % 64 == 0) perform_any_copy();
    }
    return true;
}

struct Cluster {
    std::vector<Block> blocks;
    Meeting meeting;

    Cluster(const Launch& launch, u32 first_block) {
        const int threads = launch.threads;
        for (u32 rank = 0; rank < launch.cluster; ++rank) {
            std::vector<unsigned char> shared(launch.dynamic_bytes, UNWRITTEN);
            std::vector<Warp> warps(threads / WARP);
            blocks.push_back(Block{
                first_block + rank, rank, launch.first_dynamic, &blocks, &meeting, shared, threads, threads, warps
            });
        }
    }
};

void run_together(const Launch& launch, u32 first_block, u32 count) {
    const int threads = launch.threads;
    std::deque<Cluster> clusters; // whose blocks stay where they are
    for (u32 block = 0; block < count; block += launch.cluster) clusters.emplace_back(launch, first_block + block);
    std::vector<Fiber> fibers(count * threads);
    std::vector<Fiber*> running;
    fibers[chance() % fibers.size()].lazy = true;
    bool slow = false;
    for (u32 i = 0; i < fibers.size(); ++i) {
        const u32 block = i / threads;
        fibers[i].block = &clusters[block / launch.cluster].blocks[block % launch.cluster];
        fibers[i].thread = i % threads;
        if (i % WARP == 0) slow = chance() % 4 == 0; // whole warps start late
        fibers[i].slow = slow;
        start(fibers[i]);
        running.push_back(&fibers[i]);
    }
    while (!running.empty()) {
        if (!run_some(running)) {
            // Copies may be slower still.
            const bool woken = (copies.empty() || chance() % 2) && wake_any(running);
            if (!woken && copies.empty()) fail("deadlock: every thread waits");
            if (!woken) perform_any_copy();
        }
        const auto done = [](const Fiber* fiber) { return fiber->done; };
        running.erase(std::remove_if(running.begin(), running.end(), done), running.end());
    }
    if (!copies.empty()) fail("the kernel ended before its copies");
    for (const Cluster& cluster : clusters) {
        for (const Block& block : cluster.blocks) {
            for (const auto& [address, barrier] : block.barriers) {
                if (barrier.bytes || barrier.pending != barrier.arrivals) fail("the kernel ended in mid-phase");
            }
        }
    }
}

} // namespace

void fail(const char* what) { throw Fault{what}; }

void pause() {
    if (chance() % (me->lazy ? 2 : 8)) return;
    me->slow = chance() % (me->lazy ? 2 : 64) == 0;
    let_others_run();
}

void wait_until(const std::function<bool()>& condition) {
    // Checked again: it may have held before the thread's turn came, and no longer.
    while (!condition()) {
        me->may_go_on = condition;
        let_others_run();
    }
}

unsigned char* shared(u32 address, u32 bytes) { return me->block->at(address, bytes); }

void exchange(u32 brought, u32 (&all)[WARP]) {
    Warp& warp = me->block->warps[me->thread / WARP];
    warp.brought[me->thread % WARP] = brought;
    warp.meeting.attend(WARP);
    memcpy(all, warp.brought, sizeof all);
    // Nobody brings the next thing before all have seen this one.
    warp.meeting.attend(WARP);
}

void meet_warp() { me->block->warps[me->thread / WARP].meeting.attend(WARP); }
void meet_cluster() { me->block->cluster_meeting->attend(me->block->cluster->size() * me->block->threads); }
void arrive_at_named_barrier(int which, int threads) { me->block->named[which].arrive(threads); }
void meet_at_named_barrier(int which, int threads) { me->block->named[which].attend(threads); }
void meet_block() { meet_at_named_barrier(0, me->block->threads); }

void barrier_init(u32 barrier, u32 arrivals) {
    pause();
    me->block->make_barrier(barrier, arrivals);
}

void barrier_arrive(u32 barrier, u32 rank) {
    pause();
    (*me->block->cluster)[rank].barrier(barrier).arrive();
}

void barrier_expect(u32 barrier, u32 bytes) {
    pause();
    Barrier& own = me->block->barrier(barrier);
    own.bytes += bytes;
    own.arrive();
}

void barrier_wait(u32 barrier, u32 parity) {
    pause();
    const Barrier& own = me->block->barrier(barrier);
    wait_until([&own, parity] { return own.phase != parity; });
}

void copy_box(u32 to, const TensorMap& map, int column, int row, u32 barrier, u32 first_rank, u32 last_rank) {
    if (to % 1024) fail("a swizzled box that doesn't start at a multiple of 1024 bytes");
    for (u32 rank = first_rank; rank <= last_rank; ++rank) {
        copies.push_back(Copy{&(*me->block->cluster)[rank], map, column, row, to, barrier});
    }
    pause();
}

u32 own_rank() { return me->block->rank; }

void copy_chunk(u32 to, const void* from) {
    if (to % CHUNK_BYTES || reinterpret_cast<u64>(from) % CHUNK_BYTES) fail("a chunk that isn't aligned to its size");
    me->chunks.emplace_back(to, from);
    pause();
}

void arrive_when_copied(u32 barrier) {
    if (me->chunks.empty()) fail("a barrier that is told of no copies");
    copies.push_back(Copy{me->block, {}, 0, 0, 0, barrier, std::move(me->chunks)});
    me->chunks.clear();
    pause();
}

void stored(u32 address, u32 bytes) {
    for (u32 word = address / 4 * 4; word < address + bytes; word += 4) {
        me->block->is_unfenced(word) = true;
        me->unfenced.push_back(word);
    }
}

void loaded(u32 address, u32 bytes) {
    for (u32 word = address / 4 * 4; word < address + bytes; word += 4) {
        ++me->block->readers_of(word);
        me->read.push_back(word);
    }
}

void fence_async() {
    pause();
    for (const u32 word : me->unfenced) me->block->is_unfenced(word) = false;
    for (const u32 word : me->read) --me->block->readers_of(word);
    me->unfenced.clear();
    me->read.clear();
}

void start_product(const Product& product) { me->open.push_back({product, digest(product)}); }

void commit_products() {
    me->committed.push_back(std::move(me->open));
    me->open.clear();
    pause();
}

void wait_for_products(int left) {
    pause();
    while (static_cast<int>(me->committed.size()) > left) {
        for (const Started& started : me->committed.front()) {
            if (digest(started.product) != started.operands) fail("what a product reads was changed under way");
            perform(started.product);
        }
        me->committed.erase(me->committed.begin());
    }
    meet_warp();
}

const char* run(const Launch& launch) {
    chance.seed(launch.seed);
    copies.clear();
    fault = nullptr;
    gridDim.x = launch.blocks;
    thread_function = launch.thread;
    try {
        for (u32 block = 0; block < launch.blocks; block += launch.at_a_time) {
            run_together(launch, block, std::min(launch.at_a_time, launch.blocks - block));
        }
    } catch (const Fault& found) {
        return found.what;
    }
    return nullptr;
}

} // namespace machine
