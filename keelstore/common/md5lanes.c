/* MD5 (RFC 1321) of several streams side by side.
 *
 * One MD5 is a chain of steps that each wait for the one before: a core that could do eight at once is mostly idle. Here each
 * step is done for up to LANES streams in one vector instruction. Built when there is a compiler; keelstore/common/digests.py
 * does the same with hashlib where there is none. Plain C with GCC's vectors: any processor.
 *
 * A stream is MD5LANES_STATE octets that its owner keeps and does not look into. Nothing is allocated, nothing is global.
 */
#if __has_include(<Python.h>)
#define PY_SSIZE_T_CLEAN
#include <Python.h>
/* An empty module, for who imports all there is; digests.py calls the functions below through ctypes. */
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_md5lanes", NULL, -1, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__md5lanes(void) { return PyModule_Create(&module); }
#endif

#include <stdint.h>
#include <string.h>

#define LANES 8
#define BLOCK 64

typedef uint32_t vector __attribute__((vector_size(LANES * 4)));

struct stream {
    uint32_t state[4];
    uint64_t length;     /* octets taken */
    uint8_t held[BLOCK]; /* the last length % BLOCK of them */
};

#if defined(__x86_64__) && defined(__gnu_linux__)
/* chosen when the library is loaded, by what the processor has */
#define FOR_ANY_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define FOR_ANY_PROCESSOR
#endif

#define ROUNDS(STEP)                                                                                                   \
    STEP(F, a, b, c, d, 0, 7, 0xd76aa478) STEP(F, d, a, b, c, 1, 12, 0xe8c7b756)                                       \
    STEP(F, c, d, a, b, 2, 17, 0x242070db) STEP(F, b, c, d, a, 3, 22, 0xc1bdceee)                                      \
    STEP(F, a, b, c, d, 4, 7, 0xf57c0faf) STEP(F, d, a, b, c, 5, 12, 0x4787c62a)                                       \
    STEP(F, c, d, a, b, 6, 17, 0xa8304613) STEP(F, b, c, d, a, 7, 22, 0xfd469501)                                      \
    STEP(F, a, b, c, d, 8, 7, 0x698098d8) STEP(F, d, a, b, c, 9, 12, 0x8b44f7af)                                       \
    STEP(F, c, d, a, b, 10, 17, 0xffff5bb1) STEP(F, b, c, d, a, 11, 22, 0x895cd7be)                                    \
    STEP(F, a, b, c, d, 12, 7, 0x6b901122) STEP(F, d, a, b, c, 13, 12, 0xfd987193)                                     \
    STEP(F, c, d, a, b, 14, 17, 0xa679438e) STEP(F, b, c, d, a, 15, 22, 0x49b40821)                                    \
    STEP(G, a, b, c, d, 1, 5, 0xf61e2562) STEP(G, d, a, b, c, 6, 9, 0xc040b340)                                        \
    STEP(G, c, d, a, b, 11, 14, 0x265e5a51) STEP(G, b, c, d, a, 0, 20, 0xe9b6c7aa)                                     \
    STEP(G, a, b, c, d, 5, 5, 0xd62f105d) STEP(G, d, a, b, c, 10, 9, 0x02441453)                                       \
    STEP(G, c, d, a, b, 15, 14, 0xd8a1e681) STEP(G, b, c, d, a, 4, 20, 0xe7d3fbc8)                                     \
    STEP(G, a, b, c, d, 9, 5, 0x21e1cde6) STEP(G, d, a, b, c, 14, 9, 0xc33707d6)                                       \
    STEP(G, c, d, a, b, 3, 14, 0xf4d50d87) STEP(G, b, c, d, a, 8, 20, 0x455a14ed)                                      \
    STEP(G, a, b, c, d, 13, 5, 0xa9e3e905) STEP(G, d, a, b, c, 2, 9, 0xfcefa3f8)                                       \
    STEP(G, c, d, a, b, 7, 14, 0x676f02d9) STEP(G, b, c, d, a, 12, 20, 0x8d2a4c8a)                                     \
    STEP(H, a, b, c, d, 5, 4, 0xfffa3942) STEP(H, d, a, b, c, 8, 11, 0x8771f681)                                       \
    STEP(H, c, d, a, b, 11, 16, 0x6d9d6122) STEP(H, b, c, d, a, 14, 23, 0xfde5380c)                                    \
    STEP(H, a, b, c, d, 1, 4, 0xa4beea44) STEP(H, d, a, b, c, 4, 11, 0x4bdecfa9)                                       \
    STEP(H, c, d, a, b, 7, 16, 0xf6bb4b60) STEP(H, b, c, d, a, 10, 23, 0xbebfbc70)                                     \
    STEP(H, a, b, c, d, 13, 4, 0x289b7ec6) STEP(H, d, a, b, c, 0, 11, 0xeaa127fa)                                      \
    STEP(H, c, d, a, b, 3, 16, 0xd4ef3085) STEP(H, b, c, d, a, 6, 23, 0x04881d05)                                      \
    STEP(H, a, b, c, d, 9, 4, 0xd9d4d039) STEP(H, d, a, b, c, 12, 11, 0xe6db99e5)                                      \
    STEP(H, c, d, a, b, 15, 16, 0x1fa27cf8) STEP(H, b, c, d, a, 2, 23, 0xc4ac5665)                                     \
    STEP(I, a, b, c, d, 0, 6, 0xf4292244) STEP(I, d, a, b, c, 7, 10, 0x432aff97)                                       \
    STEP(I, c, d, a, b, 14, 15, 0xab9423a7) STEP(I, b, c, d, a, 5, 21, 0xfc93a039)                                     \
    STEP(I, a, b, c, d, 12, 6, 0x655b59c3) STEP(I, d, a, b, c, 3, 10, 0x8f0ccc92)                                      \
    STEP(I, c, d, a, b, 10, 15, 0xffeff47d) STEP(I, b, c, d, a, 1, 21, 0x85845dd1)                                     \
    STEP(I, a, b, c, d, 8, 6, 0x6fa87e4f) STEP(I, d, a, b, c, 15, 10, 0xfe2ce6e0)                                      \
    STEP(I, c, d, a, b, 6, 15, 0xa3014314) STEP(I, b, c, d, a, 13, 21, 0x4e0811a1)                                     \
    STEP(I, a, b, c, d, 4, 6, 0xf7537e82) STEP(I, d, a, b, c, 11, 10, 0xbd3af235)                                      \
    STEP(I, c, d, a, b, 2, 15, 0x2ad7d2bb) STEP(I, b, c, d, a, 9, 21, 0xeb86d391)

