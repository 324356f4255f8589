/* Keccak-f[1600] on LANES states side by side, and the absorbing of one block in each.
 *
 * Included once for each number of lanes, with these names defined:
 *   LANES    states
 *   WORD     a vector of LANES 64-bit words, or uint64_t where LANES is 1
 *   NAMED(x) x with the number of lanes in its name
 *   TARGET   the attribute that allows the instructions, or nothing
 *   ADD_BLOCKS  a function that adds a block to each state, much faster than word by word; may be
 *               left out
 *
 * A state is 25 words; word i of lane k is ((uint64_t *)state)[i * LANES + k]. The rounds are those
 * of FIPS 202, section 3.2, with the lane at (x, y) as word x + 5 y.
 */

#define ROTATED(word, count) (((word) << (count)) | ((word) >> (64 - (count))))

/* Two rounds in one step would save moves, and no time: compilers rename the words. */
TARGET static void NAMED(permute)(WORD *state)
{
    WORD a00 = state[0], a01 = state[1], a02 = state[2], a03 = state[3], a04 = state[4];
    WORD a05 = state[5], a06 = state[6], a07 = state[7], a08 = state[8], a09 = state[9];
    WORD a10 = state[10], a11 = state[11], a12 = state[12], a13 = state[13], a14 = state[14];
    WORD a15 = state[15], a16 = state[16], a17 = state[17], a18 = state[18], a19 = state[19];
    WORD a20 = state[20], a21 = state[21], a22 = state[22], a23 = state[23], a24 = state[24];

    for (int round = 0; round < ROUNDS; round++) {
        /* theta: each word gets the parity of two columns beside it */
        WORD c0 = a00 ^ a05 ^ a10 ^ a15 ^ a20;
        WORD c1 = a01 ^ a06 ^ a11 ^ a16 ^ a21;
        WORD c2 = a02 ^ a07 ^ a12 ^ a17 ^ a22;
        WORD c3 = a03 ^ a08 ^ a13 ^ a18 ^ a23;
        WORD c4 = a04 ^ a09 ^ a14 ^ a19 ^ a24;
        WORD d0 = c4 ^ ROTATED(c1, 1);
        WORD d1 = c0 ^ ROTATED(c2, 1);
        WORD d2 = c1 ^ ROTATED(c3, 1);
        WORD d3 = c2 ^ ROTATED(c4, 1);
        WORD d4 = c3 ^ ROTATED(c0, 1);
        /* rho and pi: words are turned, and change places */
        WORD b00 = a00 ^ d0;
        WORD b10 = ROTATED(a01 ^ d1, 1);
        WORD b20 = ROTATED(a02 ^ d2, 62);
        WORD b05 = ROTATED(a03 ^ d3, 28);
        WORD b15 = ROTATED(a04 ^ d4, 27);
        WORD b16 = ROTATED(a05 ^ d0, 36);
        WORD b01 = ROTATED(a06 ^ d1, 44);
        WORD b11 = ROTATED(a07 ^ d2, 6);
        WORD b21 = ROTATED(a08 ^ d3, 55);
        WORD b06 = ROTATED(a09 ^ d4, 20);
        WORD b07 = ROTATED(a10 ^ d0, 3);
        WORD b17 = ROTATED(a11 ^ d1, 10);
        WORD b02 = ROTATED(a12 ^ d2, 43);
        WORD b12 = ROTATED(a13 ^ d3, 25);
        WORD b22 = ROTATED(a14 ^ d4, 39);
        WORD b23 = ROTATED(a15 ^ d0, 41);
        WORD b08 = ROTATED(a16 ^ d1, 45);
        WORD b18 = ROTATED(a17 ^ d2, 15);
        WORD b03 = ROTATED(a18 ^ d3, 21);
        WORD b13 = ROTATED(a19 ^ d4, 8);
        WORD b14 = ROTATED(a20 ^ d0, 18);
        WORD b24 = ROTATED(a21 ^ d1, 2);
        WORD b09 = ROTATED(a22 ^ d2, 61);
        WORD b19 = ROTATED(a23 ^ d3, 56);
        WORD b04 = ROTATED(a24 ^ d4, 14);
        /* chi, and iota on the first word */
        a00 = b00 ^ (~b01 & b02) ^ round_constants[round];
        a01 = b01 ^ (~b02 & b03);
        a02 = b02 ^ (~b03 & b04);
        a03 = b03 ^ (~b04 & b00);
        a04 = b04 ^ (~b00 & b01);
        a05 = b05 ^ (~b06 & b07);
        a06 = b06 ^ (~b07 & b08);
        a07 = b07 ^ (~b08 & b09);
        a08 = b08 ^ (~b09 & b05);
        a09 = b09 ^ (~b05 & b06);
        a10 = b10 ^ (~b11 & b12);
        a11 = b11 ^ (~b12 & b13);
        a12 = b12 ^ (~b13 & b14);
        a13 = b13 ^ (~b14 & b10);
        a14 = b14 ^ (~b10 & b11);
        a15 = b15 ^ (~b16 & b17);
        a16 = b16 ^ (~b17 & b18);
        a17 = b17 ^ (~b18 & b19);
        a18 = b18 ^ (~b19 & b15);
        a19 = b19 ^ (~b15 & b16);
        a20 = b20 ^ (~b21 & b22);
        a21 = b21 ^ (~b22 & b23);
        a22 = b22 ^ (~b23 & b24);
        a23 = b23 ^ (~b24 & b20);
        a24 = b24 ^ (~b20 & b21);
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
#undef LANES
#undef WORD
#undef NAMED
#undef TARGET
#undef ADD_BLOCKS
