// Connects the two ops of a bucket, which are different kernels and share nothing else: the library finishes a bucket
// that one op has started, and the other op awaits it.
#ifndef TFCOLLECTIVE_TF_COMMON_BUCKETS_H_
#define TFCOLLECTIVE_TF_COMMON_BUCKETS_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace tfc_tf {

// A bucket of a plan, in all steps.
using BucketKey = std::tuple<int32_t, std::string, int32_t>;  // process set id, plan, number

// An operation's end and the kernel that waits for it, in either order and from different threads. What both sides did
// before is seen by the second one, which gets the waiter and delivers the results.
template <typename Waiter>
class Rendezvous {
 public:
  // Once.
  std::optional<Waiter> Finish() {
    const tfc::MutexLock lock(mutex_);
    finished_ = true;
    return std::exchange(waiter_, std::nullopt);
  }
  // Once. Never blocks.
  std::optional<Waiter> Await(Waiter waiter) {
    const tfc::MutexLock lock(mutex_);
    if (finished_) return waiter;
    waiter_ = std::move(waiter);
    return std::nullopt;
  }
  bool finished() const {
    const tfc::MutexLock lock(mutex_);
    return finished_;
  }

 private:
  mutable tfc::Mutex mutex_;
  bool finished_ TFC_GUARDED_BY(mutex_) = false;
  std::optional<Waiter> waiter_ TFC_GUARDED_BY(mutex_);
};

// The buckets that have been started and not been taken yet. A Bucket has finished().
template <typename Bucket>
class BucketRegistry {
 public:
  explicit BucketRegistry(int64_t first_handle) : next_handle_(first_handle) {}

  // Returns the handle. Where a step fails between start and done, its buckets stay behind: only the last kKept of a
  // key are kept, and `abandoned` gets older ones that are finished.
  int64_t Add(BucketKey key, std::shared_ptr<Bucket> bucket, std::vector<std::shared_ptr<Bucket>>* abandoned) {
    const tfc::MutexLock lock(mutex_);
    std::deque<int64_t>& handles = handles_[key];
    while (handles.size() >= kKept && started_.at(handles.front()).bucket->finished()) {
      const auto oldest = started_.find(handles.front());
      abandoned->push_back(std::move(oldest->second.bucket));
      started_.erase(oldest);
      handles.pop_front();
    }
    const int64_t handle = next_handle_++;
    started_.emplace(handle, Started{std::move(key), std::move(bucket)});
    handles.push_back(handle);
    return handle;
  }

  // Empty if there is no such bucket (any more).
  std::shared_ptr<Bucket> Take(int64_t handle) {
    const tfc::MutexLock lock(mutex_);
    const auto found = started_.find(handle);
    if (found == started_.end()) return nullptr;
    std::shared_ptr<Bucket> bucket = std::move(found->second.bucket);
    const auto handles = handles_.find(found->second.key);
    handles->second.erase(std::remove(handles->second.begin(), handles->second.end(), handle), handles->second.end());
    if (handles->second.empty()) handles_.erase(handles);
    started_.erase(found);
    return bucket;
  }

  // The reason why Take has found nothing; `where` follows the handle in the text.
  static std::string NotStarted(int64_t handle, const std::string& where) {
    return "there is no started bucket with the handle " + std::to_string(handle) + where +
           ": each start has one done, on the same device, before its bucket is started " + std::to_string(kKept) +
           " times more";
  }

 private:
  static constexpr size_t kKept = 2;

  struct Started {
    BucketKey key;
    std::shared_ptr<Bucket> bucket;
  };

  tfc::Mutex mutex_;
  int64_t next_handle_ TFC_GUARDED_BY(mutex_);
  std::map<int64_t, Started> started_ TFC_GUARDED_BY(mutex_);                // by handle
  std::map<BucketKey, std::deque<int64_t>> handles_ TFC_GUARDED_BY(mutex_);  // oldest first
};

}  // namespace tfc_tf

#endif  // TFCOLLECTIVE_TF_COMMON_BUCKETS_H_
