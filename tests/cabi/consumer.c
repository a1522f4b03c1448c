/* SPDX-License-Identifier: Apache-2.0 */
/* A program that links the library and asks it things; it prints what it found. Valid as C11 and as C++17. */
#include <stdio.h>
#include <string.h>

#include "fmhaforge.h"
#include "fmhaforge/fmha_v2_d64.h"

int main(void)
{
    const fmhaforge_table* table = fmhaforge_get_table(FMHAFORGE_ABI_VERSION);
    const fmhaforge_row* row = NULL;
    fmhaforge_problem problem;
    memset(&problem, 0, sizeof problem);
    problem.size = sizeof problem;
    problem.operation = FMHAFORGE_FMHA_V2_D64_OPERATION;
    problem.mask = FMHAFORGE_FMHA_V2_D64_MASK;
    problem.head_dim = FMHAFORGE_FMHA_V2_D64_HEAD_DIM;
    problem.dtype = FMHAFORGE_FMHA_V2_D64_DTYPE;
    problem.num_q_heads = 32;
    problem.num_kv_heads = 8;
    problem.sm = 87;
    problem.seqlen_q = FMHAFORGE_SEQLEN_UNKNOWN;
    if (table == NULL || table->size < sizeof *table || table->query(&problem, &row) != FMHAFORGE_OK) {
        printf("refused: %s\n", fmhaforge_last_reason());
        return 1;
    }
    printf("%s SM %d of %d rows, version %s\n", row->variant, (int)row->sm, (int)table->row_count, table->version);
    problem.sm = 75;
    fmhaforge_status status = fmhaforge_query(&problem, &row);
    printf("%s: %s\n", fmhaforge_status_name(status), fmhaforge_last_reason());
    status = fmhaforge_fmha_v2_d64_preload(NULL);
    printf("%s\n", fmhaforge_status_name(status));
    return 0;
}
