// The buckets on a GPU that have been started and not been taken yet: what ties the two ops of a bucket.
#ifndef TFCOLLECTIVE_TF_GPU_BUCKETS_H_
#define TFCOLLECTIVE_TF_GPU_BUCKETS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "tf_gpu/operation.h"

namespace tfc_gpu {

// A bucket of a plan, in all steps.
using BucketKey = std::tuple<int32_t, std::string, int32_t>;  // process set id, plan, number

class Buckets {
 public:
  // The one of this process: the two ops are different kernels and share nothing else. Never destroyed, because
  // threads of the library may finish buckets while the process exits.
  static Buckets& Get();

  // Returns the handle. Where a step fails between start and done, its buckets stay behind: only the last kKept of a
  // key are kept; the memory of older ones that are launched may be used by what `stream` is given from now on.
  int64_t Add(const BucketKey& key, const std::shared_ptr<Operation>& operation, void* stream);
  // Empty if there is no such bucket (any more).
  std::shared_ptr<Operation> Take(int64_t handle);

  static constexpr size_t kKept = 2;
  // The processor's kernels count their buckets from 1: a handle tells on which device a bucket was started.
  static constexpr int64_t kFirstHandle = int64_t{1} << 62;

 private:
  struct Started {
    BucketKey key;
    std::shared_ptr<Operation> operation;
  };

  std::mutex mutex_;
  int64_t next_handle_ = kFirstHandle;
  std::map<int64_t, Started> started_;                // by handle
  std::map<BucketKey, std::deque<int64_t>> handles_;  // oldest first
};

}  // namespace tfc_gpu

#endif  // TFCOLLECTIVE_TF_GPU_BUCKETS_H_
