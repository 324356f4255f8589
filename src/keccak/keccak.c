/* SHA3-256 (FIPS 202) for Python, of one message and of many at once, and numbers by such hashes.
 *
 * A sponge of SHA3-256 takes its input in blocks that depend on each other, so one message cannot be
 * hashed faster than its permutations follow. Several messages can: a vector register holds the same
 * word of 2, 4 or 8 states. Which of these the processor has is asked when the module is loaded.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) && defined(__x86_64__)
#define HAS_X86 1
#include <immintrin.h>
#endif

#define ROUNDS 24
#define WORDS 25
#define RATE 136        /* bytes of a block: 1,088 of 1,600 bits */
#define RATE_WORDS 17
#define LAST_WORD 128   /* byte of a block where its last word begins */
#define DIGEST 32

/* Bytes in all from which other Python threads may run meanwhile: giving the lock back and waiting
 * for it costs more than hashing less. */
#define UNLOCKED_BYTES 16384

static const uint64_t round_constants[ROUNDS] = {
    0x0000000000000001, 0x0000000000008082, 0x800000000000808a, 0x8000000080008000,
    0x000000000000808b, 0x0000000080000001, 0x8000000080008081, 0x8000000000008009,
    0x000000000000008a, 0x0000000000000088, 0x0000000080008009, 0x000000008000000a,
    0x000000008000808b, 0x800000000000008b, 0x8000000000008089, 0x8000000000008003,
    0x8000000000008002, 0x8000000000000080, 0x000000000000800a, 0x800000008000000a,
    0x8000000080008081, 0x8000000000008080, 0x0000000080000001, 0x8000000080008008,
};

struct message {
    const unsigned char *data; /* what was not absorbed yet */
    size_t left;
    unsigned char *digest;
    int is_padded;             /* whether the last block was absorbed */
};

/* A state has its words with the least significant byte first, whatever the machine's order. */
#if defined(_WIN32) || (defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)
/* Compilers copy 8 bytes with one instruction. gcc 12 does not see that in a loop over the bytes,
 * and makes twenty of it. */
