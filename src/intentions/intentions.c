/* Received intentions decoded in one call: those that are written and bounded as nearly all are.
 *
 * What differs in any way (another encoding, a field out of bounds, another store) is left to the
 * Python code, which says what is wrong with it, or reads it. So nothing is refused here, and
 * nothing is taken that the Python code would refuse.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#define HASH 32
#define STORE_ID 16
#define SIGNATURE 64

/* author, wall time, counter, store id, store_prev, variant of the condition, number of hashes */
#define AT_WALL 32
#define AT_COUNTER 40
#define AT_STORE_ID 44
#define AT_PREV 60
#define AT_VARIANT 92
#define AT_COUNT 93
#define HEAD 97
#define LENGTH 4

#define LENGTH_DIGITS 4 /* of the length in an envelope: more than any intention takes */

/* What all intentions of a call share; borrowed. */
struct call {
    PyObject *store_id, *blake3, *digest;
    PyTypeObject *stamp, *intention, *signed_intention; /* tuples with names */
    Py_ssize_t payload_max, deps_max;
};

static uint64_t little(const unsigned char *at, int bytes)
{
    uint64_t value = 0;

    while (bytes--)
        value = value << 8 | at[bytes];
    return value;
}

/* Return a tuple with names of `count` parts, whose references it takes; NULL if one is missing. */
static PyObject *named(PyTypeObject *type, int count, PyObject **parts)
{
    PyObject *made = NULL;
    int complete = 1;

    for (int i = 0; i < count; i++)
        complete = complete && parts[i] != NULL;
    if (complete)
        made = type->tp_alloc(type, count);
#if PY_VERSION_HEX >= 0x030E0000
    if (made != NULL)
        ((PyTupleObject *)made)->ob_hash = -1; /* not computed: zero would be a hash */
#endif
    for (int i = 0; i < count; i++) {
        if (made != NULL)
            PyTuple_SET_ITEM(made, i, parts[i]);
        else
            Py_XDECREF(parts[i]);
    }
    return made;
}

static PyObject *bytes(const unsigned char *at, size_t size)
{
    return PyBytes_FromStringAndSize((const char *)at, (Py_ssize_t)size);
}

static PyObject *hash(const struct call *call, PyObject *borsh)
{
    /* Nothing is called once memory has run out, be it for another part. */
    PyObject *hasher = PyErr_Occurred() ? NULL : PyObject_CallOneArg(call->blake3, borsh);
    PyObject *found = hasher == NULL ? NULL : PyObject_CallMethodNoArgs(hasher, call->digest);

    Py_XDECREF(hasher);
    return found;
}

/* Return the bytes of the intention in an envelope and their number; NULL: it is written in another
 * way. "field 1 the bytes, field 2 the signature" */
static const unsigned char *open_envelope(const unsigned char *at, size_t size, size_t *length)
{
    size_t used = 1;
    int shift = 0;

    *length = 0;
    if (size == 0 || at[0] != 0x0a)
        return NULL;
    do {
        if (used == size || used > LENGTH_DIGITS)
            return NULL;
        *length |= (size_t)(at[used] & 0x7f) << shift;
        shift += 7;
    } while (at[used++] & 0x80);
    if (size != used + *length + 2 + SIGNATURE)
        return NULL;
    at += used;
    return at[*length] == 0x12 && at[*length + 1] == SIGNATURE ? at : NULL;
}

/* Return the number of dependencies of an intention that passes every check; -1: of none such. */
static Py_ssize_t check(const struct call *call, const unsigned char *at, size_t size)
{
    uint64_t count, end;

    if (size < HEAD + LENGTH || at[AT_VARIANT] != 0)
        return -1;
    if (memcmp(at + AT_STORE_ID, PyBytes_AS_STRING(call->store_id), STORE_ID) != 0)
        return -1;
    count = little(at + AT_COUNT, 4);
    if (count > (uint64_t)call->deps_max)
        return -1;
    end = HEAD + HASH * count;
    if (end + LENGTH > size || little(at + end, LENGTH) != size - end - LENGTH)
        return -1;
    if (size - end - LENGTH > (uint64_t)call->payload_max)
        return -1;
    /* "Hashes are sorted ascending"; equal neighbours are allowed. */
    for (uint64_t i = 1; i < count; i++)
        if (memcmp(at + HEAD + HASH * (i - 1), at + HEAD + HASH * i, HASH) > 0)
            return -1;
    return (Py_ssize_t)count;
}

