/* One step of the prediction network, and the joint, of small transducers, and how a search reads its scores: what
   device_sdk/runtimes/native_kernels/__init__.py explains. Sizes are checked where these are called; here only that no
   buffer is too short. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

enum { BUFFERS = 13 };

#if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__)
#define SUPPORTED 1
#include <immintrin.h>

#define NAME(function) function##_avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")))
#define COLUMNS 4
#define BYTES
#include "kernels.h"
#undef NAME
#undef TARGET
#undef COLUMNS
#undef BYTES
#undef TOO_MUCH

#define NAME(function) function##_avx2
#define TARGET __attribute__((target("avx2,fma")))
#define COLUMNS 1
#include "kernels.h"
#define BEST(function) (level() == 2 ? function##_avx512 : function##_avx2)
#elif (defined(__GNUC__) || defined(__clang__)) && defined(__aarch64__)
#define SUPPORTED 1
#include <arm_neon.h>

#define NAME(function) function##_neon
#define TARGET
#define COLUMNS 1
#define BYTES
#include "kernels.h"
#define BEST(function) function##_neon
#else
#define TARGET
#include "kernels.h" /* the types alone */
#endif

typedef struct {
    PyObject_HEAD
    Py_buffer held[BUFFERS];
    int buffers, bytes;
    Weights weights;
} Network;

/* 2 where bytes are multiplied, 1 where float32 alone is quick, 0 where neither is. */
static int level(void) {
#ifdef __aarch64__
    return 2;
#elif defined(SUPPORTED)
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
        (state | joint) % 16) {
        PyErr_SetString(PyExc_ValueError, "sizes: expected 16 to 1024, of state and joint multiples of 16");
        return NULL;
    }
    if (level() < 1 + bytes) {
        PyErr_SetString(PyExc_ValueError, "this processor has no quick products of that kind");
        return NULL;
    }
    Network *n = (Network *)type->tp_alloc(type, 0);
    if (n == NULL) return NULL;
    Weights *w = &n->weights;
    w->state = state, w->joint = joint, w->pieces = pieces, n->bytes = bytes;
    long wide[3] = {4 * state, joint, pieces}, deep[3] = {state, state, joint}, size = pieces * 4 * state * 4;
    Matrix *matrices[3] = {&w->recurrent, &w->projection, &w->output};
    if (take(&table, 1, 1, &size, n->held)) goto failed;
    w->table = n->held[n->buffers++].buf;
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
    Weights *n = &((Network *)self)->weights;
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
    BEST(predict)(n, rows, tokens, held[1].buf, held[2].buf, held[3].buf, held[4].buf, held[5].buf);
    Py_END_ALLOW_THREADS
    release(held, 6);
#endif
    Py_RETURN_NONE;
}