static inline uint64_t load(const unsigned char *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

static inline void save(unsigned char *bytes, uint64_t word)
{
    memcpy(bytes, &word, sizeof word);
}
#else
static inline uint64_t load(const unsigned char *bytes)
{
    uint64_t word = 0;
    for (int i = 0; i < 8; i++)
        word |= (uint64_t)bytes[i] << (8 * i);
    return word;
}

static inline void save(unsigned char *bytes, uint64_t word)
{
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(word >> (8 * i));
}
#endif

/* What a lane without a message absorbs. */
static const unsigned char no_block[RATE];

/* Return the next block of a message; the last one is made in `last`, RATE bytes. */
static inline const unsigned char *next_block(struct message *message, unsigned char *last)
{
    const unsigned char *block = message->data;

    if (message->left >= RATE) {
        message->data += RATE;
        message->left -= RATE;
        return block;
    }
    /* "01" of SHA-3 and the first bit of the padding, then its last bit (FIPS 202, B.2) */
    memset(last, 0, RATE);
    if (message->left)
        memcpy(last, block, message->left);
    last[message->left] = 0x06;
    last[RATE - 1] |= 0x80;
    message->left = 0;
    message->is_padded = 1;
    return last;
}

/* Add the next block of a message to a state; the words of a lane are `stride` apart. */
static inline void absorb(struct message *message, uint64_t *state, size_t stride)
{
    unsigned char last[RATE];
    const unsigned char *block = next_block(message, last);

    for (int i = 0; i < RATE_WORDS; i++)
        state[i * stride] ^= load(block + 8 * i);
}

/* Write the digest of a state, and make the state that of a new message. */
static inline void squeeze(const struct message *message, uint64_t *state, size_t stride)
{
    for (int i = 0; i < DIGEST / 8; i++)
        save(message->digest + 8 * i, state[i * stride]);
    for (int i = 0; i < WORDS; i++)
        state[i * stride] = 0;
}

#define LANES 1
#define WORD uint64_t
#define NAMED(x) x##_1
#define TARGET
#include "lanes.h"

#if defined(HAS_X86)
/* One lane with `andn` and `rorx`: a tenth faster. */
#define LANES 1
#define WORD uint64_t
#define NAMED(x) x##_1_bmi
#define TARGET __attribute__((target("bmi,bmi2")))
#include "lanes.h"
#endif

typedef void (*hash_function)(struct message *, size_t);

/* By the number of lanes; NULL: this processor or this compiler has it not. */
static hash_function by_lanes[9] = {NULL, hash_1};
static void (*permute_alone)(uint64_t *) = permute_1;

/* Finish a message alone, from the state that it has in a lane. */
static void hash_rest(struct message *message, const uint64_t *lane, size_t stride)
{
    uint64_t state[WORDS];

    for (int i = 0; i < WORDS; i++)
        state[i] = lane[i * stride];
    while (!message->is_padded) {
        absorb(message, state, 1);
        permute_alone(state);
    }
    squeeze(message, state, 1);
}

#if defined(__GNUC__)
#define HAS_VECTORS 1
typedef uint64_t words_2 __attribute__((vector_size(16)));
typedef uint64_t words_4 __attribute__((vector_size(32)));
typedef uint64_t words_8 __attribute__((vector_size(64)));

/* 2 lanes: SSE2 is a part of x86-64, and NEON of ARM64. */
#define LANES 2
#define WORD words_2
#define NAMED(x) x##_2
#define TARGET
#include "lanes.h"

#if defined(HAS_X86)
/* AVX-512 has any function of three words as one instruction, and turns words, also in registers of
 * 128 and 256 bits: 1.5 and 1.6 times as fast as with the instructions before it. */
#define AVX512 __attribute__((target("avx512f,avx512vl")))
#define OF_THREE_2(a, b, c, table) \
    (words_2) _mm_ternarylogic_epi64((__m128i)(a), (__m128i)(b), (__m128i)(c), table)
#define OF_THREE_4(a, b, c, table) \
    (words_4) _mm256_ternarylogic_epi64((__m256i)(a), (__m256i)(b), (__m256i)(c), table)
#define OF_THREE_8(a, b, c, table) \
    (words_8) _mm512_ternarylogic_epi64((__m512i)(a), (__m512i)(b), (__m512i)(c), table)
#define TABLE_XOR3 0x96
#define TABLE_CHI 0xd2

#define LANES 2
#define WORD words_2
#define NAMED(x) x##_2_avx512
#define TARGET AVX512
#define XOR3(a, b, c) OF_THREE_2(a, b, c, TABLE_XOR3)
#define CHI(a, b, c) OF_THREE_2(a, b, c, TABLE_CHI)
#include "lanes.h"

/* Word i of 4 blocks makes word i of 4 states: the words of 4 blocks are a matrix to transpose. */
__attribute__((target("avx2")))
static inline void add_blocks_4(words_4 *state, const unsigned char *const *blocks)
{
    __m256i *to = (__m256i *)state;

    for (int i = 0; i + 4 <= RATE_WORDS; i += 4) {
        __m256i r0 = _mm256_loadu_si256((const __m256i *)(blocks[0] + 8 * i));
        __m256i r1 = _mm256_loadu_si256((const __m256i *)(blocks[1] + 8 * i));
        __m256i r2 = _mm256_loadu_si256((const __m256i *)(blocks[2] + 8 * i));
        __m256i r3 = _mm256_loadu_si256((const __m256i *)(blocks[3] + 8 * i));
        __m256i even01 = _mm256_unpacklo_epi64(r0, r1), odd01 = _mm256_unpackhi_epi64(r0, r1);
        __m256i even23 = _mm256_unpacklo_epi64(r2, r3), odd23 = _mm256_unpackhi_epi64(r2, r3);
        to[i] = _mm256_xor_si256(to[i], _mm256_permute2x128_si256(even01, even23, 0x20));
        to[i + 1] = _mm256_xor_si256(to[i + 1], _mm256_permute2x128_si256(odd01, odd23, 0x20));
        to[i + 2] = _mm256_xor_si256(to[i + 2], _mm256_permute2x128_si256(even01, even23, 0x31));
        to[i + 3] = _mm256_xor_si256(to[i + 3], _mm256_permute2x128_si256(odd01, odd23, 0x31));
    }
    state[RATE_WORDS - 1] ^= (words_4){
        load(blocks[0] + LAST_WORD), load(blocks[1] + LAST_WORD),
        load(blocks[2] + LAST_WORD), load(blocks[3] + LAST_WORD),
    };
}

#define LANES 4
#define WORD words_4
#define NAMED(x) x##_4
#define TARGET __attribute__((target("avx2")))
#define ADD_BLOCKS add_blocks_4
#include "lanes.h"

#define LANES 4
#define WORD words_4
#define NAMED(x) x##_4_avx512
#define TARGET AVX512
#define XOR3(a, b, c) OF_THREE_4(a, b, c, TABLE_XOR3)
#define CHI(a, b, c) OF_THREE_4(a, b, c, TABLE_CHI)
#define ADD_BLOCKS add_blocks_4
#include "lanes.h"

/* As above: pairs of words change places, then halves of 256 bits, then of 512. */
AVX512
static inline void add_blocks_8(words_8 *state, const unsigned char *const *blocks)
{
    __m512i *to = (__m512i *)state;

    for (int i = 0; i + 8 <= RATE_WORDS; i += 8) {
        __m512i pairs[8];
        for (int k = 0; k < 8; k += 2) {
            __m512i r0 = _mm512_loadu_si512(blocks[k] + 8 * i);
            __m512i r1 = _mm512_loadu_si512(blocks[k + 1] + 8 * i);
            pairs[k] = _mm512_unpacklo_epi64(r0, r1);
            pairs[k + 1] = _mm512_unpackhi_epi64(r0, r1);
        }
        for (int k = 0; k < 2; k++) {
            /* Words k and k + 4 of the blocks 0 to 3 and 4 to 7, then words k + 2 and k + 6. */
            __m512i low = _mm512_shuffle_i64x2(pairs[k], pairs[k + 2], 0x88);
            __m512i high = _mm512_shuffle_i64x2(pairs[k + 4], pairs[k + 6], 0x88);
            __m512i low2 = _mm512_shuffle_i64x2(pairs[k], pairs[k + 2], 0xdd);
            __m512i high2 = _mm512_shuffle_i64x2(pairs[k + 4], pairs[k + 6], 0xdd);
            to[i + k] ^= _mm512_shuffle_i64x2(low, high, 0x88);
            to[i + k + 4] ^= _mm512_shuffle_i64x2(low, high, 0xdd);
            to[i + k + 2] ^= _mm512_shuffle_i64x2(low2, high2, 0x88);
            to[i + k + 6] ^= _mm512_shuffle_i64x2(low2, high2, 0xdd);
        }
    }
    state[RATE_WORDS - 1] ^= (words_8){
        load(blocks[0] + LAST_WORD), load(blocks[1] + LAST_WORD),
        load(blocks[2] + LAST_WORD), load(blocks[3] + LAST_WORD),
        load(blocks[4] + LAST_WORD), load(blocks[5] + LAST_WORD),
        load(blocks[6] + LAST_WORD), load(blocks[7] + LAST_WORD),
    };
}

#define LANES 8
#define WORD words_8
#define NAMED(x) x##_8
#define TARGET AVX512
#define XOR3(a, b, c) OF_THREE_8(a, b, c, TABLE_XOR3)
#define CHI(a, b, c) OF_THREE_8(a, b, c, TABLE_CHI)
#define ADD_BLOCKS add_blocks_8
#include "lanes.h"
#endif
#endif

static int widest = 1;

/* Defined by a test of what other processors do. */
#if defined(WITHOUT_AVX512)
#define MAY_USE_AVX512 0
#else
#define MAY_USE_AVX512 1
#endif

static void find_lanes(void)
{
#if defined(HAS_VECTORS)
    by_lanes[2] = hash_2;
#endif
#if defined(HAS_X86)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2")) {
        by_lanes[1] = hash_1_bmi;
        permute_alone = permute_1_bmi;
    }
    if (__builtin_cpu_supports("avx2"))
        by_lanes[4] = hash_4;
    if (MAY_USE_AVX512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) {
        by_lanes[2] = hash_2_avx512;
        by_lanes[4] = hash_4_avx512;
        by_lanes[8] = hash_8;
    }
#endif
    for (int lanes = 1; lanes <= 8; lanes++)
        if (by_lanes[lanes] != NULL)
            widest = lanes;
}

