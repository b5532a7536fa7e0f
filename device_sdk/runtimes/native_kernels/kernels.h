/* Products and activations of one step, over vectors of 16 floats. Included once for every kind of processor, with
   NAME(...) giving its functions names of their own, COLUMNS vectors of a product held at a time, and BYTES where it
   multiplies bytes (AVX-512 VNNI).

   Matrices lie as products read them, in blocks of 64 columns (see layout.py): float32 [blocks, K, 64], bytes
   [blocks, K / 4, 64, 4]. Rows are taken TILE at a time, so that a matrix is read once for all of them. */

static inline __attribute__((always_inline)) v16f NAME(between)(v16f x, float low, float high) {
    x = choose(x < low, (v16f){0} + low, x);
    return choose(x > high, (v16f){0} + high, x);
}

static inline __attribute__((always_inline)) v16f NAME(exponential)(v16f x) {
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

static inline __attribute__((always_inline)) v16f NAME(sigmoid)(v16f x) {
    return 1.0f / (1.0f + NAME(exponential)(-x));
}

static inline __attribute__((always_inline)) v16f NAME(tangent)(v16f x) {
    return 1.0f - 2.0f / (NAME(exponential)(x + x) + 1.0f);
}

/* rows of x [rows, stride] times a matrix, into out [rows, matrix->columns]. */
static inline __attribute__((always_inline)) void NAME(multiply_rows)(
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

static void NAME(multiply)(const float *x, long stride, int rows, const Matrix *m, float *out) {
    switch (rows) {
        case 1: NAME(multiply_rows)(x, stride, 1, m, out); break;
        case 2: NAME(multiply_rows)(x, stride, 2, m, out); break;
        case 3: NAME(multiply_rows)(x, stride, 3, m, out); break;
        default: NAME(multiply_rows)(x, stride, TILE, m, out);
    }
}

#ifdef BYTES
/* [-1, 1] as 1 to 255, of one row; count: a multiple of 16. */
static void NAME(bytes_of)(const float *x, long count, unsigned char *out) {
    for (long at = 0; at < count; at += 16) {
        v16i bits = (v16i)(NAME(between)(load(x + at), -1.0f, 1.0f) * 127.0f + ROUND) + 128;
        *(v16b *)(out + at) = __builtin_convertvector(bits & 255, v16b);
    }
}

static inline __attribute__((always_inline)) void NAME(multiply_byte_rows)(
    const unsigned char *x, long stride, const int rows, const Matrix *m, float *out) {
    for (long column = 0; column < m->columns; column += BLOCK) {
        const signed char *w = (const signed char *)m->values + column * m->depth;
        __m512i sums[TILE][4];
        for (int row = 0; row < rows; row++)
            for (int at = 0; at < 4; at++) sums[row][at] = _mm512_setzero_si512();
        for (long k = 0; k < m->depth; k += 4, w += 4 * BLOCK) {
            __m512i weights[4];
            for (int at = 0; at < 4; at++) weights[at] = _mm512_loadu_si512(w + 64 * at);
            for (int row = 0; row < rows; row++) {
                int four;
                memcpy(&four, x + row * stride + k, 4);
                __m512i given = _mm512_set1_epi32(four);
                for (int at = 0; at < 4; at++) sums[row][at] = _mm512_dpbusd_epi32(sums[row][at], given, weights[at]);
            }
        }
        for (int row = 0; row < rows; row++)
            for (int at = 0; at < 4; at++) {
                long place = column + 16 * at;
                v16i exact = (v16i)sums[row][at] - *(const v16iu *)(m->zeros + place);
                v16f value = __builtin_convertvector(exact, v16f) * load(m->scales + place) + load(m->bias + place);
                store(out + row * m->columns + place, value);
            }
    }
}

static void NAME(multiply_bytes)(const unsigned char *x, long stride, int rows, const Matrix *m, float *out) {
    switch (rows) {
        case 1: NAME(multiply_byte_rows)(x, stride, 1, m, out); break;
        case 2: NAME(multiply_byte_rows)(x, stride, 2, m, out); break;
        case 3: NAME(multiply_byte_rows)(x, stride, 3, m, out); break;
        default: NAME(multiply_byte_rows)(x, stride, TILE, m, out);
    }
}
#endif

/* rows of x [rows, MOST], in [-1, 1] where the matrix is of bytes, times it. */
static void NAME(product)(const float *x, int rows, const Matrix *m, float *out) {
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

static void NAME(predict)(const Network *n, long count, const long long *tokens, const float *h, const float *c,
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

static void NAME(join)(const Network *n, long prefixes, long frames, const float *encoded, const float *predicted,
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
            v16f most = load(found), sum = {0};
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
            for (long at = 0; at < pieces; at += 16) store(out + at, load(found + at) - less);
        }
    }
}

/* The best label, all pieces but the first, of every row of scores [rows, pieces]; pieces: a multiple of 16. */
static void NAME(peaks)(const float *scores, long rows, long pieces, float *found) {
    for (long row = 0; row < rows; row++, scores += pieces) {
        v16f most = load(scores);
        most[0] = most[1];
        for (long at = 16; at < pieces; at += 16) {
            v16f value = load(scores + at);
            most = choose(value > most, value, most);
        }
        found[row] = most[0];
        for (int at = 1; at < 16; at++) found[row] = most[at] > found[row] ? most[at] : found[row];
    }
}
