/* Runs PROGRAM on tensors from files, prints a summary of the outputs, and times it.
 *
 *   main [--weights FILE] [--repeats N] [--save PREFIX] [--number N]... [--expect FILE]... [INPUT]...
 *
 * An INPUT is a .npy, or a tensor's raw bytes; `-`, or none, stands for zeros. --number is a number argument of the
 * program; --expect is the file of the next expected output; --save writes PREFIX0.npy and so on.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <time.h>

#include "PROGRAM.h"
#include "npy.h"

/* The maximum number of inputs, of outputs and of sizes. */
enum { MOST = 256 };

static const char *input_paths[MOST], *expected_paths[MOST], *save, *weights = "PROGRAM.safetensors";
static int64_t numbers[MOST];
static int input_count, expected_count, number_count, repeats = 10;

static int fail(const char *what, const char *why) { return fprintf(stderr, "%s: %s\n", what, why), 1; }

static int fail_with(int code) {
  const char *detail = PROGRAM_detail();
  return fprintf(stderr, "%s%s%s\n", PROGRAM_message(code), *detail ? ": " : "", detail), 1;
}

static int read_arguments(int count, char **words) {
  for (int i = 1; i < count; i++) {
    const char *word = words[i];
    if (word[0] != '-' || !word[1]) {
      if (input_count == MOST) return fail(word, "too many inputs");
      input_paths[input_count++] = word;
      continue;
    }
    if (i + 1 == count) return fail(word, "unknown option, or its value is missing");
    const char *value = words[++i];
    if (!strcmp(word, "--weights")) weights = value;
    else if (!strcmp(word, "--repeats")) repeats = atoi(value);
    else if (!strcmp(word, "--save")) save = value;
    else if (!strcmp(word, "--number") && number_count < MOST) numbers[number_count++] = atoll(value);
    else if (!strcmp(word, "--expect") && expected_count < MOST) expected_paths[expected_count++] = value;
    else return fail(word, "unknown option");
  }
  return 0;
}

static size_t elements(int rank, const int64_t *shape) {
  size_t count = 1;
  for (int i = 0; i < rank; i++) count *= (size_t)shape[i];
  return count;
}

/* Sets the sizes to those of the inputs' shapes, and to the numbers on the command line. */
static int bind_sizes(const struct npy *files, int64_t *sizes) {
  int count, next = 0;
  const PROGRAM_size *wanted = PROGRAM_sizes(&count);
  for (int i = 0; i < count; i++) {
    int input = wanted[i].input, dim = wanted[i].dim;
    if (input < 0) {
      if (next == number_count) return fail(wanted[i].name, "give this number (--number N)");
      sizes[i] = numbers[next++];
    } else {
      if (dim >= files[input].rank) return fail(wanted[i].name, "an input determines this size: give that input as a .npy");
      sizes[i] = files[input].shape[dim];
    }
  }
  return 0;
}

/* Makes zeros for inputs without a file, and checks the shapes and element types of the others. */
static int fill_inputs(struct npy *files, const int64_t *sizes) {
  int count;
  const PROGRAM_tensor *wanted = PROGRAM_inputs(&count);
  for (int i = 0; i < count; i++) {
    int64_t shape[NPY_RANK];
    PROGRAM_shape(&wanted[i], sizes, shape);
    size_t bytes = elements(wanted[i].rank, shape) * wanted[i].element;
    if (!files[i].data) files[i].data = calloc(bytes + 1, 1), files[i].bytes = bytes, files[i].type[0] = 0;
    if (!files[i].data) return fail(wanted[i].name, "not enough memory");
    if (files[i].bytes != bytes) return fail(wanted[i].name, "the file has another number of bytes than the input");
    if (!files[i].type[0]) continue;
    if (strcmp(files[i].type, npy_type(wanted[i].dtype))) return fail(wanted[i].name, "the file has another element type");
    if (files[i].rank != wanted[i].rank || memcmp(files[i].shape, shape, sizeof *shape * (size_t)files[i].rank))
      return fail(wanted[i].name, "the file has another shape");
  }
  return 0;
}

/* The time in milliseconds. */
static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e3 + (double)time.tv_nsec * 1e-6;
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static int time_runs(PROGRAM *program, const int64_t *sizes, const void *const *in, void *const *out) {
  double *times = malloc(sizeof *times * (size_t)(repeats > 0 ? repeats : 1));
  if (!times || repeats < 1) return free(times), repeats < 1 ? 0 : fail("times", "not enough memory");
  for (int i = 0; i < repeats; i++) {
    double start = now();
    int code = PROGRAM_run(program, sizes, in, out);
    times[i] = now() - start;
    if (code) return free(times), fail_with(code);
  }
  qsort(times, (size_t)repeats, sizeof *times, by_size);
  printf("time: median %.3f ms, least %.3f ms, %d runs\n", times[repeats / 2], times[0], repeats);
  return free(times), 0;
}

