/* Keccak-f[1600] on LANES states side by side, and the absorbing of one block in each.
 *
 * Included once for each number of lanes, with these names defined:
 *   LANES    states
 *   WORD     a vector of LANES 64-bit words, or uint64_t where LANES is 1
 *   NAMED(x) x with the number of lanes in its name
 *   TARGET   the attribute that allows the instructions, or nothing
 *   XOR3, CHI  of three words: a ^ b ^ c and a ^ (~b & c), where one instruction does that; both may
 *               be left out
 *   ADD_BLOCKS  a function that adds a block to each state, much faster than word by word; may be
 *               left out
 *
 * A state is 25 words; word i of lane k is ((uint64_t *)state)[i * LANES + k]. The rounds are those
 * of FIPS 202, section 3.2, with the lane at (x, y) as word x + 5 y.
 */

#define ROTATED(word, count) (((word) << (count)) | ((word) >> (64 - (count))))
#if !defined(XOR3)
#define XOR3(a, b, c) ((a) ^ (b) ^ (c))
#define CHI(a, b, c) ((a) ^ (~(b) & (c)))
#endif

/* chi of the row in b0 to b4 */
#define SET_ROW(r0, r1, r2, r3, r4) \
    r0 = CHI(b0, b1, b2); \
    r1 = CHI(b1, b2, b3); \
    r2 = CHI(b2, b3, b4); \
    r3 = CHI(b3, b4, b0); \
    r4 = CHI(b4, b0, b1)

/* One round, of words whose variables are named by the caller. A new row takes the places of the five
 * words that it is made of, so no word is moved, and after four rounds each is in its own place. */
#define ROUND(constant, a00, a01, a02, a03, a04, a05, a06, a07, a08, a09, \
              a10, a11, a12, a13, a14, a15, a16, a17, a18, a19, \
              a20, a21, a22, a23, a24) \
    /* theta: each word gets the parity of two columns beside it */ \
    c0 = XOR3(a00, a05, XOR3(a10, a15, a20)); \
    c1 = XOR3(a01, a06, XOR3(a11, a16, a21)); \
    c2 = XOR3(a02, a07, XOR3(a12, a17, a22)); \
    c3 = XOR3(a03, a08, XOR3(a13, a18, a23)); \
    c4 = XOR3(a04, a09, XOR3(a14, a19, a24)); \
    d0 = c4 ^ ROTATED(c1, 1); \
    d1 = c0 ^ ROTATED(c2, 1); \
    d2 = c1 ^ ROTATED(c3, 1); \
    d3 = c2 ^ ROTATED(c4, 1); \
    d4 = c3 ^ ROTATED(c0, 1); \
    /* rho and pi: words are turned, and change places; chi and, on the first word, iota */ \
    b0 = a00 ^ d0; \
    b1 = ROTATED(a06 ^ d1, 44); \
    b2 = ROTATED(a12 ^ d2, 43); \
    b3 = ROTATED(a18 ^ d3, 21); \
    b4 = ROTATED(a24 ^ d4, 14); \
    SET_ROW(a00, a06, a12, a18, a24); \
    a00 ^= (constant); \
    b0 = ROTATED(a03 ^ d3, 28); \
    b1 = ROTATED(a09 ^ d4, 20); \
    b2 = ROTATED(a10 ^ d0, 3); \
    b3 = ROTATED(a16 ^ d1, 45); \
    b4 = ROTATED(a22 ^ d2, 61); \
    SET_ROW(a10, a16, a22, a03, a09); \
    b0 = ROTATED(a01 ^ d1, 1); \
    b1 = ROTATED(a07 ^ d2, 6); \
    b2 = ROTATED(a13 ^ d3, 25); \
    b3 = ROTATED(a19 ^ d4, 8); \
    b4 = ROTATED(a20 ^ d0, 18); \
    SET_ROW(a20, a01, a07, a13, a19); \
    b0 = ROTATED(a04 ^ d4, 27); \
    b1 = ROTATED(a05 ^ d0, 36); \
    b2 = ROTATED(a11 ^ d1, 10); \
    b3 = ROTATED(a17 ^ d2, 15); \
    b4 = ROTATED(a23 ^ d3, 56); \
    SET_ROW(a05, a11, a17, a23, a04); \
    b0 = ROTATED(a02 ^ d2, 62); \
    b1 = ROTATED(a08 ^ d3, 55); \
    b2 = ROTATED(a14 ^ d4, 39); \
    b3 = ROTATED(a15 ^ d0, 41); \
    b4 = ROTATED(a21 ^ d1, 2); \
    SET_ROW(a15, a21, a02, a08, a14)