static PyObject *intention(const struct call *call, const unsigned char *at, size_t size,
                           Py_ssize_t count)
{
    size_t end = HEAD + HASH * (size_t)count + LENGTH;
    PyObject *stamp[2] = {PyLong_FromUnsignedLongLong(little(at + AT_WALL, 8)),
                          PyLong_FromUnsignedLongLong(little(at + AT_COUNTER, 4))};
    PyObject *deps = PyTuple_New(count);
    PyObject *parts[6];

    for (Py_ssize_t i = 0; deps != NULL && i < count; i++) {
        PyObject *dep = bytes(at + HEAD + HASH * i, HASH);
        if (dep == NULL)
            Py_CLEAR(deps);
        else
            PyTuple_SET_ITEM(deps, i, dep);
    }
    parts[0] = bytes(at, HASH);
    parts[1] = named(call->stamp, 2, stamp);
    parts[2] = Py_NewRef(call->store_id);
    parts[3] = bytes(at + AT_PREV, HASH);
    parts[4] = deps;
    parts[5] = bytes(at + end, size - end);
    return named(call->intention, 6, parts);
}

/* Return the signed intention in an envelope; None where the Python code has to look at it. */
static PyObject *decode(const struct call *call, PyObject *envelope)
{
    const unsigned char *at;
    size_t size;
    Py_ssize_t count;
    PyObject *parts[4];

    if (!PyBytes_Check(envelope))
        Py_RETURN_NONE;
    at = open_envelope((const unsigned char *)PyBytes_AS_STRING(envelope),
                       (size_t)PyBytes_GET_SIZE(envelope), &size);
    if (at == NULL || (count = check(call, at, size)) < 0)
        Py_RETURN_NONE;
    parts[0] = intention(call, at, size, count);
    parts[1] = bytes(at, size);
    parts[2] = bytes(at + size + 2, SIGNATURE);
    parts[3] = hash(call, parts[1]);
    return named(call->signed_intention, 4, parts);
}

PyDoc_STRVAR(decode_many_doc,
             "decode_many(envelopes, store_id, payload_max, deps_max, blake3, kinds, /)\n--\n\n"
             "Return the signed intention in each of a list of envelopes.\n\n"
             "None stands where the envelope has another encoding than the usual one, is of another\n"
             "store, or beyond the bounds.\n\n"
             "kinds: the named tuples of a stamp, an intention and a signed one.");

static PyObject *decode_many(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *envelopes, *found;
    PyTypeObject *types[3];
    struct call call;

    if (!PyArg_ParseTuple(args, "O!O!nnO(O!O!O!):decode_many", &PyList_Type, &envelopes,
                          &PyBytes_Type, &call.store_id, &call.payload_max, &call.deps_max,
                          &call.blake3, &PyType_Type, &types[0], &PyType_Type, &types[1],
                          &PyType_Type, &types[2]))
        return NULL;
    for (int i = 0; i < 3; i++) {
        if (!PyType_IsSubtype(types[i], &PyTuple_Type)) {
            PyErr_SetString(PyExc_TypeError, "stamp, intention and signed are classes of tuples");
            return NULL;
        }
    }
    if (PyBytes_GET_SIZE(call.store_id) != STORE_ID || call.payload_max < 0 || call.deps_max < 0) {
        PyErr_SetString(PyExc_ValueError, "a store id has 16 bytes, and no bound is negative");
        return NULL;
    }
    call.stamp = types[0];
    call.intention = types[1];
    call.signed_intention = types[2];
    call.digest = PyUnicode_InternFromString("digest");
    found = call.digest == NULL ? NULL : PyList_New(0);
    for (Py_ssize_t i = 0; found != NULL && i < PyList_GET_SIZE(envelopes); i++) {
        PyObject *one = decode(&call, PyList_GET_ITEM(envelopes, i));
        if (one == NULL || PyList_Append(found, one) < 0)
            Py_CLEAR(found);
        Py_XDECREF(one);
    }
    Py_XDECREF(call.digest);
    return found;
}

static PyMethodDef functions[] = {
    {"decode_many", decode_many, METH_VARARGS, decode_many_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "datalattice__intentions",
    .m_doc = "Received intentions decoded in one call.",
    .m_size = 0,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit_datalattice__intentions(void)
{
    return PyModuleDef_Init(&definition);
}
