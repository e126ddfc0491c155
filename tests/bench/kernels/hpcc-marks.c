/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Library that is preloaded into hpcc, and announces begin and end of hpcc's sections. hpcc writes "Begin of HPL section." into its
 * output file, but keeps the file in a buffer for long. This library sees the calls that write such lines at once.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>

#include "mark.h"

static double start;

static void look(const char *text, size_t length)
{
	char line[80], what[8], name[32];
	if (length >= sizeof line)
		return;
	memcpy(line, text, length);
	line[length] = 0;
	if (sscanf(line, "%7s of %31s section", what, name) != 2 || !strstr(line, " section."))
		return;
	if (!strcmp(what, "Begin")) {
		announce("begin", "hpcc", name);
		start = processor_time();
	} else if (!strcmp(what, "End")) {
		double seconds = processor_time() - start;
		announce("end", "hpcc", name);
		say_time("hpcc", name, seconds);
	}
}

size_t fwrite(const void *data, size_t size, size_t n, FILE *file)
{
	static size_t (*next)(const void *, size_t, size_t, FILE *);
	if (!next)
		next = (size_t (*)(const void *, size_t, size_t, FILE *))dlsym(RTLD_NEXT, "fwrite");
	look(data, size * n);
	return next(data, size, n, file);
}

int fprintf(FILE *file, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	char text[80];
	va_list copy;
	va_copy(copy, arguments);
	int length = vsnprintf(text, sizeof text, format, copy);
	va_end(copy);
	if (length > 0 && (size_t)length < sizeof text)
		look(text, (size_t)length);
	int result = vfprintf(file, format, arguments);
	va_end(arguments);
	return result;
}
