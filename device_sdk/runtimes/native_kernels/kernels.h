/* Products and activations of one step, over vectors of 16 floats, for GCC and Clang. Included once for every kind of
   processor, with NAME(...) giving its functions names of their own, TARGET the attribute that compiles them for it,
   COLUMNS vectors of a product held at a time, and BYTES where it multiplies bytes.

   Matrices lie as products read them, in blocks of 64 columns (see __init__.py): float32 [blocks, K, 64], bytes
   [blocks, K / 4, 64, 4]. Rows are taken TILE at a time, so that a matrix is read once for all of them. */

#ifndef KERNELS
#define KERNELS
#include <math.h>
#include <string.h>

enum { TILE = 4, BLOCK = 64, MOST = 1024 };

/* values: float32, or bytes where there are scales; zeros: what a product of bytes has too much, scales: of its sums. */
typedef struct {
    const void *values;
    const int *zeros;
    const float *scales, *bias;
    long depth, columns;
} Matrix;

/* table: [pieces, 4 state], what the gates of a token begin with. */
typedef struct {
    long state, joint, pieces;
    const float *table;
    Matrix recurrent, projection, output;
} Weights;

#ifndef __clang__
#pragma GCC diagnostic ignored "-Wpsabi" /* vectors are only ever given to functions that are part of their caller */
#endif
typedef float v16f __attribute__((vector_size(64)));
typedef float v16fu __attribute__((vector_size(64), aligned(4), may_alias));
typedef int v16i __attribute__((vector_size(64)));
typedef int v16iu __attribute__((vector_size(64), aligned(4), may_alias));
typedef unsigned char v16b __attribute__((vector_size(16), aligned(1), may_alias));

#define ROUND 12582912.0f /* 1.5 * 2^23: adding it rounds a float to a whole number, which its lowest bits then hold */
#define load(from) ((v16f) * (const v16fu *)(from))
#define choose(which, yes, no) ((v16f)(((which) & (v16i)(yes)) | (~(which) & (v16i)(no))))
#define store(to, value) (*(v16fu *)(to) = (value))
#define INLINE static inline __attribute__((always_inline)) TARGET
#endif

#ifdef NAME
INLINE v16f NAME(between)(v16f x, float low, float high) {
    x = choose(x < low, (v16f){0} + low, x);
    return choose(x > high, (v16f){0} + high, x);
}

INLINE v16f NAME(exponential)(v16f x) {
    x = NAME(between)(x, -87.0f, 88.0f);
    v16f shifted = x * 1.44269504f + ROUND;          /* the lowest bits are now those of the nearest power of two */
    v16f power = shifted - ROUND;
    v16f r = x - power * 0.693359375f + power * 2.12194440e-4f;
    v16f p = r * 1.38888889e-3f + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return (v16f)((v16i)p + ((v16i)shifted << 23)) + (x - x); /* what is no number stays none */
}

INLINE v16f NAME(sigmoid)(v16f x) {
    return 1.0f / (1.0f + NAME(exponential)(-x));
}

INLINE v16f NAME(tangent)(v16f x) {
    return 1.0f - 2.0f / (NAME(exponential)(x + x) + 1.0f);
}

/* rows of x [rows, stride] times a matrix, into out [rows, matrix->columns]. */
INLINE void NAME(multiply_rows)(
    const float *x, long stride, const int rows, const Matrix *m, float *out) {
    for (long column = 0; column < m->columns; column += 16 * COLUMNS) {
        const float *w = (const float *)m->values + column / BLOCK * BLOCK * m->depth + column % BLOCK;
        v16f sums[TILE][COLUMNS];
        for (int row = 0; row < rows; row++)
            for (int at = 0; at < COLUMNS; at++) sums[row][at] = load(m->bias + column + 16 * at);
        for (long k = 0; k < m->depth; k++, w += BLOCK) {
            v16f weights[COLUMNS];
            for (int at = 0; at < COLUMNS; at++) weights[at] = load(w + 16 * at);
            for (int row = 0; row < rows; row++)
                for (int at = 0; at < COLUMNS; at++) sums[row][at] += x[row * stride + k] * weights[at];
        }
        for (int row = 0; row < rows; row++)
            for (int at = 0; at < COLUMNS; at++) store(out + row * m->columns + column + 16 * at, sums[row][at]);
    }
}

