
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PROGRAM_API __attribute__((visibility("default")))

/* The return codes of the functions. */
enum {
  PROGRAM_OK = 0,
  PROGRAM_NO_WEIGHTS = 1,   /* the file of weights cannot be opened */
  PROGRAM_BAD_WEIGHTS = 2,  /* the file is not valid */
  PROGRAM_WRONG_TENSOR = 3, /* a tensor is missing, or has another shape or element type: PROGRAM_detail() names it */
  PROGRAM_NO_MEMORY = 4,
  PROGRAM_BAD_ARGUMENT = 5, /* a pointer is NULL */
  PROGRAM_REFUSED = 6       /* for these input values, eager PyTorch raises an error, or only PyTorch computes the result */
};

/* An open program: its weights, mapped and packed, and scratch memory. */
typedef struct PROGRAM PROGRAM;

/* An input or output: its name in the PyTorch program, its element type in the spelling of safetensors, bytes per element,
 * and its shape; a size below 0 depends on the call (PROGRAM_shape). */
typedef struct {
  const char *name, *dtype;
  size_t element;
  int rank;
  const int64_t *shape;
} PROGRAM_tensor;

/* A size that depends on the call: dim `dim` of input `input`, or, if that is -1, a separate number. */
typedef struct {
  const char *name;
  int input, dim;
} PROGRAM_size;

/* Opens the program with the weights in a safetensors file, which stays mapped; NULL if the program has none. */
PROGRAM_API int PROGRAM_open(const char *weights, PROGRAM **program);

/* Computes outputs, which the caller allocates, from inputs. `sizes` are those of PROGRAM_sizes, NULL if there are none.
 * Several threads may call at the same time: each except the first then allocates scratch memory for its call. */
PROGRAM_API int PROGRAM_run(PROGRAM *program, const int64_t *sizes, const void *const *inputs, void *const *outputs);

PROGRAM_API void PROGRAM_close(PROGRAM *program);

PROGRAM_API const PROGRAM_tensor *PROGRAM_inputs(int *count);
PROGRAM_API const PROGRAM_tensor *PROGRAM_outputs(int *count);
PROGRAM_API const PROGRAM_size *PROGRAM_sizes(int *count);

/* The shape of a tensor in a call with these sizes. */
PROGRAM_API void PROGRAM_shape(const PROGRAM_tensor *tensor, const int64_t *sizes, int64_t *shape);

/* The message of a return code, and its subject in this thread's last call: the name of a tensor or an op, or "". */
PROGRAM_API const char *PROGRAM_message(int code);
PROGRAM_API const char *PROGRAM_detail(void);

