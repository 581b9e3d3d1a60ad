// The destination of log messages. A value: copy it, keep it; the default one drops everything.
#ifndef TFCOLLECTIVE_BASE_LOG_H_
#define TFCOLLECTIVE_BASE_LOG_H_

#include <cstdint>
#include <string>
#include <utility>

namespace tfc {

// The numbers are those of the C header.
enum class LogLevel : int32_t { kDebug = 10, kInfo = 20, kWarning = 30, kError = 40 };

class Log {
 public:
  // May be called from any thread, several at once; `message` is valid during the call only.
  using Callback = void (*)(void* user, int32_t level, const char* message);

  Log() = default;
  // `user` must outlive every copy of the Log.
  Log(Callback callback, void* user) : callback_(callback), user_(user) {}

  // The same with `context` before each message.
  Log In(std::string context) const {
    Log log = *this;
    log.context_ = std::move(context);
    return log;
  }

  void Warning(const std::string& message) const { Write(LogLevel::kWarning, message); }
  void Error(const std::string& message) const { Write(LogLevel::kError, message); }

 private:
  void Write(LogLevel level, const std::string& message) const {
    if (callback_ != nullptr) callback_(user_, static_cast<int32_t>(level), (context_ + message).c_str());
  }

  Callback callback_ = nullptr;
  void* user_ = nullptr;
  std::string context_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_BASE_LOG_H_
