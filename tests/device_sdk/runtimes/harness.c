/* The kernels of one processor over numbers from standard input, their results to standard output: without Python, so
   that another processor's run where it is only emulated.

   In: int64 state, joint, pieces, bytes, rows, frames; table; of each of three matrices its values, bias and, of bytes,
   scales and zeros; tokens, h, c; encoded. Out: predicted, h, c, log_probs of every row with every frame, its peaks. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef __aarch64__
#include <arm_neon.h>
#define NAME(function) function##_neon
#define TARGET
#define COLUMNS 1
#define BYTES
#else
#define NAME(function) function##_plain
#define TARGET
#define COLUMNS 1
#endif
#include "kernels.h"

static void *take(long bytes) {
    void *found = malloc(bytes + 64);
    if (found == NULL || fread(found, 1, bytes, stdin) != (size_t)bytes) exit(2);
    return found;
}

static float *give(float *values, long count) {
    fwrite(values, sizeof(float), count, stdout);
    return values;
}

int main(void) {
    int64_t *sizes = take(6 * 8);
    long state = sizes[0], joint = sizes[1], pieces = sizes[2], bytes = sizes[3], rows = sizes[4], frames = sizes[5];
    Weights w = {.state = state, .joint = joint, .pieces = pieces};
    w.table = take(pieces * 4 * state * 4);
    long wide[3] = {4 * state, joint, pieces}, deep[3] = {state, state, joint};
    Matrix *matrices[3] = {&w.recurrent, &w.projection, &w.output};
    for (int at = 0; at < 3; at++) {
        Matrix *m = matrices[at];
        m->depth = deep[at], m->columns = (wide[at] + BLOCK - 1) / BLOCK * BLOCK;
        m->values = take(m->depth * m->columns * (bytes ? 1 : 4));
        m->bias = take(4 * m->columns);
        if (bytes) m->scales = take(4 * m->columns), m->zeros = take(4 * m->columns);
    }
    long long *tokens = take(8 * rows);
    float *h = take(4 * rows * state), *c = take(4 * rows * state), *encoded = take(4 * frames * joint);
    float *predicted = calloc(rows * joint, 4), *log_probs = calloc(rows * frames * pieces, 4);
    float *h_next = calloc(rows * state, 4), *c_next = calloc(rows * state, 4), *peaks = calloc(rows * frames, 4);
    NAME(predict)(&w, rows, tokens, h, c, predicted, h_next, c_next);
    give(predicted, rows * joint), give(h_next, rows * state), give(c_next, rows * state);
    NAME(join)(&w, rows, frames, encoded, predicted, log_probs);
    give(log_probs, rows * frames * pieces);
    NAME(peaks)(log_probs, rows * frames, pieces, peaks);
    give(peaks, rows * frames);
    return fflush(stdout) != 0;
}
