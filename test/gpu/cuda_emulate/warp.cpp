/* Warp instructions without a name in C: gpu/cuda_mma.cuh has them as PTX. Fragments are laid out as in the PTX ISA,
 * with g = lane / 4 and t = lane % 4. Sums in float32, in the order of K: a card's are at least as exact for BF16. */
#include <deque>

#include "cuda_emulate_mma.h"
#include "internal.h"

static float bf16(uint32_t w, int i) { return cuda_emulate_bits<float>((w >> (i * 16) & 0xffff) << 16); }
static float f16(uint32_t w, int i) { /* exponent and mantissa move to float32's positions; 2^112 corrects the bias, also of subnormals */
    const uint32_t h = w >> (i * 16) & 0xffff, mag = h & 0x7fff;
    const float v = mag > 0x7c00 ? NAN : mag == 0x7c00 ? INFINITY : cuda_emulate_bits<float>(mag << 13) * 0x1p112f;
    return h & 0x8000 ? -v : v;
}
static uint32_t to_f16(float f) {
    const uint32_t sign = std::signbit(f) ? 0x8000 : 0;
    if (f != f) return 0x7fff;
    const float v = fabsf(f);
    if (v >= 65520) return sign | 0x7c00;
    if (v < 0x1p-14f) return sign | (cuda_emulate_bits<uint32_t>(v + 0.5f) - cuda_emulate_bits<uint32_t>(0.5f)); /* the sum is a multiple of 2^-24 */
    const uint32_t u = cuda_emulate_bits<uint32_t>(v);
    return sign | ((u + 0xfff + (u >> 13 & 1) - (112u << 23)) >> 13);
}
static float e4m3(uint32_t w, int i) { /* like f16() */
    const uint32_t c = w >> (i * 8) & 0xff, mag = c & 0x7f;
    const float v = mag == 0x7f ? NAN : cuda_emulate_bits<float>(mag << 20) * 0x1p120f;
    return c & 0x80 ? -v : v;
}

/* D = A B + C for 16 x K times K x 8 with `per` elements a word: K = 8 * per. A's words: (g, first half of K), (g + 8, first),
 * (g, second), (g + 8, second), each with elements per * t ...; B's: column g, rows per * t ... of the first, second half. C: row g,
 * columns 2t and 2t + 1, then row g + 8. */
template <int per, float (*decode)(uint32_t, int)> static void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, int line) {
    struct operands {
        float a[4][per], b[2][per];
    } mine;
    for (int i = 0; i < per; i++) {
        for (int w = 0; w < 4; w++) mine.a[w][i] = decode(a[w], i);
        mine.b[0][i] = decode(b0, i);
        mine.b[1][i] = decode(b1, i);
    }
    const char *all = cuda_emulate_meet(0xffffffffu, &mine, sizeof mine, line);
    auto of = [=](int lane) { return (const operands *)(all + CUDA_EMULATE_SLOT * lane); };
    const int lane = cuda_emulate_lane(), g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; half++)
        for (int owner = 0; owner < 4; owner++) {
            const operands *row = of(g * 4 + owner), *column[2] = {of(2 * t * 4 + owner), of((2 * t + 1) * 4 + owner)};
            for (int i = 0; i < per; i++)
                for (int r = 0; r < 2; r++)
                    for (int n = 0; n < 2; n++) c[2 * r + n] += row->a[half * 2 + r][i] * column[n]->b[half][i];
        }
}
extern "C" void cuda_emulate_mma_bf16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, int line) { mma<2, bf16>(c, a, b0, b1, line); }
extern "C" void cuda_emulate_mma_f16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, int line) { mma<2, f16>(c, a, b0, b1, line); }
extern "C" void cuda_emulate_mma_e4m3(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, int line) { mma<4, e4m3>(c, a, b0, b1, line); }

/* Lane 8 i + r has the address of row r of matrix i: 8 rows of 16 bytes. Lane l receives of each matrix the word at row
 * l / 4, column pair l % 4; transposed: elements (2 (l % 4), l / 4) and (2 (l % 4) + 1, l / 4). */
