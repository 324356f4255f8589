/* CRC-32 of byte strings that follow each other, without the interpreter's lock.
 *
 * The polynomial is that of zlib, whose function takes 1 GB/s on common machines and, for less than
 * 5 kB, keeps the lock. Here 64 bytes at a time are multiplied without carry, where the processor
 * can do that; elsewhere 8 bytes at a time are looked up in tables.
 *
 * Source: V. Gopal et al., "Fast CRC computation for generic polynomials using PCLMULQDQ", 2009.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

#if defined(__GNUC__) && defined(__x86_64__)
#define HAS_X86 1
#include <immintrin.h>
#endif

#define POLYNOMIAL 0xedb88320u /* bits in reverse, as all numbers here */
#define SLICES 8

/* Fewer bytes are summed with the lock: giving it back and waiting for it costs more. */
#define UNLOCKED_BYTES 16384

/* tables[k][b]: the sum of the byte b with k zero bytes behind it */
static uint32_t tables[SLICES][256];

static void make_tables(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t sum = byte;
        for (int bit = 0; bit < 8; bit++)
            sum = (sum >> 1) ^ (sum & 1 ? POLYNOMIAL : 0);
        tables[0][byte] = sum;
    }
    for (int slice = 1; slice < SLICES; slice++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t sum = tables[slice - 1][byte];
            tables[slice][byte] = (sum >> 8) ^ tables[0][sum & 255];
        }
}

/* Here and below a sum is inverted: zlib inverts it before the first byte and behind the last. */
static uint32_t sum_by_tables(uint32_t sum, const unsigned char *data, size_t length)
{
    for (; length >= SLICES; data += SLICES, length -= SLICES) {
        uint32_t first = sum ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16
                                | (uint32_t)data[3] << 24);
        sum = tables[7][first & 255] ^ tables[6][(first >> 8) & 255]
              ^ tables[5][(first >> 16) & 255] ^ tables[4][first >> 24] ^ tables[3][data[4]]
              ^ tables[2][data[5]] ^ tables[1][data[6]] ^ tables[0][data[7]];
    }
    for (; length; data++, length--)
        sum = (sum >> 8) ^ tables[0][(sum ^ *data) & 255];
    return sum;
}

static uint32_t (*sum_of)(uint32_t, const unsigned char *, size_t) = sum_by_tables;

#if defined(HAS_X86)
#define CARRYLESS __attribute__((target("pclmul,sse4.1")))

/* A register with 128 bits, moved ahead by the distance of `factors`, and more data. */
CARRYLESS static inline __m128i folded(__m128i bits, __m128i factors, __m128i data)
{
    __m128i low = _mm_clmulepi64_si128(bits, factors, 0x00);
    __m128i high = _mm_clmulepi64_si128(bits, factors, 0x11);

    return _mm_xor_si128(_mm_xor_si128(low, high), data);
}

CARRYLESS static uint32_t sum_carryless(uint32_t sum, const unsigned char *data, size_t length)
{
    /* x to the power of the distance and of 64 bits more or less, modulo the polynomial */
    const __m128i by_512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
    const __m128i by_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    const __m128i by_64 = _mm_set_epi64x(0, 0x163cd6124);
    const __m128i quotient = _mm_set_epi64x(0x1f7011641, 0x1db710641);
    const __m128i lower = _mm_setr_epi32(-1, 0, -1, 0);
    __m128i lanes[4], bits, rest;

    if (length < 64)
        return sum_by_tables(sum, data, length);
    for (int i = 0; i < 4; i++)
        lanes[i] = _mm_loadu_si128((const __m128i *)data + i);
    lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128((int)sum));
    for (data += 64, length -= 64; length >= 64; data += 64, length -= 64)
        for (int i = 0; i < 4; i++)
            lanes[i] = folded(lanes[i], by_512, _mm_loadu_si128((const __m128i *)data + i));
    bits = lanes[0];
    for (int i = 1; i < 4; i++)
        bits = folded(bits, by_128, lanes[i]);
    for (; length >= 16; data += 16, length -= 16)
        bits = folded(bits, by_128, _mm_loadu_si128((const __m128i *)data));
    /* 128 bits to 96, to 64, and by Barrett's reduction to 32 */
    bits = _mm_xor_si128(_mm_srli_si128(bits, 8), _mm_clmulepi64_si128(bits, by_128, 0x10));
    rest = _mm_srli_si128(bits, 4);
    bits = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(bits, lower), by_64, 0x00), rest);
    rest = _mm_clmulepi64_si128(_mm_and_si128(bits, lower), quotient, 0x10);
    rest = _mm_clmulepi64_si128(_mm_and_si128(rest, lower), quotient, 0x00);
    sum = (uint32_t)_mm_extract_epi32(_mm_xor_si128(bits, rest), 1);
    return sum_by_tables(sum, data, length);
}
#endif

