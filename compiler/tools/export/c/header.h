
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PROGRAM_API __attribute__((visibility("default")))

/* What the functions return. */
enum {
  PROGRAM_OK = 0,
  PROGRAM_NO_WEIGHTS = 1,   /* the file of weights cannot be opened */
  PROGRAM_BAD_WEIGHTS = 2,  /* it cannot be read */
  PROGRAM_WRONG_TENSOR = 3, /* it lacks a tensor, or has it in another shape or element type: PROGRAM_detail() names it */
  PROGRAM_NO_MEMORY = 4,
  PROGRAM_BAD_ARGUMENT = 5, /* a pointer is NULL */
  PROGRAM_REFUSED = 6       /* the values of the inputs are such that eager PyTorch raises, or it alone has the answer */
};

/* An open program: its weights, mapped and packed, and memory to work in. */
typedef struct PROGRAM PROGRAM;

/* A tensor outside: its name in the PyTorch program, its element type as safetensors spells it, bytes an element, and
 * its shape; a size below 0 is told by a call (PROGRAM_shape). */
typedef struct {
  const char *name, *dtype;
  size_t element;
  int rank;
  const int64_t *shape;
} PROGRAM_tensor;

/* A size that each call tells: dim `dim` of input `input`, or, where that is -1, a number of its own. */
typedef struct {
  const char *name;
  int input, dim;
} PROGRAM_size;

/* Opens the program with the weights in a safetensors file, which stays mapped; NULL where it has none. */
PROGRAM_API int PROGRAM_open(const char *weights, PROGRAM **program);

/* Computes outputs, which the caller allocates, from inputs. `sizes` are those of PROGRAM_sizes, NULL where there are none.
 * Several threads may call at a time: each but the first then allocates memory to work in for that call. */
PROGRAM_API int PROGRAM_run(PROGRAM *program, const int64_t *sizes, const void *const *inputs, void *const *outputs);

PROGRAM_API void PROGRAM_close(PROGRAM *program);

PROGRAM_API const PROGRAM_tensor *PROGRAM_inputs(int *count);
PROGRAM_API const PROGRAM_tensor *PROGRAM_outputs(int *count);
PROGRAM_API const PROGRAM_size *PROGRAM_sizes(int *count);

/* The shape of a tensor in a call with these sizes. */
PROGRAM_API void PROGRAM_shape(const PROGRAM_tensor *tensor, const int64_t *sizes, int64_t *shape);

/* What a code means, and what it was about in this thread's last call: the name of a tensor or an op, or "". */
PROGRAM_API const char *PROGRAM_message(int code);
PROGRAM_API const char *PROGRAM_detail(void);

