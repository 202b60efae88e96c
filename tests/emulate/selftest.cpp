// Checks the emulator by small kernels whose results are known. Prints what is wrong; each check is
// named on the command line and gives the exit status.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "emulate.hpp"

namespace {

int failures = 0;

#define EXPECT(condition)                                     \
  do {                                                        \
    if (!(condition)) {                                       \
      printf("line %d: expected %s\n", __LINE__, #condition); \
      ++failures;                                             \
    }                                                         \
  } while (0)

#define LAUNCH(kernel, grid, block, shared, stream, ...) \
  emulate::launch_kernel(#kernel, grid, block, shared, stream, kernel, __VA_ARGS__)

constexpr unsigned kAll = 0xffffffffu;

template <typename T>
T* device(size_t n) {
  T* memory = nullptr;
  EXPECT(cudaMalloc(&memory, n * sizeof(T)) == cudaSuccess);
  return memory;
}

cudaError_t taken() {
  const cudaError_t waited = cudaDeviceSynchronize();
  const cudaError_t last = cudaGetLastError();
  EXPECT(waited == last);
  return last;
}

// Every thread passes its value on to the thread before it, `turns` times.
template <bool second>
__global__ void rotate(int* x, int turns) {
  __shared__ int at[192];
  const int t = threadIdx.x, n = blockDim.x;
  at[t] = x[blockIdx.x * n + t];
  for (int i = 0; i < turns; ++i) {
    __syncthreads();
    const int next = at[(t + 1) % n];
    if (second) __syncthreads();
    at[t] = next;
  }
  x[blockIdx.x * n + t] = at[t];
}

// The values after so many turns are right, in every order of threads.
bool rotated(void (*kernel)(int*, int), int turns) {
  int* x = device<int>(3 * 192);
  for (int i = 0; i < 3 * 192; ++i) x[i] = i;
  LAUNCH(kernel, 3, 192, 0, nullptr, x, turns);
  EXPECT(taken() == cudaSuccess);
  bool right = true;
  for (int i = 0; i < 3 * 192; ++i) right = right && x[i] == i / 192 * 192 + (i + turns) % 192;
  cudaFree(x);
  return right;
}

void barriers() {
  EXPECT(rotated(rotate<true>, 20));
}

// Whatever the order, some thread reads what its neighbour has not written yet or has overwritten.
void missing_barrier() {
  EXPECT(!rotated(rotate<false>, 20));
}

// Half of the threads leave before the barriers of the others.
__global__ void leave(int* x) {
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  if (threadIdx.x >= 40) return;
  atomicAdd(&sum, static_cast<int>(threadIdx.x));
  __syncthreads();
  x[threadIdx.x] = sum;
}

__global__ void indices(unsigned* x) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  x[block * blockDim.x * blockDim.y * blockDim.z + t] = block * 1000 + t;
}

void threads() {
  int* x = device<int>(96);
  LAUNCH(leave, 1, 96, 0, nullptr, x);
  EXPECT(taken() == cudaSuccess);
  for (int i = 0; i < 40; ++i) EXPECT(x[i] == 39 * 40 / 2);
  EXPECT(x[40] == -1);
  unsigned* y = device<unsigned>(24 * 30);
  LAUNCH(indices, dim3(2, 3, 4), dim3(3, 5, 2), 0, nullptr, y);
  for (unsigned i = 0; i < 24 * 30; ++i) EXPECT(y[i] == i / 30 * 1000 + i % 30);
  cudaFree(x);
  cudaFree(y);
}

template <typename T>
__global__ void shuffle(T* x) {
  const int t = threadIdx.x;
  const T own = static_cast<T>(t) + static_cast<T>(0.5);
  x[t] = __shfl_sync(kAll, own, t + 1);
  x[64 + t] = __shfl_xor_sync(kAll, own, 5);
  x[128 + t] = __shfl_down_sync(kAll, own, 3);
  x[192 + t] = __shfl_up_sync(kAll, own, 3);
  x[256 + t] = __shfl_sync(kAll, own, 9, 8);
  x[320 + t] = __shfl_down_sync(kAll, own, 3, 8);
  x[384 + t] = __shfl_up_sync(kAll, own, 3, 8);
  x[448 + t] = __shfl_xor_sync(kAll, own, 4, 4);
}

template <typename T>
void shuffles_of() {
  T* x = device<T>(512);
  LAUNCH(shuffle<T>, 1, 64, 0, nullptr, x);
  EXPECT(taken() == cudaSuccess);
  for (int t = 0; t < 64; ++t) {
    const int lane = t % 32, warp = t / 32 * 32;
    const int from[8] = {
        warp + (lane + 1) % 32, warp + (lane ^ 5),
        lane < 29 ? t + 3 : t,  lane >= 3 ? t - 3 : t,
        t / 8 * 8 + 1,          t % 8 < 5 ? t + 3 : t,
        t % 8 >= 3 ? t - 3 : t, lane % 8 < 4 ? t : warp + (lane ^ 4),
    };
    for (int i = 0; i < 8; ++i)
      EXPECT(x[64 * i + t] == static_cast<T>(from[i]) + static_cast<T>(0.5));
  }
  cudaFree(x);
}

__global__ void votes(unsigned* x) {
  const int lane = threadIdx.x % 32;
  x[threadIdx.x] = __ballot_sync(kAll, lane % 3 == 0);
  x[64 + threadIdx.x] =
      static_cast<unsigned>(__any_sync(kAll, lane == 7) + 2 * __any_sync(kAll, lane == 40) +
                            4 * __all_sync(kAll, lane < 32) + 8 * __all_sync(kAll, lane < 31));
  x[128 + threadIdx.x] = static_cast<unsigned>(__reduce_add_sync(kAll, lane - 16));
  x[192 + threadIdx.x] = static_cast<unsigned>(__reduce_max_sync(kAll, lane - 40));
  // Two halves of a warp, each among themselves, at different numbers of calls.
  const unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;
  int sum = lane;
  for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(half, sum, step);
  if (lane < 16) sum += __shfl_xor_sync(half, 1, 1);
  __syncwarp();
  x[256 + threadIdx.x] = static_cast<unsigned>(sum);
}

void shuffles() {
  shuffles_of<int>();
  shuffles_of<float>();
  shuffles_of<long long>();
  shuffles_of<double>();
  unsigned* x = device<unsigned>(320);
  LAUNCH(votes, 1, 64, 0, nullptr, x);
  EXPECT(taken() == cudaSuccess);
  for (int t = 0; t < 64; ++t) {
    EXPECT(x[t] == 0x49249249u);
    EXPECT(x[64 + t] == 5u);
    EXPECT(x[128 + t] == static_cast<unsigned>(-16));
    EXPECT(x[192 + t] == static_cast<unsigned>(-9));
    EXPECT(x[256 + t] == (t % 32 < 16 ? 121u : 376u));
  }
  cudaFree(x);
}

// The value of `bits` as an IEEE number of so many bits of exponent and fraction.
double slow_value(unsigned bits, int exponent_bits, int fraction_bits) {
  const unsigned fraction = bits & ((1u << fraction_bits) - 1);
  const int most = (1 << exponent_bits) - 1, bias = most / 2;
  const int exponent = static_cast<int>(bits >> fraction_bits) & most;
  const double sign = bits >> (exponent_bits + fraction_bits) ? -1.0 : 1.0;
  if (exponent == most) return fraction ? NAN : sign * INFINITY;
  const double mantissa = fraction + (exponent ? ldexp(1.0, fraction_bits) : 0.0);
  return sign * ldexp(mantissa, (exponent ? exponent : 1) - bias - fraction_bits);
}

// Between two neighbours, the midpoint goes to the even one and all else to the nearer.
void rounds_between(uint16_t (*round)(float), double low, double high, uint16_t at) {
  const float middle = static_cast<float>((low + high) / 2);
  EXPECT(round(middle) == (at % 2 ? at + 1 : at));
  EXPECT(round(nextafterf(middle, static_cast<float>(low))) == at);
  EXPECT(round(nextafterf(middle, static_cast<float>(high))) == at + 1);
  EXPECT(round(-middle) == ((at % 2 ? at + 1 : at) | 0x8000));
}

void numbers() {
  for (unsigned bits = 0; bits < 0x10000u && failures < 10; ++bits) {
    const uint16_t x = static_cast<uint16_t>(bits);
    const double half = slow_value(bits, 5, 10), bf16 = slow_value(bits, 8, 7);
    const float h = emulate::half_to_float(x), b = emulate::bf16_to_float(x);
    EXPECT(std::isnan(half) ? std::isnan(h) : h == half && std::signbit(h) == std::signbit(half));
    EXPECT(std::isnan(bf16) ? std::isnan(b) : b == bf16 && std::signbit(b) == std::signbit(bf16));
    EXPECT(std::isnan(half) ? emulate::float_to_half(h) == 0x7fff : emulate::float_to_half(h) == x);
    EXPECT(std::isnan(bf16) ? emulate::float_to_bf16(b) == 0x7fff : emulate::float_to_bf16(b) == x);
    // Up to the greatest number; what lies beyond it is as far as a next number would be.
    if (bits < 0x7c00u)
      rounds_between(emulate::float_to_half, half,
                     bits + 1 < 0x7c00u ? slow_value(bits + 1, 5, 10) : 65536.0, x);
    if (bits < 0x7f7fu) rounds_between(emulate::float_to_bf16, bf16, slow_value(bits + 1, 8, 7), x);
  }
  EXPECT(emulate::float_to_half(1e30f) == 0x7c00 && emulate::float_to_half(-INFINITY) == 0xfc00);
  EXPECT(emulate::float_to_bf16(3.4e38f) == 0x7f80);
  EXPECT(emulate::dot4(0x80ff017f, 0x8002037f, 5) == 5 + 127 * 127 + 3 - 2 + 128 * 128);
  EXPECT(__byte_perm(0x33221100u, 0x77665584u, 0x7410u) == 0x77841100u);
  EXPECT(__byte_perm(0x33221180u, 0u, 0x8888u) == 0xffffffffu);
  EXPECT(__vsub4(0x00020304u, 0x01010105u) == 0xff0102ffu && __clz(1) == 31 && __ffs(8) == 4);
}

// A [16, 32] of bytes in rows, B [8, 32] in columns; the same bytes are A [16, 16] and B [8, 16] of
// bf16. Fragments as the PTX ISA gives them: of A through load_matrix4, of B by hand.
template <typename T, typename Multiply>
__device__ void multiply(const char* a, const char* b, T* out, Multiply mma) {
  unsigned char* shared = emulate::dynamic_shared();
  const int lane = threadIdx.x, group = lane / 4, part = lane % 4;
  emulate::async_copy16(shared + 16 * lane, a + 16 * lane);
  emulate::async_copy_commit();
  emulate::async_copy_wait<0>();
  __syncwarp();
  unsigned fragment[4], column[2];
  emulate::load_matrix4(fragment, shared + 32 * (lane % 16) + 16 * (lane / 16));
  memcpy(&column[0], b + 32 * group + 4 * part, 4);
  memcpy(&column[1], b + 32 * group + 4 * part + 16, 4);
  T d[4];
  for (int i = 0; i < 4; ++i) d[i] = static_cast<T>(i);
  mma(d, fragment, column);
  for (int i = 0; i < 4; ++i) out[8 * (group + 8 * (i / 2)) + 2 * part + i % 2] = d[i];
}

__global__ void multiply_bf16(const char* a, const char* b, float* out) {
  multiply(a, b, out, emulate::mma_bf16);
}

__global__ void multiply_s8(const char* a, const char* b, int* out) {
  multiply(a, b, out, emulate::mma_s8);
}

void products() {
  char *a = device<char>(512), *b = device<char>(256);
  auto* d = device<int>(128);
  auto* f = device<float>(128);
  for (int i = 0; i < 512; ++i) a[i] = static_cast<char>(i * 37 % 251 - 128);
  for (int i = 0; i < 256; ++i) b[i] = static_cast<char>(i * 53 % 253 - 127);
  LAUNCH(multiply_s8, 1, 32, 512, nullptr, a, b, d);
  EXPECT(taken() == cudaSuccess);
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 8; ++n) {
      int sum = m / 8 * 2 + n % 2;
      for (int k = 0; k < 32; ++k) sum += a[32 * m + k] * b[32 * n + k];
      EXPECT(d[8 * m + n] == sum);
    }
  auto *ha = reinterpret_cast<uint16_t*>(a), *hb = reinterpret_cast<uint16_t*>(b);
  for (int i = 0; i < 256; ++i)
    ha[i] = emulate::float_to_bf16(static_cast<float>(i * 37 % 61 - 30) / 8);
  for (int i = 0; i < 128; ++i)
    hb[i] = emulate::float_to_bf16(static_cast<float>(i * 53 % 59 - 29) / 4);
  LAUNCH(multiply_bf16, 1, 32, 512, nullptr, a, b, f);
  EXPECT(taken() == cudaSuccess);
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 8; ++n) {
      double sum = m / 8 * 2 + n % 2;
      for (int k = 0; k < 16; ++k)
        sum += static_cast<double>(emulate::bf16_to_float(ha[16 * m + k])) *
               emulate::bf16_to_float(hb[16 * n + k]);
      EXPECT(f[8 * m + n] == sum);
    }
}

