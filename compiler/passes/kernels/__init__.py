"""Kernel generators: register-blocked contractions, packing, vector loops, polynomials.

Names that all modules of this folder use in the same sense:

- `e` is the `KernelEmitter` by which code is emitted at the current insertion point. An `emit.Index` is a number that
  may be known now (an int) or when the kernel runs (a value of type `index`); arithmetic on ints emits no ops.
- A contraction adds products of elements of A and B to C. M and N are its loops over rows and columns of C, K its
  reduction, and outer loops are the others, such as a batch. `sums` are elements of C in registers, before an epilogue
  and the store. In a convolution, A is the image and B the weights.
- A flat memref is 1-D with unit stride (`access.flatten`): a start or an offset in it is a number of elements.
- `lanes` is the number of elements of a vector. Where a size is no multiple of the lanes or of a block, the last one is
  partial, and `active` is the number of its elements that exist (`None`: all).
- A panel is a copy of some columns of B, contiguous in the order in which a kernel reads it (`packing.Panels`).
- The body of `e.loop` has the arguments (index, carried values) and returns the carried values for the next iteration;
  that of `e.for_each` has the index alone.
"""
