// Stand-ins for the CUDA driver and for NCCL: the functions that tfcollective uses, on host memory, for machines
// without a GPU. Streams are threads, so what is ordered wrongly goes wrong here, too.
//
// Settings are whole numbers with names. They are read from the environment variable TFC_STANDIN ("name=value,...")
// and can be changed while a test runs. CUDA's: devices (4), memory (bytes of each GPU, 2^30), multiprocessors (132;
// set to something, it bounds the blocks of NCCL that run on a rank's GPU at the same time), peers (1), fail:<symbol>
// (the call with that number, counted from 1, fails), fail_with (what it gives, 700), hang:<symbol> (1: calls do not
// return as long as it is set) and host_is_gpu (1: all memory of the host is GPU 0's, and the default stream is the
// calling thread itself). NCCL's: version (22703), fail:<symbol>, hang:<symbol>, lazy (1: the first operation settles
// when all ranks have given theirs), nccl_fail_with (2), async_error (what ncclCommGetAsyncError says; 0), busy (how
// often it says "in progress" first; 1), delay_us (of each operation), no_sharing (1: refuses).
#ifndef TFCOLLECTIVE_TESTS_NATIVE_NCCL_STANDIN_STANDIN_H_
#define TFCOLLECTIVE_TESTS_NATIVE_NCCL_STANDIN_STANDIN_H_

#include "device/nccl/cuda_api.h"

#define STANDIN_EXPORT extern "C" __attribute__((visibility("default")))

// What a setting is; `otherwise` if nothing has set it.
STANDIN_EXPORT long standin_get(const char* name, long otherwise);
STANDIN_EXPORT void standin_set(const char* name, long value);
// Forgets what standin_set has set, and all counts of calls.
STANDIN_EXPORT void standin_reset();
// Counts a call of `symbol`; true if it is to fail.
STANDIN_EXPORT int standin_fails(const char* symbol);
// Returns when calls of `symbol` are not to hang any more.
STANDIN_EXPORT void standin_hangs(const char* symbol);
// How often `symbol` was called since the last reset.
STANDIN_EXPORT long standin_calls(const char* symbol);
// Returns when the stream has done what it was given.
STANDIN_EXPORT void standin_synchronize(tfc::CUstream stream);
// Returns when the default stream of the GPU whose memory this is has done what it was given.
STANDIN_EXPORT void standin_synchronize_memory(void* memory);
// Runs function(user) in the order of the stream.
STANDIN_EXPORT tfc::CUresult cuLaunchHostFunc(tfc::CUstream stream, void (*function)(void*), void* user);
STANDIN_EXPORT tfc::CUresult cuStreamCreateWithPriority(tfc::CUstream* stream, unsigned flags, int priority);
STANDIN_EXPORT tfc::CUresult cuMemcpyDtoDAsync_v2(tfc::CUdeviceptr to, tfc::CUdeviceptr from, size_t bytes,
                                                  tfc::CUstream stream);
// Memory of GPU `ordinal`.
STANDIN_EXPORT void* standin_allocate(int ordinal, size_t bytes);
STANDIN_EXPORT void standin_free(void* memory);

#endif  // TFCOLLECTIVE_TESTS_NATIVE_NCCL_STANDIN_STANDIN_H_
