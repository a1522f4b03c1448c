/* SPDX-License-Identifier: Apache-2.0 */
/* Which row serves a problem. The first step that no row passes is the reason of a refusal. */

/* -- the walk ------------------------------------------------------------------------------------------------------------------ */

/* The first step that no row passes; there is one. */
static size_t ff_failing_step(const fmhaforge_problem* problem, const ff_arch* arch)
{
    size_t furthest = 0;
    for (size_t i = 0; i < FF_ROW_COUNT; ++i) {
        while (furthest + 1 < FF_STEP_COUNT && ff_passes(&ff_rows[i], problem, arch, furthest + 1)) {
            ++furthest;
        }
    }
    return furthest;
}

/* Check what the problem tells of the launch's grid. */
static fmhaforge_status ff_check_known_grid(
    const fmhaforge_problem* problem, const fmhaforge_row* row, fmhaforge_refusal* refusal, ff_text* text)
{
    const ff_plan* plan = &ff_plans[ff_row_codes[row->index].plan];
    const char* blamed = NULL;
    if (plan->check_known(problem->num_q_heads, problem->num_kv_heads, problem->seqlen_q, &blamed) == FMHAFORGE_OK) {
        return FMHAFORGE_OK;
    }
    int32_t field = strcmp(blamed, "num_q_heads") == 0 ? FMHAFORGE_FIELD_NUM_Q_HEADS
        : strcmp(blamed, "num_kv_heads") == 0          ? FMHAFORGE_FIELD_NUM_KV_HEADS
                                                       : FMHAFORGE_FIELD_SEQLEN_Q;
    ff_append(text, "%s", ff_reason);
    return ff_refuse(refusal, text, field, NULL);
}

/* Check heads and lengths by the limits of the operation, as a launch would. */
static fmhaforge_status ff_check_extents(const fmhaforge_problem* problem, fmhaforge_refusal* refusal, ff_text* text)
{
    const ff_operation* operation = ff_find_operation(problem->operation);
    const struct {
        int32_t field;
        const char* name;
        int32_t value;
    } known[] = {
        {FMHAFORGE_FIELD_NUM_Q_HEADS, "num_q_heads", problem->num_q_heads},
        {FMHAFORGE_FIELD_NUM_KV_HEADS, "num_kv_heads", problem->num_kv_heads},
        {FMHAFORGE_FIELD_SEQLEN_Q, operation->seqlen_q_argument, problem->seqlen_q},
    };
    for (size_t i = 0; i < FF_ARRAY_LENGTH(known); ++i) {
        bool unknown = known[i].field == FMHAFORGE_FIELD_SEQLEN_Q && known[i].value == FMHAFORGE_SEQLEN_UNKNOWN;
        if (!unknown && ff_check_named(operation, known[i].name, known[i].value) != FMHAFORGE_OK) {
            ff_append(text, "%s", ff_reason);
            return ff_refuse(refusal, text, known[i].field, NULL);
        }
    }
    if (operation->check_heads(problem->num_q_heads, problem->num_kv_heads) != FMHAFORGE_OK) {
        ff_append(text, "num_q_heads: %s", ff_reason);
        return ff_refuse(refusal, text, FMHAFORGE_FIELD_NUM_Q_HEADS, NULL);
    }
    return FMHAFORGE_OK;
}

static bool ff_rule_holds(const fmhaforge_row* row, const fmhaforge_problem* problem)
{
    bool short_enough = problem->seqlen_q != FMHAFORGE_SEQLEN_UNKNOWN && problem->seqlen_q <= row->seqlen_q_at_most;
    return row->seqlen_q_at_most < 0 || (short_enough && (row->only_if & ~problem->flags) == 0);
}

/* Among the rows of one SM that pass every step: the first whose rule holds, else the one without a rule. */
static const fmhaforge_row* ff_choose(const fmhaforge_problem* problem, const ff_arch* arch, int32_t row_sm)
{
    const fmhaforge_row* general = NULL;
    for (size_t i = 0; i < FF_ROW_COUNT; ++i) {
        const fmhaforge_row* row = &ff_rows[i];
        if (row->sm != row_sm || !ff_passes(row, problem, arch, FF_STEP_COUNT) || !ff_rule_holds(row, problem)) {
            continue;
        }
        if (row->seqlen_q_at_most >= 0) {
            return row;
        }
        general = general != NULL ? general : row;
    }
    return general;
}