// Shared memory is not what it was, and a copy is there only once it has been waited for.
__global__ void copies(const int4* from, int* seen) {
  int4* shared = reinterpret_cast<int4*>(emulate::dynamic_shared());
  seen[0] = shared[0].x;
  emulate::async_copy16(&shared[0], &from[0]);
  emulate::async_copy_commit();
  emulate::async_copy16(&shared[1], &from[1]);
  emulate::async_copy_commit();
  seen[1] = shared[0].x;
  emulate::async_copy_wait<1>();
  seen[2] = shared[0].x;
  seen[3] = shared[1].x;
  emulate::async_copy_wait<0>();
  seen[4] = shared[1].x;
}

__global__ void misaligned(const char* from) {
  emulate::async_copy16(emulate::dynamic_shared(), from + 8);
}

void shared_memory() {
  auto* from = device<int4>(2);
  int* seen = device<int>(5);
  from[0] = make_int4(7, 0, 0, 0);
  from[1] = make_int4(8, 0, 0, 0);
  LAUNCH(copies, 1, 1, 32, nullptr, from, seen);
  EXPECT(taken() == cudaSuccess);
  const int right[5] = {-1, -1, 7, -1, 8};
  for (int i = 0; i < 5; ++i) EXPECT(seen[i] == right[i]);
  LAUNCH(misaligned, 1, 32, 16, nullptr, reinterpret_cast<char*>(from));
  EXPECT(taken() == cudaErrorMisalignedAddress);
}

