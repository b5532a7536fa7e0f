/* One step of the prediction network, and the joint, of small transducers, and how a search reads its scores; and what
   cohorts of simulated devices train with: what device_sdk/runtimes/native_kernels/__init__.py explains. Sizes are
   checked where these are called; here only that no buffer is too short. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) /* clang knows no pragma for a function's target */
#define SUPPORTED 1
#include <immintrin.h>
#endif

enum { TILE = 4, BLOCK = 64, MOST = 1024, BUFFERS = 13 };

/* values: float32, or bytes where there are scales; zeros: what a product of bytes has too much, scales: of its sums. */
typedef struct {
    const void *values;
    const int *zeros;
    const float *scales, *bias;
    long depth, columns;
} Matrix;

/* table: [pieces, 4 state], what the gates of a token begin with. */
typedef struct {
    PyObject_HEAD
    Py_buffer held[BUFFERS];
    int buffers, bytes;
    long state, joint, pieces;
    const float *table;
    Matrix recurrent, projection, output;
} Network;

/* An LSTM over many sequences at one of their steps; width: of what a step takes in, the output before it first. */
typedef struct {
    long rows, hidden, steps, step, width;
    float *gates;            /* [rows, 4 hidden], as products gave them, then what they open to */
    float *cells, *squashed; /* [steps, rows, hidden] */
    float *outputs, *taken;  /* [rows, steps, hidden] and [rows, steps, width] */
} Cells;

#ifdef SUPPORTED
#pragma GCC diagnostic ignored "-Wpsabi" /* vectors are only ever given to functions that are part of their caller */
typedef float v16f __attribute__((vector_size(64)));
typedef float v16fu __attribute__((vector_size(64), aligned(4), may_alias));
typedef int v16i __attribute__((vector_size(64)));
typedef int v16iu __attribute__((vector_size(64), aligned(4), may_alias));
typedef unsigned char v16b __attribute__((vector_size(16), aligned(1), may_alias));

#define ROUND 12582912.0f /* 1.5 * 2^23: adding it rounds a float to a whole number, which its lowest bits then hold */
#define load(from) ((v16f) * (const v16fu *)(from))
#define choose(which, yes, no) ((v16f)(((which) & (v16i)(yes)) | (~(which) & (v16i)(no))))
#define store(to, value) (*(v16fu *)(to) = (value))

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")
#define NAME(function) function##_avx512
#define COLUMNS 4
#define BYTES
#include "kernels.h"
#include "cells.h"
#include "gradients.h"
#undef NAME
#undef COLUMNS
#undef BYTES
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NAME(function) function##_avx2
#define COLUMNS 1
#include "kernels.h"
#include "cells.h"
#include "gradients.h"
#undef NAME
#undef COLUMNS
#pragma GCC pop_options
#endif

/* 2 where bytes are multiplied, 1 where float32 alone is quick, 0 where neither is. */
static int level(void) {
#ifdef SUPPORTED
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
        return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}

static void release(Py_buffer *held, int count) {
    while (count > 0) PyBuffer_Release(&held[--count]);
}

/* The buffers of arguments, those from `writable` on to be written to, of at least as many bytes as `sizes`. */
static int take(PyObject *const *arguments, int count, int writable, const long *sizes, Py_buffer *held) {
    for (int at = 0; at < count; at++) {
        if (PyObject_GetBuffer(arguments[at], &held[at], at < writable ? PyBUF_SIMPLE : PyBUF_WRITABLE)) {
            release(held, at);
            return -1;
        }
        if (held[at].len < sizes[at]) {
            PyErr_Format(PyExc_ValueError, "buffer %d: %zd bytes, expected %ld", at, held[at].len, sizes[at]);
            release(held, at + 1);
            return -1;
        }
    }
    return 0;
}