/* The first SM in the device's order that has a passing row, or 0. */
static int32_t ff_best_sm(const fmhaforge_problem* problem, const ff_arch* arch)
{
    for (size_t n = 0; arch != NULL && n < arch->count; ++n) {
        for (size_t i = 0; i < FF_ROW_COUNT; ++i) {
            if (ff_rows[i].sm == arch->row_sms[n] && ff_passes(&ff_rows[i], problem, arch, FF_STEP_COUNT)) {
                return ff_rows[i].sm;
            }
        }
    }
    return 0;
}

static fmhaforge_status ff_refuse_rules(
    const fmhaforge_problem* problem, const ff_arch* arch, int32_t row_sm, fmhaforge_refusal* refusal, ff_text* text)
{
    const char* argument = ff_find_operation(problem->operation)->seqlen_q_argument;
    const fmhaforge_row* nearest = NULL;
    if (problem->seqlen_q == FMHAFORGE_SEQLEN_UNKNOWN) {
        ff_append(text, FF_SAY_NO_RULE_UNKNOWN, argument);
    } else {
        ff_append(text, FF_SAY_NO_RULE, argument, (long long)problem->seqlen_q);
    }
    for (size_t i = 0; i < FF_ROW_COUNT; ++i) {
        const fmhaforge_row* row = &ff_rows[i];
        if (row->sm == row_sm && ff_passes(row, problem, arch, FF_STEP_COUNT)) {
            ff_append(text, "%s" FF_SAY_RULE, nearest != NULL ? "; " : "", row->variant, argument, (long long)row->seqlen_q_at_most);
            for (size_t f = 0; f < FF_ARRAY_LENGTH(ff_flag_names); ++f) {
                uint32_t flag = (uint32_t)ff_flag_names[f].value;
                if (row->only_if == flag && (problem->flags & flag) != 0) {
                    ff_append(text, FF_SAY_RULE_FLAG, ff_flag_names[f].name);
                } else if (row->only_if == flag) {
                    ff_append(text, FF_SAY_RULE_FLAG_OFF, ff_flag_names[f].name);
                }
            }
            nearest = nearest != NULL ? nearest : row;
        }
    }
    ff_append(text, FF_SAY_NO_RULE_REMEDY);
    return ff_refuse(refusal, text, FMHAFORGE_FIELD_SEQLEN_Q, nearest);
}

static fmhaforge_status ff_select(const fmhaforge_problem* problem, const fmhaforge_row** row, fmhaforge_refusal* refusal)
{
    ff_text text = {refusal->reason, sizeof refusal->reason, 0};
    const ff_arch* arch = ff_find_arch(problem->sm);
    int32_t row_sm = ff_best_sm(problem, arch);
    if (row_sm == 0) {
        return ff_refuse_step(problem, ff_failing_step(problem, arch), refusal, &text);
    }
    fmhaforge_status status = ff_check_extents(problem, refusal, &text);
    if (status != FMHAFORGE_OK) {
        return status;
    }
    const fmhaforge_row* chosen = ff_choose(problem, arch, row_sm);
    if (chosen == NULL) {
        return ff_refuse_rules(problem, arch, row_sm, refusal, &text);
    }
    int32_t smem_bytes = chosen->smem_bytes + chosen->static_smem_bytes;
    if (smem_bytes > arch->smem_limit) {
        ff_append(&text, FF_SAY_SMEM, chosen->variant, (long long)chosen->sm, (long long)smem_bytes, (long long)problem->sm,
            (long long)arch->smem_limit);
        return ff_refuse(refusal, &text, FMHAFORGE_FIELD_SMEM_BYTES, chosen);
    }
    status = ff_check_known_grid(problem, chosen, refusal, &text);
    if (status != FMHAFORGE_OK) {
        return status;
    }
    refusal->field = FMHAFORGE_FIELD_NONE;
    refusal->nearest = chosen;
    ff_append(&text, "served by %s", chosen->variant);
    *row = chosen;
    return FMHAFORGE_OK;
}

/* -- entry points ------------------------------------------------------------------------------------------------------------ */