TARGET static void NAMED(permute)(WORD *state)
{
    WORD a00 = state[0], a01 = state[1], a02 = state[2], a03 = state[3], a04 = state[4];
    WORD a05 = state[5], a06 = state[6], a07 = state[7], a08 = state[8], a09 = state[9];
    WORD a10 = state[10], a11 = state[11], a12 = state[12], a13 = state[13], a14 = state[14];
    WORD a15 = state[15], a16 = state[16], a17 = state[17], a18 = state[18], a19 = state[19];
    WORD a20 = state[20], a21 = state[21], a22 = state[22], a23 = state[23], a24 = state[24];
    WORD b0, b1, b2, b3, b4, c0, c1, c2, c3, c4, d0, d1, d2, d3, d4;

    for (const uint64_t *next = round_constants; next < round_constants + ROUNDS; next += 4) {
        ROUND(next[0], a00, a01, a02, a03, a04, a05, a06, a07, a08, a09,
              a10, a11, a12, a13, a14, a15, a16, a17, a18, a19,
              a20, a21, a22, a23, a24);
        ROUND(next[1], a00, a06, a12, a18, a24, a10, a16, a22, a03, a09,
              a20, a01, a07, a13, a19, a05, a11, a17, a23, a04,
              a15, a21, a02, a08, a14);
        ROUND(next[2], a00, a16, a07, a23, a14, a20, a11, a02, a18, a09,
              a15, a06, a22, a13, a04, a10, a01, a17, a08, a24,
              a05, a21, a12, a03, a19);
        ROUND(next[3], a00, a11, a22, a08, a19, a15, a01, a12, a23, a09,
              a05, a16, a02, a13, a24, a20, a06, a17, a03, a14,
              a10, a21, a07, a18, a04);
    }

    state[0] = a00; state[1] = a01; state[2] = a02; state[3] = a03; state[4] = a04;
    state[5] = a05; state[6] = a06; state[7] = a07; state[8] = a08; state[9] = a09;
    state[10] = a10; state[11] = a11; state[12] = a12; state[13] = a13; state[14] = a14;
    state[15] = a15; state[16] = a16; state[17] = a17; state[18] = a18; state[19] = a19;
    state[20] = a20; state[21] = a21; state[22] = a22; state[23] = a23; state[24] = a24;
}

/* Hash messages, LANES at a time: a lane whose message is done takes the next one, so that messages
 * of different lengths keep all lanes at work. The last message that is left alone goes on with one
 * lane. */
TARGET static void NAMED(hash)(struct message *messages, size_t count)
{
    WORD state[WORDS];
    struct message *held[LANES];
#if defined(ADD_BLOCKS)
    const unsigned char *blocks[LANES];
    unsigned char lasts[LANES][RATE];
#endif
    size_t next = 0;
    int busy = 0;

    memset(state, 0, sizeof state);
    for (int lane = 0; lane < LANES; lane++) {
        held[lane] = next < count ? &messages[next++] : NULL;
        busy += held[lane] != NULL;
    }
    while (busy > (LANES > 1)) {
#if defined(ADD_BLOCKS)
        for (int lane = 0; lane < LANES; lane++)
            blocks[lane] = held[lane] != NULL ? next_block(held[lane], lasts[lane]) : no_block;
        ADD_BLOCKS(state, blocks);
#else
        for (int lane = 0; lane < LANES; lane++)
            if (held[lane] != NULL)
                absorb(held[lane], (uint64_t *)state + lane, LANES);
#endif
        NAMED(permute)(state);
        for (int lane = 0; lane < LANES; lane++) {
            if (held[lane] == NULL || !held[lane]->is_padded)
                continue;
            squeeze(held[lane], (uint64_t *)state + lane, LANES);
            held[lane] = next < count ? &messages[next++] : NULL;
            busy -= held[lane] == NULL;
        }
    }
#if LANES > 1
    for (int lane = 0; busy && lane < LANES; lane++)
        if (held[lane] != NULL)
            hash_rest(held[lane], (uint64_t *)state + lane, LANES);
#endif
}

#undef ROTATED
#undef XOR3
#undef CHI
#undef SET_ROW
#undef ROUND
#undef LANES
#undef WORD
#undef NAMED
#undef TARGET
#undef ADD_BLOCKS