/* The fewest lanes that take all messages at once: in wider registers a round takes longer. */
static int lanes_for(size_t count)
{
    for (int lanes = 1; lanes < widest; lanes++)
        if (by_lanes[lanes] != NULL && (size_t)lanes >= count)
            return lanes;
    return widest;
}

PyDoc_STRVAR(sha3_256_doc,
"sha3_256(message)\n--\n\n"
"Return the SHA3-256 of a message: 32 bytes.");

static PyObject *sha3_256(PyObject *module, PyObject *given)
{
    struct message message = {NULL, 0, NULL, 0};
    PyObject *digest;
    Py_buffer view;

    (void)module;
    if (PyObject_GetBuffer(given, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    digest = PyBytes_FromStringAndSize(NULL, DIGEST);
    if (digest != NULL) {
        message.data = view.buf;
        message.left = (size_t)view.len;
        message.digest = (unsigned char *)PyBytes_AS_STRING(digest);
        if (message.left >= UNLOCKED_BYTES) {
            Py_BEGIN_ALLOW_THREADS
            by_lanes[1](&message, 1);
            Py_END_ALLOW_THREADS
        } else {
            by_lanes[1](&message, 1);
        }
    }
    PyBuffer_Release(&view);
    return digest;
}

/* Return the messages of a tuple, whose digests have no place yet; NULL with an error. */
static struct message *messages_of(PyObject *parts, size_t *total)
{
    Py_ssize_t count = PyTuple_GET_SIZE(parts);
    struct message *messages = PyMem_New(struct message, count ? count : 1);

    if (messages == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    *total = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *part = PyTuple_GET_ITEM(parts, i);
        if (!PyBytes_Check(part)) {
            PyErr_Format(PyExc_TypeError, "message %zd is bytes, got %.80s", i,
                         Py_TYPE(part)->tp_name);
            PyMem_Free(messages);
            return NULL;
        }
        messages[i].data = (const unsigned char *)PyBytes_AS_STRING(part);
        messages[i].left = (size_t)PyBytes_GET_SIZE(part);
        messages[i].digest = NULL;
        messages[i].is_padded = 0;
        *total += messages[i].left;
    }
    return messages;
}

/* Return a list of `count` uninitialized digests, and let the messages have them; NULL with an
 * error. */
static PyObject *empty_digests(Py_ssize_t count, struct message *messages)
{
    PyObject *digests = PyList_New(count);

    for (Py_ssize_t i = 0; digests != NULL && i < count; i++) {
        PyObject *digest = PyBytes_FromStringAndSize(NULL, DIGEST);
        if (digest == NULL) {
            Py_CLEAR(digests);
            break;
        }
        PyList_SET_ITEM(digests, i, digest);
        messages[i].digest = (unsigned char *)PyBytes_AS_STRING(digest);
    }
    return digests;
}

static void hash_messages(struct message *messages, size_t count, size_t total, int lanes)
{
    if (total >= UNLOCKED_BYTES) {
        Py_BEGIN_ALLOW_THREADS
        by_lanes[lanes](messages, count);
        Py_END_ALLOW_THREADS
    } else {
        by_lanes[lanes](messages, count);
    }
}

PyDoc_STRVAR(sha3_256_many_doc,
"sha3_256_many(messages, lanes=0)\n--\n\n"
"Return the SHA3-256 of each message, in order: a list of 32 bytes each.\n\n"
"messages: bytes. lanes: how many are hashed side by side, one of `LANES`; 0: as many as are of\n"
"use.");

static PyObject *sha3_256_many(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"messages", "lanes", NULL};
    PyObject *given, *parts, *digests = NULL;
    struct message *messages = NULL;
    Py_ssize_t count;
    size_t total;
    int lanes = 0;

    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|i", names, &given, &lanes))
        return NULL;
    if (lanes != 0 && (lanes < 1 || lanes > 8 || by_lanes[lanes] == NULL)) {
        PyErr_Format(PyExc_ValueError, "this machine does not hash %d messages at once", lanes);
        return NULL;
    }
    /* A tuple of our own: nobody can take a message away while other threads run. */
    parts = PySequence_Tuple(given);
    if (parts == NULL)
        return NULL;
    count = PyTuple_GET_SIZE(parts);
    messages = messages_of(parts, &total);
    digests = messages == NULL ? NULL : empty_digests(count, messages);
    if (digests != NULL)
        hash_messages(messages, (size_t)count, total, lanes ? lanes : lanes_for((size_t)count));
    PyMem_Free(messages);
    Py_DECREF(parts);
    return digests;
}

PyDoc_STRVAR(sha3_256_ends_doc,
"sha3_256_ends(data, ends)\n--\n\n"
"Return the SHA3-256 of each message in `data`, end to end: 32 bytes each.\n\n"
"ends: a list of where the messages end; the first begins at 0, every other where one ends.");

static PyObject *sha3_256_ends(PyObject *module, PyObject *args)
{
    PyObject *data, *ends, *digests;
    struct message *messages;
    Py_ssize_t count, begin = 0;

    (void)module;
    if (!PyArg_ParseTuple(args, "SO!", &data, &PyList_Type, &ends))
        return NULL;
    count = PyList_GET_SIZE(ends);
    messages = PyMem_New(struct message, count ? count : 1);
    if (messages == NULL)
        return PyErr_NoMemory();
    digests = PyBytes_FromStringAndSize(NULL, count * DIGEST);
    for (Py_ssize_t i = 0; digests != NULL && i < count; i++) {
        Py_ssize_t end = PyLong_AsSsize_t(PyList_GET_ITEM(ends, i));
        if (end < begin || end > PyBytes_GET_SIZE(data)) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "the ends decrease or lie outside of the bytes");
            Py_CLEAR(digests);
            break;
        }
        messages[i].data = (const unsigned char *)PyBytes_AS_STRING(data) + begin;
        messages[i].left = (size_t)(end - begin);
        messages[i].digest = (unsigned char *)PyBytes_AS_STRING(digests) + i * DIGEST;
        messages[i].is_padded = 0;
        begin = end;
    }
    if (digests != NULL)
        hash_messages(messages, (size_t)count, (size_t)begin, lanes_for((size_t)count));
    PyMem_Free(messages);
    return digests;
}

