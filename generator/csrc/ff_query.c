/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which row serves a problem, and why none does. A problem is walked field by field in a fixed order; the first field that no
 * row satisfies is the reason of a refusal. The Python runtime walks the same way over the same data.
 */

/* One field of the walk: where it stands in a row and in a problem, and the words for its values (none for a plain number). */
typedef struct ff_step {
    int32_t field;
    const char* name;
    size_t row_offset;
    size_t problem_offset;
    const ff_name* words;
    size_t word_count;
} ff_step;

static const ff_name ff_bool_names[] = {{0, "False"}, {1, "True"}};

#define FF_STEP(field, name, words, count) {field, #name, offsetof(fmhaforge_row, name), offsetof(fmhaforge_problem, name), words, count}

static const ff_step ff_steps[] = {
    FF_STEP(FMHAFORGE_FIELD_OPERATION, operation, ff_operation_names, FF_ARRAY_LENGTH(ff_operation_names)),
    FF_STEP(FMHAFORGE_FIELD_MASK, mask, ff_mask_names, FF_ARRAY_LENGTH(ff_mask_names)),
    FF_STEP(FMHAFORGE_FIELD_DTYPE, dtype, ff_dtype_names, FF_ARRAY_LENGTH(ff_dtype_names)),
    FF_STEP(FMHAFORGE_FIELD_HEAD_DIM, head_dim, NULL, 0),
    FF_STEP(FMHAFORGE_FIELD_CHECKED, checked, ff_bool_names, FF_ARRAY_LENGTH(ff_bool_names)),
    FF_STEP(FMHAFORGE_FIELD_SM, sm, NULL, 0),
};

enum { FF_STEP_COUNT = FF_ARRAY_LENGTH(ff_steps), FF_NEAREST = 3 };

static int32_t ff_read_i32(const void* object, size_t offset)
{
    int32_t value = 0;
    memcpy(&value, (const unsigned char*)object + offset, sizeof value);
    return value;
}

/* Whether a row runs on a device SM whose entry in the architecture table is `arch` (NULL: none). */
static bool ff_runs_on(const fmhaforge_row* row, int32_t sm, const ff_arch* arch)
{
    for (size_t i = 0; arch != NULL && i < arch->count; ++i) {
        if (arch->row_sms[i] == row->sm) {
            return row->exact == 0 || row->sm == sm;
        }
    }
    return false;
}

static bool ff_passes(const fmhaforge_row* row, const fmhaforge_problem* problem, const ff_arch* arch, size_t steps)
{
    for (size_t i = 0; i < steps; ++i) {
        const ff_step* step = &ff_steps[i];
        bool passes = step->field == FMHAFORGE_FIELD_SM
            ? ff_runs_on(row, problem->sm, arch)
            : ff_read_i32(row, step->row_offset) == ff_read_i32(problem, step->problem_offset);
        if (!passes) {
            return false;
        }
    }
    return true;
}

/* -- refusals ---------------------------------------------------------------------------------------------------------------- */

static void ff_append_value(ff_text* text, const ff_step* step, int32_t value)
{
    for (size_t i = 0; i < step->word_count; ++i) {
        if (step->words[i].value == value) {
            ff_append(text, "%s", step->words[i].name);
            return;
        }
    }
    ff_append(text, "%d", value);
}

/* The rows that pass the first `steps` steps, one for each value of the next step, in table order. */
typedef struct ff_values {
    size_t count;
    const fmhaforge_row* rows[FF_ROW_COUNT];
} ff_values;

static int32_t ff_value_of(const ff_step* step, const fmhaforge_row* row)
{
    return ff_read_i32(row, step->row_offset);
}

static void ff_collect_values(ff_values* values, const fmhaforge_problem* problem, size_t steps)
{
    const ff_step* step = &ff_steps[steps];
    values->count = 0;
    for (size_t i = 0; i < FF_ROW_COUNT; ++i) {
        bool wanted = ff_passes(&ff_rows[i], problem, NULL, steps);
        for (size_t seen = 0; wanted && seen < values->count; ++seen) {
            wanted = ff_value_of(step, values->rows[seen]) != ff_value_of(step, &ff_rows[i]);
        }
        if (wanted) {
            values->rows[values->count++] = &ff_rows[i];
        }
    }
}

static const char* ff_word_of(const ff_step* step, const fmhaforge_row* row)
{
    for (size_t i = 0; i < step->word_count; ++i) {
        if (step->words[i].value == ff_value_of(step, row)) {
            return step->words[i].name;
        }
    }
    return "";
}

/* The order in a list of values: words by the alphabet, numbers by size. */
static bool ff_listed_before(const ff_step* step, const fmhaforge_row* a, const fmhaforge_row* b)
{
    int32_t words = step->words != NULL ? strcmp(ff_word_of(step, a), ff_word_of(step, b)) : 0;
    return step->words != NULL ? words < 0 : ff_value_of(step, a) < ff_value_of(step, b);
}

static int64_t ff_distance(const ff_step* step, const fmhaforge_row* row, int32_t wanted)
{
    int64_t difference = step->words != NULL ? 0 : (int64_t)ff_value_of(step, row) - wanted;
    return difference < 0 ? -difference : difference;
}

static void ff_append_list(ff_text* text, const ff_step* step, const ff_values* values)
{
    ff_values sorted = *values;
    for (size_t i = 1; i < sorted.count; ++i) {
        const fmhaforge_row* row = sorted.rows[i];
        size_t place = i;
        for (; place > 0 && ff_listed_before(step, row, sorted.rows[place - 1]); --place) {
            sorted.rows[place] = sorted.rows[place - 1];
        }
        sorted.rows[place] = row;
    }
    for (size_t i = 0; i < sorted.count; ++i) {
        ff_append(text, "%s", i > 0 ? ", " : "");
        ff_append_value(text, step, ff_value_of(step, sorted.rows[i]));
    }
}