static TARGET void NAME(multiply)(const float *x, long stride, int rows, const Matrix *m, float *out) {
    switch (rows) {
        case 1: NAME(multiply_rows)(x, stride, 1, m, out); break;
        case 2: NAME(multiply_rows)(x, stride, 2, m, out); break;
        case 3: NAME(multiply_rows)(x, stride, 3, m, out); break;
        default: NAME(multiply_rows)(x, stride, TILE, m, out);
    }
}

#ifdef BYTES
#ifdef __aarch64__
/* sums [16] plus the products of four bytes with those of 16 columns, w [16, 4]. NEON multiplies signed bytes, so the
   four are given less their 128: the sums have nothing too much. */
#define TOO_MUCH(place) ((v16i){0})
INLINE v16i NAME(add_fours)(v16i sums, int four, const signed char *w) {
    union {
        v16i all;
        int32x4_t part[4];
    } found = {sums};
    int8x16_t given = vreinterpretq_s8_s32(vdupq_n_s32(four ^ (int)0x80808080));
    for (int at = 0; at < 4; at++, w += 16) {
        int8x16_t weights = vld1q_s8(w);
        int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(given), vget_low_s8(weights)));
        int32x4_t high = vpaddlq_s16(vmull_high_s8(given, weights));
        found.part[at] = vaddq_s32(found.part[at], vpaddq_s32(low, high));
    }
    return found.all;
}
#else
#define TOO_MUCH(place) (*(const v16iu *)(m->zeros + (place)))
INLINE v16i NAME(add_fours)(v16i sums, int four, const signed char *w) {
    return (v16i)_mm512_dpbusd_epi32((__m512i)sums, _mm512_set1_epi32(four), _mm512_loadu_si512(w));
}
#endif

/* [-1, 1] as 1 to 255, of one row; count: a multiple of 16. */
static TARGET void NAME(bytes_of)(const float *x, long count, unsigned char *out) {
    for (long at = 0; at < count; at += 16) {
        v16i bits = (v16i)(NAME(between)(load(x + at), -1.0f, 1.0f) * 127.0f + ROUND) + 128;
        *(v16b *)(out + at) = __builtin_convertvector(bits & 255, v16b);
    }
}

INLINE void NAME(multiply_byte_rows)(
    const unsigned char *x, long stride, const int rows, const Matrix *m, float *out) {
    for (long column = 0; column < m->columns; column += BLOCK) {
        const signed char *w = (const signed char *)m->values + column * m->depth;
        v16i sums[TILE][4];
        for (int row = 0; row < rows; row++)
            for (int at = 0; at < 4; at++) sums[row][at] = (v16i){0};
        for (long k = 0; k < m->depth; k += 4, w += 4 * BLOCK)
            for (int row = 0; row < rows; row++) {
                int four;
                memcpy(&four, x + row * stride + k, 4);
                for (int at = 0; at < 4; at++) sums[row][at] = NAME(add_fours)(sums[row][at], four, w + 64 * at);
            }
        for (int row = 0; row < rows; row++)
            for (int at = 0; at < 4; at++) {
                long place = column + 16 * at;
                v16i exact = sums[row][at] - TOO_MUCH(place);
                v16f value = __builtin_convertvector(exact, v16f) * load(m->scales + place) + load(m->bias + place);
                store(out + row * m->columns + place, value);
            }
    }
}

static TARGET void NAME(multiply_bytes)(const unsigned char *x, long stride, int rows, const Matrix *m, float *out) {
    switch (rows) {
        case 1: NAME(multiply_byte_rows)(x, stride, 1, m, out); break;
        case 2: NAME(multiply_byte_rows)(x, stride, 2, m, out); break;
        case 3: NAME(multiply_byte_rows)(x, stride, 3, m, out); break;
        default: NAME(multiply_byte_rows)(x, stride, TILE, m, out);
    }
}
#endif

/* rows of x [rows, MOST], in [-1, 1] where the matrix is of bytes, times it. */
static TARGET void NAME(product)(const float *x, int rows, const Matrix *m, float *out) {
#ifdef BYTES
    if (m->scales) {
        unsigned char bytes[TILE][MOST];
        for (int row = 0; row < rows; row++) NAME(bytes_of)(x + row * MOST, m->depth, bytes[row]);
        NAME(multiply_bytes)(bytes[0], MOST, rows, m, out);
        return;
    }
#endif
    NAME(multiply)(x, MOST, rows, m, out);
}