/* Return the number of the digest that is `hash`, the one nearest to number `from`; -1: none is. */
static Py_ssize_t nearest(const unsigned char *digests, Py_ssize_t count, const unsigned char *hash,
                          Py_ssize_t from)
{
    for (Py_ssize_t far = 0; far < count; far++) {
        if (from + far < count && memcmp(digests + (from + far) * DIGEST, hash, DIGEST) == 0)
            return from + far;
        if (from - far >= 0 && memcmp(digests + (from - far) * DIGEST, hash, DIGEST) == 0)
            return from - far;
    }
    return -1;
}

PyDoc_STRVAR(find_hashes_doc,
"find_hashes(digests, hashes)\n--\n\n"
"Return where each of a list of hashes is among digests of 32 bytes, which lie end to end: a list\n"
"of numbers; -1: it is not there. Fast if the hashes have about the order of the digests.");

static PyObject *find_hashes(PyObject *module, PyObject *args)
{
    PyObject *digests, *hashes, *numbers;
    Py_ssize_t count, from = 0;

    (void)module;
    if (!PyArg_ParseTuple(args, "SO!", &digests, &PyList_Type, &hashes))
        return NULL;
    count = PyBytes_GET_SIZE(digests) / DIGEST;
    numbers = PyList_New(PyList_GET_SIZE(hashes));
    for (Py_ssize_t i = 0; numbers != NULL && i < PyList_GET_SIZE(numbers); i++) {
        PyObject *hash = PyList_GET_ITEM(hashes, i), *number;
        Py_ssize_t found;
        if (!PyBytes_Check(hash) || PyBytes_GET_SIZE(hash) != DIGEST) {
            PyErr_Format(PyExc_ValueError, "hash %zd is not 32 bytes", i);
            Py_CLEAR(numbers);
            break;
        }
        found = nearest((const unsigned char *)PyBytes_AS_STRING(digests), count,
                        (const unsigned char *)PyBytes_AS_STRING(hash), from);
        if (found >= 0)
            from = found;
        number = PyLong_FromSsize_t(found);
        if (number == NULL) {
            Py_CLEAR(numbers);
            break;
        }
        PyList_SET_ITEM(numbers, i, number);
    }
    return numbers;
}

