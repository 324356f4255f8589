/* Many signatures verified by any number of threads, without the interpreter's lock.
 *
 * Verifying is the work of libsodium, which is loaded already: its function is passed in as an
 * address. A loop in Python takes the lock again for each signature, and waits up to 5 ms for it
 * where another thread computes. Here threads share the signatures out among them without it.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#define KEY 32
#define SIGNATURE 64
#define LOT 16 /* signatures that a thread takes at a time: half a millisecond */

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

/* The signatures of one call. Its bytes are copies: other threads run meanwhile. */
struct verification {
    PyObject_HEAD
    open_function opens;
    struct part *parts;
    unsigned char *keys, *combined; /* a key for each, and the signatures with their messages */
    size_t count, longest;
    PyThread_type_lock lock; /* of the next three */
    size_t next;             /* the first that no thread has begun */
    size_t done;
    size_t unverified;       /* the least index of a bad one; `count` if all are good */
    PyThread_type_lock open; /* held until all are done */
};

/* Copy what is verified; return -1, with the error set, if something is no bytes. */
static int copy(struct verification *self, PyObject *signed_list)
{
    size_t total = 0;

    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1 && (self->combined = PyMem_RawMalloc(total ? total : 1)) == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        total = 0;
        for (size_t i = 0; i < self->count; i++) {
            PyObject *item = PyList_GET_ITEM(signed_list, i), *key, *signature, *message;
            struct part *part = &self->parts[i];

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
                unsigned char *at = self->combined + total;
                memcpy(self->keys + KEY * i, PyBytes_AS_STRING(key), KEY);
                memcpy(at, PyBytes_AS_STRING(signature), SIGNATURE);
                memcpy(at + SIGNATURE, PyBytes_AS_STRING(message), PyBytes_GET_SIZE(message));
            }
            total += part->length;
            if (part->length > self->longest)
                self->longest = part->length;
        }
    }
    return 0;
}

/* Verify what no thread has begun; return once nothing is left to begin. Without the lock of the
 * interpreter. */
static void verify(struct verification *self, unsigned char *scratch)
{
    for (;;) {
        size_t begin, end, i, last;
        unsigned long long length;

        PyThread_acquire_lock(self->lock, WAIT_LOCK);
        begin = self->next;
        end = self->count - begin < LOT ? self->count : begin + LOT;
        self->next = end;
        PyThread_release_lock(self->lock);
        if (begin == end)
            return;
        for (i = begin; i < end; i++) {
            const struct part *part = &self->parts[i];
            if (part->length == 0 || self->opens(scratch, &length, self->combined + part->at,
                                                 part->length, self->keys + KEY * i) != 0)
                break;
        }
        PyThread_acquire_lock(self->lock, WAIT_LOCK);
        self->done += end - begin;
        if (i < end) {
            /* Lots are begun in order, so the least index of all that are found is the first. */
            if (i < self->unverified)
                self->unverified = i;
            self->done += self->count - self->next; /* the others are left out */
            self->next = self->count;
        }
        last = self->done == self->count;
        PyThread_release_lock(self->lock);
        if (last)
            PyThread_release_lock(self->open);
    }
}

/* Verify what no thread has begun; return whether there was memory for it. */
static int run(struct verification *self)
{
    unsigned char *scratch = PyMem_RawMalloc(self->longest);

    if (scratch == NULL)
        return 0;
    Py_BEGIN_ALLOW_THREADS
    verify(self, scratch);
    Py_END_ALLOW_THREADS
    PyMem_RawFree(scratch);
    return 1;
}

PyDoc_STRVAR(assist_doc, "assist($self, /)\n--\n\n"
                         "Verify what no thread has begun; return once nothing is left to begin.");

static PyObject *assist(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    run((struct verification *)self); /* what this thread has no memory for is left to `finish` */
    Py_RETURN_NONE;
}

PyDoc_STRVAR(finish_doc, "finish($self, /)\n--\n\n"
                         "Verify the rest; return the first index that is not verified, or None.");

static PyObject *finish(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    struct verification *self = (struct verification *)object;

    if (!run(self))
        return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    PyThread_acquire_lock(self->open, WAIT_LOCK); /* what other threads have begun */
    PyThread_release_lock(self->open);
    Py_END_ALLOW_THREADS
    if (self->unverified == self->count)
        Py_RETURN_NONE;
    return PyLong_FromSize_t(self->unverified);
}

static void verification_dealloc(PyObject *object)
{
    struct verification *self = (struct verification *)object;
    PyTypeObject *type = Py_TYPE(object);

    /* Nothing waits for it: whoever does has a reference. */
    if (self->open != NULL) {
        PyThread_acquire_lock(self->open, NOWAIT_LOCK);
        PyThread_release_lock(self->open);
        PyThread_free_lock(self->open);
    }
    if (self->lock != NULL)
        PyThread_free_lock(self->lock);
    PyMem_RawFree(self->combined);
    PyMem_RawFree(self->keys);
    PyMem_RawFree(self->parts);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *verification_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *address, *signed_list;
    struct verification *self;

    if (keywords != NULL && PyDict_GET_SIZE(keywords) != 0) {
        PyErr_SetString(PyExc_TypeError, "Verification takes no keywords");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!O!:Verification", &PyLong_Type, &address, &PyList_Type,
                          &signed_list))
        return NULL;
    self = (struct verification *)type->tp_alloc(type, 0); /* zeros */
    if (self == NULL)
        return NULL;
    self->opens = (open_function)PyLong_AsVoidPtr(address);
    if (self->opens == NULL) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "function: an address, not 0");
        goto failed;
    }
    self->count = self->unverified = (size_t)PyList_GET_SIZE(signed_list);
    self->longest = 1;
    self->parts = PyMem_RawCalloc(self->count ? self->count : 1, sizeof(struct part));
    self->keys = PyMem_RawCalloc(self->count ? self->count : 1, KEY);
    self->lock = PyThread_allocate_lock();
    self->open = PyThread_allocate_lock();
    if (self->parts == NULL || self->keys == NULL || self->lock == NULL || self->open == NULL) {
        PyErr_NoMemory();
        goto failed;
    }
    if (copy(self, signed_list) < 0)
        goto failed;
    if (self->count != 0)
        PyThread_acquire_lock(self->open, WAIT_LOCK);
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

static PyMethodDef methods[] = {
    {"assist", assist, METH_NOARGS, assist_doc},
    {"finish", finish, METH_NOARGS, finish_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(verification_doc,
             "Verification(function, signed, /)\n--\n\n"
             "Signatures that any number of threads verify together, by `assist` and `finish`.\n\n"
             "function: the address of libsodium's crypto_sign_open.\n"
             "signed: a list of tuples of a key, a signature and a message.");

static PyType_Slot slots[] = {
    {Py_tp_new, verification_new},
    {Py_tp_dealloc, verification_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_doc, (void *)verification_doc},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "datalattice__signatures.Verification",
    .basicsize = sizeof(struct verification),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

static int add_types(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&spec);
    int result = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);

    Py_XDECREF(type);
    return result;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, add_types},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "datalattice__signatures",
    .m_doc = "Many signatures verified by any number of threads.",
    .m_size = 0,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit_datalattice__signatures(void)
{
    return PyModuleDef_Init(&definition);
}
