/* SPDX-License-Identifier: Apache-2.0 */
/* Building a sentence in a fixed buffer; what does not fit is cut off. */
#include <stdarg.h>
#include <stdio.h>

typedef struct ff_text {
    char* bytes;
    size_t capacity;
    size_t length;
} ff_text;

static void ff_append(ff_text* text, const char* format, ...) __attribute__((format(printf, 2, 3)));

static void ff_append(ff_text* text, const char* format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(text->bytes + text->length, text->capacity - text->length, format, arguments);
    va_end(arguments);
    if (written > 0) {
        size_t room = text->capacity - text->length - 1;
        text->length += (size_t)written < room ? (size_t)written : room;
    }
}
