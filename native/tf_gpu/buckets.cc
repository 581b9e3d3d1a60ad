#include "tf_gpu/buckets.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tfc_gpu {

Buckets& Buckets::Get() {
  static Buckets* const buckets = new Buckets();
  return *buckets;
}

int64_t Buckets::Add(const BucketKey& key, const std::shared_ptr<Operation>& operation, void* stream) {
  std::vector<std::shared_ptr<Operation>> abandoned;
  int64_t handle = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::deque<int64_t>& handles = handles_[key];
    while (handles.size() >= kKept && started_.at(handles.front()).operation->launched()) {
      const auto oldest = started_.find(handles.front());
      abandoned.push_back(std::move(oldest->second.operation));
      started_.erase(oldest);
      handles.pop_front();
    }
    handle = next_handle_++;
    started_.emplace(handle, Started{key, operation});
    handles.push_back(handle);
  }
  for (const auto& one : abandoned) one->Abandon(stream);
  return handle;
}

std::shared_ptr<Operation> Buckets::Take(int64_t handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = started_.find(handle);
  if (found == started_.end()) return nullptr;
  std::shared_ptr<Operation> operation = std::move(found->second.operation);
  const auto handles = handles_.find(found->second.key);
  handles->second.erase(std::remove(handles->second.begin(), handles->second.end(), handle), handles->second.end());
  if (handles->second.empty()) handles_.erase(handles);
  started_.erase(found);
  return operation;
}

}  // namespace tfc_gpu
