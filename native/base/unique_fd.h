// Owns a file descriptor.
#ifndef TFCOLLECTIVE_BASE_UNIQUE_FD_H_
#define TFCOLLECTIVE_BASE_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

#include "base/fork_guard.h"

namespace tfc {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { Reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() {
    KeepInForks(fd_);
    return std::exchange(fd_, -1);
  }
  void Reset() {
    if (fd_ < 0) return;
    KeepInForks(fd_);
    ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_BASE_UNIQUE_FD_H_