/* join(prefixes, frames, encoded, predicted, log_probs): writes the last */
static PyObject *network_join(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
#ifdef SUPPORTED
    Weights *n = &((Network *)self)->weights;
    Py_buffer held[3];
    if (count != 5) return PyErr_Format(PyExc_TypeError, "join: %zd arguments, expected 5", count);
    long prefixes = PyLong_AsLong(arguments[0]), frames = PyLong_AsLong(arguments[1]);
    if (PyErr_Occurred()) return NULL;
    if (prefixes < 0 || frames < 0 || prefixes > 1 << 20 || frames > 1 << 20)
        return PyErr_Format(PyExc_ValueError, "join: found %ld prefixes, %ld frames", prefixes, frames);
    long sizes[3] = {frames * n->joint * 4, prefixes * n->joint * 4, prefixes * frames * n->pieces * 4};
    if (take(arguments + 2, 3, 2, sizes, held)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    BEST(join)(n, prefixes, frames, held[0].buf, held[1].buf, held[2].buf);
    Py_END_ALLOW_THREADS
    release(held, 3);
#endif
    Py_RETURN_NONE;
}

/* A list of `count` floats, of which every next is `step` further in `values`. */
static PyObject *list(const float *values, long count, long step) {
    PyObject *found = PyList_New(count);
    for (long at = 0; found != NULL && at < count; at++) {
        PyObject *value = PyFloat_FromDouble(values[at * step]);
        if (value == NULL) Py_CLEAR(found);
        else PyList_SetItem(found, at, value);
    }
    return found;
}

/* edges(prefixes, frames, pieces, scores): of float32 [prefixes, frames, pieces] the blanks and the best labels, a list
   of all of each; pieces at least 16 */
static PyObject *edges(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer held;
    if (count != 4) return PyErr_Format(PyExc_TypeError, "edges: %zd arguments, expected 4", count);
    long prefixes = PyLong_AsLong(arguments[0]), frames = PyLong_AsLong(arguments[1]);
    long pieces = PyLong_AsLong(arguments[2]);
    if (PyErr_Occurred()) return NULL;
    if (prefixes < 0 || frames < 0 || prefixes > 1 << 20 || frames > 1 << 20 || pieces < 16 || pieces > 1 << 20 ||
        !level())
        return PyErr_Format(PyExc_ValueError, "edges: found sizes %ld, %ld, %ld", prefixes, frames, pieces);
    long size = prefixes * frames * pieces * 4;
    if (take(arguments + 3, 1, 1, &size, &held)) return NULL;
    PyObject *blanks = NULL, *peaks = NULL;
    float *best = PyMem_Malloc((prefixes * frames + 1) * sizeof(float));
    if (best == NULL) PyErr_NoMemory();
#ifdef SUPPORTED
    else {
        BEST(peaks)(held.buf, prefixes * frames, pieces, best);
        blanks = list(held.buf, prefixes * frames, pieces), peaks = list(best, prefixes * frames, 1);
    }
#endif
    PyMem_Free(best);
    release(&held, 1);
    PyObject *found = blanks != NULL && peaks != NULL ? PyTuple_Pack(2, blanks, peaks) : NULL;
    Py_XDECREF(blanks);
    Py_XDECREF(peaks);
    return found;
}

typedef struct {
    double rank;
    long row, label;
    float score;
} Candidate;

/* The labels, all pieces but the first, of one row whose scores are more than a limit; -1 where memory ends. */
static long add_above(const float *scores, long pieces, float limit, double base, long row, Candidate **found,
                      long count, long *room) {
    for (long begin = 0; begin < pieces; begin += 16) {
        long end = begin + 16 < pieces ? begin + 16 : pieces;
        if (end == begin + 16) { /* as vectors; most often there is none */
            int any = 0;
            for (int at = 0; at < 16; at++) any |= scores[begin + at] > limit;
            if (!any) continue;
        }
        if (count + 16 > *room) {
            Candidate *wider = PyMem_Realloc(*found, (*room = 2 * *room + 64) * sizeof(Candidate));
            if (wider == NULL) return -1;
            *found = wider;
        }
        for (long at = begin ? begin : 1; at < end; at++)
            if (scores[at] > limit) (*found)[count++] = (Candidate){base + scores[at], row, at, scores[at]};
    }
    return count;
}

/* The `most` best candidates, best first, to the front; of equal ones, the last. */
static void select_best(Candidate *found, long count, long most) {
    for (long at = 0; at < count; at++) {
        Candidate each = found[at];
        long place = at < most ? at : most;
        while (place > 0 && found[place - 1].rank <= each.rank) {
            if (place < most) found[place] = found[place - 1];
            place--;
        }
        if (place < most) found[place] = each;
    }
}

typedef struct {
    Py_buffer held[5];
    long contexts;
    double weight, each;
} Ngram;

/* An n-gram from arguments (weight, each, first, pieces, nats, backoff, shorter), the arrays as
   device_sdk/bundle/piece_ngram.py describes them; to be released. */
static int take_ngram(PyObject *const *arguments, Ngram *n) {
    long sizes[5] = {8, 0, 0, 0, 0};
    n->weight = PyFloat_AsDouble(arguments[0]), n->each = PyFloat_AsDouble(arguments[1]);
    if (PyErr_Occurred() || take(arguments + 2, 5, 5, sizes, n->held)) return -1;
    n->contexts = (long)(n->held[0].len / 4) - 1;
    long arcs = ((const int *)n->held[0].buf)[n->contexts];
    if (n->held[1].len < 2 * arcs || n->held[2].len < 4 * arcs || n->held[3].len < 4 * n->contexts ||
        n->held[4].len < 4 * n->contexts) {
        PyErr_Format(PyExc_ValueError, "n-gram: found arrays too short for %ld contexts, %ld arcs", n->contexts, arcs);
        release(n->held, 5);
        return -1;
    }
    return 0;
}

/* Whether a context and a label are the n-gram's; else with an error. */
static int knows(const Ngram *n, long context, long label) {
    if (context >= 0 && context < n->contexts && label >= 0 && label < ((const int *)n->held[0].buf)[1]) return 1;
    if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "n-gram: found context %ld, label %ld", context, label);
    return 0;
}

/* What a search gains by a label after a context. */
static double gained(const Ngram *n, long context, long label) {
    const int *first = n->held[0].buf, *shorter = n->held[4].buf;
    const unsigned short *pieces = n->held[1].buf;
    const float *nats = n->held[2].buf, *backoff = n->held[3].buf;
    double sum = 0.0;
    for (; context; context = shorter[context]) {
        long low = first[context], high = first[context + 1], end = high;
        while (low < high) {
            long middle = (low + high) / 2;
            if (pieces[middle] < label) low = middle + 1;
            else high = middle;
        }
        if (low < end && pieces[low] == label) {
            label = low;
            break;
        }
        sum += backoff[context];
    }
    return n->weight * (sum + nats[label]) + n->each; /* the empty context has the arc of each label at its place */
}