/* Make messages of `front` bytes and parts of `size` bytes, end to end in `to`, and hash them. */
static void cut_and_hash(struct message *messages, size_t count, unsigned char *to,
                         const unsigned char *first, size_t front, const unsigned char *from,
                         size_t size)
{
    int lanes = lanes_for(count);

    /* As many as there are lanes at a time: their bytes are in the processor's cache when they are
     * hashed. */
    for (size_t done = 0, stop; done < count; done = stop) {
        stop = count - done < (size_t)lanes ? count : done + (size_t)lanes;
        for (size_t i = done; i < stop; i++, to += front + size) {
            memcpy(to, first, front);
            memcpy(to + front, from + i * size, size);
            messages[i].data = to;
            messages[i].left = front + size;
            messages[i].is_padded = 0;
        }
        by_lanes[lanes](messages + done, stop - done);
    }
}

PyDoc_STRVAR(sha3_256_cut_doc,
"sha3_256_cut(data, start, count, size, head)\n--\n\n"
"Cut `count` parts of `size` bytes out of `data`, from the byte `start` on, and put `head` before\n"
"each. Return (the SHA3-256 of each of these messages, the messages end to end).");

static PyObject *sha3_256_cut(PyObject *module, PyObject *args)
{
    PyObject *data, *head, *digests = NULL, *whole = NULL;
    Py_ssize_t start, count, size, front, total;
    struct message *messages;

    (void)module;
    if (!PyArg_ParseTuple(args, "SnnnS", &data, &start, &count, &size, &head))
        return NULL;
    total = PyBytes_GET_SIZE(data);
    front = PyBytes_GET_SIZE(head);
    if (start < 0 || count < 0 || size < 1 || start > total || count > (total - start) / size) {
        PyErr_SetString(PyExc_ValueError, "the parts lie outside of the bytes");
        return NULL;
    }
    if (count && front > PY_SSIZE_T_MAX / count - size)
        return PyErr_NoMemory();
    messages = PyMem_New(struct message, count ? count : 1);
    if (messages == NULL)
        return PyErr_NoMemory();
    digests = empty_digests(count, messages);
    if (digests != NULL)
        whole = PyBytes_FromStringAndSize(NULL, count * (front + size));
    if (whole != NULL) {
        /* No other thread knows the new bytes before this one returns them. */
        Py_BEGIN_ALLOW_THREADS
        cut_and_hash(messages, (size_t)count, (unsigned char *)PyBytes_AS_STRING(whole),
                     (const unsigned char *)PyBytes_AS_STRING(head), (size_t)front,
                     (const unsigned char *)PyBytes_AS_STRING(data) + start, (size_t)size);
        Py_END_ALLOW_THREADS
    }
    PyMem_Free(messages);
    if (whole == NULL) {
        Py_XDECREF(digests);
        return NULL;
    }
    return Py_BuildValue("(NN)", digests, whole);
}

