#include "executor/fiber.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace tfc {
namespace {

// The algorithms keep small locals only. Callbacks do not run here: see Scheduler::CallOutside.
constexpr size_t kStackBytes = 512 * 1024;

}  // namespace

struct Fiber::Impl {
  std::function<void()> body;
  std::byte* mapping = nullptr;
  size_t mapping_size = 0;
  size_t guard_size = 0;
  ucontext_t own{};
  ucontext_t caller{};
  bool finished = false;

#if defined(__SANITIZE_ADDRESS__)
  void* own_fake_stack = nullptr;
  void* caller_fake_stack = nullptr;
  const void* caller_stack = nullptr;
  size_t caller_stack_size = 0;
#endif
#if defined(__SANITIZE_THREAD__)
  void* own_tsan = nullptr;
  void* caller_tsan = nullptr;
#endif

  std::byte* stack() const { return mapping + guard_size; }
  size_t stack_size() const { return mapping_size - guard_size; }

  ~Impl() {
#if defined(__SANITIZE_THREAD__)
    if (own_tsan != nullptr) __tsan_destroy_fiber(own_tsan);
#endif
    if (mapping != nullptr) ::munmap(mapping, mapping_size);
  }

  void Enter() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&caller_fake_stack, stack(), stack_size());
#endif
#if defined(__SANITIZE_THREAD__)
    caller_tsan = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(own_tsan, 0);
#endif
    ::swapcontext(&caller, &own);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(caller_fake_stack, nullptr, nullptr);
#endif
  }

  void Leave() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(finished ? nullptr : &own_fake_stack, caller_stack, caller_stack_size);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(caller_tsan, 0);
#endif
    ::swapcontext(&own, &caller);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(own_fake_stack, &caller_stack, &caller_stack_size);
#endif
  }

  void Run() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &caller_stack, &caller_stack_size);
#endif
    body();
    finished = true;
    Leave();
  }

  // makecontext passes ints only, so the pointer travels in two halves.
  static void Trampoline(unsigned high, unsigned low) {
    const uintptr_t address = (static_cast<uintptr_t>(high) << 32) | low;
    reinterpret_cast<Impl*>(address)->Run();
  }
};

Fiber::Fiber(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Fiber::~Fiber() = default;

Result<std::unique_ptr<Fiber>> Fiber::Create(std::function<void()> body) {
  auto impl = std::make_unique<Impl>();
  impl->body = std::move(body);
  impl->guard_size = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  impl->mapping_size = kStackBytes + impl->guard_size;
  void* mapping =
      ::mmap(nullptr, impl->mapping_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (mapping == MAP_FAILED) return Status::FromErrno("mmap of a fiber's stack", errno);
  impl->mapping = static_cast<std::byte*>(mapping);
  if (::mprotect(impl->mapping, impl->guard_size, PROT_NONE) != 0)
    return Status::FromErrno("mprotect of a fiber's stack", errno);
  ::getcontext(&impl->own);
  impl->own.uc_stack.ss_sp = impl->stack();
  impl->own.uc_stack.ss_size = impl->stack_size();
  impl->own.uc_link = nullptr;  // the body never returns from Run: it leaves
  const auto address = reinterpret_cast<uintptr_t>(impl.get());
  ::makecontext(&impl->own, reinterpret_cast<void (*)()>(&Impl::Trampoline), 2, static_cast<unsigned>(address >> 32),
                static_cast<unsigned>(address & 0xffffffffu));
#if defined(__SANITIZE_THREAD__)
  impl->own_tsan = __tsan_create_fiber(0);
#endif
  return std::unique_ptr<Fiber>(new Fiber(std::move(impl)));
}

void Fiber::Resume() { impl_->Enter(); }
void Fiber::Yield() { impl_->Leave(); }
bool Fiber::finished() const { return impl_->finished; }

}  // namespace tfc
