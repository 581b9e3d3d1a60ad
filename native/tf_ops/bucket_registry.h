// The buckets that have been started and not been taken yet: what ties the two ops of a bucket.
#ifndef TFCOLLECTIVE_TF_OPS_BUCKET_REGISTRY_H_
#define TFCOLLECTIVE_TF_OPS_BUCKET_REGISTRY_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tf_ops/async_done.h"
#include "tf_ops/tensors.h"

namespace tfc_ops {

// A BucketDone kernel that waits for its bucket.
struct BucketWaiter {
  TF_OpKernelContext* context;
  AsyncDone done;
  int64_t since_ns = 0;  // when it began to wait; 0: it did not have to
};

// A bucket of a plan, in all steps.
using BucketKey = std::tuple<int32_t, std::string, int32_t>;  // process set id, plan, number

// One started bucket. The engine finishes it and a BucketDone kernel awaits it, in either order and
// from different threads; whoever comes second delivers the results.
class Bucket {
 public:
  Bucket(BucketKey key, std::vector<TensorPair> pairs) : key_(std::move(key)), pairs_(std::move(pairs)) {}

  const BucketKey& key() const { return key_; }

  // Once, from the engine. On an error the tensors are dropped at once.
  void Finish(OpError error);
  // Once. Never blocks: `waiter` is told now or by Finish.
  void Await(BucketWaiter waiter);
  bool finished() const;

 private:
  // Gives the results to the waiter and tells TensorFlow.
  void Deliver(const BucketWaiter& waiter);

  const BucketKey key_;
  mutable std::mutex mutex_;
  bool finished_ = false;
  OpError error_;
  std::vector<TensorPair> pairs_;
  std::optional<BucketWaiter> waiter_;
};

class BucketRegistry {
 public:
  // The one of this process: the start and the done op are different kernels and share nothing else.
  // Never destroyed, because the engine's thread may finish buckets while the process exits.
  static BucketRegistry& Get();

  // Returns the handle. Where a step fails between start and done, its buckets stay behind: only
  // the last kKept of a key are kept, and older ones are dropped as soon as they are finished.
  int64_t Add(const std::shared_ptr<Bucket>& bucket);
  // Empty if there is no such bucket (any more).
  std::shared_ptr<Bucket> Take(int64_t handle);
  size_t size() const;

  static constexpr size_t kKept = 2;

 private:
  mutable std::mutex mutex_;
  int64_t next_handle_ = 1;
  std::map<int64_t, std::shared_ptr<Bucket>> buckets_;  // by handle
  std::map<BucketKey, std::deque<int64_t>> handles_;    // oldest first
};

}  // namespace tfc_ops

#endif  // TFCOLLECTIVE_TF_OPS_BUCKET_REGISTRY_H_