struct ranked {
    uint64_t rank;               /* the first 8 bytes of the digest, as a number */
    const unsigned char *digest; /* in the order of the rows */
    size_t number;               /* of the row */
};

static struct ranked ranked(const unsigned char *digest, size_t number)
{
    struct ranked row = {0, digest, number};
    for (int at = 0; at < 8; at++)
        row.rank = row.rank << 8 | digest[at];
    return row;
}

/* Fewer are sorted by insertion alone. */
#define RADIX_FROM 64

/* Sort digests; equal ones stay in their order. Returns `rows` or `spare`, which has the result. */
static struct ranked *sorted(struct ranked *rows, struct ranked *spare, size_t count)
{
    for (int shift = 24; count >= RADIX_FROM && shift < 64; shift += 8) {
        struct ranked *other = rows;
        size_t begins[256] = {0}, begin = 0;
        for (size_t i = 0; i < count; i++)
            begins[(rows[i].rank >> shift) & 255]++;
        for (int byte = 0; byte < 256; byte++) {
            size_t size = begins[byte];
            begins[byte] = begin;
            begin += size;
        }
        for (size_t i = 0; i < count; i++)
            spare[begins[(rows[i].rank >> shift) & 255]++] = rows[i];
        rows = spare;
        spare = other;
    }
    /* In order up to the first 5 bytes: who wants many digests that agree there has to try 2^40
     * keys for each. */
    for (size_t i = 1; i < count; i++) {
        struct ranked row = rows[i];
        size_t at = i;
        while (at > 0
               && (rows[at - 1].rank > row.rank
                   || (rows[at - 1].rank == row.rank
                       && memcmp(rows[at - 1].digest, row.digest, DIGEST) > 0))) {
            rows[at] = rows[at - 1];
            at--;
        }
        rows[at] = row;
    }
    return rows;
}