#define F(x, y, z) ((z) ^ ((x) & ((y) ^ (z))))
#define G(x, y, z) (((x) & (z)) + ((y) & ~(z)))
#define H(x, y, z) ((x) ^ (y) ^ (z))
#define I(x, y, z) ((y) ^ ((x) | ~(z)))
#define STEP(f, a, b, c, d, word, shift, constant)                                                                     \
    a += f(b, c, d) + (w[word] + constant);                                                                            \
    a = ((a << shift) | (a >> (32 - shift))) + b;

static inline uint32_t word_at(const uint8_t *at) {
    uint32_t found;
    memcpy(&found, at, 4);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    found = __builtin_bswap32(found);
#endif
    return found;
}

static void take_blocks(struct stream *stream, const uint8_t *data, uint64_t blocks) {
    uint32_t a = stream->state[0], b = stream->state[1], c = stream->state[2], d = stream->state[3], w[16];
    for (; blocks; blocks--, data += BLOCK) {
        uint32_t was_a = a, was_b = b, was_c = c, was_d = d;
        for (int i = 0; i < 16; i++)
            w[i] = word_at(data + 4 * i);
        ROUNDS(STEP)
        a += was_a, b += was_b, c += was_c, d += was_d;
    }
    stream->state[0] = a, stream->state[1] = b, stream->state[2] = c, stream->state[3] = d;
}

/* As many blocks of each of LANES streams, which may be the same one where there are fewer. */
FOR_ANY_PROCESSOR
static void take_blocks_side_by_side(struct stream *const *streams, const uint8_t *const *data, uint64_t blocks) {
    vector a, b, c, d, w[16];
    const uint8_t *p[LANES];
    for (int lane = 0; lane < LANES; lane++) {
        a[lane] = streams[lane]->state[0], b[lane] = streams[lane]->state[1];
        c[lane] = streams[lane]->state[2], d[lane] = streams[lane]->state[3];
        p[lane] = data[lane];
    }
    for (; blocks; blocks--) {
        vector was_a = a, was_b = b, was_c = c, was_d = d;
        for (int half = 0; half < 2; half++) { /* eight words of each of eight lanes, turned */
            vector r[LANES], s[LANES], t[LANES];
            for (int lane = 0; lane < LANES; lane++)
                memcpy(&r[lane], p[lane] + 32 * half, 32);
            for (int i = 0; i < 4; i++) {
                s[2 * i] = __builtin_shuffle(r[2 * i], r[2 * i + 1], (vector){0, 8, 1, 9, 4, 12, 5, 13});
                s[2 * i + 1] = __builtin_shuffle(r[2 * i], r[2 * i + 1], (vector){2, 10, 3, 11, 6, 14, 7, 15});
            }
            for (int i = 0; i < 8; i += 4)
                for (int j = 0; j < 2; j++) {
                    t[i + 2 * j] = __builtin_shuffle(s[i + j], s[i + j + 2], (vector){0, 1, 8, 9, 4, 5, 12, 13});
                    t[i + 2 * j + 1] = __builtin_shuffle(s[i + j], s[i + j + 2], (vector){2, 3, 10, 11, 6, 7, 14, 15});
                }
            for (int i = 0; i < 4; i++) {
                w[8 * half + i] = __builtin_shuffle(t[i], t[i + 4], (vector){0, 1, 2, 3, 8, 9, 10, 11});
                w[8 * half + i + 4] = __builtin_shuffle(t[i], t[i + 4], (vector){4, 5, 6, 7, 12, 13, 14, 15});
            }
        }
        for (int lane = 0; lane < LANES; lane++)
            p[lane] += BLOCK;
        ROUNDS(STEP)
        a += was_a, b += was_b, c += was_c, d += was_d;
    }
    for (int lane = 0; lane < LANES; lane++) {
        streams[lane]->state[0] = a[lane], streams[lane]->state[1] = b[lane];
        streams[lane]->state[2] = c[lane], streams[lane]->state[3] = d[lane];
    }
}