__global__ void write_shared(int at) {
  emulate::dynamic_shared()[at] = 1;
}

// Only AddressSanitizer sees it, and ends the process.
void overrun() {
  LAUNCH(write_shared, 1, 32, 40, nullptr, 39);
  EXPECT(taken() == cudaSuccess);
  LAUNCH(write_shared, 1, 32, 40, nullptr, 40);
}

__global__ void write_vector(char* to) {
  *reinterpret_cast<int4*>(to) = make_int4(1, 2, 3, 4);
}

// Only the sanitizer of alignment sees it.
void misaligned_vector() {
  char* memory = device<char>(64);
  LAUNCH(write_vector, 1, 1, 0, nullptr, memory + 16);
  EXPECT(taken() == cudaSuccess);
  LAUNCH(write_vector, 1, 1, 0, nullptr, memory + 8);
}

// Threads that wait for ever: what they wait for differs.
__global__ void stuck(int* x, int how) {
  const int t = threadIdx.x;
  if (how == 0 && t < 16) __syncwarp();
  if (how == 1) {
    if (t == 3) return;
    __ballot_sync(kAll, 1);
  }
  if (how == 2) {
    if (t < 32)
      __syncwarp(t < 16 ? kAll : 0xffff0000u);
    else
      __syncthreads();
  }
  if (how == 3) __syncwarp(kAll & ~1u);
  x[t] = how;
}