/* Rows end to end: the end of the key and of the row are the words 2 i and 2 i + 1 of `spans`. */
struct rows {
    const unsigned char *data, *spans;
    size_t count;
};

static size_t row_begin(const struct rows *rows, size_t i)
{
    return i ? (size_t)load(rows->spans + 16 * i - 8) : 0;
}

/* How many keys are hashed in one go. */
#define KEYS_TOGETHER 256

static void hash_keys(const struct rows *rows, unsigned char *digests)
{
    struct message messages[KEYS_TOGETHER];

    for (size_t first = 0; first < rows->count; first += KEYS_TOGETHER) {
        size_t count = rows->count - first < KEYS_TOGETHER ? rows->count - first : KEYS_TOGETHER;
        for (size_t i = 0; i < count; i++) {
            size_t begin = row_begin(rows, first + i);
            messages[i].data = rows->data + begin;
            messages[i].left = (size_t)load(rows->spans + 16 * (first + i)) - begin;
            messages[i].digest = digests + DIGEST * (first + i);
            messages[i].is_padded = 0;
        }
        by_lanes[lanes_for(count)](messages, count);
    }
}

/* Return what sha3_256_sorted does, from rows in their order without those that the next equals. */
static PyObject *in_order(const struct rows *rows, const struct ranked *order, size_t count,
                          size_t size)
{
    PyObject *parts[4];
    unsigned char *at[4];
    const size_t sizes[4] = {DIGEST * count, size, 8 * count, 8 * count};
    uint64_t end = 0;

    for (int i = 0; i < 4; i++) {
        parts[i] = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)sizes[i]);
        if (parts[i] == NULL) {
            while (i--)
                Py_DECREF(parts[i]);
            return NULL;
        }
        at[i] = (unsigned char *)PyBytes_AS_STRING(parts[i]);
    }
    for (size_t i = 0; i < count; i++) {
        size_t number = order[i].number;
        size_t begin = row_begin(rows, number), length = row_begin(rows, number + 1) - begin;
        memcpy(at[0] + DIGEST * i, order[i].digest, DIGEST);
        if (length)
            memcpy(at[1] + end, rows->data + begin, length);
        end += length;
        save(at[2] + 8 * i, end);
        save(at[3] + 8 * i, number);
    }
    return Py_BuildValue("(NNNN)", parts[0], parts[1], parts[2], parts[3]);
}