/* Fill in what the parts of a tuple have as bytes; return how many were filled in. */
static Py_ssize_t buffers_of(PyObject *parts, Py_buffer *buffers, size_t *total)
{
    Py_ssize_t count = PyTuple_GET_SIZE(parts);

    *total = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(parts, i), &buffers[i], PyBUF_SIMPLE) < 0)
            return i;
        *total += (size_t)buffers[i].len;
    }
    return count;
}

static uint32_t sum_buffers(uint32_t sum, const Py_buffer *buffers, Py_ssize_t count)
{
    sum = ~sum;
    for (Py_ssize_t i = 0; i < count; i++)
        sum = sum_of(sum, buffers[i].buf, (size_t)buffers[i].len);
    return ~sum;
}

PyDoc_STRVAR(crc32_of_doc,
"crc32_of(parts, start, /)\n--\n\n"
"Return the CRC-32 of bytes that follow each other, as `zlib.crc32` has it.\n\n"
"parts: bytes-like objects. start: the CRC-32 of what is before them.");

static PyObject *crc32_of(PyObject *module, PyObject *args)
{
    PyObject *given, *parts;
    Py_buffer *buffers;
    Py_ssize_t count, filled = 0;
    unsigned long start;
    uint32_t sum = 0;
    size_t total;

    (void)module;
    if (!PyArg_ParseTuple(args, "Ok", &given, &start))
        return NULL;
    /* A tuple of our own: no other thread can take a part away. */
    parts = PySequence_Tuple(given);
    if (parts == NULL)
        return NULL;
    count = PyTuple_GET_SIZE(parts);
    buffers = PyMem_New(Py_buffer, count ? count : 1);
    if (buffers == NULL) {
        Py_DECREF(parts);
        return PyErr_NoMemory();
    }
    filled = buffers_of(parts, buffers, &total);
    if (filled == count && total >= UNLOCKED_BYTES) {
        Py_BEGIN_ALLOW_THREADS
        sum = sum_buffers((uint32_t)start, buffers, count);
        Py_END_ALLOW_THREADS
    } else if (filled == count) {
        sum = sum_buffers((uint32_t)start, buffers, count);
    }
    for (Py_ssize_t i = 0; i < filled; i++)
        PyBuffer_Release(&buffers[i]);
    PyMem_Free(buffers);
    Py_DECREF(parts);
    return filled == count ? PyLong_FromUnsignedLong(sum) : NULL;
}

static PyMethodDef functions[] = {
    {"crc32_of", crc32_of, METH_VARARGS, crc32_of_doc},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module)
{
    (void)module;
    make_tables();
#if defined(HAS_X86)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"))
        sum_of = sum_carryless;
#endif
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "datalattice__checksums",
    .m_doc = "CRC-32 of byte strings that follow each other.",
    .m_size = 0,
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit_datalattice__checksums(void)
{
    return PyModuleDef_Init(&definition);
}