/* Name the nearest rows, closest first (words in table order), and hand out the very nearest. */
static const fmhaforge_row* ff_append_nearest(ff_text* text, const ff_step* step, const ff_values* values, int32_t wanted)
{
    bool used[FF_ROW_COUNT] = {false};
    const fmhaforge_row* nearest = NULL;
    for (size_t n = 0; n < FF_NEAREST && n < values->count; ++n) {
        size_t best = FF_ROW_COUNT;
        for (size_t i = 0; i < values->count; ++i) {
            if (!used[i]
                && (best == FF_ROW_COUNT || ff_distance(step, values->rows[i], wanted) < ff_distance(step, values->rows[best], wanted))) {
                best = i;
            }
        }
        used[best] = true;
        nearest = nearest != NULL ? nearest : values->rows[best];
        ff_append(text, "%s%s (%s ", n > 0 ? ", " : "; nearest: ", values->rows[best]->variant, step->name);
        ff_append_value(text, step, ff_value_of(step, values->rows[best]));
        ff_append(text, ")");
    }
    return nearest;
}

static fmhaforge_status ff_refuse(fmhaforge_refusal* refusal, ff_text* text, int32_t field, const fmhaforge_row* nearest)
{
    refusal->field = field;
    refusal->nearest = nearest;
    return ff_fail(FMHAFORGE_ERROR_UNSUPPORTED, "%s", text->bytes);
}

/* No row that passed the steps before passes this one. */
static fmhaforge_status ff_refuse_step(const fmhaforge_problem* problem, size_t index, fmhaforge_refusal* refusal, ff_text* text)
{
    const ff_step* step = &ff_steps[index];
    int32_t wanted = ff_read_i32(problem, step->problem_offset);
    ff_values values;
    ff_collect_values(&values, problem, index);
    ff_append(text, "%s ", step->name);
    ff_append_value(text, step, wanted);
    if (step->field == FMHAFORGE_FIELD_SM) {
        ff_append(text, " is not served: the matching rows are built for SM ");
        ff_append_list(text, step, &values);
        ff_append(text, ", and none of them runs there");
    } else {
        ff_append(text, " is not served (there %s ", values.count == 1 ? "is" : "are");
        ff_append_list(text, step, &values);
        ff_append(text, ")");
    }
    const fmhaforge_row* nearest = ff_append_nearest(text, step, &values, wanted);
    return ff_refuse(refusal, text, step->field, nearest);
}

/* -- the walk ------------------------------------------------------------------------------------------------------------------ */

/* The step that no row passes, or FF_STEP_COUNT. */
static size_t ff_failing_step(const fmhaforge_problem* problem, const ff_arch* arch)
{
    size_t furthest = 0;
    for (size_t i = 0; i < FF_ROW_COUNT && furthest < FF_STEP_COUNT; ++i) {
        while (furthest < FF_STEP_COUNT && ff_passes(&ff_rows[i], problem, arch, furthest + 1)) {
            ++furthest;
        }
    }
    return furthest;
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

/* The first SM in the device's order that has a passing row; there is one. */
static int32_t ff_best_sm(const fmhaforge_problem* problem, const ff_arch* arch)
{
    for (size_t n = 0; n < arch->count; ++n) {
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
    ff_append(text, "no selection rule holds: ");
    for (size_t i = 0; i < FF_ROW_COUNT; ++i) {
        const fmhaforge_row* row = &ff_rows[i];
        if (row->sm == row_sm && ff_passes(row, problem, arch, FF_STEP_COUNT)) {
            ff_append(text, "%s%s takes %s up to %d", nearest != NULL ? "; " : "", row->variant, argument, row->seqlen_q_at_most);
            for (size_t f = 0; f < FF_ARRAY_LENGTH(ff_flag_names); ++f) {
                if (row->only_if == (uint32_t)ff_flag_names[f].value) {
                    ff_append(text, " with %s", ff_flag_names[f].name);
                }
            }
            nearest = nearest != NULL ? nearest : row;
        }
    }
    ff_append(text, "; build the variant without a rule");
    return ff_refuse(refusal, text, FMHAFORGE_FIELD_SEQLEN_Q, nearest);
}

static fmhaforge_status ff_select(const fmhaforge_problem* problem, const fmhaforge_row** row, fmhaforge_refusal* refusal)
{
    ff_text text = {refusal->reason, sizeof refusal->reason, 0};
    const ff_arch* arch = ff_find_arch(problem->sm);
    size_t failing = ff_failing_step(problem, arch);
    if (failing < FF_STEP_COUNT) {
        return ff_refuse_step(problem, failing, refusal, &text);
    }
    fmhaforge_status status = ff_check_extents(problem, refusal, &text);
    if (status != FMHAFORGE_OK) {
        return status;
    }
    int32_t row_sm = ff_best_sm(problem, arch);
    const fmhaforge_row* chosen = ff_choose(problem, arch, row_sm);
    if (chosen == NULL) {
        return ff_refuse_rules(problem, arch, row_sm, refusal, &text);
    }
    int32_t smem_bytes = chosen->smem_bytes + chosen->static_smem_bytes;
    if (smem_bytes > arch->smem_limit) {
        ff_append(&text, "%s for SM %d needs %d bytes of shared memory a block; SM %d gives at most %d; build a smaller tile for this SM",
            chosen->variant, chosen->sm, smem_bytes, problem->sm, arch->smem_limit);
        return ff_refuse(refusal, &text, FMHAFORGE_FIELD_SMEM_BYTES, chosen);
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
    return status == FMHAFORGE_OK ? ff_answer(problem, &row, refusal) : status;
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