static void network_free(PyObject *self) {
    Network *n = (Network *)self;
    release(n->held, n->buffers);
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Network(state, joint, pieces, bytes, table, and of each matrix its values, bias and, of bytes, scales and zeros) */
static PyObject *network_new(PyTypeObject *type, PyObject *arguments, PyObject *Py_UNUSED(named)) {
    long state, joint, pieces;
    int bytes;
    PyObject *table, *rest[3];
    if (!PyArg_ParseTuple(arguments, "lllpOO!O!O!", &state, &joint, &pieces, &bytes, &table, &PyTuple_Type, &rest[0],
                          &PyTuple_Type, &rest[1], &PyTuple_Type, &rest[2]))
        return NULL;
    if (state < 16 || joint < 16 || pieces < 16 || state > MOST || joint > MOST || pieces > MOST ||
        (state | joint | pieces) % 16) {
        PyErr_SetString(PyExc_ValueError, "sizes: expected multiples of 16, at most 1024");
        return NULL;
    }
    if (level() < 1 + bytes) {
        PyErr_SetString(PyExc_ValueError, "this processor has no quick products of that kind");
        return NULL;
    }
    Network *n = (Network *)type->tp_alloc(type, 0);
    if (n == NULL) return NULL;
    n->state = state, n->joint = joint, n->pieces = pieces, n->bytes = bytes;
    long wide[3] = {4 * state, joint, pieces}, deep[3] = {state, state, joint}, size = pieces * 4 * state * 4;
    Matrix *matrices[3] = {&n->recurrent, &n->projection, &n->output};
    if (take(&table, 1, 1, &size, n->held)) goto failed;
    n->table = n->held[n->buffers++].buf;
    for (int at = 0; at < 3; at++) {
        Matrix *m = matrices[at];
        int count = bytes ? 4 : 2;
        m->depth = deep[at], m->columns = (wide[at] + BLOCK - 1) / BLOCK * BLOCK;
        if (PyTuple_Size(rest[at]) != count) {
            PyErr_SetString(PyExc_ValueError, "matrix: expected values and bias, and of bytes scales and zeros");
            goto failed;
        }
        PyObject *given[4];
        long sizes[4] = {m->depth * m->columns * (bytes ? 1 : 4), 4 * m->columns, 4 * m->columns, 4 * m->columns};
        for (int part = 0; part < count; part++) given[part] = PyTuple_GetItem(rest[at], part);
        if (take(given, count, count, sizes, n->held + n->buffers)) goto failed;
        Py_buffer *held = n->held + n->buffers;
        n->buffers += count;
        m->values = held[0].buf, m->bias = held[1].buf;
        if (bytes) m->scales = held[2].buf, m->zeros = held[3].buf;
    }
    return (PyObject *)n;
failed:
    Py_DECREF(n);
    return NULL;
}

/* predict(tokens, h, c, predicted, h_next, c_next): writes the last three */
static PyObject *network_predict(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
#ifdef SUPPORTED
    Network *n = (Network *)self;
    Py_buffer held[6];
    if (count != 6) return PyErr_Format(PyExc_TypeError, "predict: %zd arguments, expected 6", count);
    Py_ssize_t rows = PyObject_Size(arguments[0]);
    if (rows < 0) return NULL;
    long states = rows * n->state * 4;
    long sizes[6] = {rows * 8, states, states, rows * n->joint * 4, states, states};
    if (take(arguments, 6, 3, sizes, held)) return NULL;
    const long long *tokens = held[0].buf;
    for (Py_ssize_t row = 0; row < rows; row++)
        if (tokens[row] < 0 || tokens[row] >= n->pieces) {
            PyErr_Format(PyExc_IndexError, "token %lld: expected 0 to %ld", tokens[row], n->pieces - 1);
            release(held, 6);
            return NULL;
        }
    Py_BEGIN_ALLOW_THREADS
    (level() == 2 ? predict_avx512 : predict_avx2)(n, rows, tokens, held[1].buf, held[2].buf, held[3].buf, held[4].buf,
                                                   held[5].buf);
    Py_END_ALLOW_THREADS
    release(held, 6);
#endif
    Py_RETURN_NONE;
}

/* join(prefixes, frames, encoded, predicted, log_probs): writes the last */
static PyObject *network_join(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
#ifdef SUPPORTED
    Network *n = (Network *)self;
    Py_buffer held[3];
    if (count != 5) return PyErr_Format(PyExc_TypeError, "join: %zd arguments, expected 5", count);
    long prefixes = PyLong_AsLong(arguments[0]), frames = PyLong_AsLong(arguments[1]);
    if (PyErr_Occurred()) return NULL;
    if (prefixes < 0 || frames < 0 || prefixes > 1 << 20 || frames > 1 << 20)
        return PyErr_Format(PyExc_ValueError, "join: found %ld prefixes, %ld frames", prefixes, frames);
    long sizes[3] = {frames * n->joint * 4, prefixes * n->joint * 4, prefixes * frames * n->pieces * 4};
    if (take(arguments + 2, 3, 2, sizes, held)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    (level() == 2 ? join_avx512 : join_avx2)(n, prefixes, frames, held[0].buf, held[1].buf, held[2].buf);
    Py_END_ALLOW_THREADS
    release(held, 3);
#endif
    Py_RETURN_NONE;
}

/* Lists of floats, `rows` of `count` each, of which every next is `step` further in `values`. */
static PyObject *lists(const float *values, long rows, long count, long step) {
    PyObject *found = PyList_New(rows);
    for (long row = 0; found != NULL && row < rows; row++) {
        PyObject *own = PyList_New(count);
        for (long at = 0; own != NULL && at < count; at++) {
            PyObject *value = PyFloat_FromDouble(values[(row * count + at) * step]);
            if (value == NULL) Py_CLEAR(own);
            else PyList_SetItem(own, at, value);
        }
        if (own == NULL) Py_CLEAR(found);
        else PyList_SetItem(found, row, own);
    }
    return found;
}

/* edges(prefixes, frames, pieces, scores): of float32 [prefixes, frames, pieces] the blanks and the best labels, as
   lists of lists; pieces a multiple of 16 */
static PyObject *edges(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer held;
    if (count != 4) return PyErr_Format(PyExc_TypeError, "edges: %zd arguments, expected 4", count);
    long prefixes = PyLong_AsLong(arguments[0]), frames = PyLong_AsLong(arguments[1]);
    long pieces = PyLong_AsLong(arguments[2]);
    if (PyErr_Occurred()) return NULL;
    if (prefixes < 0 || frames < 0 || prefixes > 1 << 20 || frames > 1 << 20 || pieces < 16 || pieces > 1 << 20 ||
        pieces % 16 || !level())
        return PyErr_Format(PyExc_ValueError, "edges: found sizes %ld, %ld, %ld", prefixes, frames, pieces);
    long size = prefixes * frames * pieces * 4;
    if (take(arguments + 3, 1, 1, &size, &held)) return NULL;
    PyObject *blanks = NULL, *peaks = NULL;
    float *best = PyMem_Malloc((prefixes * frames + 1) * sizeof(float));
    if (best == NULL) PyErr_NoMemory();
#ifdef SUPPORTED
    else {
        (level() == 2 ? peaks_avx512 : peaks_avx2)(held.buf, prefixes * frames, pieces, best);
        blanks = lists(held.buf, prefixes, frames, pieces), peaks = lists(best, prefixes, frames, 1);
    }
#endif
    PyMem_Free(best);
    release(&held, 1);
    PyObject *found = blanks != NULL && peaks != NULL ? PyTuple_Pack(2, blanks, peaks) : NULL;
    Py_XDECREF(blanks);
    Py_XDECREF(peaks);
    return found;
}

/* above(row, pieces, scores, limit): of float32 [rows, pieces] the labels of a row, all pieces but the first, that are
   more than a limit, and their scores, as two lists */
static PyObject *above(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer held;
    if (count != 4) return PyErr_Format(PyExc_TypeError, "above: %zd arguments, expected 4", count);
    long row = PyLong_AsLong(arguments[0]), pieces = PyLong_AsLong(arguments[1]);
    float limit = (float)PyFloat_AsDouble(arguments[3]); /* as numpy compares float32 with a Python float */
    if (PyErr_Occurred()) return NULL;
    if (row < 0 || row > 1 << 30 || pieces < 1 || pieces > 1 << 20)
        return PyErr_Format(PyExc_ValueError, "above: found row %ld, %ld pieces", row, pieces);
    long size = (row + 1) * pieces * 4;
    if (take(arguments + 2, 1, 1, &size, &held)) return NULL;
    const float *scores = (const float *)held.buf + row * pieces;
    PyObject *labels = PyList_New(0), *values = PyList_New(0);
    int failed = labels == NULL || values == NULL;
    for (long at = 1; !failed && at < pieces; at++)
        if (scores[at] > limit) {
            PyObject *label = PyLong_FromLong(at), *value = PyFloat_FromDouble(scores[at]);
            failed = label == NULL || value == NULL || PyList_Append(labels, label) || PyList_Append(values, value);
            Py_XDECREF(label);
            Py_XDECREF(value);
        }
    release(&held, 1);
    PyObject *found = failed ? NULL : PyTuple_Pack(2, labels, values);
    Py_XDECREF(labels);
    Py_XDECREF(values);
    return found;
}

/* The sizes rows, hidden, steps, step and width. */
static int cells_of(PyObject *const *arguments, Cells *cells) {
    long *sizes[5] = {&cells->rows, &cells->hidden, &cells->steps, &cells->step, &cells->width};
    for (int at = 0; at < 5; at++) *sizes[at] = PyLong_AsLong(arguments[at]);
    if (PyErr_Occurred()) return -1;
    if (cells->rows < 0 || cells->rows > 1 << 24 || cells->hidden < 16 || cells->hidden > 1 << 16 ||
        cells->hidden % 16 || cells->steps < 1 || cells->steps > 1 << 16 || cells->step < 0 ||
        cells->step >= cells->steps || cells->width < cells->hidden || cells->width > 1 << 20 || !level()) {
        PyErr_Format(PyExc_ValueError, "cells: found %ld rows, %ld hidden, step %ld of %ld, width %ld", cells->rows,
                     cells->hidden, cells->step, cells->steps, cells->width);
        return -1;
    }
    return 0;
}

/* cells(rows, hidden, steps, step, width, gates, cells, squashed, outputs, taken): writes all five, see cells.h */
static PyObject *cells(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count) {
    Cells c = {0};
    Py_buffer held[5];
    if (count != 10) return PyErr_Format(PyExc_TypeError, "cells: %zd arguments, expected 10", count);
    if (cells_of(arguments, &c)) return NULL;
#ifdef SUPPORTED
    long each = c.rows * c.hidden * 4, all = c.steps * each;
    long sizes[5] = {4 * each, all, all, all, c.rows * c.steps * c.width * 4};
    if (take(arguments + 5, 5, 0, sizes, held)) return NULL;
    c.gates = held[0].buf, c.cells = held[1].buf, c.squashed = held[2].buf, c.outputs = held[3].buf;
    c.taken = held[4].buf;
    Py_BEGIN_ALLOW_THREADS
    (level() == 2 ? cells_avx512 : cells_avx2)(&c);
    Py_END_ALLOW_THREADS
    release(held, 5);
#endif
    Py_RETURN_NONE;
}

/* cells_back(rows, hidden, steps, step, gates, cells, squashed, outputs, output, cell, found): writes the last two;
   outputs may be None, see cells.h */
static PyObject *cells_back(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count) {
    Cells c = {0};
    Py_buffer held[7];
    if (count != 11) return PyErr_Format(PyExc_TypeError, "cells_back: %zd arguments, expected 11", count);
    PyObject *shared[5] = {arguments[0], arguments[1], arguments[2], arguments[3], arguments[1]};
    if (cells_of(shared, &c)) return NULL;
#ifdef SUPPORTED
    int given = arguments[7] != Py_None;
    long each = c.rows * c.hidden * 4, all = c.steps * each;
    long sizes[7] = {4 * each, all, all, given ? all : each, each, each, 4 * all};
    PyObject *buffers[7] = {arguments[4], arguments[5], arguments[6], given ? arguments[7] : arguments[8],
                            arguments[8], arguments[9], arguments[10]};
    if (take(buffers, 7, 5, sizes, held)) return NULL;
    c.gates = held[0].buf, c.cells = held[1].buf, c.squashed = held[2].buf;
    Py_BEGIN_ALLOW_THREADS
    (level() == 2 ? cells_back_avx512 : cells_back_avx2)(&c, given ? held[3].buf : NULL, held[4].buf, held[5].buf,
                                                         held[6].buf);
    Py_END_ALLOW_THREADS
    release(held, 7);
#endif
    Py_RETURN_NONE;
}

/* gradients(clients, rows, width, out, inputs, outputs, gradients, squares): writes the last two, see gradients.h */
static PyObject *gradients(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer held[4];
    long given[4];
    if (count != 8) return PyErr_Format(PyExc_TypeError, "gradients: %zd arguments, expected 8", count);
    for (int at = 0; at < 4; at++) given[at] = PyLong_AsLong(arguments[at]);
    if (PyErr_Occurred()) return NULL;
    long clients = given[0], rows = given[1], width = given[2], out = given[3];
    if (clients < 0 || clients > 1 << 20 || rows < 0 || rows > 1 << 20 || width < 1 || width > 1 << 16 || out < BLOCK ||
        out > 1 << 20 || out % BLOCK || !level())
        return PyErr_Format(PyExc_ValueError, "gradients: found %ld clients, %ld rows, widths %ld and %ld", clients, rows,
                            width, out);
#ifdef SUPPORTED
    long sizes[4] = {clients * rows * width * 4, clients * rows * out * 4, clients * width * out * 4,
                     clients * width * 4};
    if (take(arguments + 4, 4, 2, sizes, held)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    (level() == 2 ? gradients_avx512 : gradients_avx2)(clients, rows, width, out, held[0].buf, held[1].buf, held[2].buf,
                                                       held[3].buf);
    Py_END_ALLOW_THREADS
    release(held, 4);
#endif
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"gradients", (PyCFunction)(void (*)(void))gradients, METH_FASTCALL, NULL},
    {"cells", (PyCFunction)(void (*)(void))cells, METH_FASTCALL, NULL},
    {"cells_back", (PyCFunction)(void (*)(void))cells_back, METH_FASTCALL, NULL},
    {"edges", (PyCFunction)(void (*)(void))edges, METH_FASTCALL, NULL},
    {"above", (PyCFunction)(void (*)(void))above, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
static PyMethodDef network_methods[] = {
    {"predict", (PyCFunction)(void (*)(void))network_predict, METH_FASTCALL, NULL},
    {"join", (PyCFunction)(void (*)(void))network_join, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot network_slots[] = {
    {Py_tp_new, network_new}, {Py_tp_dealloc, network_free}, {Py_tp_methods, network_methods}, {0, NULL}};
static PyType_Spec network_spec = {"device_sdk.runtimes.native_kernels.native.Network", sizeof(Network), 0,
                                   Py_TPFLAGS_DEFAULT, network_slots};

static int module_exec(PyObject *module) {
    PyObject *type = PyType_FromSpec(&network_spec);
    if (type == NULL || PyModule_AddObject(module, "Network", type) < 0) return -1;
    return PyModule_AddIntConstant(module, "LEVEL", level());
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "native", NULL, 0, functions, module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_native(void) { return PyModuleDef_Init(&module); }
