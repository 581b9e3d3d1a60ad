#include "tf_ops/bucket_registry.h"

#include <algorithm>
#include <utility>

#include "tf_ops/communicator.h"

namespace tfc_ops {
namespace {

OpError SetOutputs(TF_OpKernelContext* context, const std::vector<TensorPair>& pairs) {
  if (TF_NumOutputs(context) != static_cast<int>(pairs.size())) {
    return OpError::Invalid("the bucket was started with " + std::to_string(pairs.size()) + " tensors, but " +
                            std::to_string(TF_NumOutputs(context)) + " are asked for");
  }
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto index = static_cast<int>(i);
    TF_Tensor* tensor = pairs[i].output.get();
    if (TF_ExpectedOutputDataType(context, index) != TF_TensorType(tensor)) {
      return OpError::Invalid("the bucket was started with tensors of another type than is asked for");
    }
    const TfStatus status = NewTfStatus();
    TF_SetOutput(context, index, tensor, status.get());  // shares the buffer
    const OpError error = FromTfStatus(status);
    if (!error.ok()) return error;
  }
  return OpError();
}

}  // namespace

void Bucket::Finish(OpError error) {
  std::optional<BucketWaiter> waiter;
  std::vector<TensorPair> dropped;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    finished_ = true;
    error_ = std::move(error);
    if (!error_.ok()) dropped.swap(pairs_);
    for (TensorPair& pair : pairs_) pair.input.reset();
    waiter.swap(waiter_);
  }
  dropped.clear();
  if (waiter) Deliver(*waiter);
}

void Bucket::Await(BucketWaiter waiter) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!finished_) {
      waiter.since_ns = NowNanoseconds();
      waiter_ = std::move(waiter);
      return;
    }
  }
  Deliver(waiter);
}

bool Bucket::finished() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return finished_;
}

// Runs without the lock: the bucket is finished and has one waiter, so nobody else touches it any more.
void Bucket::Deliver(const BucketWaiter& waiter) {
  const auto& [process_set_id, plan, number] = key_;
  if (waiter.since_ns != 0) RecordWait(process_set_id, plan + "/bucket " + std::to_string(number), waiter.since_ns);
  const OpError error = error_.ok() ? SetOutputs(waiter.context, pairs_) : error_;
  pairs_.clear();
  if (!error.ok()) TF_OpKernelContext_Failure(waiter.context, ToTfStatus(error).get());
  waiter.done();
}

BucketRegistry& BucketRegistry::Get() {
  static BucketRegistry* const registry = new BucketRegistry();
  return *registry;
}

int64_t BucketRegistry::Add(const std::shared_ptr<Bucket>& bucket) {
  std::vector<std::shared_ptr<Bucket>> dropped;  // destroyed after the lock is gone
  const std::lock_guard<std::mutex> lock(mutex_);
  std::deque<int64_t>& handles = handles_[bucket->key()];
  while (handles.size() >= kKept && buckets_.at(handles.front())->finished()) {
    const auto oldest = buckets_.find(handles.front());
    dropped.push_back(std::move(oldest->second));
    buckets_.erase(oldest);
    handles.pop_front();
  }
  const int64_t handle = next_handle_++;
  buckets_.emplace(handle, bucket);
  handles.push_back(handle);
  return handle;
}

std::shared_ptr<Bucket> BucketRegistry::Take(int64_t handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = buckets_.find(handle);
  if (found == buckets_.end()) return nullptr;
  std::shared_ptr<Bucket> bucket = std::move(found->second);
  const auto handles = handles_.find(bucket->key());
  handles->second.erase(std::remove(handles->second.begin(), handles->second.end(), handle), handles->second.end());
  if (handles->second.empty()) handles_.erase(handles);
  buckets_.erase(found);
  return bucket;
}

size_t BucketRegistry::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return buckets_.size();
}

}  // namespace tfc_ops
