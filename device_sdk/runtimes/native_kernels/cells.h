/* The cells of an LSTM over many sequences at one time step, there and back, as training needs them. Included like
   kernels.h, whose activations these use. Gates are in torch's order i, f, g, o; `hidden` is a multiple of 16; what is
   before the first step is zero. */

static void NAME(cells)(const Cells *c) {
    long size = c->hidden, all = c->rows * size;
    for (long row = 0; row < c->rows; row++) {
        float *gate = c->gates + row * 4 * size, *cell = c->cells + c->step * all + row * size;
        float *squashed = c->squashed + c->step * all + row * size;
        float *output = c->outputs + (row * c->steps + c->step) * size;
        float *next = c->step + 1 < c->steps ? c->taken + (row * c->steps + c->step + 1) * c->width : NULL;
        for (long at = 0; at < size; at += 16) {
            v16f i = NAME(sigmoid)(load(gate + at)), f = NAME(sigmoid)(load(gate + size + at));
            v16f g = NAME(tangent)(load(gate + 2 * size + at)), o = NAME(sigmoid)(load(gate + 3 * size + at));
            v16f value = i * g;
            if (c->step) value += f * load(cell - all + at);
            v16f squash = NAME(tangent)(value), out = o * squash;
            store(gate + at, i);
            store(gate + size + at, f);
            store(gate + 2 * size + at, g);
            store(gate + 3 * size + at, o);
            store(cell + at, value);
            store(squashed + at, squash);
            store(output + at, out);
            if (next != NULL) store(next + at, out);
        }
    }
}

/* outputs: gradients [rows, steps, hidden] of all outputs, or NULL; output: of this step's by the next step [rows,
   hidden]; cell: of the cells [rows, hidden], which becomes that of the step before; found: of the gates before they
   opened, [rows, steps, 4 hidden]. */
static void NAME(cells_back)(const Cells *c, const float *outputs, const float *output, float *cell, float *found) {
    long size = c->hidden, all = c->rows * size;
    for (long row = 0; row < c->rows; row++) {
        const float *gate = c->gates + row * 4 * size, *before = c->cells + (c->step - 1) * all + row * size;
        const float *squashed = c->squashed + c->step * all + row * size;
        float *to = found + (row * c->steps + c->step) * 4 * size;
        for (long at = 0; at < size; at += 16) {
            v16f i = load(gate + at), f = load(gate + size + at), g = load(gate + 2 * size + at);
            v16f o = load(gate + 3 * size + at), squash = load(squashed + at), out = load(output + row * size + at);
            if (outputs != NULL) out += load(outputs + (row * c->steps + c->step) * size + at);
            v16f own = load(cell + row * size + at) + out * o * (1.0f - squash * squash), kept = {0};
            if (c->step) kept = own * load(before + at) * f * (1.0f - f);
            store(to + at, own * g * i * (1.0f - i));
            store(to + size + at, kept);
            store(to + 2 * size + at, own * i * (1.0f - g * g));
            store(to + 3 * size + at, out * squash * o * (1.0f - o));
            store(cell + row * size + at, own * f);
        }
    }
}