extern "C" void cuda_emulate_ldmatrix(uint32_t *out, int n, const void *row, bool transposed, int line) {
    int lane = cuda_emulate_lane();
    if (lane < 8 * n) {
        if ((uintptr_t)row % 16) device_fail("line %d: ldmatrix of a row at %p, not aligned to 16", line, row);
        device_touch(row, 16, false, __builtin_return_address(0));
    }
    const char *all = cuda_emulate_meet(0xffffffffu, &row, sizeof row, line);
    for (int i = 0; i < n; i++) {
        uint16_t v[2];
        for (int j = 0; j < 2; j++) {
            int r = transposed ? 2 * (lane % 4) + j : lane / 4, c = transposed ? lane / 4 : 2 * (lane % 4) + j;
            const uint16_t *p;
            memcpy(&p, all + CUDA_EMULATE_SLOT * (8 * i + r), sizeof p);
            v[j] = p[c];
        }
        out[i] = v[0] | (uint32_t)v[1] << 16;
    }
}

/* Asynchronous copies run as late as allowed: when their thread waits for them. */
struct late {
    void *to;
    const void *from;
    int bytes, valid, group;
};
static struct {
    std::deque<late> copies;
    int groups;
    uint32_t block;
} pending[1024];

static decltype(pending[0]) &mine() {
    auto &p = pending[device_thread()];
    if (p.block != device_block_time()) p.copies.clear(), p.groups = 0, p.block = device_block_time();
    return p;
}
extern "C" void cuda_emulate_cp_async(void *to, const void *from, int piece, int bytes) {
    if ((uintptr_t)to % (unsigned)piece || (uintptr_t)from % (unsigned)piece || bytes < 0 || bytes > piece)
        device_fail("cp.async of %d bytes, %d of them read, from %p to %p", piece, bytes, from, to);
    mine().copies.push_back({to, from, piece, bytes, mine().groups});
}
extern "C" void cuda_emulate_cp_commit(void) { mine().groups++; }
extern "C" void cuda_emulate_cp_wait(int open) {
    auto &p = mine();
    while (!p.copies.empty() && p.copies.front().group < p.groups - open) {
        late c = p.copies.front();
        p.copies.pop_front();
        device_touch(c.to, (size_t)c.bytes, true, __builtin_return_address(0));
        if (c.valid) device_touch(c.from, (size_t)c.valid, false, __builtin_return_address(0));
        memset(c.to, 0, (size_t)c.bytes);
        memcpy(c.to, c.from, (size_t)c.valid);
    }
}

/* Fused: the sum is rounded once, to nearest even. The product is exact, and so is the sum unless one is 2^37 times the other. */
extern "C" uint32_t cuda_emulate_f16x2_pack(float x, float y) { return to_f16(x) | to_f16(y) << 16; }
extern "C" uint32_t cuda_emulate_f16x2_mul(uint32_t a, uint32_t b) { return to_f16(f16(a, 0) * f16(b, 0)) | to_f16(f16(a, 1) * f16(b, 1)) << 16; }
extern "C" uint32_t cuda_emulate_f16x2_add(uint32_t a, uint32_t b) { return to_f16(f16(a, 0) + f16(b, 0)) | to_f16(f16(a, 1) + f16(b, 1)) << 16; }
extern "C" uint32_t cuda_emulate_bf16x2_fma(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t out = 0;
    for (int i = 0; i < 2; i++) {
        double exact = (double)bf16(a, i) * (double)bf16(b, i) + (double)bf16(c, i);
        float f = (float)exact;
        uint32_t u = cuda_emulate_bits<uint32_t>(f);
        if (f == f && fabs((double)f) > fabs(exact)) u--; /* towards zero, and odd when inexact: so the second rounding has all information */
        if (f == f && (double)cuda_emulate_bits<float>(u) != exact) u |= 1;
        uint32_t r = f != f ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
        out |= r << (16 * i);
    }
    return out;
}
