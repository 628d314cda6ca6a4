// Runs PROGRAM from C++ on .npy files (or zeros) and prints each output's largest value, and the shortest time of ten runs.
//
//   main-cpp [INPUT.npy]...
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "PROGRAM.h"
#include "npy.h"

namespace {

// The program with its weights; the destructor closes it.
class Program {
 public:
  explicit Program(const char *weights) {
    PROGRAM *opened = nullptr;
    check(PROGRAM_open(weights, &opened));
    program_.reset(opened);
  }

  void run(const std::vector<int64_t> &sizes, const std::vector<const void *> &in, const std::vector<void *> &out) const {
    check(PROGRAM_run(program_.get(), sizes.data(), in.data(), out.data()));
  }

 private:
  static void check(int code) {
    if (code != PROGRAM_OK) throw std::runtime_error(std::string(PROGRAM_message(code)) + " " + PROGRAM_detail());
  }

  struct Close {
    void operator()(PROGRAM *program) const { PROGRAM_close(program); }
  };
  std::unique_ptr<PROGRAM, Close> program_;
};

using Bytes = std::vector<unsigned char>;

std::vector<int64_t> shape_of(const PROGRAM_tensor &tensor, const std::vector<int64_t> &sizes) {
  std::vector<int64_t> shape(static_cast<size_t>(tensor.rank));
  PROGRAM_shape(&tensor, sizes.data(), shape.data());
  return shape;
}

size_t elements(const std::vector<int64_t> &shape) {
  size_t count = 1;
  for (int64_t size : shape) count *= static_cast<size_t>(size);
  return count;
}

struct Input {
  std::vector<int64_t> shape;
  Bytes data;
};

Input read(const char *path) {
  npy file;
  const char *problem = npy_read(path, &file);
  if (*problem) throw std::runtime_error(std::string(path) + " " + problem);
  const auto *bytes = static_cast<unsigned char *>(file.data);
  Input input{{file.shape, file.shape + file.rank}, {bytes, bytes + file.bytes}};
  std::free(file.data);
  return input;
}

std::vector<int64_t> sizes_of_call(const std::vector<Input> &inputs) {
  int count = 0;
  const PROGRAM_size *wanted = PROGRAM_sizes(&count);
  std::vector<int64_t> sizes(static_cast<size_t>(count) + 1);
  for (int i = 0; i < count; i++) {
    if (wanted[i].input < 0) throw std::runtime_error("a program that takes numbers: see main.c");
    sizes[static_cast<size_t>(i)] = inputs.at(static_cast<size_t>(wanted[i].input)).shape.at(static_cast<size_t>(wanted[i].dim));
  }
  return sizes;
}

void run(int argc, char **argv) {
  const Program program("PROGRAM.safetensors");
  int count = 0, outputs = 0;
  const PROGRAM_tensor *wanted = PROGRAM_inputs(&count), *results = PROGRAM_outputs(&outputs);
  std::vector<Input> inputs(static_cast<size_t>(count));
  for (int i = 0; i < count && i + 1 < argc; i++) inputs[static_cast<size_t>(i)] = read(argv[i + 1]);
  const auto sizes = sizes_of_call(inputs);
  std::vector<const void *> in;
  for (int i = 0; i < count; i++) {
    auto &input = inputs[static_cast<size_t>(i)];
    const size_t bytes = elements(shape_of(wanted[i], sizes)) * wanted[i].element;
    if (input.data.empty()) input.data.resize(bytes);
    if (input.data.size() != bytes) throw std::runtime_error(std::string(wanted[i].name) + " is of another size");
    input.data.reserve(1);  // an empty tensor needs an address too
    in.push_back(input.data.data());
  }
  std::vector<Bytes> output_data;
  for (int i = 0; i < outputs; i++) output_data.emplace_back(elements(shape_of(results[i], sizes)) * results[i].element);
  std::vector<void *> out;
  for (auto &bytes : output_data) {
    bytes.reserve(1);
    out.push_back(bytes.data());
  }
  double least = 1e300;
  for (int i = 0; i < 10; i++) {
    const auto start = std::chrono::steady_clock::now();
    program.run(sizes, in, out);
    const std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() - start;
    least = std::min(least, passed.count());
  }
  for (int i = 0; i < outputs; i++) {
    double most = -1e300;
    const size_t size = elements(shape_of(results[i], sizes));
    for (size_t k = 0; k < size; k++) most = std::max(most, npy_element(results[i].dtype, out[static_cast<size_t>(i)], k));
    std::printf("%s: max %g\n", results[i].name, most);
  }
  std::printf("least time %.3f ms\n", least);
}

}  // namespace

int main(int argc, char **argv) {
  try {
    run(argc, argv);
    return 0;
  } catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
