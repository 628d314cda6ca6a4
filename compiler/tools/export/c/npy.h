/* Tensors in files: NumPy's .npy (numpy.org/doc/stable/reference/generated/numpy.lib.format.html), or raw bytes.
 * For C and for C++. */
#ifndef NPY_H
#define NPY_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NPY_RANK = 32 };

struct npy {
  char type[8]; /* in NumPy's spelling, "<f4"; "" for raw bytes */
  int rank;
  int64_t shape[NPY_RANK];
  size_t bytes;
  void *data; /* free() it */
};

/* NumPy's name of a safetensors type; for BF16 and F8, which it lacks, the integer that has their bits. */
static inline const char *npy_type(const char *dtype) {
  static const char *const words[][2] = {
      {"F32", "<f4"}, {"F64", "<f8"}, {"F16", "<f2"}, {"BF16", "<u2"}, {"I64", "<i8"}, {"I32", "<i4"}, {"I16", "<i2"},
      {"I8", "|i1"},  {"U8", "|u1"},  {"U16", "<u2"}, {"U32", "<u4"},  {"U64", "<u8"}, {"BOOL", "|b1"},
      {"F8_E4M3", "|u1"}, {"F8_E5M2", "|u1"}};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (!strcmp(words[i][0], dtype)) return words[i][1];
  return "";
}

/* Reads the dictionary in the header of a .npy; 0 if it is not supported. */
static inline int npy_header(struct npy *out, const char *text) {
  const char *type = strstr(text, "'descr':"), *order = strstr(text, "'fortran_order':"), *at = strstr(text, "'shape':");
  if (!type || !order || !at || sscanf(type + 8, " '%7[^']'", out->type) != 1) return 0;
  for (order += 16; *order == ' ';) order++;
  if (strncmp(order, "False", 5) || !(at = strchr(at, '('))) return 0;
  out->rank = 0;
  for (at++; *at != ')' && *at;) {
    char *end;
    long long size = strtoll(at, &end, 10);
    if (end == at) {
      at++;
      continue;
    }
    if (out->rank == NPY_RANK) return 0;
    out->shape[out->rank++] = size;
    at = end;
  }
  return 1;
}

/* Reads the bytes of a file, which `out` then owns; 0 for a .npy that is not supported. */
static inline int npy_parse(struct npy *out, unsigned char *bytes, size_t size) {
  size_t start = 0, length = 0;
  out->type[0] = 0, out->rank = 0, out->data = bytes, out->bytes = size;
  if (size < 12 || memcmp(bytes, "\x93NUMPY", 6)) return 1;
  length = bytes[8] | (size_t)bytes[9] << 8, start = 10;
  if (bytes[6] > 1) length |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24, start = 12;
  if (length > size - start) return 0;
  char *text = (char *)malloc(length + 1);
  if (!text) return 0;
  memcpy(text, bytes + start, length), text[length] = 0;
  int read = npy_header(out, text);
  free(text);
  out->bytes = size - start - length;
  memmove(bytes, bytes + start + length, out->bytes);
  return read;
}

/* Reads a file; a file that is not a .npy is read as raw bytes. Returns "" or the error. */
static inline const char *npy_read(const char *path, struct npy *out) {
  FILE *file = fopen(path, "rb");
  if (!file) return "cannot be opened";
  long size = fseek(file, 0, SEEK_END) ? -1 : ftell(file);
  unsigned char *bytes = size < 0 ? NULL : (unsigned char *)malloc((size_t)size + 1);
  int read = bytes && !fseek(file, 0, SEEK_SET) && fread(bytes, 1, (size_t)size, file) == (size_t)size;
  fclose(file);
  if (read && npy_parse(out, bytes, (size_t)size)) return "";
  free(bytes);
  out->data = NULL;
  return read ? "is a .npy file that cannot be read: an array in Fortran's order, or a part of one" : "cannot be read";
}

/* Writes a .npy; 0 on failure. */
static inline int npy_write(const char *path, const char *dtype, int rank, const int64_t *shape, const void *data,
                            size_t bytes) {
  char sizes[NPY_RANK * 22 + 1] = "", text[NPY_RANK * 22 + 128];
  for (int i = 0, at = 0; i < rank; i++) at += snprintf(sizes + at, sizeof sizes - at, "%lld, ", (long long)shape[i]);
  int used = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", npy_type(dtype), sizes);
  int length = (10 + used + 1 + 63) / 64 * 64 - 10;
  unsigned char head[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)length, (unsigned char)(length >> 8)};
  FILE *file = fopen(path, "wb");
  if (!file) return 0;
  int done = fwrite(head, 1, 10, file) == 10 && fprintf(file, "%-*s\n", length - 1, text) == length &&
             fwrite(data, 1, bytes, file) == bytes;
  return !fclose(file) && done;
}

/* The value of an IEEE half. */
static inline float npy_half(uint16_t bits) {
  uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023, wide;
  float value;
  if (!exponent) return (sign ? -1.0f : 1.0f) * (float)fraction / 16777216.0f;
  wide = sign | (exponent == 31 ? 255u : exponent + 112u) << 23 | fraction << 13;
  return memcpy(&value, &wide, 4), value;
}

/* The value of a float8_e4m3fn, which has no infinities: its four bits of exponent are those of a half, less 8. */
static inline float npy_e4m3(uint8_t bits) {
  uint16_t sign = (uint16_t)((bits & 0x80) << 8), rest = bits & 0x7f;
  if (rest == 0x7f) return npy_half(0x7e00);
  if (rest < 8) return (sign ? -1.0f : 1.0f) * (float)rest / 512.0f;
  return npy_half((uint16_t)(sign | (rest + 64) << 7));
}

/* Element `i` of a tensor as a double. */
static inline double npy_element(const char *dtype, const void *data, size_t i) {
#define NPY_CASE(word, type) \
  if (!strcmp(dtype, word)) return (double)((const type *)data)[i]
  NPY_CASE("F32", float);
  NPY_CASE("F64", double);
  NPY_CASE("I64", int64_t);
  NPY_CASE("I32", int32_t);
  NPY_CASE("I16", int16_t);
  NPY_CASE("I8", int8_t);
  NPY_CASE("U8", uint8_t);
  NPY_CASE("BOOL", uint8_t);
  NPY_CASE("U16", uint16_t);
  NPY_CASE("U32", uint32_t);
  NPY_CASE("U64", uint64_t);
#undef NPY_CASE
  if (!strcmp(dtype, "F8_E4M3")) return npy_e4m3(((const uint8_t *)data)[i]);
  if (!strcmp(dtype, "F8_E5M2")) return npy_half((uint16_t)(((const uint8_t *)data)[i] << 8));
  uint16_t bits = ((const uint16_t *)data)[i];
  if (!strcmp(dtype, "F16")) return npy_half(bits);
  uint32_t wide = (uint32_t)bits << 16;
  float value;
  return memcpy(&value, &wide, 4), value;
}

#endif
