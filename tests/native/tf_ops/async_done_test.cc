#include "tf_ops/async_done.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace tfc_tf::ops {
namespace {

// As libstdc++ lays one out, whichever library this is compiled with: two words, what copies and ends them, what calls.
struct Given {
  struct Words {
    int* calls;
    int* held;
  };
  static bool Manage(Words& to, const Words& from, int task) {
    if (task == 2) to = from;
    *from.held += task == 2 ? 1 : -1;
    return false;
  }
  static void Call(const Words& words) { ++*words.calls; }

  Words words;
  bool (*manage)(Words& to, const Words& from, int task) = Manage;
  void (*call)(const Words& words) = Call;
};

TEST(AsyncDoneTest, CallsCopiesAndEndsByTheLayoutOfLibstdcxx) {
  int calls = 0;
  int held = 0;
  {
    Given given{{&calls, &held}};
    const AsyncDone done(reinterpret_cast<TF_AsyncOpKernelDoneCallback*>(&given));
    given.words = {nullptr, nullptr};
    EXPECT_EQ(held, 1);
    const AsyncDone copied(done);
    EXPECT_EQ(held, 2);
    done();
    copied();
    EXPECT_EQ(calls, 2);
  }
  EXPECT_EQ(held, 0);
}

#ifdef __GLIBCXX__  // TensorFlow's own; the std::function of another library looks different

AsyncDone CopyOf(std::function<void()>* function) {
  return AsyncDone(reinterpret_cast<TF_AsyncOpKernelDoneCallback*>(function));
}

TEST(AsyncDoneTest, OutlivesWhatItWasCopiedFrom) {
  int calls = 0;
  std::optional<std::function<void()>> given([&calls] { ++calls; });
  const AsyncDone done = CopyOf(&*given);
  given.reset();
  done();
  EXPECT_EQ(calls, 1);
}

TEST(AsyncDoneTest, HoldsWhatDoesNotFitInPlace) {
  const auto held = std::make_shared<int>(0);
  const std::array<int, 20> large{7};
  {
    std::optional<std::function<void()>> given([held, large] { *held += large[0]; });
    AsyncDone first = CopyOf(&*given);
    given.reset();
    EXPECT_EQ(held.use_count(), 2);
    const AsyncDone copied(first);
    EXPECT_EQ(held.use_count(), 3);
    AsyncDone moved(std::move(first));
    EXPECT_EQ(held.use_count(), 3);
    copied();
    moved();
    EXPECT_EQ(*held, 14);
    moved = copied;
    EXPECT_EQ(held.use_count(), 3);
    moved();
    EXPECT_EQ(*held, 21);
  }
  EXPECT_EQ(held.use_count(), 1);
}

#endif

}  // namespace
}  // namespace tfc_tf::ops