static TARGET void NAME(predict)(const Weights *n, long count, const long long *tokens, const float *h, const float *c,
                          float *predicted, float *h_next, float *c_next) {
    long size = n->state, joint = n->joint;
    float state[TILE][MOST], gates[TILE * 4 * MOST], out[TILE * MOST];
    for (long begin = 0; begin < count; begin += TILE) {
        int rows = count - begin < TILE ? (int)(count - begin) : TILE;
        for (int row = 0; row < rows; row++) memcpy(state[row], h + (begin + row) * size, size * sizeof(float));
        NAME(product)(state[0], rows, &n->recurrent, gates);
        for (int row = 0; row < rows; row++) {
            const float *given = n->table + tokens[begin + row] * 4 * size;
            const float *g = gates + row * n->recurrent.columns, *before = c + (begin + row) * size;
            float *after = c_next + (begin + row) * size;
            for (long at = 0; at < size; at += 16) { /* gates i, o, f, c; sizes are multiples of 16 */
                v16f i = NAME(sigmoid)(load(g + at) + load(given + at));
                v16f o = NAME(sigmoid)(load(g + size + at) + load(given + size + at));
                v16f f = NAME(sigmoid)(load(g + 2 * size + at) + load(given + 2 * size + at));
                v16f cell = f * load(before + at) + i * NAME(tangent)(load(g + 3 * size + at) + load(given + 3 * size + at));
                store(after + at, cell);
                store(state[row] + at, o * NAME(tangent)(cell));
            }
            memcpy(h_next + (begin + row) * size, state[row], size * sizeof(float));
        }
        NAME(product)(state[0], rows, &n->projection, out);
        for (int row = 0; row < rows; row++)
            memcpy(predicted + (begin + row) * joint, out + row * n->projection.columns, joint * sizeof(float));
    }
}

static TARGET void NAME(join)(const Weights *n, long prefixes, long frames, const float *encoded, const float *predicted,
                       float *log_probs) {
    long size = n->joint, pieces = n->pieces, columns = n->output.columns;
    float mixed[TILE][MOST], logits[TILE * MOST];
    for (long begin = 0; begin < prefixes * frames; begin += TILE) {
        int rows = prefixes * frames - begin < TILE ? (int)(prefixes * frames - begin) : TILE;
        for (int row = 0; row < rows; row++) {
            const float *e = encoded + (begin + row) % frames * size, *p = predicted + (begin + row) / frames * size;
            for (long at = 0; at < size; at += 16) store(mixed[row] + at, NAME(tangent)(load(e + at) + load(p + at)));
        }
        NAME(product)(mixed[0], rows, &n->output, logits);
        for (int row = 0; row < rows; row++) {
            float *found = logits + row * columns, *out = log_probs + (begin + row) * pieces;
            v16f most = load(found), sum = {0}; /* columns beyond the pieces are so low that they count for nothing */
            for (long at = 16; at < pieces; at += 16) {
                v16f value = load(found + at);
                most = choose(value > most, value, most);
            }
            float top = most[0];
            for (int at = 1; at < 16; at++) top = most[at] > top ? most[at] : top;
            for (long at = 0; at < pieces; at += 16) sum += NAME(exponential)(load(found + at) - top);
            float total = 0.0f;
            for (int at = 0; at < 16; at++) total += sum[at];
            float less = top + logf(total);
            for (long at = 0; at < pieces; at += 16) store(found + at, load(found + at) - less);
            memcpy(out, found, pieces * sizeof(float));
        }
    }
}

/* The best label, all pieces but the first, of every row of scores [rows, pieces]; pieces: at least 16. */
static TARGET void NAME(peaks)(const float *scores, long rows, long pieces, float *found) {
    for (long row = 0; row < rows; row++, scores += pieces) {
        v16f most = load(scores);
        most[0] = most[1];
        for (long at = 16; at < pieces; at += 16) {
            v16f value = load(scores + (at + 16 > pieces ? pieces - 16 : at));
            most = choose(value > most, value, most);
        }
        found[row] = most[0];
        for (int at = 1; at < 16; at++) found[row] = most[at] > found[row] ? most[at] : found[row];
    }
}
#endif
