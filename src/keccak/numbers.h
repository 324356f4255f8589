/* HashNumbers: numbers by hash, as a dict has them, in 53 to 107 bytes each instead of 133.
 *
 * One block has all slots, each with a hash and its number. The place of a hash is its first 8
 * bytes times a random factor, so that the maker of cells cannot choose hashes with the same place.
 * If that slot is taken, the next free one is used. The interpreter's lock is held throughout,
 * except while a copy is sorted.
 */

#define FEWEST_SLOTS 64
#define FREE INT64_MIN   /* the number of a slot without a hash */
#define ROW (DIGEST + 8) /* bytes of a hash and its number */

struct slot {
    unsigned char hash[DIGEST];
    int64_t number;
};

struct numbers {
    PyObject_HEAD
    struct slot *slots;
    size_t count;   /* of slots, a power of two */
    size_t used;
    uint64_t factor; /* odd */
    int shift;       /* 64 less the bits of a place */
};

static uint64_t new_factor = 1; /* of tables made from now on; set when the module is loaded */

static size_t place_of(const struct numbers *table, const unsigned char *hash)
{
    return (size_t)((load(hash) * table->factor) >> table->shift);
}

/* Return the slot of a hash, or the free one where it belongs. */
static struct slot *slot_of(const struct numbers *table, const unsigned char *hash)
{
    size_t at = place_of(table, hash);

    while (table->slots[at].number != FREE && memcmp(table->slots[at].hash, hash, DIGEST) != 0)
        at = (at + 1) & (table->count - 1);
    return &table->slots[at];
}

/* Give a table `count` free slots, and move what it has into them; -1 with an error. */
static int resize(struct numbers *table, size_t count)
{
    struct slot *before = table->slots, *slots = PyMem_New(struct slot, count);
    size_t before_count = table->count;

    if (slots == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < count; i++)
        slots[i].number = FREE;
    table->slots = slots;
    table->count = count;
    table->shift = 64;
    for (size_t left = count; left > 1; left /= 2)
        table->shift--;
    for (size_t i = 0; i < before_count; i++)
        if (before[i].number != FREE)
            *slot_of(table, before[i].hash) = before[i];
    PyMem_Free(before);
    return 0;
}

/* Return the bytes of a hash; NULL with an error. */
static const unsigned char *hash_of(PyObject *given)
{
    if (!PyBytes_Check(given) || PyBytes_GET_SIZE(given) != DIGEST) {
        PyErr_SetString(PyExc_TypeError, "a hash is 32 bytes");
        return NULL;
    }
    return (const unsigned char *)PyBytes_AS_STRING(given);
}

static PyObject *numbers_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    struct numbers *table;

    if (!PyArg_ParseTuple(args, "") || (kwargs != NULL && PyDict_GET_SIZE(kwargs))) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "HashNumbers() takes no arguments");
        return NULL;
    }
    table = (struct numbers *)type->tp_alloc(type, 0);
    if (table != NULL) {
        table->factor = new_factor;
        if (resize(table, FEWEST_SLOTS) < 0)
            Py_CLEAR(table);
    }
    return (PyObject *)table;
}

static void numbers_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    PyMem_Free(((struct numbers *)self)->slots);
    type->tp_free(self);
    Py_DECREF(type);
}

static Py_ssize_t numbers_length(PyObject *self)
{
    return (Py_ssize_t)((struct numbers *)self)->used;
}

PyDoc_STRVAR(get_doc,
"get(hash, /)\n--\n\n"
"Return the number of a hash, or None.");

static PyObject *numbers_get(PyObject *self, PyObject *given)
{
    const unsigned char *hash = hash_of(given);
    const struct slot *slot;

    if (hash == NULL)
        return NULL;
    slot = slot_of((struct numbers *)self, hash);
    if (slot->number == FREE)
        Py_RETURN_NONE;
    return PyLong_FromLongLong(slot->number);
}

PyDoc_STRVAR(get_many_doc,
"get_many(hashes, absent, /)\n--\n\n"
"Return the numbers of a list of hashes in their order, `absent` for those that have none.");