/* The SM of the device of the current context, or of device 0 when there is none; makes no context. */
static fmhaforge_status ff_resolve_sm(int32_t* sm)
{
    const ff_driver_api* driver = NULL;
    ff_device* device = NULL;
    if (*sm != FMHAFORGE_CURRENT_DEVICE) {
        return FMHAFORGE_OK;
    }
    fmhaforge_status status = ff_get_driver(&driver);
    if (status == FMHAFORGE_OK) {
        status = ff_peek_device(driver, &device);
    }
    *sm = device != NULL ? device->sm : *sm;
    return status;
}

static fmhaforge_status ff_answer(const fmhaforge_problem* asked, const fmhaforge_row** row, fmhaforge_refusal* refusal)
{
    if (asked == NULL) {
        return ff_fail(FMHAFORGE_ERROR_INVALID_ARGUMENT, "problem is null");
    }
    fmhaforge_status status = ff_accept_size(asked, asked->size, sizeof *asked, "fmhaforge_problem");
    if (status != FMHAFORGE_OK) {
        return status;
    }
    fmhaforge_problem problem = *asked;
    status = ff_resolve_sm(&problem.sm);
    return status == FMHAFORGE_OK ? ff_select(&problem, row, refusal) : status;
}

fmhaforge_status fmhaforge_query(const fmhaforge_problem* problem, const fmhaforge_row** row)
{
    fmhaforge_refusal refusal;
    if (row == NULL) {
        return ff_fail(FMHAFORGE_ERROR_INVALID_ARGUMENT, "row is null: pass the address of a pointer");
    }
    *row = NULL;
    return ff_answer(problem, row, &refusal);
}

fmhaforge_status fmhaforge_why_not(const fmhaforge_problem* problem, fmhaforge_refusal* refusal)
{
    const fmhaforge_row* row = NULL;
    if (refusal == NULL) {
        return ff_fail(FMHAFORGE_ERROR_INVALID_ARGUMENT, "refusal is null");
    }
    fmhaforge_status status = ff_require_size(refusal->size, sizeof *refusal, "fmhaforge_refusal");
    if (status != FMHAFORGE_OK) {
        return status;
    }
    status = ff_answer(problem, &row, refusal);
    if (status != FMHAFORGE_OK && status != FMHAFORGE_ERROR_UNSUPPORTED) {
        refusal->field = FMHAFORGE_FIELD_NONE;
        refusal->nearest = NULL;
        ff_text text = {refusal->reason, sizeof refusal->reason, 0};
        ff_append(&text, "%s", ff_reason);
    }
    return status;
}

static const ff_variant* ff_find_variant(const char* name)
{
    size_t low = 0;
    size_t high = FF_ARRAY_LENGTH(ff_variants);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, ff_variants[middle].name);
        if (order == 0) {
            return &ff_variants[middle];
        }
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return NULL;
}

fmhaforge_status fmhaforge_find_row(const char* variant, int32_t sm, const fmhaforge_row** row)
{
    if (variant == NULL || row == NULL) {
        return ff_fail(FMHAFORGE_ERROR_INVALID_ARGUMENT, "%s is null", variant == NULL ? "variant" : "row");
    }
    *row = NULL;
    const ff_variant* found = ff_find_variant(variant);
    if (found == NULL) {
        return ff_fail(FMHAFORGE_ERROR_UNSUPPORTED, "variant %s is not in this library", variant);
    }
    fmhaforge_status status = ff_resolve_sm(&sm);
    if (status != FMHAFORGE_OK) {
        return status;
    }
    const ff_arch* arch = ff_find_arch(sm);
    for (size_t n = 0; arch != NULL && n < arch->count; ++n) {
        for (int32_t i = 0; i < found->row_count; ++i) {
            const fmhaforge_row* candidate = &ff_rows[found->first_row + i];
            if (candidate->sm == arch->row_sms[n] && ff_runs_on(candidate, sm, arch)) {
                *row = candidate;
                return FMHAFORGE_OK;
            }
        }
    }
    return ff_fail(FMHAFORGE_ERROR_UNSUPPORTED, "variant %s has no row that runs on SM %d", variant, sm);
}

int32_t fmhaforge_row_count(void)
{
    return FF_ROW_COUNT;
}

const fmhaforge_row* fmhaforge_row_at(int32_t index)
{
    return index >= 0 && index < FF_ROW_COUNT ? &ff_rows[index] : NULL;
}
