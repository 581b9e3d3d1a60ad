// In which order the started buckets of one plan run: ascending inside a step, steps one after the
// other. Pure.
#ifndef TFCOLLECTIVE_EXECUTOR_BUCKET_ORDER_H_
#define TFCOLLECTIVE_EXECUTOR_BUCKET_ORDER_H_

#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace tfc {

template <typename Run>
class BucketOrder {
 public:
  explicit BucketOrder(size_t num_buckets) : waiting_(num_buckets) {}

  // A bucket that is started again before its step is complete belongs to the next step.
  void Start(size_t bucket, Run run) { waiting_[bucket].push_back(std::move(run)); }

  // The run whose turn it is, if it has been started.
  std::optional<Run> Next() {
    auto& queue = waiting_[cursor_];
    if (queue.empty()) return std::nullopt;
    Run run = std::move(queue.front());
    queue.pop_front();
    cursor_ = (cursor_ + 1) % waiting_.size();
    return run;
  }

  // Everything that waits, in no particular order; nothing waits afterwards.
  std::vector<Run> TakeAll() {
    std::vector<Run> all;
    for (auto& queue : waiting_) {
      for (auto& run : queue) all.push_back(std::move(run));
      queue.clear();
    }
    return all;
  }

  // The buckets that have been started and wait.
  std::vector<const Run*> Waiting() const {
    std::vector<const Run*> all;
    for (const auto& queue : waiting_)
      for (const Run& run : queue) all.push_back(&run);
    return all;
  }

  // The bucket whose turn it is.
  size_t cursor() const { return cursor_; }
  size_t size() const { return waiting_.size(); }

 private:
  std::vector<std::deque<Run>> waiting_;
  size_t cursor_ = 0;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_EXECUTOR_BUCKET_ORDER_H_
