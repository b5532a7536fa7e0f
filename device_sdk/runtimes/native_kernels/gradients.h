/* Gradients of a weight for many clients, and the squares of their rows while they are at hand. Included like kernels.h.

   A client's gradient is the product of what the layer took in [rows, width], turned, and the gradients of what it gave
   [rows, out]; `out` is a multiple of 64. */

static inline __attribute__((always_inline)) void NAME(gradient_rows)(
    long rows, long width, long out, const int taken, const float *inputs, const float *outputs, float *gradient,
    float *squares) {
    for (long column = 0; column < BLOCK; column += 16 * COLUMNS) {
        v16f sums[TILE][COLUMNS] = {0};
        const float *a = inputs, *b = outputs + column;
        for (long row = 0; row < rows; row++, a += width, b += out) {
            v16f given[COLUMNS];
            for (int at = 0; at < COLUMNS; at++) given[at] = load(b + 16 * at);
            for (int line = 0; line < taken; line++)
                for (int at = 0; at < COLUMNS; at++) sums[line][at] += a[line] * given[at];
        }
        for (int line = 0; line < taken; line++) {
            v16f total = {0};
            for (int at = 0; at < COLUMNS; at++) {
                store(gradient + line * out + column + 16 * at, sums[line][at]);
                total += sums[line][at] * sums[line][at];
            }
            for (int at = 0; at < 16; at++) squares[line] += total[at];
        }
    }
}

/* inputs: [clients, rows, width]; outputs: [clients, rows, out]; gradients: [clients, width, out]; squares: [clients,
   width], of every row of a gradient. */
static void NAME(gradients)(long clients, long rows, long width, long out, const float *inputs, const float *outputs,
                            float *gradients, float *squares) {
    memset(squares, 0, clients * width * sizeof(float));
    for (long client = 0; client < clients; client++) {
        for (long column = 0; column < out; column += BLOCK)
            for (long line = 0; line < width; line += TILE) {
                const float *a = inputs + line, *b = outputs + column;
                float *g = gradients + line * out + column, *s = squares + line;
                switch (width - line) {
                    case 1: NAME(gradient_rows)(rows, width, out, 1, a, b, g, s); break;
                    case 2: NAME(gradient_rows)(rows, width, out, 2, a, b, g, s); break;
                    case 3: NAME(gradient_rows)(rows, width, out, 3, a, b, g, s); break;
                    default: NAME(gradient_rows)(rows, width, out, TILE, a, b, g, s);
                }
            }
        inputs += rows * width, outputs += rows * out, gradients += width * out, squares += width;
    }
}