void deadlocks() {
  int* x = device<int>(64);
  for (int how = 0; how < 4; ++how) {
    LAUNCH(stuck, 2, 64, 0, nullptr, x, how);
    EXPECT(taken() == cudaErrorLaunchFailure);
    EXPECT(taken() == cudaSuccess);
    // What comes after it runs as ever.
    EXPECT(rotated(rotate<true>, 5));
  }
  LAUNCH(stuck, 1, 2048, 0, nullptr, x, 9);
  EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
  LAUNCH(stuck, 0, 32, 0, nullptr, x, 9);
  EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
  LAUNCH(stuck, 1, 32, 100 << 10, nullptr, x, 9);
  EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
  cudaFuncSetAttribute(stuck, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10);
  LAUNCH(stuck, 1, 32, 100 << 10, nullptr, x, 9);
  EXPECT(taken() == cudaSuccess && x[31] == 9);
}

__global__ void add(int* x, const int* by) {
  x[threadIdx.x] += *by;
}

void graphs() {
  cudaStream_t stream = nullptr;
  EXPECT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  int *x = device<int>(32), *by = device<int>(1), host = 2, result = 0;
  EXPECT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
  cudaMemsetAsync(x, 0, 128, stream);
  cudaMemcpyAsync(by, &host, 4, cudaMemcpyHostToDevice, stream);
  LAUNCH(add, 1, 32, 0, stream, x, by);
  LAUNCH(add, 1, 32, 0, stream, x, by);
  cudaMemcpyAsync(&result, x + 31, 4, cudaMemcpyDeviceToHost, stream);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(stream, &status);
  EXPECT(status == cudaStreamCaptureStatusActive);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  EXPECT(cudaStreamEndCapture(stream, &graph) == cudaSuccess && result == 0);
  EXPECT(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
  cudaGraphDestroy(graph);
  for (host = 2; host < 5; ++host) {
    EXPECT(cudaGraphLaunch(exec, stream) == cudaSuccess);
    EXPECT(cudaStreamSynchronize(stream) == cudaSuccess && result == 2 * host);
  }
  cudaGraphExecDestroy(exec);

  void* more = nullptr;
  for (int how = 0; how < 3; ++how) {
    EXPECT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    const cudaError_t error = how == 0   ? cudaMalloc(&more, 16)
                              : how == 1 ? cudaStreamSynchronize(stream)
                                         : cudaDeviceSynchronize();
    EXPECT(error == cudaErrorStreamCaptureUnsupported);
    EXPECT(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated && !graph);
    EXPECT(cudaGetLastError() != cudaSuccess);
  }
  EXPECT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) == cudaSuccess);
  EXPECT(cudaMalloc(&more, 16) == cudaSuccess);
  EXPECT(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  EXPECT(cudaGraphDestroy(graph) == cudaSuccess && cudaStreamDestroy(stream) == cudaSuccess);
}

