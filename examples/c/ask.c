/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks a bundle what it can do; needs no GPU and no driver.
 *
 *   ask OPERATION MASK HEAD_DIM SM HEADS_Q HEADS_KV       ask llm causal 128 87 32 8
 *
 * Exit status: 0 served, 1 not served (the reason is printed), 2 bad usage.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fmhaforge.h"

typedef struct {
    const char* word;
    int32_t number;
} word;

static const word operations[] = {
    {"llm", FMHAFORGE_OPERATION_LLM}, {"paged", FMHAFORGE_OPERATION_PAGED}, {"paged_ragged", FMHAFORGE_OPERATION_PAGED_RAGGED},
    {"padding", FMHAFORGE_OPERATION_PADDING}, {"vision_block", FMHAFORGE_OPERATION_VISION_BLOCK}, {"vit", FMHAFORGE_OPERATION_VIT}};

static const word masks[] = {
    {"causal", FMHAFORGE_MASK_CAUSAL}, {"sliding_causal", FMHAFORGE_MASK_SLIDING_CAUSAL}, {"padding", FMHAFORGE_MASK_PADDING},
    {"vision_block", FMHAFORGE_MASK_VISION_BLOCK}, {"bidirectional", FMHAFORGE_MASK_BIDIRECTIONAL}};

/* The number of a word, or 0. */
static int32_t number_of(const word* words, size_t count, const char* text)
{
    for (size_t i = 0; i < count; ++i) {
        if (strcmp(words[i].word, text) == 0) {
            return words[i].number;
        }
    }
    return 0;
}

int main(int argc, char** argv)
{
    if (argc != 7) {
        fprintf(stderr, "usage: ask OPERATION MASK HEAD_DIM SM HEADS_Q HEADS_KV\n");
        return 2;
    }
    fmhaforge_problem problem = {
        .size = sizeof problem,
        .operation = number_of(operations, sizeof operations / sizeof operations[0], argv[1]),
        .mask = number_of(masks, sizeof masks / sizeof masks[0], argv[2]),
        .head_dim = atoi(argv[3]),
        .dtype = FMHAFORGE_DTYPE_FLOAT16,
        .sm = atoi(argv[4]),
        .num_q_heads = atoi(argv[5]),
        .num_kv_heads = atoi(argv[6]),
        .seqlen_q = FMHAFORGE_SEQLEN_UNKNOWN,
    };
    const fmhaforge_row* row = NULL;
    if (fmhaforge_query(&problem, &row) != FMHAFORGE_OK) {
        printf("no: %s\n", fmhaforge_last_reason());
        return 1;
    }
    printf("yes: %s, code for SM %d, %d threads, %d bytes of shared memory\n", row->variant, (int)row->sm, (int)row->threads,
        (int)row->smem_bytes);
    return 0;
}