PyDoc_STRVAR(sha3_256_sorted_doc,
"sha3_256_sorted(rows, spans)\n--\n\n"
"Return (the SHA3-256 of the keys in increasing order, the rows in this order, their ends, the\n"
"number of each), all end to end. Of rows with equal keys, the last alone.\n\n"
"rows: a key and anything else each, end to end. spans: the end of the key and the end of the row\n"
"of each. Numbers are 8 bytes, little-endian.");

static PyObject *sha3_256_sorted(PyObject *module, PyObject *args)
{
    PyObject *data, *spans, *result = NULL;
    unsigned char *digests;
    struct ranked *scratch, *order;
    struct rows rows;
    size_t kept = 0, size = 0, total, end = 0;
    int is_sound;

    (void)module;
    if (!PyArg_ParseTuple(args, "SS", &data, &spans))
        return NULL;
    rows.data = (const unsigned char *)PyBytes_AS_STRING(data);
    rows.spans = (const unsigned char *)PyBytes_AS_STRING(spans);
    total = (size_t)PyBytes_GET_SIZE(spans);
    rows.count = total / 16;
    is_sound = total % 16 == 0;
    for (size_t i = 0; is_sound && i < 2 * rows.count; i++) {
        uint64_t next = load(rows.spans + 8 * i);
        is_sound = next >= end && next <= (uint64_t)PyBytes_GET_SIZE(data);
        end = (size_t)next;
    }
    if (!is_sound) {
        PyErr_SetString(PyExc_ValueError, "the spans decrease or end outside of the rows");
        return NULL;
    }
    digests = PyMem_New(unsigned char, DIGEST * rows.count + 1);
    scratch = PyMem_New(struct ranked, 2 * rows.count + 1);
    if (digests == NULL || scratch == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    hash_keys(&rows, digests);
    for (size_t i = 0; i < rows.count; i++)
        scratch[i] = ranked(digests + DIGEST * i, i);
    order = sorted(scratch, scratch + rows.count, rows.count);
    for (size_t i = 0; i < rows.count; i++) {
        size_t number = order[i].number;
        if (i + 1 < rows.count && memcmp(order[i].digest, order[i + 1].digest, DIGEST) == 0)
            continue;
        order[kept++] = order[i];
        size += row_begin(&rows, number + 1) - row_begin(&rows, number);
    }
    Py_END_ALLOW_THREADS
    result = in_order(&rows, order, kept, size);
done:
    PyMem_Free(scratch);
    PyMem_Free(digests);
    return result;
}

#include "numbers.h"

static PyMethodDef functions[] = {
    {"sha3_256", sha3_256, METH_O, sha3_256_doc},
    {"sha3_256_many", (PyCFunction)(void (*)(void))sha3_256_many, METH_VARARGS | METH_KEYWORDS,
     sha3_256_many_doc},
    {"sha3_256_ends", sha3_256_ends, METH_VARARGS, sha3_256_ends_doc},
    {"find_hashes", find_hashes, METH_VARARGS, find_hashes_doc},
    {"sha3_256_cut", sha3_256_cut, METH_VARARGS, sha3_256_cut_doc},
    {"sha3_256_sorted", sha3_256_sorted, METH_VARARGS, sha3_256_sorted_doc},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module)
{
    PyObject *lanes = PyList_New(0), *all;

    if (lanes == NULL)
        return -1;
    find_lanes();
    for (int i = 1; i <= 8; i++) {
        PyObject *number;
        if (by_lanes[i] == NULL)
            continue;
        number = PyLong_FromLong(i);
        if (number == NULL || PyList_Append(lanes, number) < 0) {
            Py_XDECREF(number);
            Py_DECREF(lanes);
            return -1;
        }
        Py_DECREF(number);
    }
    all = PyList_AsTuple(lanes);
    Py_DECREF(lanes);
    if (all == NULL || PyModule_AddObject(module, "LANES", all) < 0) {
        Py_XDECREF(all);
        return -1;
    }
    return add_numbers(module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "datalattice__keccak",
    .m_doc = "SHA3-256 of one message and of many at once, and numbers by such hashes.",
    .m_size = 0,
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit_datalattice__keccak(void)
{
    return PyModuleDef_Init(&definition);
}