static int print_difference(int i, const PROGRAM_tensor *tensor, const void *data, size_t count) {
  struct npy file;
  const char *problem = npy_read(expected_paths[i], &file);
  double largest = 0;
  if (*problem) return fail(expected_paths[i], problem);
  if (file.bytes != count * tensor->element) return free(file.data), fail(expected_paths[i], "the file has another size than the output");
  for (size_t k = 0; k < count; k++) {
    double a = npy_element(tensor->dtype, data, k), b = npy_element(tensor->dtype, file.data, k);
    double difference = a == b || (isnan(a) && isnan(b)) ? 0 : fabs(a - b);
    if (!(difference <= largest)) largest = difference;
  }
  printf("  largest difference from %s: %g\n", expected_paths[i], largest);
  return free(file.data), 0;
}

static int print_output(int i, const PROGRAM_tensor *tensor, const int64_t *shape, const void *data) {
  size_t count = elements(tensor->rank, shape);
  double least = INFINITY, most = -INFINITY, sum = 0;
  for (size_t k = 0; k < count; k++) {
    double value = npy_element(tensor->dtype, data, k);
    least = fmin(least, value), most = fmax(most, value), sum += value;
  }
  printf("%s: %s", tensor->name, tensor->dtype);
  for (int k = 0; k < tensor->rank; k++) printf("%s%lld", k ? "x" : " ", (long long)shape[k]);
  printf(", min %g, max %g, mean %g\n", least, most, sum / (double)count);
  if (save) {
    char path[4096];
    snprintf(path, sizeof path, "%s%d.npy", save, i);
    if (!npy_write(path, tensor->dtype, tensor->rank, shape, data, count * tensor->element)) return fail(path, "cannot be written");
  }
  return i < expected_count ? print_difference(i, tensor, data, count) : 0;
}

static int run(PROGRAM *program, struct npy *files) {
  int64_t sizes[MOST] = {0}, shapes[MOST][NPY_RANK];
  const void *in[MOST] = {NULL};
  void *out[MOST] = {NULL};
  int count, outputs;
  const PROGRAM_tensor *results = PROGRAM_outputs(&outputs);
  (void)PROGRAM_inputs(&count);
  int code = bind_sizes(files, sizes) || fill_inputs(files, sizes);
  for (int i = 0; i < count; i++) in[i] = files[i].data;
  for (int i = 0; i < outputs && !code; i++) {
    PROGRAM_shape(&results[i], sizes, shapes[i]);
    out[i] = aligned_alloc(64, (elements(results[i].rank, shapes[i]) * results[i].element + 64) / 64 * 64);
    if (!out[i]) code = fail(results[i].name, "not enough memory");
  }
  if (!code) {
    double start = now();
    int status = PROGRAM_run(program, sizes, in, out);
    code = status ? fail_with(status) : 0;
    if (!status) printf("first run: %.3f ms\n", now() - start);
  }
  for (int i = 0; i < outputs && !code; i++) code = print_output(i, &results[i], shapes[i], out[i]);
  if (!code) code = time_runs(program, sizes, in, out);
  for (int i = 0; i < outputs; i++) free(out[i]);
  return code;
}

/* Whether the program's inputs and outputs fit into the tables here. */
static int fits_limits(void) {
  int counts[3];
  const PROGRAM_tensor *tensors[] = {PROGRAM_inputs(&counts[0]), PROGRAM_outputs(&counts[1])};
  (void)PROGRAM_sizes(&counts[2]);
  if (counts[0] > MOST || counts[1] > MOST || counts[2] > MOST) return 0;
  for (int side = 0; side < 2; side++)
    for (int i = 0; i < counts[side]; i++)
      if (tensors[side][i].rank > NPY_RANK) return 0;
  return 1;
}

int main(int argc, char **argv) {
  struct npy files[MOST] = {{{0}, 0, {0}, 0, NULL}};
  PROGRAM *program;
  int count, code = read_arguments(argc, argv);
  const PROGRAM_tensor *wanted = PROGRAM_inputs(&count);
  if (!fits_limits()) return fail("PROGRAM", "more tensors, dims or sizes than the limits here: increase MOST, NPY_RANK");
  for (int i = 0; i < input_count && i < count && !code; i++) {
    const char *problem = strcmp(input_paths[i], "-") ? npy_read(input_paths[i], &files[i]) : "";
    if (*problem) code = fail(input_paths[i], problem);
  }
  if (!code && input_count > count) code = fail(input_paths[count], wanted ? "the program takes no more inputs" : "it takes none");
  if (!code) {
    double start = now();
    int status = PROGRAM_open(weights, &program);
    if (status) code = fail_with(status);
    else printf("opened in %.1f ms\n", now() - start), code = run(program, files), PROGRAM_close(program);
  }
  for (int i = 0; i < count; i++) free(files[i].data);
  return code;
}
