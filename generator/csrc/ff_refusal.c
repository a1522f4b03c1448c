/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps that a problem is walked in, and the sentence of a refusal: the step that no row passes, the values there are, and
 * the nearest rows. The Python runtime says the same over the same data.
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