/* ahead(context, labels, n-gram): what each of some labels gains after a context: a list. */
static PyObject *ahead(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count) {
    if (count != 9) return PyErr_Format(PyExc_TypeError, "ahead: %zd arguments, expected 9", count);
    long context = PyLong_AsLong(arguments[0]);
    Py_ssize_t labels = PyErr_Occurred() ? -1 : PyList_Size(arguments[1]);
    Ngram n;
    if (labels < 0 || take_ngram(arguments + 2, &n)) return NULL;
    PyObject *found = PyList_New(labels);
    for (Py_ssize_t at = 0; found != NULL && at < labels; at++) {
        long label = PyLong_AsLong(PyList_GetItem(arguments[1], at));
        PyObject *value = knows(&n, context, label) ? PyFloat_FromDouble(gained(&n, context, label)) : NULL;
        if (value == NULL) Py_CLEAR(found);
        else PyList_SetItem(found, at, value);
    }
    release(n.held, 5);
    return found;
}

/* above(scores, places, bases, limits, most): of rows of float32, each at its place in an array [n, pieces], the labels
   that are more than the row's limit; of more than `most` those best with the row's base, best first. Lists: the rows,
   the labels, their scores, these with the bases. With contexts, a least sum and an n-gram besides (above(..., contexts,
   least, n-gram)), all that with what the n-gram gains is at most the least is left out, and the best are so with it,
   which is in the last list, too. */
static PyObject *above(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count) {
    if (count != 5 && count != 14) return PyErr_Format(PyExc_TypeError, "above: %zd arguments, expected 5 or 14", count);
    long most = PyLong_AsLong(arguments[4]), found = 0, room = 0;
    double least = count > 5 ? PyFloat_AsDouble(arguments[6]) : 0.0;
    Ngram n;
    if (PyErr_Occurred()) return NULL;
    if (most < 0) return PyErr_Format(PyExc_ValueError, "above: found %ld as the most", most);
    if (count > 5 && take_ngram(arguments + 7, &n)) return NULL;
    Py_ssize_t rows = PyList_Size(arguments[0]);
    Candidate *candidates = NULL;
    if (rows < 0) goto failed;
    for (Py_ssize_t row = 0; row < rows && found >= 0; row++) {
        PyObject *parts[4];
        long begin = found;
        Py_buffer held;
        for (int part = 0; part < 4; part++) /* borrowed; NULL, with an error, where a list is too short */
            if ((parts[part] = PyList_GetItem(arguments[part], row)) == NULL) goto failed;
        long place = PyLong_AsLong(parts[1]);
        double base = PyFloat_AsDouble(parts[2]);
        float limit = (float)PyFloat_AsDouble(parts[3]); /* as numpy compares float32 with a Python float */
        if (PyErr_Occurred() || PyObject_GetBuffer(parts[0], &held, PyBUF_ND)) goto failed;
        if (held.ndim != 2 || held.itemsize != 4 || place < 0 || place >= held.shape[0])
            PyErr_Format(PyExc_ValueError, "above: found row %ld of an array of %zd bytes", place, held.len);
        else {
            const float *scores = (const float *)held.buf + place * held.shape[1];
            found = add_above(scores, held.shape[1], limit, base, row, &candidates, found, &room);
            if (found < 0) PyErr_NoMemory();
        }
        PyBuffer_Release(&held);
        if (PyErr_Occurred()) goto failed;
        if (count > 5) {
            PyObject *part = PyList_GetItem(arguments[5], row);
            long context = part == NULL ? -1 : PyLong_AsLong(part), end = found;
            if (PyErr_Occurred()) goto failed; /* also where nothing is above */
            found = begin;
            for (long at = begin; at < end; at++) {
                if (!knows(&n, context, candidates[at].label)) goto failed;
                candidates[at].rank += gained(&n, context, candidates[at].label);
                if (candidates[at].rank > least) candidates[found++] = candidates[at];
            }
        }
    }
    if (found > most) {
        select_best(candidates, found, most);
        found = most;
    }
    PyObject *lists[4], *all = NULL;
    int whole = 1;
    for (int each = 0; each < 4; each++) whole &= (lists[each] = PyList_New(found)) != NULL;
    for (long at = 0; whole && at < found; at++) {
        const Candidate *c = candidates + at;
        PyObject *values[4] = {PyLong_FromLong(c->row), PyLong_FromLong(c->label), PyFloat_FromDouble(c->score),
                               PyFloat_FromDouble(c->rank)};
        for (int each = 0; each < 4; each++) {
            whole &= values[each] != NULL;
            PyList_SetItem(lists[each], at, values[each]);
        }
    }
    if (whole) all = PyTuple_Pack(4, lists[0], lists[1], lists[2], lists[3]);
    for (int each = 0; each < 4; each++) Py_XDECREF(lists[each]);
    PyMem_Free(candidates);
    if (count > 5) release(n.held, 5);
    return all;
failed:
    PyMem_Free(candidates);
    if (count > 5) release(n.held, 5);
    return NULL;
}

static PyMethodDef functions[] = {
    {"edges", (PyCFunction)(void (*)(void))edges, METH_FASTCALL, NULL},
    {"above", (PyCFunction)(void (*)(void))above, METH_FASTCALL, NULL},
    {"ahead", (PyCFunction)(void (*)(void))ahead, METH_FASTCALL, NULL},
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