// Run with a limit of 1 MiB and two devices.
void memory() {
  size_t free = 0, total = 0;
  char *a = nullptr, *b = nullptr;
  EXPECT(cudaMalloc(&a, 700 << 10) == cudaSuccess && reinterpret_cast<uintptr_t>(a) % 256 == 0);
  EXPECT(cudaMemGetInfo(&free, &total) == cudaSuccess && total == 1 << 20 && free == 324 << 10);
  EXPECT(cudaMalloc(&b, 700 << 10) == cudaErrorMemoryAllocation);
  EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation);
  int count = 0;
  EXPECT(cudaGetDeviceCount(&count) == cudaSuccess && count == 2);
  EXPECT(cudaSetDevice(1) == cudaSuccess && cudaMalloc(&b, 700 << 10) == cudaSuccess);
  EXPECT(cudaSetDevice(2) == cudaErrorInvalidDevice);
  EXPECT(static_cast<unsigned char>(a[5]) == 0xFF);
  memset(a, 3, 700 << 10);
  EXPECT(cudaMemcpyPeerAsync(b, 1, a, 0, 700 << 10) == cudaSuccess && b[(700 << 10) - 1] == 3);
  EXPECT(cudaMemcpy(b, a, (700 << 10) + 1, cudaMemcpyDefault) == cudaErrorInvalidValue);
  char on_host[4];
  EXPECT(cudaMemcpy(on_host, a, 4, cudaMemcpyDeviceToHost) == cudaSuccess && on_host[3] == 3);
  EXPECT(cudaMemcpy(on_host, a, 4, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  EXPECT(cudaFree(on_host) == cudaErrorInvalidValue);
  EXPECT(cudaFree(a) == cudaSuccess && cudaFree(a) == cudaErrorInvalidValue);
  EXPECT(cudaFree(b) == cudaSuccess && cudaFree(nullptr) == cudaSuccess);
}

struct Named {
  const char* name;
  void (*run)();
};

const Named kChecks[] = {
    {"barriers", barriers},   {"missing_barrier", missing_barrier},
    {"threads", threads},     {"shuffles", shuffles},
    {"numbers", numbers},     {"products", products},
    {"deadlocks", deadlocks}, {"shared_memory", shared_memory},
    {"overrun", overrun},     {"misaligned_vector", misaligned_vector},
    {"graphs", graphs},       {"memory", memory},
};

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  for (const Named& check : kChecks) {
    if (name != check.name) continue;
    check.run();
    return failures ? 1 : 0;
  }
  printf("no check is named '%s'\n", name.c_str());
  return 2;
}