static PyObject *numbers_get_many(PyObject *self, PyObject *args)
{
    PyObject *hashes, *absent, *found;

    if (!PyArg_ParseTuple(args, "O!O", &PyList_Type, &hashes, &absent))
        return NULL;
    found = PyList_New(0);
    for (Py_ssize_t i = 0; found != NULL && i < PyList_GET_SIZE(hashes); i++) {
        const unsigned char *hash = hash_of(PyList_GET_ITEM(hashes, i));
        const struct slot *slot = hash ? slot_of((struct numbers *)self, hash) : NULL;
        PyObject *number = NULL;
        if (slot != NULL)
            number = slot->number == FREE ? Py_NewRef(absent) : PyLong_FromLongLong(slot->number);
        if (number == NULL || PyList_Append(found, number) < 0)
            Py_CLEAR(found);
        Py_XDECREF(number);
    }
    return found;
}

PyDoc_STRVAR(has_any_doc,
"has_any(hashes, /)\n--\n\n"
"Return whether one hash of a list has a number.");

static PyObject *numbers_has_any(PyObject *self, PyObject *hashes)
{
    if (!PyList_Check(hashes)) {
        PyErr_SetString(PyExc_TypeError, "hashes are a list");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(hashes); i++) {
        const unsigned char *hash = hash_of(PyList_GET_ITEM(hashes, i));
        if (hash == NULL)
            return NULL;
        if (slot_of((struct numbers *)self, hash)->number != FREE)
            Py_RETURN_TRUE;
    }
    Py_RETURN_FALSE;
}

PyDoc_STRVAR(add_doc,
"add(hashes, numbers, /)\n--\n\n"
"Set the number of each of a list of hashes, from a list of as many above -2**63.");