unsigned md5lanes_state_size(void) { return sizeof(struct stream); }

void md5lanes_start(struct stream *stream) {
    static const uint32_t first[4] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};
    memcpy(stream->state, first, sizeof first);
    stream->length = 0;
}

/* Octets for each of ``count`` streams, all of them different. Safe to call from any thread, not for one stream from two. */
void md5lanes_update(struct stream *const *streams, const uint8_t *const *data, const uint64_t *sizes, unsigned count) {
    for (unsigned first = 0; first < count; first += LANES) {
        struct stream *at[LANES], unused;
        const uint8_t *from[LANES];
        uint64_t left[LANES]; /* blocks */
        unsigned lanes = count - first < LANES ? count - first : LANES;
        for (unsigned lane = 0; lane < lanes; lane++) {
            struct stream *stream = at[lane] = streams[first + lane];
            const uint8_t *bytes = data[first + lane];
            uint64_t size = sizes[first + lane], held = stream->length % BLOCK;
            stream->length += size;
            if (held) {
                uint64_t fill = size < BLOCK - held ? size : BLOCK - held;
                memcpy(stream->held + held, bytes, fill);
                bytes += fill, size -= fill;
                if (held + fill == BLOCK)
                    take_blocks(stream, stream->held, 1);
            }
            from[lane] = bytes, left[lane] = size / BLOCK;
            if (size % BLOCK)
                memcpy(stream->held, bytes + left[lane] * BLOCK, size % BLOCK);
        }
        for (;;) { /* side by side while at least two have blocks left */
            struct stream *now[LANES];
            const uint8_t *here[LANES];
            unsigned busy = 0, which[LANES];
            uint64_t blocks = 0;
            for (unsigned lane = 0; lane < lanes; lane++)
                if (left[lane]) {
                    if (!busy || left[lane] < blocks)
                        blocks = left[lane];
                    which[busy++] = lane;
                }
            if (!busy)
                break;
            if (busy == 1) {
                take_blocks(at[which[0]], from[which[0]], left[which[0]]);
                break;
            }
            for (unsigned i = 0; i < LANES; i++) {
                unsigned lane = which[i < busy ? i : 0];
                now[i] = i < busy ? at[lane] : &unused;
                here[i] = from[lane];
            }
            memcpy(&unused, at[which[0]], sizeof unused);
            take_blocks_side_by_side(now, here, blocks);
            for (unsigned i = 0; i < busy; i++)
                from[which[i]] += blocks * BLOCK, left[which[i]] -= blocks;
        }
    }
}

/* As often as ``turns`` says: ``counts[turn]`` streams of the next in ``streams``, ``data`` and ``sizes``, all of them different in one
   turn. In one call, as a caller in Python waits for the interpreter's lock after each. */
void md5lanes_update_in_turns(struct stream *const *streams, const uint8_t *const *data, const uint64_t *sizes,
                              const unsigned *counts, unsigned turns) {
    for (unsigned turn = 0; turn < turns; turn++) {
        md5lanes_update(streams, data, sizes, counts[turn]);
        streams += counts[turn], data += counts[turn], sizes += counts[turn];
    }
}

/* The 16 octets of the digest; the stream can go on. */
void md5lanes_digest(const struct stream *stream, uint8_t *digest) {
    struct stream copy = *stream;
    uint8_t end[2 * BLOCK] = {0};
    uint64_t held = copy.length % BLOCK, bits = copy.length * 8, blocks = held < BLOCK - 8 ? 1 : 2;
    memcpy(end, copy.held, held);
    end[held] = 0x80;
    for (int i = 0; i < 8; i++)
        end[blocks * BLOCK - 8 + i] = (uint8_t)(bits >> 8 * i);
    take_blocks(&copy, end, blocks);
    for (int i = 0; i < 16; i++)
        digest[i] = (uint8_t)(copy.state[i / 4] >> 8 * (i % 4));
}
