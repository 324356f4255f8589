/* Many signatures verified in one call, without the interpreter's lock.
 *
 * Verifying is the work of libsodium, which is loaded already: its function is passed in as an
 * address. A loop in Python takes the lock again for each signature, and waits up to 5 ms for it
 * where another thread computes; this one takes it once for many.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#define KEY 32
#define SIGNATURE 64

/* crypto_sign_open of libsodium: writes the message behind a signature, 0 if it is verified. */
typedef int (*open_function)(unsigned char *message, unsigned long long *length,
                             const unsigned char *combined, unsigned long long combined_length,
                             const unsigned char *key);

/* A key and a signature are read where they lie: only their message is behind the signature. */
struct part {
    size_t at;     /* of the signature and its message, in the copied bytes */
    size_t length; /* 0: these bytes can be no signature */
};

/* Return the bytes of one member of a tuple; NULL, with the error set, if it has none. */
static PyObject *member(PyObject *item, Py_ssize_t index)
{
    PyObject *bytes = PyTuple_GET_ITEM(item, index);

    if (PyBytes_Check(bytes))
        return bytes;
    PyErr_Format(PyExc_TypeError, "a key, a signature and a message are bytes, not %.100s",
                 Py_TYPE(bytes)->tp_name);
    return NULL;
}

/* Copy what is verified, since other threads run meanwhile: for each the key, then its parts. */
static int copy(PyObject *signed_list, Py_ssize_t begin, Py_ssize_t end, struct part *parts,
                unsigned char *keys, unsigned char **combined, size_t *longest)
{
    size_t total = 0;

    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1 && (*combined = PyMem_RawMalloc(total ? total : 1)) == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        total = 0;
        for (Py_ssize_t i = begin; i < end; i++) {
            PyObject *item = PyList_GET_ITEM(signed_list, i), *key, *signature, *message;
            struct part *part = &parts[i - begin];

            if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 3) {
                PyErr_SetString(PyExc_TypeError, "each is a tuple of key, signature and message");
                return -1;
            }
            if ((key = member(item, 0)) == NULL || (signature = member(item, 1)) == NULL ||
                (message = member(item, 2)) == NULL)
                return -1;
            part->at = total;
            part->length = 0;
            if (PyBytes_GET_SIZE(key) != KEY || PyBytes_GET_SIZE(signature) != SIGNATURE)
                continue;
            part->length = SIGNATURE + (size_t)PyBytes_GET_SIZE(message);
            if (pass == 1) {
                unsigned char *at = *combined + total;
                memcpy(keys + KEY * (i - begin), PyBytes_AS_STRING(key), KEY);
                memcpy(at, PyBytes_AS_STRING(signature), SIGNATURE);
                memcpy(at + SIGNATURE, PyBytes_AS_STRING(message), PyBytes_GET_SIZE(message));
            }
            total += part->length;
            if (part->length > *longest)
                *longest = part->length;
        }
    }
    return 0;
}

PyDoc_STRVAR(first_unverified_doc,
             "first_unverified(function, signed, begin, end, /)\n--\n\n"
             "Return the first index of `signed[begin:end]` that is not verified; -1 if all are.\n\n"
             "function: the address of libsodium's crypto_sign_open.\n"
             "signed: a list of tuples of a key, a signature and a message.");

static PyObject *first_unverified(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *address, *signed_list, *result = NULL;
    Py_ssize_t begin, end, found = -1;
    unsigned char *keys = NULL, *combined = NULL, *scratch = NULL;
    struct part *parts = NULL;
    size_t longest = 1, count;
    open_function opens;

    if (!PyArg_ParseTuple(args, "O!O!nn:first_unverified", &PyLong_Type, &address, &PyList_Type,
                          &signed_list, &begin, &end))
        return NULL;
    if (begin < 0 || begin > end || end > PyList_GET_SIZE(signed_list)) {
        PyErr_SetString(PyExc_ValueError, "begin and end lie in the list, in this order");
        return NULL;
    }
    opens = (open_function)PyLong_AsVoidPtr(address);
    if (opens == NULL) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "function: an address, not 0");
        return NULL;
    }
    count = (size_t)(end - begin);
    parts = PyMem_RawCalloc(count ? count : 1, sizeof(struct part));
    keys = PyMem_RawCalloc(count ? count : 1, KEY);
    if (parts == NULL || keys == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    if (copy(signed_list, begin, end, parts, keys, &combined, &longest) < 0)
        goto done;
    scratch = PyMem_RawMalloc(longest);
    if (scratch == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = 0; i < count; i++) {
        unsigned long long length;
        if (parts[i].length == 0 || opens(scratch, &length, combined + parts[i].at,
                                          parts[i].length, keys + KEY * i) != 0) {
            found = begin + (Py_ssize_t)i;
            break;
        }
    }
    Py_END_ALLOW_THREADS
    result = PyLong_FromSsize_t(found);
done:
    PyMem_RawFree(scratch);
    PyMem_RawFree(combined);
    PyMem_RawFree(keys);
    PyMem_RawFree(parts);
    return result;
}

static PyMethodDef functions[] = {
    {"first_unverified", first_unverified, METH_VARARGS, first_unverified_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "datalattice__signatures",
    .m_doc = "Many signatures verified in one call.",
    .m_size = 0,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit_datalattice__signatures(void)
{
    return PyModuleDef_Init(&definition);
}