static PyObject *numbers_add(PyObject *self, PyObject *args)
{
    struct numbers *table = (struct numbers *)self;
    PyObject *hashes, *given;

    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &hashes, &PyList_Type, &given))
        return NULL;
    if (PyList_GET_SIZE(hashes) != PyList_GET_SIZE(given)) {
        PyErr_SetString(PyExc_ValueError, "each hash has one number");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(hashes); i++) {
        const unsigned char *hash = hash_of(PyList_GET_ITEM(hashes, i));
        PyObject *number = PyList_GET_ITEM(given, i);
        struct slot *slot;
        int64_t value;
        if (hash == NULL)
            return NULL;
        if (!PyLong_Check(number)) {
            PyErr_SetString(PyExc_TypeError, "a number is an int");
            return NULL;
        }
        value = PyLong_AsLongLong(number);
        if (value == -1 && PyErr_Occurred())
            return NULL;
        if (value == FREE) {
            PyErr_SetString(PyExc_OverflowError, "a number is above -2**63");
            return NULL;
        }
        /* At most three of four slots are used, so that searches are short and end. */
        if (4 * (table->used + 1) > 3 * table->count && resize(table, 2 * table->count) < 0)
            return NULL;
        slot = slot_of(table, hash);
        if (slot->number == FREE) {
            memcpy(slot->hash, hash, DIGEST);
            table->used++;
        }
        slot->number = value;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(remove_doc,
"remove(hash, /)\n--\n\n"
"Remove a hash and its number, if it has one.");

static PyObject *numbers_remove(PyObject *self, PyObject *given)
{
    struct numbers *table = (struct numbers *)self;
    const unsigned char *hash = hash_of(given);
    size_t gap, at, mask = table->count - 1;

    if (hash == NULL)
        return NULL;
    gap = (size_t)(slot_of(table, hash) - table->slots);
    if (table->slots[gap].number == FREE)
        Py_RETURN_NONE;
    /* The hashes before the next free slot move up, unless their place is behind the gap. */
    for (at = (gap + 1) & mask; table->slots[at].number != FREE; at = (at + 1) & mask) {
        size_t own = place_of(table, table->slots[at].hash);
        if (((at - own) & mask) >= ((at - gap) & mask)) {
            table->slots[gap] = table->slots[at];
            gap = at;
        }
    }
    table->slots[gap].number = FREE;
    table->used--;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(items_doc,
"items()\n--\n\n"
"Return a list of (hash, number), in any order.");

static PyObject *numbers_items(PyObject *self, PyObject *unused)
{
    PyObject *found = PyList_New(0);

    (void)unused;
    /* Making a pair may collect garbage, and so run code that changes the table. */
    for (size_t i = 0; found != NULL && i < ((struct numbers *)self)->count; i++) {
        const struct slot slot = ((struct numbers *)self)->slots[i];
        PyObject *pair;
        if (slot.number == FREE)
            continue;
        pair = Py_BuildValue("(y#L)", slot.hash, (Py_ssize_t)DIGEST, (long long)slot.number);
        if (pair == NULL || PyList_Append(found, pair) < 0)
            Py_CLEAR(found);
        Py_XDECREF(pair);
    }
    return found;
}

PyDoc_STRVAR(sorted_rows_doc,
"sorted_rows()\n--\n\n"
"Return all hashes in increasing order, each with its number in 8 bytes, big-endian, end to end.");

static PyObject *numbers_sorted_rows(PyObject *self, PyObject *unused)
{
    const struct numbers *table = (struct numbers *)self;
    size_t used = table->used, found = 0;
    struct slot *slots = PyMem_New(struct slot, used + 1);
    struct ranked *rows = PyMem_New(struct ranked, 2 * used + 1);
    PyObject *sorted_rows = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(ROW * used));

    (void)unused;
    if (slots == NULL || rows == NULL) {
        PyErr_NoMemory();
        Py_CLEAR(sorted_rows);
    }
    if (sorted_rows != NULL) {
        unsigned char *to = (unsigned char *)PyBytes_AS_STRING(sorted_rows);
        const struct ranked *order;
        for (size_t i = 0; i < table->count; i++)
            if (table->slots[i].number != FREE)
                slots[found++] = table->slots[i];
        Py_BEGIN_ALLOW_THREADS
        for (size_t i = 0; i < used; i++)
            rows[i] = ranked(slots[i].hash, i);
        order = sorted(rows, rows + used, used);
        for (size_t i = 0; i < used; i++, to += ROW) {
            uint64_t number = (uint64_t)slots[order[i].number].number;
            memcpy(to, order[i].digest, DIGEST);
            for (int byte = 0; byte < 8; byte++)
                to[DIGEST + byte] = (unsigned char)(number >> (56 - 8 * byte));
        }
        Py_END_ALLOW_THREADS
    }
    PyMem_Free(rows);
    PyMem_Free(slots);
    return sorted_rows;
}

static PyMethodDef numbers_methods[] = {
    {"get", numbers_get, METH_O, get_doc},
    {"get_many", numbers_get_many, METH_VARARGS, get_many_doc},
    {"has_any", numbers_has_any, METH_O, has_any_doc},
    {"add", numbers_add, METH_VARARGS, add_doc},
    {"remove", numbers_remove, METH_O, remove_doc},
    {"items", numbers_items, METH_NOARGS, items_doc},
    {"sorted_rows", numbers_sorted_rows, METH_NOARGS, sorted_rows_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot numbers_slots[] = {
    {Py_tp_doc, (void *)"Numbers by hash, in less memory than a dict."},
    {Py_tp_new, numbers_new},
    {Py_tp_dealloc, numbers_dealloc},
    {Py_sq_length, numbers_length},
    {Py_tp_methods, numbers_methods},
    {0, NULL},
};

static PyType_Spec numbers_spec = {
    .name = "datalattice__keccak.HashNumbers",
    .basicsize = sizeof(struct numbers),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = numbers_slots,
};

/* Add the type to the module, and choose the factor; -1 with an error. */
static int add_numbers(PyObject *module)
{
    PyObject *os = PyImport_ImportModule("os");
    PyObject *random = os ? PyObject_CallMethod(os, "urandom", "i", 8) : NULL;
    PyObject *type = random ? PyType_FromModuleAndSpec(module, &numbers_spec, NULL) : NULL;
    int failed = -1;

    if (type != NULL) {
        new_factor = load((const unsigned char *)PyBytes_AS_STRING(random)) | 1;
        failed = PyModule_AddObjectRef(module, "HashNumbers", type);
    }
    Py_XDECREF(type);
    Py_XDECREF(random);
    Py_XDECREF(os);
    return failed;
}
