// Finds the CUDA driver and NCCL while the program runs.
#ifndef TFCOLLECTIVE_DEVICE_NCCL_LIBRARIES_H_
#define TFCOLLECTIVE_DEVICE_NCCL_LIBRARIES_H_

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/nccl/cuda_api.h"
#include "device/nccl/nccl_api.h"

namespace tfc {

// Where to look; who fills it in has read the environment.
struct DeviceOptions {
  std::string cuda_library;                  // empty: libcuda.so.1 of the loader's path
  std::string nccl_library;                  // the user's choice: this or none
  std::vector<std::string> nccl_candidates;  // files, tried after a loaded copy and before the loader's path
  bool share_gpus = false;                   // several ranks may use one GPU
  int max_ctas = 0;                          // 0: as many as NCCL takes
};

// The driver, initialised. UNIMPLEMENTED where there is none, DEVICE where it does not come up.
Result<std::shared_ptr<const CudaApi>> LoadCuda(const DeviceOptions& options);

// NCCL. UNIMPLEMENTED naming all that was tried where there is none, or where it is too old or incomplete;
// FAILED_PRECONDITION where the chosen one is not the version that is in use in this process already.
Result<std::shared_ptr<const NcclApi>> LoadNccl(const DeviceOptions& options);

}  // namespace tfc

#endif  // TFCOLLECTIVE_DEVICE_NCCL_LIBRARIES_H_
