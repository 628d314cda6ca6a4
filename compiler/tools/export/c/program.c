/* The loader of PROGRAM: maps the weights, packs those that kernels read packed, and calls the compiled code.
 *
 * It needs C11, POSIX and libm; with -fopenmp, threads share the loops.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* madvise and MADV_HUGEPAGE, whatever -std= says */
#endif
#include "PROGRAM.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#define HIDDEN __attribute__((visibility("hidden")))
/* Data of each thread. By default, access to it calls the dynamic linker; these few bytes fit into its static reserve. */
#ifdef __GLIBC__
#define OWN_OF_THREAD static _Thread_local __attribute__((tls_model("initial-exec")))
#else
#define OWN_OF_THREAD static _Thread_local
#endif

struct weight {
  const char *name, *dtype;
  size_t element; /* bytes */
  int rank;
  const int64_t *shape;
};

/* An argument of the compiled code: an unchanged input or weight, or a packed or plain copy of a weight. */
struct argument {
  int input, weight; /* a number, or -1 */
  void (*pack)(void **block);
  size_t bytes; /* of the copy, 0 without one */
};

OWN_OF_THREAD const char *detail = "";
OWN_OF_THREAD const char *refusal;

/* Operations on symbolic sizes, which round like Python's. */
static int floor_negative(int64_t a, int64_t b) { return a % b != 0 && (a < 0) != (b < 0); }
static inline int64_t floor_div(int64_t a, int64_t b) { return b ? a / b - floor_negative(a, b) : 0; }
static inline int64_t floor_mod(int64_t a, int64_t b) { return b ? a - floor_div(a, b) * b : 0; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* The compiled code calls this to round a float to bfloat16 on processors without the instruction: compilers' runtime
 * libraries have it since GCC 13. The result is the low half of the returned value, in a float register. */
HIDDEN __attribute__((weak)) float __truncsfbf2(float x);
__attribute__((weak)) float __truncsfbf2(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  bits = (x != x ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/*** TABLES ***/

#if USES_TILES && defined(__linux__)
/* Asks Linux for the tile registers of AMX, once in a process: ARCH_REQ_XCOMP_PERM for XFEATURE_XTILEDATA. */
__attribute__((constructor)) static void request_tiles(void) { syscall(SYS_arch_prctl, 0x1023, 18); }
#endif

struct PROGRAM {
  const unsigned char *file;
  size_t file_bytes;
  unsigned char *store; /* packed and copied weights */
  void *arena;
  atomic_flag busy; /* a call uses the arena */
  const void *bound[ARGUMENTS + 1];
};

/* ---- functions for compiled code ------------------------------------------------------------------------------- */

typedef void task(void *data, int32_t thread, int32_t threads);

HIDDEN void PROGRAM_fork(task *work, void *data, int32_t threads);
void PROGRAM_fork(task *work, void *data, int32_t threads) {
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
  work(data, omp_get_thread_num(), omp_get_num_threads());
#else
  (void)threads;
  work(data, 0, 1);
#endif
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

enum { LINE = 64, HUGE_PAGE = 2 << 20 };

static size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

/* Allocates aligned memory. Large memory is in huge pages, if the kernel has them: address translation of small pages
 * takes a third of the time of reading. */
static void *allocate(size_t bytes) {
  size_t alignment = bytes >= HUGE_PAGE ? HUGE_PAGE : LINE;
  size_t size = round_up(bytes ? bytes : 1, alignment);
  void *pointer = aligned_alloc(alignment, size);
#ifdef MADV_HUGEPAGE
  if (pointer && alignment == HUGE_PAGE) (void)madvise(pointer, size, MADV_HUGEPAGE);
#endif
  return pointer;
}

/* ---- the safetensors file: an 8-byte length, that much JSON, the data (github.com/huggingface/safetensors) ---------- */

struct text {
  const char *at, *end;
};

struct entry {
  char name[1024], dtype[16];
  int rank;
  int64_t shape[32];
  uint64_t begin, end;
};

/* Skips white space, and returns the next character, -1 at the end. */
static int next(struct text *t) {
  while (t->at < t->end && strchr(" \t\r\n", *t->at) && *t->at) t->at++;
  return t->at < t->end ? *t->at : -1;
}

/* Reads the character `wanted` if it is next; returns whether it is. */
static int take(struct text *t, char wanted) {
  if (next(t) != wanted) return 0;
  t->at++;
  return 1;
}

static unsigned hexadecimal(const char *at) {
  unsigned value = 0;
  for (int i = 0; i < 4; i++) {
    char c = at[i];
    unsigned digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : 0;
    value = value * 16 + digit;
  }
  return value;
}

/* Writes an escape sequence as UTF-8; returns the number of bytes. */
static size_t read_escape(struct text *t, char *out) {
  static const char letters[] = "\"\\/bfnrt", characters[] = "\"\\/\b\f\n\r\t";
  char kind = *t->at++;
  const char *match = kind ? strchr(letters, kind) : NULL;
  if (match) return *out = characters[match - letters], 1;
  if (kind != 'u' || t->end - t->at < 4) return *out = kind, 1;
  unsigned code = hexadecimal(t->at);
  t->at += 4;
  if (code < 0x80) return *out = (char)code, 1;
  if (code < 0x800) return out[0] = (char)(0xC0 | code >> 6), out[1] = (char)(0x80 | (code & 63)), 2;
  out[0] = (char)(0xE0 | code >> 12), out[1] = (char)(0x80 | (code >> 6 & 63)), out[2] = (char)(0x80 | (code & 63));
  return 3;
}

/* Reads a string into `out`; a string that is too long is truncated, and so matches no name. */
static int read_string(struct text *t, char *out, size_t room) {
  size_t size = 0;
  char piece[4];
  if (!take(t, '"')) return 0;
  while (t->at < t->end && *t->at != '"') {
    size_t count = 1;
    piece[0] = *t->at++;
    if (piece[0] == '\\' && t->at < t->end) count = read_escape(t, piece);
    if (size + count < room) memcpy(out + size, piece, count), size += count;
  }
  out[size] = 0;
  return take(t, '"');
}

/* Reads a non-negative integer. */
static int read_integer(struct text *t, uint64_t *out) {
  if (next(t) < '0' || next(t) > '9') return 0;
  for (*out = 0; t->at < t->end && *t->at >= '0' && *t->at <= '9'; t->at++) {
    if (*out > (UINT64_MAX - 9) / 10) return 0;
    *out = *out * 10 + (uint64_t)(*t->at - '0');
  }
  return 1;
}

/* Reads a list of at most `room` integers. */
static int read_integers(struct text *t, uint64_t *out, int room, int *count) {
  *count = 0;
  if (!take(t, '[')) return 0;
  if (take(t, ']')) return 1;
  do {
    if (*count == room || !read_integer(t, &out[(*count)++])) return 0;
  } while (take(t, ','));
  return take(t, ']');
}

/* Skips any value. */
static int skip(struct text *t, int depth) {
  char ignored[2];
  int first = next(t);
  if (depth > 32) return 0;
  if (first == '"') return read_string(t, ignored, sizeof ignored);
  if (first != '{' && first != '[') {
    while (t->at < t->end && !strchr(",]} \t\r\n", *t->at)) t->at++;
    return first > 0;
  }
  char last = first == '{' ? '}' : ']';
  t->at++;
  if (take(t, last)) return 1;
  do {
    if (first == '{' && !(read_string(t, ignored, sizeof ignored) && take(t, ':'))) return 0;
    if (!skip(t, depth + 1)) return 0;
  } while (take(t, ','));
  return take(t, last);
}

/* Reads the header's entry of one tensor, after its name. */
static int read_entry(struct text *t, struct entry *e) {
  char key[32];
  uint64_t sizes[32], offsets[2];
  int count = 0;
  e->dtype[0] = 0, e->rank = -1, e->begin = 1, e->end = 0;
  if (!take(t, '{')) return 0;
  do {
    if (!read_string(t, key, sizeof key) || !take(t, ':')) return 0;
    if (!strcmp(key, "dtype")) {
      if (!read_string(t, e->dtype, sizeof e->dtype)) return 0;
    } else if (!strcmp(key, "shape")) {
      if (!read_integers(t, sizes, 32, &e->rank)) return 0;
      for (int i = 0; i < e->rank; i++) e->shape[i] = (int64_t)sizes[i];
    } else if (!strcmp(key, "data_offsets")) {
      if (!read_integers(t, offsets, 2, &count) || count != 2) return 0;
      e->begin = offsets[0], e->end = offsets[1];
    } else if (!skip(t, 0)) {
      return 0;
    }
  } while (take(t, ','));
  return take(t, '}');
}

static size_t bytes_of(const struct weight *w) {
  size_t bytes = w->element;
  for (int i = 0; i < w->rank; i++) bytes *= (size_t)w->shape[i];
  return bytes;
}

/* Whether a tensor of the file has the weight's element type and shape, and its data lie in the `room` bytes of data. */
static int matches_weight(const struct weight *w, const struct entry *e, size_t room) {
  return !strcmp(w->dtype, e->dtype) && w->rank == e->rank &&
         (!w->rank || !memcmp(w->shape, e->shape, sizeof *w->shape * (size_t)w->rank)) && e->begin <= e->end &&
         e->end <= room && e->end - e->begin == bytes_of(w);
}

static int refuse_file(int code, const char *why) {
  detail = why;
  return code;
}

/* Finds each weight in the mapped file. */
static int find_weights(const PROGRAM *p, const unsigned char **places) {
  uint64_t length = 0;
  if (p->file_bytes < 8) return refuse_file(PROGRAM_BAD_WEIGHTS, "the file is shorter than a safetensors header");
  for (int i = 7; i >= 0; i--) length = length << 8 | p->file[i];
  if (length > p->file_bytes - 8) return refuse_file(PROGRAM_BAD_WEIGHTS, "this is no safetensors file, or a part of one");
  struct text t = {(const char *)p->file + 8, (const char *)p->file + 8 + length};
  const unsigned char *data = p->file + 8 + length;
  size_t room = p->file_bytes - 8 - (size_t)length;
  static const char broken[] = "the header of the file cannot be read";
  if (!take(&t, '{')) return refuse_file(PROGRAM_BAD_WEIGHTS, broken);
  if (!take(&t, '}')) do {
    struct entry e;
    if (!read_string(&t, e.name, sizeof e.name) || !take(&t, ':')) return refuse_file(PROGRAM_BAD_WEIGHTS, broken);
    if (!strcmp(e.name, "__metadata__")) {
      if (!skip(&t, 0)) return refuse_file(PROGRAM_BAD_WEIGHTS, broken);
      continue;
    }
    if (!read_entry(&t, &e)) return refuse_file(PROGRAM_BAD_WEIGHTS, broken);
    for (int i = 0; i < WEIGHTS; i++) {
      if (strcmp(weights[i].name, e.name)) continue;
      if (!matches_weight(&weights[i], &e, room)) return refuse_file(PROGRAM_WRONG_TENSOR, weights[i].name);
      places[i] = data + e.begin;
    }
  } while (take(&t, ','));
  for (int i = 0; i < WEIGHTS; i++)
    if (!places[i]) return refuse_file(PROGRAM_WRONG_TENSOR, weights[i].name);
  return PROGRAM_OK;
}

static int map_file(PROGRAM *p, const char *path) {
  struct stat status;
  int file = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1; /* opening a pipe without a writer would block */
  if (file < 0 || fstat(file, &status) || !S_ISREG(status.st_mode)) {
    if (file >= 0) close(file);
    return refuse_file(PROGRAM_NO_WEIGHTS, "it is not there, not to be read, or no file");
  }
  p->file_bytes = (size_t)status.st_size;
  void *mapped = p->file_bytes ? mmap(NULL, p->file_bytes, PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED;
  close(file);
  if (mapped == MAP_FAILED) return refuse_file(PROGRAM_BAD_WEIGHTS, "it is empty, or cannot be mapped");
  p->file = mapped;
  return PROGRAM_OK;
}

/* ---- arguments ----------------------------------------------------------------------------------------------------- */

/* The size of the copy that argument `i` needs: of a packed one, or of a weight that is not aligned to its element size. */
static size_t copy_bytes(int i, const unsigned char *const *places) {
  const struct argument *a = &arguments[i];
  if (a->weight < 0) return 0;
  const struct weight *w = &weights[a->weight];
  int is_misaligned = (uintptr_t)places[a->weight] % w->element != 0;
  return a->bytes ? a->bytes : is_misaligned ? bytes_of(w) : 0;
}

/* Packs and copies weights, and sets the arguments of the compiled code that are weights. */
static int bind_weights(PROGRAM *p, const unsigned char *const *places) {
  size_t total = 0, offset = 0;
  for (int i = 0; i < ARGUMENTS; i++) total += round_up(copy_bytes(i, places), LINE);
  if (total && !(p->store = allocate(total))) return PROGRAM_NO_MEMORY;
  for (int i = 0; i < ARGUMENTS; i++) {
    const struct argument *a = &arguments[i];
    if (a->weight < 0) continue;
    const unsigned char *place = places[a->weight];
    size_t bytes = copy_bytes(i, places), source = bytes_of(&weights[a->weight]);
    p->bound[i] = place;
    if (!bytes) continue;
    unsigned char *copy = p->store + offset;
    offset += round_up(bytes, LINE);
    unsigned char *aligned = NULL;
    if (a->pack && (uintptr_t)place % weights[a->weight].element) {
      if (!(aligned = allocate(source))) return PROGRAM_NO_MEMORY;
      place = memcpy(aligned, place, source);
    }
    void *block[2] = {(void *)place, copy};
    if (a->pack)
      a->pack(block);
    else
      memcpy(copy, place, source);
    free(aligned);
    p->bound[i] = copy;
  }
  return PROGRAM_OK;
}

/* ---- the public functions ------------------------------------------------------------------------------------------ */

int PROGRAM_open(const char *path, PROGRAM **program) {
  const unsigned char *places[WEIGHTS + 1] = {NULL};
  detail = "";
  if (!program) return PROGRAM_BAD_ARGUMENT;
  PROGRAM *p = *program = calloc(1, sizeof *p);
  if (!p) return PROGRAM_NO_MEMORY;
  atomic_flag_clear(&p->busy);
  int code = WEIGHTS > 0 ? map_file(p, path) : PROGRAM_OK;
  if (code == PROGRAM_OK && WEIGHTS > 0) code = find_weights(p, places);
  if (code == PROGRAM_OK) code = bind_weights(p, places);
  if (code == PROGRAM_OK && ARENA_BYTES > 0 && !(p->arena = allocate(ARENA_BYTES))) code = PROGRAM_NO_MEMORY;
  if (code != PROGRAM_OK) PROGRAM_close(p), *program = NULL;
  return code;
}

void PROGRAM_close(PROGRAM *p) {
  if (!p) return;
  if (p->file) munmap((void *)p->file, p->file_bytes);
  free(p->store);
  free(p->arena);
  free(p);
}

int PROGRAM_run(PROGRAM *p, const int64_t *sizes, const void *const *inputs, void *const *outputs) {
  void *block[ARGUMENTS + SIZES + OUTPUTS + 1];
  int words = 0;
  detail = "", refusal = NULL;
  if (!p || (SIZES && !sizes) || (INPUTS && !inputs) || (OUTPUTS && !outputs)) return PROGRAM_BAD_ARGUMENT;
  for (int i = 0; i < ARGUMENTS; i++) {
    const void *value = arguments[i].input >= 0 ? inputs[arguments[i].input] : p->bound[i];
    if (!value) return detail = "an input is NULL", PROGRAM_BAD_ARGUMENT;
    block[words++] = (void *)value;
  }
  for (int i = 0; i < SIZES; i++) block[words++] = (void *)(intptr_t)sizes[i];
  for (int i = 0; i < OUTPUTS; i++) {
    if (output_is_empty[i]) continue;
    if (!outputs[i]) return detail = "an output is NULL", PROGRAM_BAD_ARGUMENT;
    block[words++] = outputs[i];
  }
  /* A call during another one, which uses the arena, allocates separate memory. */
  int uses_arena = ARENA_BYTES && !atomic_flag_test_and_set(&p->busy);
  void *arena = !ARENA_BYTES || uses_arena ? p->arena : allocate(ARENA_BYTES);
  if (ARENA_BYTES && !arena) return PROGRAM_NO_MEMORY;
  block[words] = arena;
  PROGRAM_entry(block);
  if (uses_arena)
    atomic_flag_clear(&p->busy);
  else
    free(arena);
  if (refusal) detail = refusal;
  return refusal ? PROGRAM_REFUSED : PROGRAM_OK;
}

const PROGRAM_tensor *PROGRAM_inputs(int *count) { return *count = INPUTS, inputs_of_program; }

const PROGRAM_tensor *PROGRAM_outputs(int *count) { return *count = OUTPUTS, outputs_of_program; }

const PROGRAM_size *PROGRAM_sizes(int *count) { return *count = SIZES, sizes_of_program; }

void PROGRAM_shape(const PROGRAM_tensor *tensor, const int64_t *sizes, int64_t *shape) {
  for (int i = 0; i < tensor->rank; i++)
    shape[i] = tensor->shape[i] < 0 ? size_value((int)(-1 - tensor->shape[i]), sizes) : tensor->shape[i];
}

const char *PROGRAM_message(int code) {
  static const char *const messages[] = {
      "success",
      "the file of weights cannot be opened",
      "the file of weights cannot be read",
      "a tensor in the file of weights is missing, or has another shape or element type",
      "there is not enough memory",
      "an argument is missing",
      "eager PyTorch rejects these values, or only PyTorch can compute the result",
  };
  return code >= 0 && code < (int)(sizeof messages / sizeof *messages) ? messages[code] : "unknown return code";
}

const char *PROGRAM_detail(void) { return detail; }
